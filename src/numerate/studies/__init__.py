"""Studies: sets of runs that answer one question."""

from numerate.catalogue import lazy_getattr

_STUDIES = (
    "quickstart",
    "abacus_laptop",
    "counting_laptop",
    "counting_universal",
    "number_loss_laptop",
    "number_loss_laptop_stand_in",
    "number_loss_lambda",
    "tiny_stories_laptop",
)
CATALOGUE = {"Study": dict.fromkeys(_STUDIES, "definitions")}
__getattr__ = lazy_getattr("studies", CATALOGUE)
