"""Number formats for character tokenizers: digit order, leading zeros, index hints."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from numerate.config import setting
from numerate.errors import UserError
from numerate.tasks import decimals
from numerate.tasks.questions import Numbers
from numerate.tokenizers import insertion
from numerate.vocabulary import HINTS, Vocabulary

Ids = NDArray[Any]
"""Token ids, uint8 where the vocabulary allows it, otherwise uint16, or int32 beyond 65,536 tokens."""


def id_type(vocabulary: Vocabulary) -> type[np.uint8] | type[np.uint16] | type[np.int32]:
    """The smallest type that holds every id."""
    return np.uint8 if vocabulary.size <= 256 else np.uint16 if vocabulary.size <= 65_536 else np.int32


class NumberFormat(ABC):
    """How numbers become tokens. `write` converts whole blocks, `spell` one number, with equal results; `read` is the
    inverse. `answer` says whether a number is in the answer, `chance` is the random word of its question."""

    @abstractmethod
    def texts(self) -> tuple[str, ...]:
        """The texts that it uses beside the ten digits."""

    @abstractmethod
    def write(
        self,
        numbers: Numbers,
        slot: int,
        vocabulary: Vocabulary,
        *,
        answer: bool = False,
        chance: NDArray[np.uint64] | None = None,
    ) -> tuple[Ids, NDArray[np.int64]]:
        """The ids of one slot of every row, padded with PAD, `[rows, columns]`, and the number of ids of each row.
        `columns` is a multiple of eight."""

    @abstractmethod
    def spell(self, number: Decimal | int, *, answer: bool = False, chance: int = 0) -> list[str]:
        """The symbols of one number, in the order of the tokens."""

    @abstractmethod
    def read(self, symbols: Sequence[str], *, answer: bool = False) -> Decimal | None:
        """The number of these symbols, None if they are no number."""

    @abstractmethod
    def plain(self, text: str, *, answer: bool = False) -> str:
        """A text with its numbers converted to normal digit order."""


@dataclass(frozen=True)
class Digits(NumberFormat):
    """One token per digit, in reversed or normal order.

    With `digit_order="reversed"` 123 is `321`, -7 is `7-` and 1.5 is `5.1`: the carry of a sum then moves in generation
    order (Lee et al. 2023, https://arxiv.org/abs/2307.03381). `digit_order="answer reversed"` writes the question in
    normal order, 12+9, and its answer reversed, 12.

    Leading zeros, all from McLeish et al. (2024), https://arxiv.org/abs/2405.17399: `leading_zeros=2` writes 7 as
    `007`, reversed `700`; `answer_leading_zeros=3` gives numbers of the answer three (their `prepend_zeros` of 2 is the
    two together); `min_digits=4` pads numbers of the question to four digits (their `keep_places`), and longer ones
    raise `UserError`.

    `index_hints=True` puts one of 102 characters before each digit (Zhou et al. 2024,
    https://arxiv.org/abs/2402.09371): the same one for the same power of ten in all numbers of a question, and the next
    one (cyclically) for the next power, the units having a random one: 321+654 = 975 is `a1b2c3+a4b5c6=a5b7c9` if it
    starts with `a`.
    """

    digit_order: Literal["reversed", "normal", "answer reversed"] = setting(
        "reversed",
        "order of digits: units first (reversed), most significant first (normal), or reversed in answers only",
    )
    leading_zeros: int = setting(0, "zeros before every number")
    answer_leading_zeros: int | None = setting(
        None, "zeros before the numbers of the answer; null: leading_zeros", later=True
    )
    min_digits: int = setting(
        0, "pad numbers of the question with zeros to this many digits; 0: no padding", later=True
    )
    index_hints: bool = setting(False, "whether a character before each digit marks its power of ten", later=True)

    def __post_init__(self) -> None:
        if self.digit_order not in ("reversed", "normal", "answer reversed"):
            raise UserError(
                f"digit_order: {self.digit_order!r} is neither 'reversed' nor 'normal' nor 'answer reversed'"
            )
        for name in ("leading_zeros", "answer_leading_zeros"):
            if (getattr(self, name) or 0) < 0:
                raise UserError(f"{name}: {getattr(self, name)} zeros cannot be written; 0 or more can")
        if self.min_digits < 0:
            raise UserError(f"min_digits: {self.min_digits} places cannot be filled; 0 or more can")

    def texts(self) -> tuple[str, ...]:
        return ("-", ".", *HINTS) if self.index_hints else ("-", ".")

    def _reversed(self, answer: bool) -> bool:
        return self.digit_order == "reversed" or (self.digit_order == "answer reversed" and answer)

    def _zeros(self, answer: bool) -> int:
        return self.leading_zeros if self.answer_leading_zeros is None or not answer else self.answer_leading_zeros

    def write(
        self,
        numbers: Numbers,
        slot: int,
        vocabulary: Vocabulary,
        *,
        answer: bool = False,
        chance: NDArray[np.uint64] | None = None,
    ) -> tuple[Ids, NDArray[np.int64]]:
        point = None if numbers.point is None else numbers.point[:, slot]
        lengths = numbers.lengths[:, slot]
        if point is not None:
            lengths = np.maximum(lengths, point + 1)
        if self.min_digits and not answer:
            self._check_fits(int(lengths.max(initial=0)))
            lengths = np.maximum(lengths, self.min_digits)
        if self._zeros(answer):
            lengths = lengths + self._zeros(answer)
        longest = int(lengths.max(initial=0))
        # One column more has room for a sign or a point, and whole words are fast to copy.
        columns = decimals.width(longest + (point is not None) + (numbers.negative is not None))
        ids = np.zeros((len(lengths), columns), dtype=id_type(vocabulary))
        held = numbers.units_first[:, slot, :columns]
        np.add(held, ids.dtype.type(vocabulary.ids["0"]), out=ids[:, : held.shape[1]])
        ids[:, held.shape[1] :] = vocabulary.ids["0"]
        ids *= decimals.masks(0, longest, columns).view(np.bool_).take(lengths, axis=0)
        if point is not None:
            ids, lengths = _with_point(ids, lengths, point, vocabulary.ids["."])
        if numbers.negative is not None and (negative := numbers.negative[:, slot]).any():
            ids[negative, lengths[negative]] = vocabulary.ids["-"]
            lengths = lengths + negative
        if not self._reversed(answer):
            ids = _turned(ids, lengths)
        return self._hinted(ids, lengths, point, vocabulary, answer, chance) if self.index_hints else (ids, lengths)

    def _check_fits(self, digits: int) -> None:
        if digits > self.min_digits:
            raise UserError(
                f"min_digits: a number of {digits} digits does not fit into {self.min_digits} places; "
                f"tokenizer.number_format.min_digits={digits} holds it"
            )

    def _hinted(
        self,
        ids: Ids,
        lengths: NDArray[np.int64],
        point: NDArray[np.int64] | None,
        vocabulary: Vocabulary,
        answer: bool,
        chance: NDArray[np.uint64] | None,
    ) -> tuple[Ids, NDArray[np.int64]]:
        """Written rows with a hint before each digit."""
        digit = (ids >= vocabulary.ids["0"]) & (ids <= vocabulary.ids["9"])
        power = digit.cumsum(axis=1) - 1
        if not self._reversed(answer):
            power = power[:, -1:] - power
        if point is not None:
            power -= point[:, None]
        first = np.zeros(len(ids), dtype=np.int64) if chance is None else hint_start(chance)
        hints = np.array([vocabulary.ids[hint] for hint in HINTS], dtype=ids.dtype)
        to, long = insertion.places(lengths, digit)
        columns = decimals.width(int(long.max(initial=0)))
        wide = insertion.moved(ids, to, columns)
        chosen = hints[(first[:, None] + power) % len(HINTS)]
        return wide + insertion.moved(chosen, np.where(digit, to - 1, -1), columns), long

    def spell(self, number: Decimal | int, *, answer: bool = False, chance: int = 0) -> list[str]:
        # copy_abs keeps every digit, where abs() rounds to the precision of the moment.
        text = format(number.copy_abs(), "f") if isinstance(number, Decimal) else str(abs(number))
        filled = self._zeros(answer)
        if self.min_digits and not answer:
            digits = len(text.replace(".", ""))
            self._check_fits(digits)
            filled += self.min_digits - digits
        symbols = [*"0" * filled, *text]
        if self.index_hints:
            behind = len(text.partition(".")[2])
            powers = iter(range(sum(symbol != "." for symbol in symbols) - 1 - behind, -1 - behind, -1))
            first = int(hint_start(np.array([chance], dtype=np.uint64))[0])
            symbols = [s if s == "." else HINTS[(first + next(powers)) % len(HINTS)] + s for s in symbols]
        symbols = [*("-" if number < 0 else ""), *symbols]
        return [*"".join(symbols[::-1] if self._reversed(answer) else symbols)]

    def read(self, symbols: Sequence[str], *, answer: bool = False) -> Decimal | None:
        if any(len(symbol) != 1 for symbol in symbols):
            return None
        text = "".join(symbols)
        if self.index_hints:
            digits = sum(symbol in "0123456789" for symbol in symbols)
            text, hinted = _HINTED.subn(r"\1", text)
            if hinted != digits:
                return None
        text = text[::-1] if self._reversed(answer) else text
        return Decimal(text) if _NUMBER.fullmatch(text) else None

    def plain(self, text: str, *, answer: bool = False) -> str:
        digits = f"(?:{_HINTED.pattern})+" if self.index_hints else "[0-9]+"
        written = rf"{digits}(?:\.{digits})?"

        def number(found: re.Match[str]) -> str:
            value = self.read(found[0], answer=answer)
            return found[0] if value is None else format(value, "f")

        return re.sub(f"{written}-?" if self._reversed(answer) else f"-?{written}", number, text)


_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_HINTED = re.compile(f"[{re.escape(HINTS)}]([0-9])")


def hint_start(chance: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Where in the circle the hints of each question start: the hint of the units."""
    return ((chance >> np.uint64(32)) * np.uint64(len(HINTS)) >> np.uint64(32)).astype(np.int64)


def _with_point(
    ids: Ids, lengths: NDArray[np.int64], point: NDArray[np.int64], dot: int
) -> tuple[Ids, NDArray[np.int64]]:
    """Rows with units first, with the dot inserted after `point` digits."""
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
