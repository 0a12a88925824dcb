"""Tasks: questions with answers, before tokenization. Nothing here imports torch."""

from numerate.catalogue import lazily

CATALOGUE = {
    "Task": {
        "AdditionTable": "number_line",
        "Arithmetic": "arithmetic",
        "BitwiseOr": "bitwise",
        "Counting": "counting",
        "RJokes": "rjokes",
        "LanguageModeling": "language_modeling",
        "Mathematics": "mathematics",
        "GeneratedMathematics": "generated_mathematics",
        "Mixture": "mixture",
        "Multiplication": "multiplication",
        "NumberLine": "number_line",
        "QuestionFiles": "question_files",
        "RaspCounting": "rasp",
        "MultiRC": "multirc",
        "SelectiveCounting": "selective",
        "Sorting": "sorting",
        "GSM8K": "gsm8k",
        "ExampleFile": "example_file",
    }
}
PRESETS = {"Task": ("datasets_by_name", "corpora_by_name", "counting_names")}
__getattr__ = lazily("tasks", CATALOGUE)
