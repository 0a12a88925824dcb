"""Recipes as rows of tables: a line about each, and the settings in which it differs from a base recipe."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from numerate.config import override


@dataclass(frozen=True)
class Row:
    """One recipe of a table.

    - `summary`: one line, shown by `numerate list recipes`.
    - `base`: the function in `numerate.recipes` that returns the base recipe, as `module.function`, and its
      `arguments`.
    - `settings`: what differs from the base, as on the command line: `model.positions=[FIRE] training.steps=4000`.
    - `notes`: what it costs, where it is published, and what is to be known about it.
    - `is_slow_to_build`: it takes about a second, as its size is searched for that of another.
    """

    summary: str
    base: str
    settings: str = ""
    notes: str = ""
    arguments: tuple[Any, ...] = ()
    is_slow_to_build: bool = False

    def build(self, name: str) -> Any:
        """The recipe, with `name` as its title."""
        module, _, function = self.base.partition(".")
        base = getattr(import_module(f"numerate.recipes.{module}"), function)(*self.arguments)
        return override(base, [f"title={name}", *self.settings.split()])


def recipe_functions(module: str, rows: Mapping[str, Row]) -> Callable[[str], Any]:
    """The `__getattr__` of a module with a table: `from numerate.recipes.abacus import addition_abacus` imports a
    function that builds the recipe of that row."""

    @cache
    def recipe_function(name: str) -> Callable[[], Any]:
        def build() -> Any:
            return rows[name].build(name)

        build.__name__ = build.__qualname__ = name
        build.__module__ = module
        build.__doc__ = f"{rows[name].summary}\n\n{rows[name].notes}".strip()
        return build

    def __getattr__(name: str) -> Any:
        if name not in rows:
            raise AttributeError(f"{module} has no {name!r}")
        return recipe_function(name)

    return __getattr__
