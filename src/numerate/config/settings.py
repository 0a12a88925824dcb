"""Settings, the fields of a spec, and `Span`, a range of sizes."""

import operator
import re
from collections.abc import Iterable, Iterator
from dataclasses import Field, dataclass, field
from numbers import Integral
from typing import Any, TypeVar

from numerate.errors import UserError

T = TypeVar("T")


def setting(
    default: T, help: str, *, in_run_id: bool = True, added_later: bool = False, stored_name: str | None = None
) -> T:
    """One field of a spec, with its one-line meaning (what `numerate show` prints).

    `in_run_id=False` excludes the field from a run's identity: a larger budget extends a run instead of defining
    another. `added_later=True` is for a field added to a spec after runs had used it: it is part of a run's identity,
    and of the random key of a task's data, only if it differs from its default, so that older runs keep their id and
    data. `stored_name` is for a renamed field: its name in 0.2, or when it was added, under which it is hashed in both
    (`stored_class_name` does the same for a class).

    >>> @dataclass(frozen=True)
    ... class LSTM:
    ...     layers: int = setting(2, "number of stacked layers")
    >>> LSTM().layers
    2
    """
    # For type checkers, a field has the type of its value: hence the declared return type.
    return field(
        default=default,
        metadata={"help": help, "identity": in_run_id, "later": added_later, "stored_name": stored_name},
    )


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
