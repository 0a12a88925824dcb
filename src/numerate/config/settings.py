"""The fields of a spec: what a setting is, and a range of sizes. Imports nothing but the errors."""

import operator
import re
from collections.abc import Iterable, Iterator
from dataclasses import Field, dataclass, field
from numbers import Integral
from typing import Any, TypeVar

from numerate.errors import UserError

T = TypeVar("T")


def setting(
    default: T, help: str, *, identity: bool = True, added_later: bool = False, stored_name: str | None = None
) -> T:
    """One field of a spec, with its one-line meaning (what `numerate show` prints).

    `identity=False` keeps the field out of a run's identity: a larger budget extends a run, it does not make another.
    `added_later=True` is for a field that a spec was given after runs had used it: it counts in the identity of a run,
    and in the key of a task's data, only where it is not its default, so that older runs stay the same runs and what
    was drawn before is drawn again. `stored_name` is for a field that was renamed: the name that it had in 0.2, or when
    it was added, by which it counts in both (`stored_class_name` does the same for a class).

    >>> @dataclass(frozen=True)
    ... class LSTM:
    ...     layers: int = setting(2, "number of stacked layers")
    >>> LSTM().layers
    2
    """
    # To a reader of types a field is its value, which is also what an instance holds: hence the declared return.
    return field(
        default=default, metadata={"help": help, "identity": identity, "later": added_later, "stored_name": stored_name}
    )


def stored_class_name(part: type) -> str:
    """The name by which a class counts in identities and random keys: its `stored_name` if it declares one, else its
    own. A class that is renamed declares its first name, so that its runs and their data stay what they were.

    >>> class WarmupStableDecay:
    ...     stored_name = "Trapezoid"
    >>> stored_class_name(WarmupStableDecay), stored_class_name(int)
    ('Trapezoid', 'int')
    """
    return str(part.__dict__.get("stored_name", part.__name__))


def stored_settings(spec: Any, fields: Iterable[Field[Any]]) -> dict[str, Any]:
    """The settings of a spec that count in identities and random keys, by their stored names: all of `fields` but those
    that were added later and have their default.

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
        """A span as it is, a number as the span of only itself: `Span.from_value(3) == Span(3, 3)`."""
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
