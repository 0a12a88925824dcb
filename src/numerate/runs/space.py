"""The space of a search: settings that are fixed, have several values, or have a range.

training.steps=500                      fixed, as everywhere
model.hidden_size=32,64,128             one of these, as in a sweep; any value of the setting
optimizer.weight_decay=between(0,0.1)   any number in between, both ends included; integers for integer settings
training.batch_size=between(16,128,16)  in steps: 16, 32, ..., 128
optimizer.learning_rate=log(1e-4,1e-2)  in between, on a logarithmic scale
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from math import floor, inf, log, prod
from typing import Any

from numerate.config import expand_sweep, format_value, identity, override
from numerate.config.common_names import SHORT_PATHS
from numerate.config.overrides import MAX_RUNS
from numerate.config.values import normalize_name, parse_number, resolve_setting_name, split_at_commas
from numerate.errors import UserError, did_you_mean

_SIGNIFICANT_DIGITS = 4  # of sampled numbers: enough for any effect, few enough to type
_EDGE_FRACTION = 0.05  # of a range at either end, where a best value suggests a wider search
_MAX_COMBINATIONS = 500  # combinations with other fields in which a value is tried before it is refused
_RANGE_PATTERN = re.compile(r"\s*(between|log)\s*\((.*)\)\s*", re.DOTALL)
_OPTIONS = ("trials", "workers", "metric", "sampler", "pruner", "seed", "seeds", "name")


@dataclass(frozen=True)
class Field:
    """A setting to search: one of `values`, as text, or a number from `low` to `high`, both included; `log`: on a
    logarithmic scale, `step`: in equal steps."""

    path: str
    values: tuple[str, ...] = ()
    low: float = 0
    high: float = 0
    step: float | None = None
    log: bool = False

    @property
    def is_integer(self) -> bool:
        return isinstance(self.low, int)

    @property
    def size(self) -> int | None:
        """The number of values; None if they are not finite."""
        step = self.step or (1 if self.is_integer and not self.log else None)
        return len(self.values) or (None if step is None else floor((self.high - self.low) / step + 1e-9) + 1)

    def __iter__(self) -> Iterator[Any]:
        """The values, if they are finite."""
        return iter(self.values or [self._number(index) for index in range(self.size or 0)])

    @property
    def tested_texts(self) -> tuple[str, ...]:
        """The values that the recipe is built with before anything runs: all, or both ends."""
        return self.values or (format_value(self.low), format_value(self.high))

    def contains(self, value: object) -> bool:
        if self.values or isinstance(value, bool) or not isinstance(value, int if self.is_integer else int | float):
            return value in self.values
        return self.low <= value <= self.high

    def _number(self, index: int) -> float:
        return self.rounded(self.low + index * (self.step or 1))

    def rounded(self, value: float) -> float:
        """A number with few digits, within the range."""
        digits = _SIGNIFICANT_DIGITS if self.step is None else 10
        return int(value) if self.is_integer else min(max(float(f"{value:.{digits}g}"), self.low), self.high)

    def edge_text(self, value: float) -> str | None:
        """The bound that a number is near, in words; None if it is well inside."""
        low, high, position = (log(x) if self.log else float(x) for x in (self.low, self.high, value))
        fraction = (position - low) / (high - low)
        if _EDGE_FRACTION < fraction < 1 - _EDGE_FRACTION:
            return None
        name, bound = ("lower", self.low) if fraction < 0.5 else ("upper", self.high)
        return f"{self.path}={format_value(value)} is at the {name} bound of its range, {format_value(bound)}"

    def __str__(self) -> str:
        numbers = ",".join(format_value(one) for one in (self.low, self.high, self.step) if one is not None)
        text = ",".join(self.values) or (f"log({numbers})" if self.log else f"between({numbers})")
        return f"{self.path}={text}"


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

        Every field is tried in the recipe, at both ends of a range and at every value. Raises `UserError` for an
        unknown path, an invalid value, an empty range, a field that is given twice or that does not change the run's
        identity (a budget), and if there is no field.
        """
        if isinstance(settings, Mapping):
            lists = {path: value if isinstance(value, list) else [value] for path, value in settings.items()}
            settings = [f"{path}={','.join(map(value_text, values))}" for path, values in lists.items()]
        space = cls(tuple(map(_parse_item, settings)))
        paths = [_split(item)[0] if isinstance(item, str) else item.path for item in space.items]
        for field in space.fields:
            if paths.count(field.path) > 1 and not field.path.endswith("+"):
                raise UserError(f"{field.path} is given twice; must be given once")
        if not space.fields:
            raise UserError(
                "there is nothing to search over: a setting must have a range or several values, for example "
                "optimizer.learning_rate=log(1e-4,1e-2) or model.hidden_size=32,64"
            )
        return cls(tuple(item if isinstance(item, str) else space._checked(recipe, item) for item in space.items))

    @property
    def fields(self) -> list[Field]:
        """The fields to search."""
        return [item for item in self.items if isinstance(item, Field)]

    @property
    def size(self) -> int | None:
        """The number of points; None if it is not finite."""
        sizes = [field.size for field in self.fields]
        return None if None in sizes else prod(size for size in sizes if size is not None)

    def find_problem(self, parameters: Mapping[str, Any]) -> str | None:
        """Why a point, read from a file, is outside this space; None if it is a point of it."""
        for field in self.fields:
            if not field.contains(value := parameters.get(field.path)):
                return f"{field}: {value!r} is not in this search space"
        return None

    def settings(self, parameters: Mapping[str, Any]) -> list[str]:
        """The `path=value` texts of one point of the space, for `numerate run`."""
        return [
            f"{item.path}={value_text(parameters[item.path])}" if isinstance(item, Field) else item
            for item in self.items
        ]

    def points(self) -> list[dict[str, Any]]:
        """Every point, the last field varying fastest. Raises `UserError` if they cannot be listed."""
        for field in self.fields:
            if field.size is None:
                raise UserError(
                    f"{field}: a grid needs a finite number of values: {field.path}=a,b,c, or a step as a third "
                    "number of between(...)"
                )
        if (self.size or 0) > MAX_RUNS:
            raise UserError(f"this is a grid of {self.size} trials; at most {MAX_RUNS} are allowed")
        paths = [field.path for field in self.fields]
        return [dict(zip(paths, point, strict=True)) for point in product(*self.fields)]

    def edge_warnings(self, parameters: Mapping[str, Any]) -> list[str]:
        """The fields of a point that are near an end of their range, in words."""
        ranges = [field for field in self.fields if not field.values]
        return [text for field in ranges if (text := field.edge_text(parameters[field.path]))]

    def _checked(self, recipe: Any, field: Field) -> Field:
        """The field, with integers for an integer setting; every value is accepted in some combination with others."""
        recipes = [self._build(recipe, field, text) for text in field.tested_texts]
        if len({identity(one) for one in recipes}) < len(recipes):
            raise UserError(
                f"{field}: some of these values give the same run; a budget or a label must have one value, and each "
                "value once"
            )
        if field.values:
            return field
        low, high = ends = [_value_at(one, field.path) for one in recipes]
        if any(isinstance(end, bool) or not isinstance(end, int | float) for end in ends):
            raise UserError(f"{field}: {field.path} is not a number; give several values with commas")
        kind: type = int if all(isinstance(end, int) for end in ends) else float
        if kind is int and field.step is not None and int(field.step) != field.step:
            raise UserError(f"{field}: {field.path} is an integer, so its step must be one")
        field = replace(field, low=kind(low), high=kind(high), step=None if field.step is None else kind(field.step))
        return field if field.step is None else replace(field, high=field._number((field.size or 1) - 1))

    def _build(self, recipe: Any, field: Field, text: str) -> Any:
        """The recipe with a value of a field, combined with the first values of the others with which it is valid."""
        options = [
            [f"{item.path}={one}" for one in ((text,) if item == field else item.tested_texts)]
            if isinstance(item, Field)
            else [item]
            for item in self.items
        ]
        first_error: UserError | None = None
        for combination in islice(product(*options), _MAX_COMBINATIONS):
            try:
                return override(recipe, combination)
            except UserError as error:
                first_error = first_error or error
        assert first_error is not None
        raise first_error


def value_text(value: Any) -> str:
    """A value of a field as text for the command line."""
    return value if isinstance(value, str) else format_value(value)


def _split(text: str) -> tuple[str, str]:
    path, equals, value = text.partition("=")
    path = normalize_name(path.strip())
    path = SHORT_PATHS.get(path, path)
    if path in ("seed", "seeds"):
        raise UserError(f"{text}: the seeds of all trials are {path}= of the search; they cannot be searched over")
    if not equals:
        suggestion = did_you_mean(text, _OPTIONS)
        raise UserError(f"{text!r} must be path=value, for example optimizer.learning_rate=log(1e-4,1e-2).{suggestion}")
    return path, value


def _parse_item(text: str) -> str | Field:
    """Parses one `path=value`: a field, or a fixed setting. Numbers are converted to the setting's type later."""
    path, value = _split(text)
    if (found := _RANGE_PATTERN.fullmatch(value)) is None:
        texts = [one for (one,) in expand_sweep([f"{path}={value}"])]
        return texts[0] if len(texts) == 1 else Field(path, tuple(_split(one)[1] for one in texts))
    kind, is_log, pieces = found[1], found[1] == "log", split_at_commas(found[2]) or []
    numbers = [number for piece in pieces if (number := parse_number(piece)) is not None]
    if len(numbers) != len(pieces) or not 2 <= len(numbers) <= 3:
        raise UserError(f"{path}={value}: must be a range of numbers; for example {path}={kind}(16,128)")
    low, high, step = numbers[0], numbers[1], numbers[2] if len(numbers) == 3 else None
    for is_wrong, problem in (
        (is_log and step is not None, "goes by factors and has no step; between(...) may have one"),
        (not -inf < low < high < inf, f"low must be below high, for example {path}={kind}(16,128)"),
        (is_log and low <= 0, "goes by factors and so begins above 0; between(...) may begin anywhere"),
        (step is not None and not 0 < step <= high - low, f"the step {step} does not lead from {low} to {high}"),
    ):
        if is_wrong:
            raise UserError(f"{path}={value}: {problem}")
    return Field(path, (), low, high, step, is_log)


def _value_at(recipe: Any, path: str) -> Any:
    """The value at a path that `override` accepted."""
    value = recipe
    for name in path.split("."):
        is_list = isinstance(value, tuple)
        value = value[int(name)] if is_list else getattr(value, resolve_setting_name(type(value), name, path))
    return value
