"""Datasets of papers by the names that they go by there: mathematics, gsm8k, rjokes, multirc and others."""

from functools import cache

from numerate.tasks.multiplication import Multiplication
from numerate.tasks.task import Task
from numerate.text.tasks.gsm8k import GSM8K
from numerate.text.tasks.mathematics import Mathematics, arithmetic_ablation
from numerate.text.tasks.multirc import MultiRC
from numerate.text.tasks.rjokes import RJokes


@cache
def presets() -> dict[str, Task]:
    """Every name with its task. The further tests of word problems train on GSM8K, and are tested alone.

    >>> task = presets()["svamp"]
    >>> type(task).__name__, task.answer_format, task.extra_tests
    ('GSM8K', 'solution', ('svamp',))
    """
    return {
        "mathematics": Mathematics(),
        "mathematics_arithmetic": arithmetic_ablation(),
        "gsm8k": GSM8K(),
        "svamp": GSM8K(extra_tests=("svamp",), test=2),
        "gsm_hard": GSM8K(extra_tests=("gsm_hard",), test=2),
        "gsm_plus": GSM8K(extra_tests=("gsm_plus",), test=2),
        "rjokes": RJokes(),
        "multirc": MultiRC(),
        "multiplication": Multiplication(),
    }
