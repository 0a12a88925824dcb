"""Any function that draws a question with its answer as a task."""

import random
from abc import ABC
from collections.abc import Callable
from typing import Any, ClassVar, Concatenate, ParamSpec, Self

from numerate.config import Span
from numerate.config.function_specs import FunctionSpec, spec_from_function
from numerate.errors import UserError
from numerate.tasks.task import Example, Task

Settings = ParamSpec("Settings")


def wrap_task(
    function: Callable[Concatenate[random.Random, Settings], tuple[str, str]],
) -> Callable[Settings, Task]:
    """Makes a task of a function that draws a question with its answer. Its other arguments are settings.

        @numerate.wrap_task
        def doubling(rng: random.Random, digits: int = 4) -> tuple[str, str]:
            number = rng.randrange(10**digits)
            return f"2*{number}=", str(2 * number)

        recipe = Recipe(task=doubling(digits=3))

    All randomness must be of `rng`, which is seeded by (function, settings, split, seed, index): so the data can be
    drawn from any place on. A question is in training or held out by its hash, which takes 4,000 different ones;
    `wrap_data` makes a task of fewer. A task with sizes, for grids, derives from `Task`.

    Raises `UserError` for what has no name, and for a setting without a default.
    """
    spec: Callable[Settings, Task] = spec_from_function(function, WrappedTask, "wrap_task", ["rng"])
    return spec


class WrappedTask(Task, FunctionSpec, ABC):
    """The base of specs that `wrap_task` makes. Questions have no sizes: all are of one part, as those of a file."""

    has_ood_sizes: ClassVar[bool] = False

    def example(self, rng: random.Random) -> Example:
        drawn = self.call_function(rng)
        if not isinstance(drawn, tuple) or [type(text) for text in drawn] != [str, str]:
            raise UserError(
                f"task: {type(self).__name__} must return a question and its answer, two texts, not {drawn!r}"
            )
        return Example(drawn[0], drawn[1], {"test": 1})

    def axes(self) -> tuple[str, ...]:
        return ("test",)

    def training_spans(self) -> dict[str, Span]:
        return {"test": Span(1, 1)}

    def at_cell(self, **cell: Any) -> Self:
        return self

    def cells(self) -> list[tuple[int, ...]]:
        return [(1,)]

    def cell_name(self, axis: str, size: int) -> str:
        return "all"
