"""Settings, the fields of a spec, with their bounds, and `Span`, a range of sizes."""

import math
import operator
import re
from collections.abc import Iterable, Iterator
from dataclasses import Field, dataclass, field, fields
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from numerate.errors import UserError, did_you_mean, raise_first

T = TypeVar("T")


def setting(
    default: T,
    help: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    in_run_id: bool = True,
    added_later: bool = False,
    stored_name: str | None = None,
) -> T:
    """One field of a spec, with its one-line meaning (what `numerate show` prints) and its bounds.

    `at_least` and `at_most` are allowed values, `above` and `below` are not. They hold for a number, both ends of a
    `Span` and each item of a tuple; null is not compared. Infinity is allowed only as a bound: `at_most=inf`.

    `in_run_id=False` excludes the field from a run's identity: a larger budget extends a run instead of defining
    another. `added_later=True` is for a field added to a spec after runs had used it: it is part of a run's identity,
    and of the random key of a task's data, only if it differs from its default, so that older runs keep their id and
    data. `stored_name` is for a renamed field: its name in 0.2, or when it was added, under which it is hashed in both
    (`stored_class_name` does the same for a class).

    >>> @dataclass(frozen=True)
    ... class LSTM(Spec):
    ...     num_layers: int = setting(2, "number of stacked layers", at_least=1)
    ...     dropout: float = setting(0.0, "dropout between layers", at_least=0, below=1)
    >>> LSTM().num_layers
    2
    >>> LSTM(dropout=1.0)
    Traceback (most recent call last):
        ...
    numerate.errors.UserError: dropout: must be at least 0 and less than 1, not 1.0
    """
    # For type checkers, a field has the type of its value: hence the declared return type.
    return field(
        default=default,
        metadata={
            "help": help,
            "bounds": Bounds(at_least, above, at_most, below),
            "identity": in_run_id,
            "later": added_later,
            "stored_name": stored_name,
        },
    )


class Bounds(NamedTuple):
    """The allowed numbers of a setting."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def allow(self, value: Any) -> bool:
        """Whether a value is a number within the bounds, or a span or tuple of them."""
        if isinstance(value, Span):
            return self.allow(value.low) and self.allow(value.high)
        if isinstance(value, tuple):
            return all(map(self.allow, value))
        if isinstance(value, bool) or not isinstance(value, Real):
            return False
        number: Any = value
        return (
            (isinstance(value, Integral) or math.isfinite(value) or value in (self.at_least, self.at_most))
            and (self.at_least is None or number >= self.at_least)
            and (self.above is None or number > self.above)
            and (self.at_most is None or number <= self.at_most)
            and (self.below is None or number < self.below)
        )

    def __str__(self) -> str:
        """As in an error: `1 or more`, `from 1 to 128`, `greater than 0 and at most 1`."""
        if self.at_most == math.inf:  # infinity is allowed, so that there is no bound to name
            return str(self._replace(at_most=None))
        if self.at_least is not None and self.at_most is not None:
            return f"from {self.at_least} to {self.at_most}"
        if self.at_least is not None and self.below is None:
            return f"{self.at_least} or more"
        low = f"at least {self.at_least}" if self.at_least is not None else f"greater than {self.above}"
        high = f"at most {self.at_most}" if self.at_most is not None else f"less than {self.below}"
        has_low, has_high = (self.at_least, self.above) != (None, None), (self.at_most, self.below) != (None, None)
        return " and ".join([low] * has_low + [high] * has_high)


NO_BOUNDS = Bounds()


class Spec:
    """The base of every class with settings. They are checked when it is built, also from Python: numbers against the
    declared bounds, values against the choices of a `Literal`, then combinations of settings by `conflicts`. The first
    error is raised as a `UserError` that names the setting and what is allowed.

    >>> from typing import Literal
    >>> @dataclass(frozen=True)
    ... class Learned(Spec):
    ...     initialization: Literal["normal", "sinusoidal"] = setting("normal", "initial embeddings")
    ...     scale: float | Literal["sqrt"] = setting(1.0, "factor on the embeddings", above=0)
    ...
    ...     def conflicts(self) -> Iterator[str]:
    ...         if self.initialization == "sinusoidal" and self.scale == "sqrt":
    ...             yield "scale: must be a number with initialization=sinusoidal"
    >>> Learned("sinusodal")
    Traceback (most recent call last):
        ...
    numerate.errors.UserError: initialization: must be normal or sinusoidal, not 'sinusodal'. Did you mean 'sinusoidal'?
    >>> Learned(scale=-1)
    Traceback (most recent call last):
        ...
    numerate.errors.UserError: scale: must be greater than 0, or sqrt, not -1
    >>> Learned("sinusoidal", "sqrt")
    Traceback (most recent call last):
        ...
    numerate.errors.UserError: scale: must be a number with initialization=sinusoidal
    """

    def __post_init__(self) -> None:
        for one in _declared_settings(type(self)):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            for item in value if one.is_of_each_item else (value,):
                if not one.allows(item):
                    raise UserError(f"{one.name}: {one.problem(item)}")
        raise_first(self.conflicts())

    def conflicts(self) -> Iterator[str]:
        """What is wrong with combinations of settings that are allowed one by one: the messages of errors, each
        beginning with the name of a setting (`modulus: must be null unless start_number=none`)."""
        return iter(())


class _DeclaredSetting(NamedTuple):
    """What is declared of a setting that can be checked."""

    name: str
    bounds: Bounds
    choices: list[Any]
    """The values of a `Literal`."""
    types: list[Any]
    """The other types; none if only the choices are allowed."""
    is_optional: bool
    """Whether null is allowed."""
    is_of_each_item: bool
    """Whether the choices are those of each item of a tuple."""

    @property
    def words(self) -> list[str]:
        return list(map(str, self.choices))

    def allows(self, value: Any) -> bool:
        if value in self.choices or (value is None and self.is_optional):
            return True
        if not self.types or (self.choices and isinstance(value, str)):
            return False
        if self.bounds == NO_BOUNDS or (type(value) in self.types and not isinstance(value, Real | Span)):
            return True
        return self.bounds.allow(value) and not self._is_fraction(value)

    def _is_fraction(self, value: Any) -> bool:
        """Whether a value is a number that is not an integer, as the setting has to be."""
        has_to_be_integer = int in self.types and float not in self.types
        return has_to_be_integer and isinstance(value, Real) and not isinstance(value, Integral)

    def problem(self, value: Any) -> str:
        """What is wrong with a value that is not allowed, and what would be right."""
        hint = did_you_mean(value, self.words) if isinstance(value, str) else ""
        is_infinite = isinstance(value, float) and not math.isfinite(value)
        need = "finite and " if is_infinite else "an integer, " if self._is_fraction(value) else ""
        shown = value if isinstance(value, Span) else repr(value)
        return f"must be {need}{self}, not {shown}{f'.{hint}' if hint else ''}"

    def __str__(self) -> str:
        """As in an error: `normal or reversed`, `greater than 0, or sqrt`, `1 or more, or null`."""
        words = [*self.words, *["null"] * self.is_optional]
        if self.bounds != NO_BOUNDS:
            return ", or ".join([str(self.bounds), *words])
        return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


@cache
def _declared_settings(spec: type) -> list[_DeclaredSetting]:
    """The settings of a spec with bounds or choices. A type written as text is not read."""
    declared = []
    for one in fields(spec):
        is_of_each_item = get_origin(one.type) is tuple and get_origin(get_args(one.type)[0]) is Literal
        hint = get_args(one.type)[0] if is_of_each_item else one.type
        options = get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) is Union else (hint,)
        bounds: Bounds = one.metadata.get("bounds", NO_BOUNDS)
        types = [option for option in options if get_origin(option) is not Literal and option is not NoneType]
        choices = [word for option in options if get_origin(option) is Literal for word in get_args(option)]
        choices = [] if str in types else choices
        if choices or bounds != NO_BOUNDS:
            declared.append(_DeclaredSetting(one.name, bounds, choices, types, NoneType in options, is_of_each_item))
    return declared


def stored_class_name(part: type) -> str:
    """The name of a class in identities and random keys: its `stored_name` if it declares one, otherwise its name. A
    renamed class declares its first name, so that its runs keep their ids and data.

    >>> class WarmupStableDecay:
    ...     stored_name = "Trapezoid"
    >>> stored_class_name(WarmupStableDecay), stored_class_name(int)
    ('Trapezoid', 'int')
    """
    return str(part.__dict__.get("stored_name", part.__name__))


def stored_settings(spec: Any, fields: Iterable[Field[Any]]) -> dict[str, Any]:
    """The settings of a spec in identities and random keys, by their stored names: all of `fields` except those that
    were added later and have their default.

    >>> @dataclass(frozen=True)
    ... class LSTM:
    ...     num_layers: int = setting(2, "number of stacked layers", stored_name="layers")
    ...     bias: bool = setting(True, "whether it has biases", added_later=True)
    >>> stored_settings(LSTM(), LSTM.__dataclass_fields__.values())
    {'layers': 2}
    """
    values = {field: getattr(spec, field.name) for field in fields}
    return {
        field.metadata.get("stored_name") or field.name: value
        for field, value in values.items()
        if not (field.metadata.get("later") and value == field.default)
    }


@dataclass(frozen=True, order=True)
class Span:
    """The integers from `low` to `high`, both included; on the command line `1:5`.

    >>> list(Span(1, 5)), 5 in Span(1, 5), len(Span(1, 5)), str(Span(1, 5))
    ([1, 2, 3, 4, 5], True, 5, '1:5')

    Raises `UserError` if it would be empty.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        for name, value in (("low", self.low), ("high", self.high)):
            if not isinstance(value, Integral) or isinstance(value, bool):
                raise UserError(f"{name}: must be an integer, not {value!r}; write a span as 1:5")
            object.__setattr__(self, name, operator.index(value))  # numpy's integers become Python's
        if self.low > self.high:
            raise UserError(
                f"a span must go from low to high, both included: {self.high}:{self.low}, not {self.low}:{self.high}"
            )

    @classmethod
    def from_value(cls, value: "int | Span") -> "Span":
        """Converts an integer to a span: `Span.from_value(3) == Span(3, 3)`; a span is returned unchanged."""
        return value if isinstance(value, Span) else cls(value, value)

    @classmethod
    def parse(cls, text: str) -> "Span":
        """From its text: `3` is `Span(3, 3)`, `1:5` is `Span(1, 5)`. Raises `UserError` for any other text."""
        match = re.fullmatch(r"\s*([+-]?[0-9]+)\s*(?::\s*([+-]?[0-9]+)\s*)?", text)
        if match is None:
            raise UserError(f"a span must be low:high, both included, such as 1:5, not {text!r}")
        try:
            low = int(match[1])
            return cls(low, low if match[2] is None else int(match[2]))
        except ValueError as error:  # more digits than Python reads
            raise UserError("the bounds of a span must have fewer digits") from error

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.low, self.high + 1))

    def __contains__(self, value: object) -> bool:
        return isinstance(value, Integral) and self.low <= int(value) <= self.high

    def __len__(self) -> int:
        return self.high - self.low + 1

    def __str__(self) -> str:
        return f"{self.low}:{self.high}"
