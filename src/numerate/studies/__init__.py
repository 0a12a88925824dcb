"""Studies: sets of runs that answer one question."""

from numerate.catalogue import lazy_getattr

CATALOGUE = {
    "Study": {
        "quickstart": "newcomer",
        "abacus_laptop": "abacus",
        "counting_laptop": "counting",
        "counting_universal": "counting",
        "number_loss_laptop": "number_loss",
        "number_loss_laptop_stand_in": "number_loss",
        "number_loss_lambda": "number_loss",
        "tiny_stories_laptop": "tiny_stories",
    }
}
__getattr__ = lazy_getattr("studies", CATALOGUE)
