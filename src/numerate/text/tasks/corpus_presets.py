"""Language modeling corpora by the names that `numerate data prepare` gives them."""

from functools import cache

from numerate.tasks.language_modeling import LanguageModeling
from numerate.tasks.task import Task


@cache
def presets() -> dict[str, Task]:
    """Every name with its task: the official shards, and a few megabytes of stories with a vocabulary of 2,048.

    >>> presets()["tiny_stories_2048"].context_length
    512
    """
    return {
        "tiny_stories": LanguageModeling("tiny_stories/tokens", tokenizer="tiny_stories"),
        "tiny_stories_2048": LanguageModeling(
            "tiny_stories_2048/train", "tiny_stories_2048/validation", "tiny_stories_2048"
        ),
    }
