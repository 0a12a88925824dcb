"""Datasets of papers by the names that they go by there: mathematics, gsm8k, rjokes, multirc and others."""

from functools import cache

from numerate.tasks.jokes import Jokes
from numerate.tasks.mathematics import Mathematics, arithmetic
from numerate.tasks.multiplication import Multiplication
from numerate.tasks.reading import Reading
from numerate.tasks.task import Task
from numerate.tasks.word_problems import WordProblems


@cache
def presets() -> dict[str, Task]:
    """Every name with its task. The further tests of word problems train on GSM8K, and are tested alone.

    >>> presets()["svamp"]
    WordProblems(answer_format='solution', extra_tests=('svamp',), data_dir=None, test=2, ...)
    """
    return {
        "mathematics": Mathematics(),
        "mathematics_arithmetic": arithmetic(),
        "gsm8k": WordProblems(),
        "svamp": WordProblems(extra_tests=("svamp",), test=2),
        "gsm_hard": WordProblems(extra_tests=("gsm_hard",), test=2),
        "gsm_plus": WordProblems(extra_tests=("gsm_plus",), test=2),
        "rjokes": Jokes(),
        "multirc": Reading(),
        "multiplication": Multiplication(),
    }
