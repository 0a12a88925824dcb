"""Questions with answers: what a model is asked, before anybody spells it. Nothing here imports torch."""

from numerate.catalogue import lazily

CATALOGUE = {
    "Task": {
        "AdditionTable": "number_line",
        "Arithmetic": "arithmetic",
        "BitwiseOr": "bitwise",
        "Counting": "counting",
        "Mixture": "mixture",
        "NumberLine": "number_line",
        "RaspCounting": "rasp",
        "SelectiveCounting": "selective",
        "Sorting": "sorting",
        "Written": "written",
    }
}
PRESETS = {"Task": "counting_names"}
__getattr__ = lazily("tasks", CATALOGUE)
