"""Common to `train` and `run`: a recipe or study, overrides, and the folder of runs."""

import argparse
from dataclasses import dataclass, replace
from typing import Any

from numerate.commands.executing import executor_of
from numerate.commands.words import first, options, truth
from numerate.config import expand, override
from numerate.errors import UserError
from numerate.executors.executor import Executor
from numerate.experiments.train import debug
from numerate.studies.naming import named
from numerate.studies.study import Study
from numerate.training.recipe import Recipe


@dataclass(frozen=True)
class Wanted:
    """A recipe or study, its overrides, and the options of the command."""

    name: str
    found: Any
    overrides: list[str]
    runs_dir: str | None
    preset: str | None
    executor: Executor | None = None
    retry: bool = False

    @classmethod
    def of(cls, given: argparse.Namespace, example: str) -> "Wanted":
        name = first(given.words, "the recipe", example)
        words, executor = given.words[1:], None
        own_words: dict[str, Any] = {"runs_dir": str, "preset": str}
        if given.command == "run":
            words, executor = executor_of(words)
            own_words["retry"] = truth
        overrides, own = options(words, own_words)
        preset = own.get("preset")
        if preset not in (None, "debug"):
            raise UserError(f"preset: there is no {preset!r}; there is: debug")
        return cls(name, named(name), overrides, own.get("runs_dir"), preset, executor, own.get("retry", False))

    def recipes(self) -> list[Recipe]:
        """The recipe with every combination of its overrides. Raises `UserError` for a study."""
        if not isinstance(self.found, Recipe):
            if not isinstance(self.found, Study):
                what = type(self.found).__name__
                raise UserError(f"{self.name}: is {what}; a Recipe, a Study, or a function that returns one is right")
            hint = f"`numerate run {self.name}` trains, evaluates and reports it"
            raise UserError(f"{self.name} is a study of several recipes; {hint}")
        recipe = debug(self.found) if self.preset == "debug" else self.found
        return [override(recipe, choice) for choice in expand(self.overrides)]

    def study(self) -> Study:
        """The study, or the recipe's sweep as one."""
        if isinstance(self.found, Study):
            study = self.found
            if self.preset == "debug":
                small = tuple(debug(recipe) for recipe in study.recipes)
                labels = {f"{title}-debug": label for title, label in study.labels.items()}
                study = replace(study, recipes=small, title=f"{study.title}-debug", labels=labels)
            return study.crossed(self.overrides)
        recipes = tuple(self.recipes())
        return Study(
            recipes[0].title, f"A sweep of {self.name}." if len(recipes) > 1 else f"One run of {self.name}.", recipes
        )
