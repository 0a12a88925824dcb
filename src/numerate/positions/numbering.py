"""Which number a place gets. What is done with the number is a position's affair.

A numbering is a pure function of the tokens and of a `Draw`. Its numbers never change when a row grows longer, so that
a model may read token by token what it was trained to read at once (a promise tested on every variant).
"""

import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from numerate.batch import Draw, Tokens
from numerate.config import setting
from numerate.errors import Mistake
from numerate.positions.counter import drawn
from numerate.vocabulary import DIGIT


class Numbering(ABC):
    """Gives every place of every row a whole number from 0 on."""

    @abstractmethod
    def number(
        self, tokens: Tokens, kinds: Int[Tensor, "rows time"], draw: Draw
    ) -> Int[Tensor, "rows time"] | Int[Tensor, "1 time"]:
        """The places. `kinds` says what each token is (`numerate.vocabulary.DIGIT` ...).

        Where all rows get the same numbers, one row may be returned for all.
        """

    def placements(self) -> int:
        """How many fixed placements there are to evaluate at; the 0-th is without any offset."""
        return 1

    def headroom(self) -> int:
        """How far a training draw may raise a place above its number in evaluation at placement 0."""
        return 0

    def _salt(self) -> int:
        return zlib.crc32(repr(self).encode())


@dataclass(frozen=True)
class Sequential(Numbering):
    """0, 1, 2, ... from the left: the usual numbering of a transformer."""

    def number(self, tokens: Tokens, kinds: Int[Tensor, "rows time"], draw: Draw) -> Int[Tensor, "1 time"]:
        return torch.arange(tokens.ids.shape[1], device=tokens.ids.device)[None]


@dataclass(frozen=True)
class Shifted(Numbering):
    """0, 1, 2, ... plus an offset that each training row draws from 0 to max_shift.

    Random shifts as in Kiyono et al. (2021), https://arxiv.org/abs/2109.05644. Evaluation draws nothing: it takes
    `evaluate_at` fixed offsets, evenly spaced from 0 to max_shift. With max_shift=60 and evaluate_at=3: 0, 30 and 60.
    """

    max_shift: int = setting(64, "largest offset of a training row; places")
    evaluate_at: int = setting(3, "how many fixed offsets evaluation takes, evenly spaced from 0 to max_shift")

    def __post_init__(self) -> None:
        if self.max_shift < 0:
            raise Mistake(f"max_shift: {self.max_shift} is negative; 0 or more is right")
        if self.evaluate_at < 1:
            raise Mistake(f"evaluate_at: {self.evaluate_at} leaves nothing to evaluate; 1 or more is right")

    def number(
        self, tokens: Tokens, kinds: Int[Tensor, "rows time"], draw: Draw
    ) -> Int[Tensor, "rows time"] | Int[Tensor, "1 time"]:
        places = torch.arange(tokens.ids.shape[1], device=tokens.ids.device)[None]
        if draw.training:
            return places + drawn(draw, tokens.row, self.max_shift + 1, self._salt())[:, None]
        return places + self.max_shift * draw.placement // max(self.evaluate_at - 1, 1)

    def placements(self) -> int:
        return self.evaluate_at if self.max_shift else 1

    def headroom(self) -> int:
        return self.max_shift


@dataclass(frozen=True)
class DigitIndex(Numbering):
    """1, 2, 3, ... inside each run of digits, 0 elsewhere: Abacus.

    McLeish et al. (2024), https://arxiv.org/abs/2405.17399.

    `321+654=975` gets 1 2 3 0 1 2 3 0 1 2 3. In training every digit's number is raised by one offset from 0 to
    max_offset, so that places beyond the longest training number are trained too; evaluation raises nothing. With
    numbers written least significant digit first, equal significance has equal number.

    The published code draws one offset for a whole batch (`per="batch"`); `per="row"` draws one for each row, which
    is less noisy when batches are small.
    """

    max_offset: int = setting(0, "largest training offset; 100 in the paper")
    per: Literal["row", "batch"] = setting("row", "what shares one offset: a row, or the whole batch as published")

    def __post_init__(self) -> None:
        if self.max_offset < 0:
            raise Mistake(f"max_offset: {self.max_offset} is negative; 0 or more is right")

    def number(self, tokens: Tokens, kinds: Int[Tensor, "rows time"], draw: Draw) -> Int[Tensor, "rows time"]:
        digit = kinds == DIGIT
        seen = digit.long().cumsum(1)
        before_run = torch.where(digit, 0, seen).cummax(1).values
        places = seen - before_run
        if not draw.training or self.max_offset == 0:
            return places
        row = tokens.row if self.per == "row" else torch.zeros_like(tokens.row)
        offset = drawn(draw, row, self.max_offset + 1, self._salt())[:, None]
        return torch.where(digit, places + offset, places)

    def headroom(self) -> int:
        return self.max_offset
