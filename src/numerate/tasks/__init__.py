"""Questions with answers: what a model is asked, before anybody spells it. Nothing here imports torch."""

from numerate.catalogue import lazily

CATALOGUE = {
    "Task": {
        "AdditionTable": "number_line",
        "Arithmetic": "arithmetic",
        "BitwiseOr": "bitwise",
        "Counting": "counting",
        "Jokes": "jokes",
        "LanguageModelling": "language_modelling",
        "Mathematics": "mathematics",
        "MathematicsStandIn": "mathematics_stand_in",
        "Mixture": "mixture",
        "Multiplication": "multiplication",
        "NumberLine": "number_line",
        "QuestionFiles": "question_files",
        "RaspCounting": "rasp",
        "Reading": "reading",
        "SelectiveCounting": "selective",
        "Sorting": "sorting",
        "WordProblems": "word_problems",
        "Written": "written",
    }
}
PRESETS = {"Task": ("datasets_by_name", "corpora_by_name", "counting_names")}
__getattr__ = lazily("tasks", CATALOGUE)
