"""Tasks: questions with answers, before tokenization. Nothing here imports torch."""

from numerate.catalogue import lazily

CATALOGUE = {
    "Task": {
        "AdditionTable": "number_line",
        "Arithmetic": "arithmetic",
        "BitwiseOr": "bitwise",
        "Counting": "counting",
        "RJokes": "jokes",
        "LanguageModeling": "language_modelling",
        "Mathematics": "mathematics",
        "GeneratedMathematics": "mathematics_stand_in",
        "Mixture": "mixture",
        "Multiplication": "multiplication",
        "NumberLine": "number_line",
        "QuestionFiles": "question_files",
        "RaspCounting": "rasp",
        "MultiRC": "reading",
        "SelectiveCounting": "selective",
        "Sorting": "sorting",
        "GSM8K": "word_problems",
        "ExampleFile": "written",
    }
}
PRESETS = {"Task": ("datasets_by_name", "corpora_by_name", "counting_names")}
__getattr__ = lazily("tasks", CATALOGUE)
