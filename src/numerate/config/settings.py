"""Settings, the fields of a spec, with their bounds."""

import math
from collections.abc import Iterator
from dataclasses import field, fields
from functools import cache
from numbers import Integral, Real
from types import NoneType
from typing import Any, NamedTuple, TypeVar, get_type_hints

from numerate.config.span import Span
from numerate.config.type_hints import choices_in, describe_type, part_classes_in, type_problem, union_members
from numerate.errors import UserError, raise_first

T = TypeVar("T")

MAX_COUNT = 10**15
"""The largest integer of a setting with a smallest one only, which counts something: larger ones overflow."""


def setting(
    default: T,
    help: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    in_run_id: bool = True,
    key_name: str | None = None,
    content_hash: str | None = None,
) -> T:
    """One field of a spec, with its one-line meaning (what `numerate show` prints) and its bounds.

    `at_least` and `at_most` are allowed values, `above` and `below` are not. They hold for a number, both ends of a
    `Span` and each item of a tuple; null is not compared. Infinity is allowed only as a bound: `at_most=inf`.

    `in_run_id=False` excludes the field from a run's id: a larger budget extends a run instead of defining another.
    `key_name` is for tasks and position ids, whose random keys have every field: the name that a renamed field had
    first, or "" for a field that was added later, which a key has only if it differs from its default. `content_hash`
    is for a path: the name of the setting with the hash of what it leads to. Where that is set, an absolute path is not
    part of the id, so that a folder may be moved.

    >>> from dataclasses import dataclass
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
            "key_name": key_name,
            "content_hash": content_hash,
        },
    )


class Bounds(NamedTuple):
    """The allowed numbers of a setting."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def allow(self, value: Any) -> bool:
        """Whether a number is within the bounds, or all numbers of a span or tuple; other values are not compared."""
        if isinstance(value, Span):
            return self.allow(value.low) and self.allow(value.high)
        if isinstance(value, tuple):
            return all(map(self.allow, value))
        if isinstance(value, bool) or not isinstance(value, Real):
            return True
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


class Spec:
    """The base of every class with settings. They are checked when it is built, also from Python: values against their
    types, numbers against the declared bounds, then combinations of settings by `conflicts`. The first error is raised
    as a `UserError` that names the setting and what is allowed. A list becomes a tuple, and 1e9 an integer.

    >>> from dataclasses import dataclass
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
            value = one.normalize(given := getattr(self, one.name))
            if value is not given:
                object.__setattr__(self, one.name, value)
            if (problem := one.find_problem(value)) is not None:
                raise UserError(f"{one.name}: {problem}")
        raise_first(self.conflicts())

    def conflicts(self) -> Iterator[str]:
        """What is wrong with combinations of settings that are allowed one by one: the messages of errors, each
        beginning with the name of a setting (`modulus: must be null unless start_number=none`)."""
        return iter(())


class _DeclaredSetting(NamedTuple):
    """What is declared of a setting."""

    name: str
    hint: Any
    bounds: Bounds
    classes: tuple[type, ...]
    """Classes in the hint whose instances are all of its type."""

    def normalize(self, value: Any) -> Any:
        """A list as a tuple, and a whole number such as `1e9` as an integer where only integers are allowed."""
        if isinstance(value, list):
            return tuple(value)
        if isinstance(value, float) and value.is_integer() and {int, float} & {*union_members(self.hint)} == {int}:
            return int(value)
        return value

    @property
    def allowed_values(self) -> str:
        """What it may be, in words: `1 or more, or null`, `normal or sinusoidal`."""
        return describe_type(self.hint) if self.bounds == Bounds() else self._or_others(str(self.bounds))

    def _or_others(self, numbers: str) -> str:
        """The allowed numbers, and what is allowed in their place."""
        others = [*map(str, choices_in(self.hint)), *["null"] * (NoneType in union_members(self.hint))]
        return ", or ".join(filter(None, [numbers, *others]))

    def find_problem(self, value: Any) -> str | None:
        """What is wrong with a value that is not allowed, and what would be right; None if it is allowed."""
        if not isinstance(value, self.classes) and (problem := type_problem(value, self.hint)) is not None:
            return problem
        bounds = self.bounds
        is_huge = isinstance(value, int) and value > MAX_COUNT and float not in union_members(self.hint)
        if is_huge and bounds.at_least is not None and bounds.at_most is bounds.below is None:
            bounds = bounds._replace(at_most=MAX_COUNT)
        if bounds.allow(value) or value in choices_in(self.hint):
            return None
        is_infinite = isinstance(value, float) and not math.isfinite(value)
        allowed = " and ".join(filter(None, ["finite" * is_infinite, str(bounds)]))
        shown = value if isinstance(value, Span) else repr(value)
        return f"must be {self._or_others(allowed)}, not {shown}"


@cache
def _declared_settings(spec: Any) -> list[_DeclaredSetting]:
    """The settings of a spec. A type that names something unknown where the spec was defined is not checked."""
    try:
        hints = get_type_hints(spec)
    except NameError:
        hints = {one.name: Any if isinstance(one.type, str) else one.type for one in fields(spec)}
    return [
        _DeclaredSetting(
            one.name,
            hints[one.name],
            one.metadata.get("bounds", Bounds()),
            (*part_classes_in(hints[one.name]), *({str, bool, Span} & {*union_members(hints[one.name])})),
        )
        for one in fields(spec)
        if one.init
    ]


def allowed_values(spec: type) -> dict[str, str]:
    """What each setting of a spec may be, in words.

    >>> from numerate.mixers import Attention
    >>> allowed_values(Attention)["num_heads"]
    '1 or more'
    """
    return {one.name: one.allowed_values for one in _declared_settings(spec)}


def settings_in_key(spec: Any) -> tuple[str, dict[str, Any]]:
    """The name of a spec's class and its settings as random keys have them: by the `key_name` of the class and of each
    setting where there is one, so that a rename or an addition changes no question, split or offset.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Sums:
    ...     key_name = "Arithmetic"
    ...     digits: int = setting(2, "number of digits", key_name="length")
    ...     no_carry: bool = setting(False, "only sums without carries", key_name="")
    >>> settings_in_key(Sums()), settings_in_key(Sums(no_carry=True))
    (('Arithmetic', {'length': 2}), ('Arithmetic', {'length': 2, 'no_carry': True}))
    """
    settings = {
        one.metadata.get("key_name") or one.name: getattr(spec, one.name)
        for one in fields(spec)
        if one.metadata.get("key_name") != "" or getattr(spec, one.name) != one.default
    }
    return type(spec).__dict__.get("key_name", type(spec).__name__), settings
