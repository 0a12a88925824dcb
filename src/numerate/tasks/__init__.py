"""Questions with answers: what a model is asked, before anybody spells it. Nothing here imports torch."""

from numerate.catalogue import lazily

CATALOGUE = {
    "Task": {
        "Arithmetic": "arithmetic",
        "BitwiseOr": "bitwise",
        "Mixture": "mixture",
        "Sorting": "sorting",
        "Written": "written",
    }
}
__getattr__ = lazily("tasks", CATALOGUE)
