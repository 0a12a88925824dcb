"""Tasks: questions with answers, before tokenization. Nothing here imports torch."""

from numerate.catalogue import lazy_getattr

CATALOGUE = {
    "Task": {
        "AdditionTable": "number_line",
        "Arithmetic": "arithmetic",
        "BitwiseOr": "bitwise",
        "Counting": "counting",
        "RJokes": "text.tasks.rjokes",
        "LanguageModeling": "language_modeling",
        "Mathematics": "text.tasks.mathematics",
        "GeneratedMathematics": "text.tasks.generated_mathematics",
        "Mixture": "mixture",
        "Multiplication": "multiplication",
        "NumberLine": "number_line",
        "QuestionFiles": "text.tasks.question_files",
        "RaspCounting": "rasp",
        "MultiRC": "text.tasks.multirc",
        "SelectiveCounting": "selective",
        "Sorting": "sorting",
        "GSM8K": "text.tasks.gsm8k",
        "ExampleFile": "text.tasks.example_file",
    }
}
PRESETS = {"Task": ("published.datasets", "text.tasks.corpus_presets", "published.counting_names")}
__getattr__ = lazy_getattr("tasks", CATALOGUE)
