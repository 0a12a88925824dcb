"""Many runs with one question behind them."""

from numerate.catalogue import lazily

CATALOGUE = {
    "Study": {
        "quickstart": "newcomer",
        "abacus_laptop": "abacus",
        "counting_laptop": "counting",
        "counting_universal": "counting",
    }
}
__getattr__ = lazily("studies", CATALOGUE)
