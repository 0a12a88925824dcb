"""The positions of numbers in rows of labels: which tokens form a number, and the power of ten of each token."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from numerate.errors import UserError
from numerate.kernels.number_table import NO_EXPONENT, NumberTable
from numerate.vocabulary import POINT, SIGN, Vocabulary

MINUS = ("-", "\u2212")


class Notation(NamedTuple):
    """The ids of the tokens that numbers are written with, beside those with a value.

    `first` is the order of digits: "normal" as people write, "reversed" for least significant digit first.
    """

    minus: tuple[int, ...] = ()
    point: tuple[int, ...] = ()
    comma: tuple[int, ...] = ()
    first: Literal["normal", "reversed"] = "normal"

    @classmethod
    def of_vocabulary(cls, vocabulary: Vocabulary, first: Literal["normal", "reversed"] = "normal") -> "Notation":
        """The minus signs, decimal points and thousands commas of a vocabulary.

        >>> Notation.of_vocabulary(Vocabulary.of(["-", ".", ","]))
        Notation(minus=(14,), point=(15,), comma=(16,), first='normal')
        """
        if first not in ("normal", "reversed"):
            raise UserError(f"first: {first!r} is neither 'normal' nor 'reversed'")
        kinds, symbols = vocabulary.kinds, vocabulary.symbols
        return cls(
            tuple(i for i, symbol in enumerate(symbols) if kinds[i] == SIGN and symbol.strip(" ▁Ġ") in MINUS),
            tuple(i for i in range(len(symbols)) if kinds[i] == POINT),
            tuple(i for i, symbol in enumerate(symbols) if symbol == ","),
            first,
        )


class Runs(NamedTuple):
    """The numbers in rows of labels, by position.

    - `there`: the place is part of a number's digits; `starts`: its first one.
    - `start`: at each place of a number, the place in its row where that number starts; 0 elsewhere.
    - `exponent`: the power of ten that the token's value is multiplied by; `top` that of the whole number (at least
      as large as any of its exponents).
    - `negative`: at a start, whether a minus sign stands before it that is no minus between two numbers.
    """

    there: Bool[Tensor, "rows time"]
    starts: Bool[Tensor, "rows time"]
    start: Int[Tensor, "rows time"]
    exponent: Int[Tensor, "rows time"]
    top: Int[Tensor, "rows time"]
    negative: Bool[Tensor, "rows time"]

    def total(self, each: Float[Tensor, "rows time"]) -> Float[Tensor, "rows time"]:
        """The sum over the positions of each number, at its start; 0 elsewhere."""
        return torch.zeros_like(each).scatter_add(1, self.start, torch.where(self.there, each, 0))


def runs(
    labels: Int[Tensor, "rows time"],
    index: Int[Tensor, "rows time"],
    table: NumberTable,
    notation: Notation,
) -> Runs:
    """The numbers in rows of labels; `index` is the number token of each label, -1 for none (as `of_labels`).

    Neighbouring tokens of digits are one number, as `12` and `34` are 1234. A point between two of them is a decimal
    point, the second point of a chain (1.2.3) ends the number. A comma with exactly three digits behind it and one to
    three before it stands for thousands. Tokens with their own power of ten (`_5_2_`) continue a number while it
    decreases. A token with a value that is no run of digits (`-5`) is a number by itself. Numbers written backwards are
    whole numbers.
    """
    valued, safe = index >= 0, index.clamp(min=0)
    digits = torch.where(valued, table.digits[safe], 0)
    own_exponent = torch.where(valued, table.significance[safe], NO_EXPONENT)
    explicit = valued & (own_exponent != NO_EXPONENT)
    plain = valued & ~explicit & (digits > 0)
    point, comma = _inside(labels, plain, digits, notation)
    chain = plain | point | comma
    continues = chain & _before(chain, 1)
    points = point.long().cumsum(1)
    at_start = torch.where(chain & ~continues, points - point.long(), 0).cummax(1).values
    fraction = chain & ((points - at_start) % 2 == 1)
    decimal = point & fraction
    joined = _before(plain, 1) | _before(comma, 1) | _before(decimal, 1)
    decreases = _before(explicit, 1) & (_before(own_exponent, 1, NO_EXPONENT) > own_exponent)
    starts = (plain & ~joined) | (explicit & ~decreases) | (valued & ~explicit & (digits == 0))
    time = torch.arange(labels.shape[1], device=labels.device).expand(labels.shape)
    start = torch.where(valued, torch.where(starts, time, 0).cummax(1).values, 0)

    def whole(each: Tensor) -> Tensor:
        """The sum over each number's positions, at all of them."""
        return torch.zeros_like(each).scatter_add(1, start, torch.where(valued, each, 0)).gather(1, start)

    counted = torch.where(plain, digits, 0)
    read = counted.cumsum(1) - (counted.cumsum(1) - counted).gather(1, start)  # the number's digits up to here
    integer = whole(torch.where(fraction, 0, counted))
    place = integer - read if notation.first == "normal" else read - counted
    exponent = torch.where(explicit, own_exponent, torch.where(plain, place, 0))
    top = torch.where(explicit, own_exponent.gather(1, start), torch.where(plain, integer - 1, 0))
    minus = _among(labels, notation.minus)
    negative = starts & _before(minus, 1) & ~_before(valued, 2)
    return Runs(valued, starts, start, exponent, top, negative)


def place_weights(
    labels: Int[Tensor, "rows time"],
    table: NumberTable,
    notation: Notation,
    base: float,
    *,
    quantity: Bool[Tensor, "rows time"] | None = None,
    ignore_index: int = -100,
) -> Float[Tensor, "rows time"]:
    """A weight per number token by its place value: `base` times as much as the digit behind it, 1 on average in each
    number; 0 where there is no number.

    With base 2, the digits of 503 weigh 12/7, 6/7 and 3/7. With base 10 an error of one weighs what it is worth.
    """
    index = torch.where(labels == ignore_index, -1, table.of_labels(labels))
    if quantity is not None:
        index = torch.where(quantity, index, -1)
    found = runs(labels, index, table, notation)
    # The power of ten of a token's last digit; those of several digits are worth what their first one is.
    more = torch.where(index >= 0, table.digits[index.clamp(min=0)], 1).clamp(min=1) - 1
    raw = torch.where(
        found.there, (found.exponent + more - found.top).double() * float(torch.tensor(base).log()), 0
    ).exp()
    counts = found.total(found.there.double()).gather(1, found.start)
    sums = found.total(raw).gather(1, found.start)
    return torch.where(found.there, raw * counts / torch.where(found.there, sums, 1), 0).float()


def _inside(
    labels: Tensor, plain: Tensor, digits: Tensor, notation: Notation
) -> tuple[Bool[Tensor, "rows time"], Bool[Tensor, "rows time"]]:
    """Points between digits, and commas of thousands."""
    none = torch.zeros_like(plain)
    if notation.first == "reversed":
        return none, none
    before, behind = _before(plain, 1), _behind(plain, 1)
    point = _among(labels, notation.point) & before & behind
    if not notation.comma:
        return point, none
    time = torch.arange(labels.shape[1], device=labels.device).expand(labels.shape)
    run_starts = torch.where(plain & ~before, time, 0).cummax(1).values
    own = torch.where(plain, digits, 0)
    sizes = torch.zeros_like(own).scatter_add(1, run_starts, own).gather(1, run_starts)  # digits of each unbroken run
    group = _before(sizes, 1)
    comma = _among(labels, notation.comma) & before & behind & (_behind(sizes, 1) == 3) & (group >= 1) & (group <= 3)
    return point, comma


def _among(labels: Tensor, ids: tuple[int, ...]) -> Bool[Tensor, "rows time"]:
    found = torch.zeros_like(labels, dtype=torch.bool)
    for i in ids:
        found = found | (labels == i)
    return found


def _before(each: Tensor, by: int, fill: int = 0) -> Tensor:
    """Shifted right by `by` positions, filled with `fill`."""
    if each.shape[1] <= by:
        return torch.full_like(each, fill)
    return torch.cat([torch.full_like(each[:, :by], fill), each[:, :-by]], dim=1)


def _behind(each: Tensor, by: int) -> Tensor:
    if each.shape[1] <= by:
        return torch.zeros_like(each)
    return torch.cat([each[:, by:], torch.zeros_like(each[:, :by])], dim=1)
