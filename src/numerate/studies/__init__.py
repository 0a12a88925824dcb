"""Many runs with one question behind them."""

from numerate.catalogue import lazily

CATALOGUE = {"Study": {"quickstart": "newcomer", "abacus_laptop": "abacus"}}
__getattr__ = lazily("studies", CATALOGUE)
