"""Common to `train` and `run`: a recipe or study, overrides, and the folder of runs."""

import argparse
from dataclasses import dataclass, replace
from typing import Any

from numerate.commands.arguments import parse_executor
from numerate.commands.words import parse_bool, parse_options, require_word
from numerate.config import expand_sweep, override
from numerate.errors import UserError
from numerate.executors.executor import Executor
from numerate.experiments.train import debug
from numerate.studies.naming import load_recipe_or_study
from numerate.studies.study import Study
from numerate.training.recipe import Recipe


@dataclass(frozen=True)
class RecipeRequest:
    """A recipe or study, its overrides, and the options of the command."""

    name: str
    recipe_or_study: Any
    overrides: list[str]
    runs_dir: str | None
    preset: str | None
    executor: Executor | None = None
    retry: bool = False

    @classmethod
    def from_args(cls, args: argparse.Namespace, example: str) -> "RecipeRequest":
        name = require_word(args.words, "the recipe", example)
        words, executor = args.words[1:], None
        parsers: dict[str, Any] = {"runs_dir": str, "preset": str}
        if args.command == "run":
            words, executor = parse_executor(words)
            parsers["retry"] = parse_bool
        overrides, option_values = parse_options(words, parsers)
        preset = option_values.get("preset")
        if preset not in (None, "debug"):
            raise UserError(f"preset: there is no {preset!r}; there is: debug")
        return cls(
            name,
            load_recipe_or_study(name),
            overrides,
            option_values.get("runs_dir"),
            preset,
            executor,
            option_values.get("retry", False),
        )

    def recipes(self) -> list[Recipe]:
        """The recipe with every combination of its overrides. Raises `UserError` for a study."""
        if not isinstance(self.recipe_or_study, Recipe):
            if not isinstance(self.recipe_or_study, Study):
                what = type(self.recipe_or_study).__name__
                raise UserError(f"{self.name}: must be a Recipe, a Study, or a function that returns one, not {what}")
            hint = f"`numerate run {self.name}` trains, evaluates and reports it"
            raise UserError(f"{self.name} is a study of several recipes; {hint}")
        recipe = debug(self.recipe_or_study) if self.preset == "debug" else self.recipe_or_study
        return [override(recipe, choice) for choice in expand_sweep(self.overrides)]

    def study(self) -> Study:
        """The study, or the recipe's sweep as one."""
        if isinstance(self.recipe_or_study, Study):
            study = self.recipe_or_study
            if self.preset == "debug":
                small = tuple(debug(recipe) for recipe in study.recipes)
                labels = {f"{title}-debug": label for title, label in study.labels.items()}
                study = replace(study, recipes=small, title=f"{study.title}-debug", labels=labels)
            return study.sweep(self.overrides)
        recipes = tuple(self.recipes())
        return Study(
            recipes[0].title, f"A sweep of {self.name}." if len(recipes) > 1 else f"One run of {self.name}.", recipes
        )
