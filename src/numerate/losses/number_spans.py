"""Number tokens of a vocabulary, and the numbers in rows of labels: which tokens form one, with which powers of ten."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from numerate.errors import UserError, check_choice
from numerate.kernels.number_table import NO_EXPONENT, NumberTokenTable, digit_count
from numerate.vocabulary import DIGIT, POINT, SIGN, Vocabulary

MINUS_SIGNS = ("-", "\u2212")

_SPACES = " \u2581\u0120"
"""A space, and its marks in tokens of SentencePiece and of byte-level tokenizers."""


def number_table(
    vocabulary: Vocabulary,
    which: Literal["digits", "numbers"] = "digits",
    *,
    joins_all: bool = False,
) -> NumberTokenTable:
    """The digits of a vocabulary, or all its tokens with a value.

    If no token is a plain digit (as with the `_5_2_` tokens), `digits` selects all tokens with a value. A token with a
    space before it (` 34`) starts a number, and so does every token of a vocabulary of words, where `7` is a number as
    `34` is; with `joins_all` none does. Raises `UserError` for a vocabulary without such tokens.
    """
    ids = vocabulary.number_ids(which)
    if not ids:
        raise UserError(f"number tokens: none of the {vocabulary.size} tokens of this vocabulary has a value")
    are_words = vocabulary.pretrained_ids is None and not bool((vocabulary.token_kinds == DIGIT).any())
    return NumberTokenTable.from_values(
        {i: float(vocabulary.number_values[i]) for i in ids},
        vocabulary.size,
        {i: digits_of(vocabulary.tokens[i].lstrip(_SPACES), float(vocabulary.number_values[i])) for i in ids},
        {i: int(vocabulary.exponents[i]) for i in ids},
        [i for i in ids if not joins_all and (are_words or vocabulary.tokens[i].startswith(tuple(_SPACES)))],
    )


def digits_of(symbol: str, value: float) -> int:
    """Number of digits that a token writes, or 1 for a token with its own power of ten."""
    return len(symbol) if symbol.isascii() and symbol.isdigit() else digit_count(value)


class NumberNotation(NamedTuple):
    """The ids of the tokens that can be part of a number, other than tokens with a value.

    `digit_order` is the order of digits: "normal" is most significant first, "reversed" least significant first. With
    `joins_points` points between digits are skipped, as in ntloss: 1.2.3 is 123.
    """

    minus_ids: tuple[int, ...] = ()
    point_ids: tuple[int, ...] = ()
    comma_ids: tuple[int, ...] = ()
    digit_order: Literal["normal", "reversed"] = "normal"
    joins_points: bool = False

    @classmethod
    def from_vocabulary(
        cls, vocabulary: Vocabulary, digit_order: Literal["normal", "reversed"] = "normal"
    ) -> "NumberNotation":
        """The minus signs, decimal points (without a space before) and thousands separators of a vocabulary.

        >>> NumberNotation.from_vocabulary(Vocabulary.with_digits(["-", ".", ","]))
        NumberNotation(minus_ids=(14,), point_ids=(15,), comma_ids=(16,), digit_order='normal', joins_points=False)
        """
        return cls.from_tokens(vocabulary.tokens, vocabulary.token_kinds, digit_order)

    @classmethod
    def from_tokens(
        cls, symbols: Sequence[str], kinds: NDArray[np.int8], digit_order: Literal["normal", "reversed"] = "normal"
    ) -> "NumberNotation":
        """The same from the tokens by id and their kinds (`numerate.vocabulary`)."""
        check_choice("digit_order", digit_order, ("normal", "reversed"))
        return cls(
            tuple(i for i, symbol in enumerate(symbols) if kinds[i] == SIGN and symbol.strip(_SPACES) in MINUS_SIGNS),
            tuple(i for i, symbol in enumerate(symbols) if kinds[i] == POINT and not symbol.startswith(tuple(_SPACES))),
            tuple(i for i, symbol in enumerate(symbols) if symbol == ","),
            digit_order,
        )


class NumberSpans(NamedTuple):
    """The numbers in rows of labels, by position.

    - `number_mask`: the position belongs to the digits of a number; `start_mask`: it is the first of them.
    - `start_positions`: at each position of a number, the position where that number starts; 0 elsewhere.
    - `exponents`: the power of ten that the token's value is multiplied by; `max_exponents`: that of the whole number
      (at least as large as any of its exponents).
    - `negative_mask`: at the start of a number, whether it follows a minus sign that is not a minus between two
      numbers.
    """

    number_mask: Bool[Tensor, "rows time"]
    start_mask: Bool[Tensor, "rows time"]
    start_positions: Int[Tensor, "rows time"]
    exponents: Int[Tensor, "rows time"]
    max_exponents: Int[Tensor, "rows time"]
    negative_mask: Bool[Tensor, "rows time"]

    def sum_per_number(self, values: Float[Tensor, "rows time"]) -> Float[Tensor, "rows time"]:
        """The sum over the positions of each number, at its start; 0 elsewhere."""
        return torch.zeros_like(values).scatter_add(1, self.start_positions, torch.where(self.number_mask, values, 0))


def find_number_spans(
    labels: Int[Tensor, "rows time"],
    number_indices: Int[Tensor, "rows time"],
    table: NumberTokenTable,
    notation: NumberNotation,
) -> NumberSpans:
    """The numbers in rows of labels; `number_indices` is the number token of each label, -1 for none
    (`NumberTokenTable.number_indices`).

    Adjacent digit tokens are one number: `12` and `34` are 1234. A point between two of them is a decimal point; the
    second point of a chain (1.2.3) ends the number. A comma followed by exactly three digits and preceded by one to
    three is a thousands separator. Tokens with their own power of ten (`_5_2_`) continue a number while it decreases. A
    token with a value that does not consist of digits (`-5`) is a number by itself, and a token that never continues a
    number (` 7`) starts one. Numbers in reversed order are integers.
    """
    number_mask, safe_indices = number_indices >= 0, number_indices.clamp(min=0)
    digit_counts = torch.where(number_mask, table.digit_counts[safe_indices], 0)
    own_exponent = torch.where(number_mask, table.significance[safe_indices], NO_EXPONENT)
    has_own_exponent = number_mask & (own_exponent != NO_EXPONENT)
    never_continues = number_mask & table.starts_number[safe_indices]
    digit_mask = number_mask & ~has_own_exponent & (digit_counts > 0)
    point_mask, comma_mask = _points_and_commas(labels, digit_mask, never_continues, digit_counts, notation)
    chain_mask = digit_mask | point_mask | comma_mask
    continues_chain = chain_mask & _shift_right(chain_mask, 1) & ~never_continues
    points_so_far = point_mask.long().cumsum(1)
    points_at_chain_start = (
        torch.where(chain_mask & ~continues_chain, points_so_far - point_mask.long(), 0).cummax(1).values
    )
    fraction_mask = chain_mask & ((points_so_far - points_at_chain_start) % 2 == 1)
    decimal_point_mask = point_mask & fraction_mask
    if notation.joins_points:
        decimal_point_mask, fraction_mask = point_mask, torch.zeros_like(point_mask)
    continues_number = _shift_right(digit_mask, 1) | _shift_right(comma_mask, 1) | _shift_right(decimal_point_mask, 1)
    has_smaller_exponent = _shift_right(has_own_exponent, 1) & (
        _shift_right(own_exponent, 1, NO_EXPONENT) > own_exponent
    )
    start_mask = (
        (digit_mask & (~continues_number | never_continues))
        | (has_own_exponent & ~has_smaller_exponent)
        | (number_mask & ~has_own_exponent & (digit_counts == 0))
    )
    time = torch.arange(labels.shape[1], device=labels.device).expand(labels.shape)
    start_positions = torch.where(number_mask, torch.where(start_mask, time, 0).cummax(1).values, 0)

    def total_per_number(values: Tensor) -> Tensor:
        """The sum over the positions of each number, at all of them."""
        return (
            torch.zeros_like(values)
            .scatter_add(1, start_positions, torch.where(number_mask, values, 0))
            .gather(1, start_positions)
        )

    plain_digit_counts = torch.where(digit_mask, digit_counts, 0)
    digits_so_far = plain_digit_counts.cumsum(1) - (plain_digit_counts.cumsum(1) - plain_digit_counts).gather(
        1, start_positions
    )  # number of digits up to and including this token
    num_integer_digits = total_per_number(torch.where(fraction_mask, 0, plain_digit_counts))
    place_exponents = (
        num_integer_digits - digits_so_far if notation.digit_order == "normal" else digits_so_far - plain_digit_counts
    )
    exponents = torch.where(has_own_exponent, own_exponent, torch.where(digit_mask, place_exponents, 0))
    max_exponents = torch.where(
        has_own_exponent, own_exponent.gather(1, start_positions), torch.where(digit_mask, num_integer_digits - 1, 0)
    )
    minus_mask = _is_in(labels, notation.minus_ids)
    negative_mask = start_mask & _shift_right(minus_mask, 1) & ~_shift_right(number_mask, 2)
    return NumberSpans(number_mask, start_mask, start_positions, exponents, max_exponents, negative_mask)


def place_value_weights(
    labels: Int[Tensor, "rows time"],
    table: NumberTokenTable,
    notation: NumberNotation,
    ratio: float,
) -> Float[Tensor, "rows time"]:
    """A weight per number token by place value: `ratio` times that of the next less significant digit, with mean 1 in
    each number; 0 outside numbers.

    With ratio 2, the digits of 503 have the weights 12/7, 6/7 and 3/7. With ratio 10, weights are proportional to place
    values.
    """
    number_indices = table.number_indices(labels)
    spans = find_number_spans(labels, number_indices, table, notation)
    # Exponents are those of the last digit of a token; tokens of several digits have the weight of their first digit.
    extra_digits = torch.where(number_indices >= 0, table.digit_counts[number_indices.clamp(min=0)], 1).clamp(min=1) - 1
    unnormalized_weights = torch.where(
        spans.number_mask,
        (spans.exponents + extra_digits - spans.max_exponents).double() * float(torch.tensor(ratio).log()),
        0,
    ).exp()
    counts = spans.sum_per_number(spans.number_mask.double()).gather(1, spans.start_positions)
    sums = spans.sum_per_number(unnormalized_weights).gather(1, spans.start_positions)
    return torch.where(
        spans.number_mask, unnormalized_weights * counts / torch.where(spans.number_mask, sums, 1), 0
    ).float()


def _points_and_commas(
    labels: Tensor, digit_mask: Tensor, never_continues: Tensor, digit_counts: Tensor, notation: NumberNotation
) -> tuple[Bool[Tensor, "rows time"], Bool[Tensor, "rows time"]]:
    """Masks of points between digits, and of thousands separators."""
    no_positions = torch.zeros_like(digit_mask)
    if notation.digit_order == "reversed":
        return no_positions, no_positions
    follows_digit, precedes_digit = _shift_right(digit_mask, 1), _shift_left(digit_mask & ~never_continues, 1)
    point = _is_in(labels, notation.point_ids) & follows_digit & precedes_digit
    if not notation.comma_ids:
        return point, no_positions
    time = torch.arange(labels.shape[1], device=labels.device).expand(labels.shape)
    group_starts = torch.where(digit_mask & (~follows_digit | never_continues), time, 0).cummax(1).values
    plain_digit_counts = torch.where(digit_mask, digit_counts, 0)
    group_lengths = (
        torch.zeros_like(plain_digit_counts).scatter_add(1, group_starts, plain_digit_counts).gather(1, group_starts)
    )  # number of consecutive digits
    preceding_group_lengths = _shift_right(group_lengths, 1)
    comma = (
        _is_in(labels, notation.comma_ids)
        & follows_digit
        & precedes_digit
        & (_shift_left(group_lengths, 1) == 3)
        & (preceding_group_lengths >= 1)
        & (preceding_group_lengths <= 3)
    )
    return point, comma


def _is_in(labels: Tensor, ids: tuple[int, ...]) -> Bool[Tensor, "rows time"]:
    mask = torch.zeros_like(labels, dtype=torch.bool)
    for i in ids:
        mask = mask | (labels == i)
    return mask


def _shift_right(values: Tensor, steps: int, fill_value: int = 0) -> Tensor:
    """Shifted right by `steps` positions, filled with `fill_value`."""
    if values.shape[1] <= steps:
        return torch.full_like(values, fill_value)
    return torch.cat([torch.full_like(values[:, :steps], fill_value), values[:, :-steps]], dim=1)


def _shift_left(values: Tensor, steps: int) -> Tensor:
    if values.shape[1] <= steps:
        return torch.zeros_like(values)
    return torch.cat([values[:, steps:], torch.zeros_like(values[:, :steps])], dim=1)
