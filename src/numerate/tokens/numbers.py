"""How a number is spelled: the order of its digits, zeros in front."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from numerate.config import setting
from numerate.errors import Mistake
from numerate.tasks import decimals
from numerate.tasks.questions import Numbers
from numerate.vocabulary import Vocabulary

Ids = NDArray[Any]
"""Token ids, uint8 where the vocabulary allows it, otherwise uint16."""


def id_type(vocabulary: Vocabulary) -> type[np.uint8] | type[np.uint16]:
    """The smallest type that holds every id."""
    return np.uint8 if vocabulary.size <= 256 else np.uint16


class NumberSpelling(ABC):
    """How numbers become tokens. `write` does it for whole blocks, `spell` for one number, and they agree; `read` is
    the way back."""

    @abstractmethod
    def texts(self) -> tuple[str, ...]:
        """The texts that it may use beside the ten digits."""

    @abstractmethod
    def write(self, numbers: Numbers, slot: int, vocabulary: Vocabulary) -> tuple[Ids, NDArray[np.int64]]:
        """The ids of one slot of every row with PAD behind, `[rows, columns]`, and how many ids each row has. The
        columns are a multiple of eight, at least as many as the longest row needs."""

    @abstractmethod
    def spell(self, number: Decimal | int) -> list[str]:
        """The symbols of one number, in the order in which they are written."""

    @abstractmethod
    def read(self, symbols: Sequence[str]) -> Decimal | None:
        """The number that symbols say, None where they say none."""


@dataclass(frozen=True)
class Digits(NumberSpelling):
    """One token per digit, least significant first or as people write them.

    With `order="reversed"` 123 reads `321`, -7 reads `7-` and 1.5 reads `5.1`: the carry of a sum then moves in the
    direction of writing (Lee et al. 2023, https://arxiv.org/abs/2307.03381). `leading_zeros=2` writes 7 as `007`,
    reversed `700`.
    """

    order: Literal["reversed", "normal"] = setting("reversed", "units first, or most significant digit first")
    leading_zeros: int = setting(0, "how many zeros stand in front of every number")

    def __post_init__(self) -> None:
        if self.order not in ("reversed", "normal"):
            raise Mistake(f"order: {self.order!r} is neither 'reversed' nor 'normal'")
        if self.leading_zeros < 0:
            raise Mistake(f"leading_zeros: {self.leading_zeros} zeros cannot be written; 0 or more can")

    def texts(self) -> tuple[str, ...]:
        return ("-", ".")

    def write(self, numbers: Numbers, slot: int, vocabulary: Vocabulary) -> tuple[Ids, NDArray[np.int64]]:
        point = None if numbers.point is None else numbers.point[:, slot]
        lengths = numbers.lengths[:, slot]
        if point is not None:
            lengths = np.maximum(lengths, point + 1)
        if self.leading_zeros:
            lengths = lengths + self.leading_zeros
        longest = int(lengths.max(initial=0))
        # One column more than the numbers need keeps a place for a sign or a point, and whole words are quick to move.
        columns = decimals.width(longest + (point is not None) + (numbers.negative is not None))
        ids = np.zeros((len(lengths), columns), dtype=id_type(vocabulary))
        held = numbers.units_first[:, slot, :columns]
        np.add(held, ids.dtype.type(vocabulary.ids["0"]), out=ids[:, : held.shape[1]])
        ids[:, held.shape[1] :] = vocabulary.ids["0"]
        ids *= decimals.masks(0, longest, columns).view(np.bool_).take(lengths, axis=0)
        if point is not None:
            ids, lengths = _with_point(ids, lengths, point, vocabulary.ids["."])
        if numbers.negative is not None:
            negative = numbers.negative[:, slot]
            ids[negative, lengths[negative]] = vocabulary.ids["-"]
            lengths = lengths + negative
        if self.order == "normal":
            ids = _turned(ids, lengths)
        return ids, lengths

    def spell(self, number: Decimal | int) -> list[str]:
        # copy_abs keeps every digit, where abs() rounds to the precision of the moment.
        text = format(number.copy_abs(), "f") if isinstance(number, Decimal) else str(abs(number))
        symbols = [*("-" if number < 0 else ""), *"0" * self.leading_zeros, *text]
        return symbols[::-1] if self.order == "reversed" else symbols

    def read(self, symbols: Sequence[str]) -> Decimal | None:
        written = symbols[::-1] if self.order == "reversed" else symbols
        text = "".join(written)
        whole, _, rest = text.removeprefix("-").partition(".")
        fits = all(len(symbol) == 1 for symbol in symbols) and whole.isascii() and whole.isdigit()
        return Decimal(text) if fits and ((rest.isascii() and rest.isdigit()) or "." not in text) else None


def _with_point(
    ids: Ids, lengths: NDArray[np.int64], point: NDArray[np.int64], dot: int
) -> tuple[Ids, NDArray[np.int64]]:
    """Rows of units first, with the dot between the `point` digits behind it and the others."""
    columns = np.arange(ids.shape[1])
    at = point[:, None]
    wanted = columns - ((columns > at) & (at > 0))
    spread = np.take_along_axis(ids, wanted, axis=1)
    spread[(columns == at) & (at > 0)] = dot
    return spread, lengths + (point > 0)


def _turned(ids: Ids, lengths: NDArray[np.int64]) -> Ids:
    """Each row's own ids in opposite order, the padding behind them as before."""
    back = lengths[:, None] - 1 - np.arange(ids.shape[1])
    return np.where(back >= 0, np.take_along_axis(ids, np.maximum(back, 0), axis=1), 0).astype(ids.dtype)
