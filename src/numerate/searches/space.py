"""What a search may choose from: some settings fixed, some with several values, some with a whole span.

training.steps=500                         fixed, as everywhere
model.hidden_size=32,64,128                      one of these, as in a sweep; any text that a setting takes
optimizer.weight_decay=between(0,0.1)             any number in between, both ends included; whole where the setting is
training.batch_size=between(16,128,16)          in steps: 16, 32, ..., 128
optimizer.learning_rate=log(1e-4,1e-2)              in between, each factor of ten as likely as any other
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import floor, log, prod
from typing import Any

from numerate.config import as_text, expand, identity, override
from numerate.config.overrides import MOST_RUNS
from numerate.config.values import fold, number_in, split
from numerate.errors import UserError, did_you_mean

DIGITS = 4
"""Significant digits of a number that a search tries: enough for any effect, few enough to type again."""

EDGE = 0.05
"""Share of a span, at either end, in which a best value makes one wonder what lies beyond."""

_SPAN = re.compile(r"\s*(between|log)\s*\((.*)\)\s*", re.DOTALL)
_OWN = {"seed": "seed= of the search", "seeds": "seeds= of the search"}
_MIXTURES = 500
"""Combinations with other fields in which a value is tried before it is refused."""


@dataclass(frozen=True)
class Choice:
    """A field with a few values, as text."""

    path: str
    values: tuple[str, ...]

    def size(self) -> int | None:
        return len(self.values)

    def holds(self, value: object) -> bool:
        return value in self.values

    def all(self) -> Iterator[str]:
        return iter(self.values)

    def probes(self) -> tuple[str, ...]:
        """The values that are validated before anything runs."""
        return self.values

    def edge(self, value: Any) -> str | None:
        return None

    def __str__(self) -> str:
        return f"{self.path}={','.join(self.values)}"


@dataclass(frozen=True)
class Between:
    """A field that is a number from `low` to `high`, both included; `log` is by factors, `step` in equal steps."""

    path: str
    low: float
    high: float
    step: float | None = None
    log: bool = False

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int)

    def size(self) -> int | None:
        """How many values there are; None where they are not counted."""
        step = self.step or (1 if self.whole and not self.log else None)
        return None if step is None else floor((self.high - self.low) / step + 1e-9) + 1

    @property
    def top(self) -> float:
        """The highest value that steps from `low` lead to."""
        return self.high if self.step is None else self.rounded(self.low + ((self.size() or 1) - 1) * self.step)

    def holds(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    def all(self) -> Iterator[float]:
        for number in range(self.size() or 0):
            yield self.rounded(self.low + number * (self.step or 1))

    def rounded(self, value: float) -> float:
        """The value with few digits, still inside."""
        if self.whole:
            return int(value)
        digits = DIGITS if self.step is None else 10
        return min(max(float(f"{value:.{digits}g}"), self.low), self.high)

    def probes(self) -> tuple[str, ...]:
        return (as_text(self.low), as_text(self.high))

    def edge(self, value: Any) -> str | None:
        """Which end a value is at, in words; None where it is well inside."""
        low, high, at = (log(x) if self.log else float(x) for x in (self.low, self.top, value))
        share = (at - low) / (high - low)
        if share <= EDGE:
            return f"the low end of its span, {as_text(self.low)}"
        return f"the high end of its span, {as_text(self.top)}" if share >= 1 - EDGE else None

    def __str__(self) -> str:
        inside = [as_text(self.low), as_text(self.high), *([as_text(self.step)] if self.step is not None else [])]
        return f"{self.path}={'log' if self.log else 'between'}({','.join(inside)})"


Field = Choice | Between


@dataclass(frozen=True)
class Space:
    """The settings of a search in the order given: texts that are fixed, and the fields that are searched over.

    >>> space = Space.read(recipe, ["optimizer.learning_rate=log(1e-4,1e-2)", "model.hidden_size=32,64"])
    >>> space.settings({"optimizer.learning_rate": 0.003, "model.hidden_size": "64"})
    ['optimizer.learning_rate=0.003', 'model.hidden_size=64']
    """

    items: tuple[str | Field, ...]

    @classmethod
    def read(cls, recipe: Any, settings: Sequence[str] | Mapping[str, Any]) -> "Space":
        """From `path=value` texts, or from Python, where a list holds the values to choose from:
        `{"optimizer.learning_rate": "log(1e-4,1e-2)", "model.hidden_size": [32, 64]}`.

        Every field is tried in the recipe, at both ends of a span and at every value. Raises `UserError` for a path
        that leads nowhere, a value that the setting refuses, an empty span, a field that is given twice or that makes
        no other run (a budget), and where nothing is searched over.
        """
        given = settings if not isinstance(settings, Mapping) else [_as_setting(*item) for item in settings.items()]
        space = cls(tuple(item for text in given for item in _items(text)))
        paths = [_parted(item)[0] if isinstance(item, str) else item.path for item in space.items]
        for field in space.fields:
            if paths.count(field.path) > 1 and not field.path.endswith("+"):
                raise UserError(f"{field.path} is given twice; say what it may be in one place")
        if not space.fields:
            raise UserError(
                "there is nothing to search over; for example optimizer.learning_rate=log(1e-4,1e-2) or "
                "model.hidden_size=32,64"
            )
        return cls(tuple(item if isinstance(item, str) else space._tried(recipe, item) for item in space.items))

    @property
    def fields(self) -> list[Field]:
        """What is searched over."""
        return [item for item in self.items if not isinstance(item, str)]

    def settings(self, parameters: Mapping[str, Any]) -> list[str]:
        """The `path=value` texts of one point of the space, as `numerate run` takes them.

        Raises `UserError` for a point that is none of this space: a journal is data, and what it says is not run."""
        for field in self.fields:
            if field.path not in parameters or not field.holds(parameters[field.path]):
                raise UserError(f"{field}: {parameters.get(field.path)!r}, which the journal has, is no such value")
        return [item if isinstance(item, str) else f"{item.path}={_text(parameters[item.path])}" for item in self.items]

    def size(self) -> int | None:
        """How many points there are; None where they are not counted."""
        sizes = [field.size() for field in self.fields]
        return None if None in sizes else prod(size for size in sizes if size is not None)

    def points(self) -> list[dict[str, Any]]:
        """Every point, the last field varying fastest. Raises `UserError` where they cannot be listed."""
        for field in self.fields:
            if field.size() is None:
                raise UserError(
                    f"{field}: a grid needs values that can be counted: {field.path}=a,b,c, or a step as a third "
                    "number of between(...)"
                )
        if (self.size() or 0) > MOST_RUNS:
            raise UserError(f"this is a grid of {self.size()} trials; at most {MOST_RUNS} are begun at once")
        paths = [field.path for field in self.fields]
        return [dict(zip(paths, point, strict=True)) for point in product(*(field.all() for field in self.fields))]

    def edges(self, parameters: Mapping[str, Any]) -> list[str]:
        """The fields that a point has at an end of their span, in words."""
        found = [(field, field.edge(parameters[field.path])) for field in self.fields]
        return [f"{field.path}={_text(parameters[field.path])} is at {edge}" for field, edge in found if edge]

    def _tried(self, recipe: Any, field: Field) -> Field:
        """The field, its span whole where the setting is; every value was accepted in some mixture with the others."""
        built = [self._accepted(recipe, field, value) for value in field.probes()]
        if len({identity(one) for one in built}) < len(built):
            raise UserError(
                f"{field}: some of these make the same run; what extends a run (a budget) or labels it is given one "
                "value, and each value once"
            )
        if isinstance(field, Choice):
            return field
        return _typed(field, [_value_at(one, field.path) for one in built])

    def _accepted(self, recipe: Any, field: Field, value: str) -> Any:
        """The recipe with a value of a field, mixed with the first values of the others by which it is accepted."""
        options = [
            [item] if isinstance(item, str) else [f"{item.path}={probe}" for probe in item.probes()]
            for item in self.items
        ]
        options[self.items.index(field)] = [f"{field.path}={value}"]
        first: UserError | None = None
        for mixture in islice(product(*options), _MIXTURES):
            try:
                return override(recipe, mixture)
            except UserError as error:
                first = first or error
        assert first is not None
        raise first


def _items(text: str) -> list[str | Field]:
    """What one `path=value` is: a field, or a fixed setting."""
    path, value = _parted(text)
    if span := _SPAN.fullmatch(value):
        return [_ends(path, span)]
    values = [one for (one,) in expand([f"{path}={value}"])]
    return [values[0]] if len(values) == 1 else [Choice(path, tuple(_parted(one)[1] for one in values))]


def _parted(text: str) -> tuple[str, str]:
    path, equals, value = text.partition("=")
    path = fold(path.strip())
    if path in _OWN:
        raise UserError(f"{text}: the seeds of all trials are {_OWN[path]}; they are not searched over")
    if not equals:
        near = did_you_mean(text, ["trials", "workers", "metric", "sampler", "pruner", "seed", "seeds", "name"])
        raise UserError(
            f"{text!r} changes no setting; write path=value, for example optimizer.learning_rate=log(1e-4,1e-2).{near}"
        )
    return path, value


def _as_setting(path: str, value: Any) -> str:
    if isinstance(value, list):
        return f"{path}={','.join(_text(one) for one in value)}"
    return f"{path}={_text(value)}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else as_text(value)


def _ends(path: str, found: re.Match[str]) -> Between:
    """The span that `between(...)` or `log(...)` means, its numbers not yet of the setting's type."""
    text = f"{path}={found[0].strip()}"
    numbers = [number_in(piece) for piece in split(found[2]) or []]
    by_factors = found[1] == "log"
    if not 2 <= len(numbers) <= 3 or None in numbers:
        raise UserError(f"{text}: is no span of numbers; for example {path}={found[1]}(16,128)")
    low, high, step = [float(n) if n is not None else 0.0 for n in (*numbers, *([None] * (3 - len(numbers))))]
    if by_factors and len(numbers) == 3:
        raise UserError(f"{text}: goes by factors and has no step; between(...) may have one")
    if not low < high or high == float("inf"):
        raise UserError(f"{text}: is empty; it goes from low to high, for example {path}={found[1]}(16,128)")
    if by_factors and low <= 0:
        raise UserError(f"{text}: goes by factors and so begins above 0; between(...) may begin anywhere")
    if len(numbers) == 3 and not 0 < step <= high - low:
        raise UserError(f"{text}: the step {step:g} does not lead from {low:g} to {high:g}")
    exact = [n for n in numbers if n is not None]
    return Between(path, exact[0], exact[1], exact[2] if len(exact) == 3 else None, by_factors)


def _typed(field: Between, ends: Sequence[Any]) -> Between:
    """The span in numbers of the setting's own type."""
    if any(isinstance(end, bool) or not isinstance(end, int | float) for end in ends):
        raise UserError(f"{field}: {field.path} is no number; several values are given with commas")
    low, high = ends
    if not all(isinstance(end, int) for end in ends):
        return Between(field.path, float(low), float(high), field.step and float(field.step), field.log)
    step = field.step
    if step is not None and int(step) != step:
        raise UserError(f"{field}: {field.path} is a whole number and so is its step")
    return Between(field.path, low, high, None if step is None else int(step), field.log)


def _value_at(recipe: Any, path: str) -> Any:
    """The value at a path that `override` accepted."""
    value = recipe
    for segment in path.split("."):
        value = value[int(segment)] if isinstance(value, tuple) else getattr(value, segment)
    return value
