"""The search space: settings that are fixed, have several values, or have a range.

training.steps=500                      fixed, as everywhere
model.hidden_size=32,64,128             one of these, as in a sweep; any value of the setting
optimizer.weight_decay=between(0,0.1)   any number in between, both ends included; integers for integer settings
training.batch_size=between(16,128,16)  in steps: 16, 32, ..., 128
optimizer.learning_rate=log(1e-4,1e-2)  in between, on a logarithmic scale
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import floor, log, prod
from typing import Any

from numerate.config import expand_sweep, format_value, identity, override
from numerate.config.common_names import SHORT_PATHS
from numerate.config.overrides import MAX_RUNS
from numerate.config.values import normalize_name, parse_number, resolve_setting_name, split_at_commas
from numerate.errors import UserError, did_you_mean

SIGNIFICANT_DIGITS = 4
"""Significant digits of sampled numbers: enough for any effect, few enough to type."""

EDGE_FRACTION = 0.05
"""Fraction of a span at either end in which a best value suggests a wider search."""

_RANGE_PATTERN = re.compile(r"\s*(between|log)\s*\((.*)\)\s*", re.DOTALL)
_SEARCH_OPTIONS = {"seed": "seed= of the search", "seeds": "seeds= of the search"}
_MAX_COMBINATIONS = 500
"""Combinations with other fields in which a value is tried before it is rejected."""


@dataclass(frozen=True)
class Choice:
    """A field with a few values, as text."""

    path: str
    values: tuple[str, ...]

    def size(self) -> int | None:
        return len(self.values)

    def contains(self, value: object) -> bool:
        return value in self.values

    def iter_values(self) -> Iterator[str]:
        return iter(self.values)

    def test_values(self) -> tuple[str, ...]:
        """The values that are validated before anything runs."""
        return self.values

    def __str__(self) -> str:
        return f"{self.path}={','.join(self.values)}"


@dataclass(frozen=True)
class NumberRange:
    """A field that is a number from `low` to `high`, both included; `log`: on a logarithmic scale, `step`: in equal
    steps."""

    path: str
    low: float
    high: float
    step: float | None = None
    log: bool = False

    @property
    def is_integer(self) -> bool:
        return isinstance(self.low, int)

    def size(self) -> int | None:
        """The number of values; None if they are not finite."""
        step = self.step or (1 if self.is_integer and not self.log else None)
        return None if step is None else floor((self.high - self.low) / step + 1e-9) + 1

    @property
    def max_value(self) -> float:
        """The highest value reached by steps from `low`."""
        return self.high if self.step is None else self.round_value(self.low + ((self.size() or 1) - 1) * self.step)

    def contains(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    def iter_values(self) -> Iterator[float]:
        for number in range(self.size() or 0):
            yield self.round_value(self.low + number * (self.step or 1))

    def round_value(self, value: float) -> float:
        """The value rounded to few digits, within the span."""
        if self.is_integer:
            return int(value)
        digits = SIGNIFICANT_DIGITS if self.step is None else 10
        return min(max(float(f"{value:.{digits}g}"), self.low), self.high)

    def test_values(self) -> tuple[str, ...]:
        return (format_value(self.low), format_value(self.high))

    def edge_text(self, value: Any) -> str | None:
        """The bound that a value is near, in words; None if it is well inside."""
        low, high, position = (log(x) if self.log else float(x) for x in (self.low, self.max_value, value))
        fraction = (position - low) / (high - low)
        if fraction <= EDGE_FRACTION:
            return f"the lower bound of its range, {format_value(self.low)}"
        return (
            f"the upper bound of its range, {format_value(self.max_value)}" if fraction >= 1 - EDGE_FRACTION else None
        )

    def __str__(self) -> str:
        arguments = ",".join(format_value(one) for one in (self.low, self.high, self.step) if one is not None)
        return f"{self.path}={'log' if self.log else 'between'}({arguments})"


Field = Choice | NumberRange


@dataclass(frozen=True)
class Space:
    """The settings of a search in the given order: fixed ones as text, and the fields to search.

    >>> import numerate
    >>> recipe = numerate.recipe("addition_abacus")
    >>> space = Space.parse(recipe, ["optimizer.learning_rate=log(1e-4,1e-2)", "model.hidden_size=32,64"])
    >>> space.settings({"optimizer.learning_rate": 0.003, "model.hidden_size": "64"})
    ['optimizer.learning_rate=0.003', 'model.hidden_size=64']
    """

    items: tuple[str | Field, ...]

    @classmethod
    def parse(cls, recipe: Any, settings: Sequence[str] | Mapping[str, Any]) -> "Space":
        """From `path=value` texts, or from a dict, in which a list has the values to choose from:
        `{"optimizer.learning_rate": "log(1e-4,1e-2)", "model.hidden_size": [32, 64]}`.

        Every field is tried in the recipe, at both ends of a span and at every value. Raises `UserError` for an unknown
        path, an invalid value, an empty span, a field that is given twice or that does not change the run's identity (a
        budget), and if there is no field.
        """
        setting_texts = (
            settings if not isinstance(settings, Mapping) else [_setting_text(*item) for item in settings.items()]
        )
        space = cls(tuple(item for text in setting_texts for item in _parse_items(text)))
        paths = [_split_setting(item)[0] if isinstance(item, str) else item.path for item in space.items]
        for field in space.fields:
            if paths.count(field.path) > 1 and not field.path.endswith("+"):
                raise UserError(f"{field.path} is given twice; must be given once")
        if not space.fields:
            raise UserError(
                "there is nothing to search over: a setting must have a range or several values, for example "
                "optimizer.learning_rate=log(1e-4,1e-2) or model.hidden_size=32,64"
            )
        return cls(
            tuple(item if isinstance(item, str) else space._validate_field(recipe, item) for item in space.items)
        )

    @property
    def fields(self) -> list[Field]:
        """The fields to search."""
        return [item for item in self.items if not isinstance(item, str)]

    def settings(self, parameters: Mapping[str, Any]) -> list[str]:
        """The `path=value` texts of one point of the space, for `numerate run`.

        Raises `UserError` for a point outside this space: a journal is untrusted data."""
        for field in self.fields:
            if field.path not in parameters or not field.contains(parameters[field.path]):
                raise UserError(f"{field}: {parameters.get(field.path)!r}, in the journal, is not in this search space")
        return [
            item if isinstance(item, str) else f"{item.path}={value_text(parameters[item.path])}" for item in self.items
        ]

    def size(self) -> int | None:
        """The number of points; None if it is not finite."""
        sizes = [field.size() for field in self.fields]
        return None if None in sizes else prod(size for size in sizes if size is not None)

    def points(self) -> list[dict[str, Any]]:
        """Every point, the last field varying fastest. Raises `UserError` if they cannot be listed."""
        for field in self.fields:
            if field.size() is None:
                raise UserError(
                    f"{field}: a grid needs a finite number of values: {field.path}=a,b,c, or a step as a third "
                    "number of between(...)"
                )
        if (self.size() or 0) > MAX_RUNS:
            raise UserError(f"this is a grid of {self.size()} trials; at most {MAX_RUNS} are allowed")
        paths = [field.path for field in self.fields]
        return [
            dict(zip(paths, point, strict=True)) for point in product(*(field.iter_values() for field in self.fields))
        ]

    def edge_warnings(self, parameters: Mapping[str, Any]) -> list[str]:
        """The fields of a point that are near an end of their span, in words."""
        ranges = [field for field in self.fields if isinstance(field, NumberRange)]
        edges_by_field = [(field, field.edge_text(parameters[field.path])) for field in ranges]
        return [
            f"{field.path}={value_text(parameters[field.path])} is at {edge}" for field, edge in edges_by_field if edge
        ]

    def _validate_field(self, recipe: Any, field: Field) -> Field:
        """The field, with integer bounds for an integer setting; every value was accepted in some combination with the
        others."""
        recipes = [self._build_with_value(recipe, field, value) for value in field.test_values()]
        if len({identity(one) for one in recipes}) < len(recipes):
            raise UserError(
                f"{field}: some of these values give the same run; a budget or a label must have one "
                "value, and each value once"
            )
        if isinstance(field, Choice):
            return field
        return _cast_range(field, [_value_at(one, field.path) for one in recipes])

    def _build_with_value(self, recipe: Any, field: Field, value: str) -> Any:
        """The recipe with a value of a field, combined with the first values of the others with which it is valid."""
        options = [
            [item] if isinstance(item, str) else [f"{item.path}={probe}" for probe in item.test_values()]
            for item in self.items
        ]
        options[self.items.index(field)] = [f"{field.path}={value}"]
        first_error: UserError | None = None
        for combination in islice(product(*options), _MAX_COMBINATIONS):
            try:
                return override(recipe, combination)
            except UserError as error:
                first_error = first_error or error
        assert first_error is not None
        raise first_error


def _parse_items(text: str) -> list[str | Field]:
    """Parses one `path=value`: a field, or a fixed setting."""
    path, value = _split_setting(text)
    if range_match := _RANGE_PATTERN.fullmatch(value):
        return [_parse_range(path, range_match)]
    values = [one for (one,) in expand_sweep([f"{path}={value}"])]
    return [values[0]] if len(values) == 1 else [Choice(path, tuple(_split_setting(one)[1] for one in values))]


def _split_setting(text: str) -> tuple[str, str]:
    path, equals, value = text.partition("=")
    path = normalize_name(path.strip())
    path = SHORT_PATHS.get(path, path)
    if path in _SEARCH_OPTIONS:
        raise UserError(f"{text}: the seeds of all trials are {_SEARCH_OPTIONS[path]}; they cannot be searched over")
    if not equals:
        suggestion = did_you_mean(text, ["trials", "workers", "metric", "sampler", "pruner", "seed", "seeds", "name"])
        raise UserError(f"{text!r} must be path=value, for example optimizer.learning_rate=log(1e-4,1e-2).{suggestion}")
    return path, value


def _setting_text(path: str, value: Any) -> str:
    if isinstance(value, list):
        return f"{path}={','.join(value_text(one) for one in value)}"
    return f"{path}={value_text(value)}"


def value_text(value: Any) -> str:
    """A value of a field as text for the command line."""
    return value if isinstance(value, str) else format_value(value)


def _parse_range(path: str, match: re.Match[str]) -> NumberRange:
    """Parses the span of `between(...)` or `log(...)`, without converting its numbers to the setting's type."""
    text = f"{path}={match[0].strip()}"
    numbers = [parse_number(piece) for piece in split_at_commas(match[2]) or []]
    is_log = match[1] == "log"
    if not 2 <= len(numbers) <= 3 or None in numbers:
        raise UserError(f"{text}: must be a range of numbers; for example {path}={match[1]}(16,128)")
    low, high, step = [float(n) if n is not None else 0.0 for n in (*numbers, *([None] * (3 - len(numbers))))]
    has_step = len(numbers) == 3
    for is_wrong, problem in (
        (is_log and has_step, "goes by factors and has no step; between(...) may have one"),
        (not low < high or high == float("inf"), f"low must be below high, for example {path}={match[1]}(16,128)"),
        (is_log and low <= 0, "goes by factors and so begins above 0; between(...) may begin anywhere"),
        (has_step and not 0 < step <= high - low, f"the step {step:g} does not lead from {low:g} to {high:g}"),
    ):
        if is_wrong:
            raise UserError(f"{text}: {problem}")
    limits = [n for n in numbers if n is not None]
    return NumberRange(path, limits[0], limits[1], limits[2] if len(limits) == 3 else None, is_log)


def _cast_range(field: NumberRange, ends: Sequence[Any]) -> NumberRange:
    """The span in numbers of the setting's type."""
    if any(isinstance(end, bool) or not isinstance(end, int | float) for end in ends):
        raise UserError(f"{field}: {field.path} is not a number; give several values with commas")
    low, high = ends
    if not all(isinstance(end, int) for end in ends):
        return NumberRange(field.path, float(low), float(high), field.step and float(field.step), field.log)
    step = field.step
    if step is not None and int(step) != step:
        raise UserError(f"{field}: {field.path} is an integer, so its step must be one")
    return NumberRange(field.path, low, high, None if step is None else int(step), field.log)


def _value_at(recipe: Any, path: str) -> Any:
    """The value at a path that `override` accepted."""
    value = recipe
    for segment in path.split("."):
        is_list = isinstance(value, tuple)
        value = value[int(segment)] if is_list else getattr(value, resolve_setting_name(type(value), segment, path))
    return value
