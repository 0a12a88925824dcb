"""One loop for every run, and the folder it leaves."""

from numerate.catalogue import lazily

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
__getattr__ = lazily("training", CATALOGUE)
