"""Number formats for character tokenizers: digit order, leading zeros, index hints."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from numerate.config import Spec, setting
from numerate.errors import UserError
from numerate.tasks import decimals
from numerate.tasks.questions import Numbers
from numerate.tokenizers import insertion
from numerate.vocabulary import INDEX_HINTS, Vocabulary

Ids = NDArray[Any]
"""Token ids, uint8 where the vocabulary allows it, otherwise uint16, or int32 beyond 65,536 tokens."""


def id_dtype(vocabulary: Vocabulary) -> type[np.uint8] | type[np.uint16] | type[np.int32]:
    """The smallest data type for the ids."""
    return np.uint8 if vocabulary.size <= 256 else np.uint16 if vocabulary.size <= 65_536 else np.int32


class NumberFormat(Spec, ABC):
    """How numbers become tokens. `encode_numbers` converts whole blocks, `format_number` one number, with equal
    results; `parse_number` is the inverse. `is_answer` says whether a number is in the answer; `random_bits` are the
    random bits of its question."""

    @abstractmethod
    def extra_symbols(self) -> tuple[str, ...]:
        """The tokens that it uses besides the ten digits."""

    @abstractmethod
    def encode_numbers(
        self,
        numbers: Numbers,
        slot: int,
        vocabulary: Vocabulary,
        *,
        is_answer: bool = False,
        random_bits: NDArray[np.uint64] | None = None,
    ) -> tuple[Ids, NDArray[np.int64]]:
        """The ids of one slot of every row, padded with PAD, `[rows, columns]`, and the number of ids of each row.
        `columns` is a multiple of eight."""

    @abstractmethod
    def format_number(self, number: Decimal | int, *, is_answer: bool = False, random_bits: int = 0) -> list[str]:
        """The symbols of one number, in the order of the tokens."""

    @abstractmethod
    def parse_number(self, symbols: Sequence[str], *, is_answer: bool = False) -> Decimal | None:
        """The number that these symbols represent; None if they are not a number."""

    @abstractmethod
    def normalize_numbers(self, text: str, *, is_answer: bool = False) -> str:
        """A text with its numbers converted to normal digit order."""


@dataclass(frozen=True)
class Digits(NumberFormat):
    """One token per digit, in reversed or normal order.

    With `digit_order="reversed"` 123 is `321`, -7 is `7-` and 1.5 is `5.1`: the carry of a sum then moves in generation
    order (Lee et al. 2023, https://arxiv.org/abs/2307.03381). `digit_order="answer_reversed"` writes the question in
    normal order, 12+9, and its answer reversed, 12.

    Leading zeros, all from McLeish et al. (2024), https://arxiv.org/abs/2405.17399: `leading_zeros=2` writes 7 as
    `007`, reversed `700`; `answer_leading_zeros=3` adds three to numbers of the answer (their `prepend_zeros` of 2 is
    both together); `min_digits=4` pads numbers of the question to four digits (their `keep_places`), and longer ones
    raise `UserError`.

    `index_hints=True` puts one of 102 characters before each digit (Zhou et al. 2024,
    https://arxiv.org/abs/2402.09371): the same one for the same power of ten in all numbers of a question, and the next
    one (cyclically) for the next power, the units having a random one: 321+654 = 975 is `a1b2c3+a4b5c6=a5b7c9` if it
    starts with `a`.
    """

    digit_order: Literal["reversed", "normal", "answer_reversed"] = setting(
        "reversed",
        "order of digits: units first (reversed), most significant first (normal), or reversed in answers only",
    )
    leading_zeros: int = setting(0, "zeros before every number", at_least=0)
    answer_leading_zeros: int | None = setting(
        None, "zeros before the numbers of the answer; null: leading_zeros", at_least=0
    )
    min_digits: int = setting(
        0, "pad numbers of the question with zeros to this many digits; 0: no padding", at_least=0
    )
    index_hints: bool = setting(False, "whether a character before each digit marks its power of ten")

    def extra_symbols(self) -> tuple[str, ...]:
        return ("-", ".", *INDEX_HINTS) if self.index_hints else ("-", ".")

    def _is_reversed(self, is_answer: bool) -> bool:
        return self.digit_order == "reversed" or (self.digit_order == "answer_reversed" and is_answer)

    def _num_leading_zeros(self, is_answer: bool) -> int:
        return self.leading_zeros if self.answer_leading_zeros is None or not is_answer else self.answer_leading_zeros

    def encode_numbers(
        self,
        numbers: Numbers,
        slot: int,
        vocabulary: Vocabulary,
        *,
        is_answer: bool = False,
        random_bits: NDArray[np.uint64] | None = None,
    ) -> tuple[Ids, NDArray[np.int64]]:
        point_positions = None if numbers.decimal_places is None else numbers.decimal_places[:, slot]
        lengths = numbers.lengths[:, slot]
        if point_positions is not None:
            lengths = np.maximum(lengths, point_positions + 1)
        if self.min_digits and not is_answer:
            self._check_num_digits(int(lengths.max(initial=0)))
            lengths = np.maximum(lengths, self.min_digits)
        if self._num_leading_zeros(is_answer):
            lengths = lengths + self._num_leading_zeros(is_answer)
        longest = int(lengths.max(initial=0))
        # One more column has room for a sign or a point; whole words are fast to copy.
        num_columns = decimals.row_width(longest + (point_positions is not None) + (numbers.negative is not None))
        ids = np.zeros((len(lengths), num_columns), dtype=id_dtype(vocabulary))
        digits = numbers.units_first[:, slot, :num_columns]
        np.add(digits, ids.dtype.type(vocabulary.token_to_id["0"]), out=ids[:, : digits.shape[1]])
        ids[:, digits.shape[1] :] = vocabulary.token_to_id["0"]
        ids *= decimals.length_masks(0, longest, num_columns).view(np.bool_).take(lengths, axis=0)
        if point_positions is not None:
            ids, lengths = _insert_point(ids, lengths, point_positions, vocabulary.token_to_id["."])
        if numbers.negative is not None and (negative_mask := numbers.negative[:, slot]).any():
            ids[negative_mask, lengths[negative_mask]] = vocabulary.token_to_id["-"]
            lengths = lengths + negative_mask
        if not self._is_reversed(is_answer):
            ids = _reverse_rows(ids, lengths)
        return (
            self._insert_hints(ids, lengths, point_positions, vocabulary, is_answer, random_bits)
            if self.index_hints
            else (ids, lengths)
        )

    def _check_num_digits(self, num_digits: int) -> None:
        if num_digits > self.min_digits:
            raise UserError(
                f"min_digits: must be at least {num_digits}, the length of a number, not {self.min_digits}; "
                f"set tokenizer.number_format.min_digits={num_digits}"
            )

    def _insert_hints(
        self,
        ids: Ids,
        lengths: NDArray[np.int64],
        point_positions: NDArray[np.int64] | None,
        vocabulary: Vocabulary,
        is_answer: bool,
        random_bits: NDArray[np.uint64] | None,
    ) -> tuple[Ids, NDArray[np.int64]]:
        """Rows with a hint before each digit."""
        digit_mask = (ids >= vocabulary.token_to_id["0"]) & (ids <= vocabulary.token_to_id["9"])
        exponents = digit_mask.cumsum(axis=1) - 1
        if not self._is_reversed(is_answer):
            exponents = exponents[:, -1:] - exponents
        if point_positions is not None:
            exponents -= point_positions[:, None]
        first_hints = np.zeros(len(ids), dtype=np.int64) if random_bits is None else first_hint_index(random_bits)
        all_hint_ids = np.array([vocabulary.token_to_id[hint] for hint in INDEX_HINTS], dtype=ids.dtype)
        new_positions, new_lengths = insertion.positions_after_insertion(lengths, digit_mask)
        new_length = decimals.row_width(int(new_lengths.max(initial=0)))
        spaced_ids = insertion.scatter_tokens(ids, new_positions, new_length)
        hint_ids = all_hint_ids[(first_hints[:, None] + exponents) % len(INDEX_HINTS)]
        return spaced_ids + insertion.scatter_tokens(
            hint_ids, np.where(digit_mask, new_positions - 1, -1), new_length
        ), new_lengths

    def format_number(self, number: Decimal | int, *, is_answer: bool = False, random_bits: int = 0) -> list[str]:
        # copy_abs keeps every digit; abs() rounds to the current precision.
        text = format(number.copy_abs(), "f") if isinstance(number, Decimal) else str(abs(number))
        num_zeros = self._num_leading_zeros(is_answer)
        if self.min_digits and not is_answer:
            num_digits = len(text.replace(".", ""))
            self._check_num_digits(num_digits)
            num_zeros += self.min_digits - num_digits
        symbols = [*"0" * num_zeros, *text]
        if self.index_hints:
            num_decimals = len(text.partition(".")[2])
            exponents = iter(range(sum(symbol != "." for symbol in symbols) - 1 - num_decimals, -1 - num_decimals, -1))
            first_hint = int(first_hint_index(np.array([random_bits], dtype=np.uint64))[0])
            symbols = [
                s if s == "." else INDEX_HINTS[(first_hint + next(exponents)) % len(INDEX_HINTS)] + s for s in symbols
            ]
        symbols = [*("-" if number < 0 else ""), *symbols]
        return [*"".join(symbols[::-1] if self._is_reversed(is_answer) else symbols)]

    def parse_number(self, symbols: Sequence[str], *, is_answer: bool = False) -> Decimal | None:
        if any(len(symbol) != 1 for symbol in symbols):
            return None
        text = "".join(symbols)
        if self.index_hints:
            num_digits = sum(symbol in "0123456789" for symbol in symbols)
            text, num_hinted_digits = _HINTED_DIGIT_PATTERN.subn(r"\1", text)
            if num_hinted_digits != num_digits:
                return None
        text = text[::-1] if self._is_reversed(is_answer) else text
        return Decimal(text) if _NUMBER_PATTERN.fullmatch(text) else None

    def normalize_numbers(self, text: str, *, is_answer: bool = False) -> str:
        digits_pattern = f"(?:{_HINTED_DIGIT_PATTERN.pattern})+" if self.index_hints else "[0-9]+"
        number_pattern = rf"{digits_pattern}(?:\.{digits_pattern})?"

        def normalize(found: re.Match[str]) -> str:
            value = self.parse_number(found[0], is_answer=is_answer)
            return found[0] if value is None else format(value, "f")

        return re.sub(f"{number_pattern}-?" if self._is_reversed(is_answer) else f"-?{number_pattern}", normalize, text)


_NUMBER_PATTERN = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_HINTED_DIGIT_PATTERN = re.compile(f"[{re.escape(INDEX_HINTS)}]([0-9])")


def first_hint_index(random_bits: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The index of the hint of the units of each question."""
    return ((random_bits >> np.uint64(32)) * np.uint64(len(INDEX_HINTS)) >> np.uint64(32)).astype(np.int64)


def _insert_point(
    ids: Ids, lengths: NDArray[np.int64], point_positions: NDArray[np.int64], point_id: int
) -> tuple[Ids, NDArray[np.int64]]:
    """Rows with units first, with the dot inserted after `point_positions` digits."""
    columns = np.arange(ids.shape[1])
    point_columns = point_positions[:, None]
    source_columns = columns - ((columns > point_columns) & (point_columns > 0))
    shifted_ids = np.take_along_axis(ids, source_columns, axis=1)
    shifted_ids[(columns == point_columns) & (point_columns > 0)] = point_id
    return shifted_ids, lengths + (point_positions > 0)


def _reverse_rows(ids: Ids, lengths: NDArray[np.int64]) -> Ids:
    """The ids of each row in reverse order; the padding stays at the end."""
    source_columns = lengths[:, None] - 1 - np.arange(ids.shape[1])
    return np.where(source_columns >= 0, np.take_along_axis(ids, np.maximum(source_columns, 0), axis=1), 0).astype(
        ids.dtype
    )
