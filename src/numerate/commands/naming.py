"""The data that a command names: a task, a recipe, a file or folder of rows, or a folder of tokens."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numerate import catalogue
from numerate.config import add_packaged_part, override, setting
from numerate.errors import UserError, did_you_mean
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.task import Task
from numerate.tokenizers.tokenizer import Characters, Tokenizer
from numerate.tokenizers.words import Words


@dataclass(frozen=True)
class TaskWithTokenizer:
    """A task and its tokenizer, as set by `task.digits=1:5 tokenizer.number_format.digit_order=normal`."""

    task: Task = setting(Arithmetic(), "the task that generates questions with answers")
    tokenizer: Tokenizer = setting(Characters(), "turns text into token ids")


@dataclass(frozen=True)
class NamedData:
    """A task and its tokenizer by the name of both, with the recipe or None; `is_file` for a file of rows."""

    name: str
    task: Task
    tokenizer: Tokenizer
    recipe: Any = None
    is_file: bool = False

    @property
    def seed(self) -> int:
        return 0 if self.recipe is None else int(self.recipe.seed)


def load_data(name: str, settings: Sequence[str], file_split: str | None = None) -> NamedData:
    """The data of a name, with settings of its task (`task.digits` or `digits`) and tokenizer; `file_split` is the
    split of a file.

    Raises `UserError` for a name that is none of these, with the most similar one.
    """
    plain = name.replace("-", "_")
    add_packaged_part(plain)
    kinds = catalogue.parts_by_kind()
    path = Path(name).expanduser()
    if plain != "ExampleFile" and (plain in kinds["Task"] or plain in catalogue.presets("Task")):
        return _with_settings(name, catalogue.get_part("Task", plain), settings)
    if catalogue.is_recipe(name):
        from numerate.recipes.naming import load_recipe

        recipe = override(load_recipe(name), settings)
        return NamedData(name, recipe.task, recipe.tokenizer, recipe)
    if _has_tokens(path):
        from numerate.tasks.language_modeling import LanguageModeling

        return _with_settings(name, LanguageModeling(train=name), settings)
    if path.exists() or "/" in name or name.endswith((".txt", ".arrow")) or plain == "ExampleFile":
        from numerate.text.tasks.example_file import ExampleFile

        file = ExampleFile() if plain == "ExampleFile" else ExampleFile(path=name)
        split_setting = [] if file_split is None else [f"task.split={file_split}"]
        return _with_settings(name, file, [*settings, *split_setting])
    known = [*kinds["Task"], *kinds["Recipe"], *catalogue.presets("Task"), *catalogue.family_names("Recipe")]
    raise UserError(
        f"no task, recipe, file or folder is named {name!r}; `numerate list` shows all tasks and recipes."
        f"{did_you_mean(name, known)}"
    )


def _with_settings(name: str, task: Task, settings: Sequence[str]) -> NamedData:
    """A task with its settings, and a tokenizer with its own: words where a symbol has several characters and there are
    no numbers."""
    tokenizer_settings = [word for word in settings if re.match(r"tokenizer[.=]", word)]
    task_settings = [
        word if re.match(r"task[.=]", word) else f"task.{word}" for word in settings if word not in tokenizer_settings
    ]
    task = override(TaskWithTokenizer(task), task_settings).task
    has_words = not task.is_language_modeling and any(len(text) > 1 for text in task.alphabet())
    has_words = has_words and not task.examples("train", 0, 0, 1).numbers.lengths.shape[1]
    found = override(TaskWithTokenizer(task, Words() if has_words else Characters()), tokenizer_settings)
    return NamedData(name, found.task, found.tokenizer, is_file=type(found.task).__name__ == "ExampleFile")


def _has_tokens(path: Path) -> bool:
    from numerate.tasks.corpus_files import CORPUS_FILE

    if path.is_dir():
        return (path / CORPUS_FILE).is_file() or (any(path.glob("*.bin")) and not (path / "head.json").is_file())
    return path.suffix == ".bin" and not (path.parent / "head.json").is_file()
