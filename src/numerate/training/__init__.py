"""One loop for every run, and the folder it leaves."""

from numerate.catalogue import lazy_getattr

CATALOGUE = {
    "Objective": {"Progressive": "objective", "Supervised": "objective"},
    "Optimizer": {"AdamW": "optimizer"},
    "Schedule": {
        "Constant": "schedule",
        "Linear": "schedule",
        "Cosine": "schedule",
        "WarmupStableDecay": "schedule",
        "OneCycle": "schedule",
        "Plateau": "schedule",
    },
}
__getattr__ = lazy_getattr("training", CATALOGUE)
