"""Lists every name that a user can type: commands, options, settings, parts, recipes, studies, names of Python.

    PYTHONPATH=src python tools/golden/inventory.py

One name a line, sorted. `inventory-0.1.txt` is the list of commit c89c848; what a line of it is called now is in
`CHANGED`, with "removed: " and the reason where it is no longer there.
"""

import argparse
import re
from collections.abc import Iterator
from dataclasses import fields

import numerate
from numerate import catalogue, cli

CHANGED: dict[str, str] = {}


def commands() -> Iterator[str]:
    """Commands, their options, and the words with = that their usage has."""
    parsers = next(a for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction)).choices
    for name, parser in parsers.items():
        yield f"command {name}"
        for action in parser._actions:
            yield from (f"option {name} {option}" for option in action.option_strings)
        for word in set(re.findall(r"([\w.]+)=", " ".join(cli.COMMANDS[name][1:]))):
            yield f"word {name} {word}="


def parts() -> Iterator[str]:
    """Parts by kind with their settings, recipes and studies, and what has the name of a paper."""
    for kind, names in catalogue.kinds().items():
        for name in names:
            yield f"{kind} {name}"
            if kind not in ("Recipe", "Study"):
                yield from (f"setting {name}.{field.name}" for field in fields(catalogue.find(kind, name)))
        yield from (f"{kind} {name}" for name in catalogue.presets(kind))
        yield from (f"{kind} {pattern}" for pattern in catalogue.families(kind))


def inner(recipe: numerate.Recipe) -> Iterator[str]:
    """Settings of what recipes hold that is in no catalogue: the recipe itself, training, evaluation, samples."""
    for part in (recipe, recipe.training, recipe.evaluation, recipe.samples, recipe.model.feed_forward):
        yield from (f"setting {type(part).__name__}.{field.name}" for field in fields(part))


def everything() -> set[str]:
    recipe = numerate.recipe("addition_abacus")
    return {*commands(), *parts(), *inner(recipe), *(f"numerate.{name}" for name in numerate.__all__)}


def main() -> int:
    print("\n".join(sorted(everything())))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
