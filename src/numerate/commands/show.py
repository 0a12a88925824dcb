"""`numerate show RECIPE`: every setting with its value and its meaning."""

import argparse

from numerate import catalogue
from numerate.commands.words import first
from numerate.config import describe_settings, expand, identity, override
from numerate.errors import Mistake
from numerate.recipes.papers import PAPERS
from numerate.studies.naming import named
from numerate.studies.study import Study
from numerate.training.recipe import Recipe


def command(options: argparse.Namespace) -> int:
    name = first(options.words, "the recipe", "numerate show addition_abacus")
    found = named(name)
    if isinstance(found, Study):
        _show_study(found, options.words[1:])
        return 0
    if not isinstance(found, Recipe):
        kind = found.__name__ if isinstance(found, type) else type(found).__name__
        raise Mistake(f"{name}: is no recipe but {kind}")
    for number, choice in enumerate(expand(options.words[1:])):
        if number:
            print()
        _show(override(found, choice))
    return 0


def _show(recipe: Recipe) -> None:
    print(f"{recipe.title}, run id {identity(recipe)}\n")
    lines = describe_settings(recipe)
    paths = min(44, max(len(path) for path, *_ in lines))
    values = min(34, max(len(value) for _, value, *_ in lines))
    for path, value, _, told in lines:
        meaning = told or _what(value)
        print(f"{path:<{paths}}  {value:<{values}}  {meaning}")
    if recipe.paper in PAPERS:
        print(f"\n{PAPERS[recipe.paper]}")


def _what(value: str) -> str:
    """What a list's item is: the first line of its class."""
    return next((catalogue.describe(kind, value) for kind, names in catalogue.kinds().items() if value in names), "")


def _show_study(study: Study, words: list[str]) -> None:
    study = study.crossed(words)
    print(f"{study.title}: {study.question}\n")
    for recipe in study.recipes:
        print(f"  {recipe.title}  seed={recipe.seed}  run id {identity(recipe)}")
    print(f"\n`numerate show {study.recipes[0].title}` shows the settings of one")
