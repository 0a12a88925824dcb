"""`Span`, a range of sizes."""

import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral

from numerate.errors import UserError


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
