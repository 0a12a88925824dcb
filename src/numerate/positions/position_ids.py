"""Position ids: which integer each token gets. How they are used is up to the position scheme.

Position ids are a pure function of the tokens and of a `StepContext`. At the fixed offsets of evaluation they do not
change when a row grows longer, so that generation token by token agrees with training; in training they do not depend
on padding or on the other rows of a batch (tested for every variant).
"""

import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from numerate.batch import StepContext, Tokens
from numerate.config import setting
from numerate.config.old_names import old_kind, old_setting, old_value
from numerate.errors import UserError
from numerate.positions.counter import drawn, drawn_many
from numerate.vocabulary import DIGIT, HELPER, SPECIAL

Helpers = Literal["own", "next"]
"""The position id of a helper token: its own, or that of the next real token, as in the published counting."""


class PositionIds(ABC):
    """The spec of position ids, from 0 on."""

    causal: ClassVar[bool] = True
    """Whether position ids in evaluation do not depend on later tokens. A model with others cannot generate, and its
    teacher-forced scores leak the answer."""

    whole: ClassVar[bool] = True
    """Whether position ids are integers; fractions are only for position schemes that take them."""

    @abstractmethod
    def assign(
        self, tokens: Tokens, kinds: Int[Tensor, "rows time"], draw: StepContext
    ) -> Int[Tensor, "rows time"] | Int[Tensor, "1 time"] | Float[Tensor, "rows time"]:
        """The position ids. `kinds` is the kind of each token (`numerate.vocabulary.DIGIT` ...).

        Where all rows get the same, one row may be returned for all.
        """

    def by_place(self) -> bool:
        """Whether position ids in evaluation are the same for all rows, whatever their length and tokens, so that they
        are computed only once."""
        return False

    def position_offsets(self) -> int:
        """Number of fixed offsets for evaluation; the 0-th is 0."""
        return 1

    def headroom(self) -> int:
        """The largest offset in training above position ids in evaluation at offset 0."""
        return 0

    def reach(self, highest: int) -> int:
        """The highest position id in training, where `highest` is the highest in evaluation at offset 0."""
        return highest + self.headroom()

    def _salt(self) -> int:
        # Settings added later are left out at their defaults, so that older runs draw the same.
        settings = [
            f"{old_setting(type(self), field.name)}={old_value(type(self), field.name, getattr(self, field.name))!r}"
            for field in fields(self)  # type: ignore[arg-type]
            if not (field.metadata.get("later") and getattr(self, field.name) == field.default)
        ]
        return zlib.crc32(f"{old_kind(type(self))}({', '.join(settings)})".encode())


@dataclass(frozen=True)
class Sequential(PositionIds):
    """Position ids 0, 1, 2, ... from the left.

    With `helper_positions="next"` a helper gets that of the next real token: `5 <pad> a <pad>` gets 0 1 1 2.
    """

    helper_positions: Helpers = setting(
        "own", "position of a helper token: its own, or that of the next regular token", later=True
    )

    def __post_init__(self) -> None:
        _check_helpers(self.helper_positions)

    def by_place(self) -> bool:
        return self.helper_positions == "own"

    def assign(
        self, tokens: Tokens, kinds: Int[Tensor, "rows time"], draw: StepContext
    ) -> Int[Tensor, "rows time"] | Int[Tensor, "1 time"]:
        return _counted(tokens, kinds, self.helper_positions)


@dataclass(frozen=True)
class Shifted(PositionIds):
    """Position ids 0, 1, 2, ... plus a random offset from 0 to max_shift in training.

    Random shifts as in Kiyono et al. (2021), https://arxiv.org/abs/2109.05644. Evaluation draws nothing: it takes
    `num_eval_offsets` fixed offsets, evenly spaced from 0 to max_shift. With max_shift=60 and num_eval_offsets=3: 0, 30
    and 60.

    `shift_within=128` is the published counting (Chang and Bisk, 2024, https://arxiv.org/abs/2405.20131): a training
    row of n tokens draws its offset from 0 to 128 - (n + 1), so that it ends within 128 places, and max_shift says only
    how far evaluation goes. A row that does not fit is not shifted. With `helper_positions="next"`, which is published
    too, a helper gets the number of the next real token and does not count as one of the n.
    """

    max_shift: int = setting(64, "largest random offset")
    num_eval_offsets: int = setting(3, "number of fixed offsets in evaluation, evenly spaced from 0 to max_shift")
    shift_within: int | None = setting(
        None,
        "number of positions within which a training sequence is shifted, whatever its length; null: by max_shift",
        later=True,
    )
    helper_positions: Helpers = setting(
        "own", "position of a helper token: its own, or that of the next regular token", later=True
    )

    def __post_init__(self) -> None:
        _check_helpers(self.helper_positions)
        if self.shift_within is not None and self.shift_within < 1:
            raise UserError(f"shift_within: {self.shift_within} places hold no row; 1 or more is right")
        if self.max_shift < 0:
            raise UserError(f"max_shift: {self.max_shift} is negative; 0 or more is right")
        if self.num_eval_offsets < 1:
            raise UserError(f"num_eval_offsets: {self.num_eval_offsets} leaves nothing to evaluate; 1 or more is right")

    def by_place(self) -> bool:
        return self.helper_positions == "own"

    def assign(
        self, tokens: Tokens, kinds: Int[Tensor, "rows time"], draw: StepContext
    ) -> Int[Tensor, "rows time"] | Int[Tensor, "1 time"]:
        places = _counted(tokens, kinds, self.helper_positions)
        if draw.training:
            most = self.max_shift if self.shift_within is None else self._room(self.shift_within, tokens, kinds)
            shifted = places + drawn(draw, tokens.row, most + 1, self._salt())[:, None]
            if self.shift_within is None:
                return shifted
            # Padding of a short row would exceed the embedding table that a long row fits into.
            return torch.where(
                torch.arange(shifted.shape[1], device=places.device) < tokens.lengths[:, None], shifted, 0
            )
        return places + self.max_shift * draw.position_offset // max(self.num_eval_offsets - 1, 1)

    def _room(self, within: int, tokens: Tokens, kinds: Int[Tensor, "rows time"]) -> Int[Tensor, " rows"]:
        """The largest offset of each row: one position is reserved for a helper after its last token."""
        return (within - 1 - _real(tokens, kinds, self.helper_positions)).clamp(min=0)

    def position_offsets(self) -> int:
        return self.num_eval_offsets if self.max_shift else 1

    def headroom(self) -> int:
        return self.max_shift if self.shift_within is None else max(self.max_shift, self.shift_within - 1)

    def reach(self, highest: int) -> int:
        if self.shift_within is None:
            return highest + self.max_shift
        return max(highest, self.shift_within - (1 if self.helper_positions == "next" else 2))


@dataclass(frozen=True)
class DigitIndex(PositionIds):
    """Position ids 1, 2, 3, ... within each run of digits, 0 elsewhere (Abacus).

    McLeish et al. (2024), https://arxiv.org/abs/2405.17399.

    `321+654=975` gets 1 2 3 0 1 2 3 0 1 2 3. In training a random offset from 0 to max_offset is added at digits, so
    that positions beyond the longest training number are trained too; in evaluation none is. With numbers written least
    significant digit first, digits of equal significance have equal position ids.

    The published code draws one offset for a whole batch (`per="batch"`); `per="row"` draws one for each row, which
    is less noisy when batches are small.
    """

    max_offset: int = setting(0, "largest random offset in training; 100 in the paper")
    per: Literal["row", "batch"] = setting("row", "draw one offset per sequence (row), or per batch as published")

    def __post_init__(self) -> None:
        if self.max_offset < 0:
            raise UserError(f"max_offset: {self.max_offset} is negative; 0 or more is right")

    def assign(self, tokens: Tokens, kinds: Int[Tensor, "rows time"], draw: StepContext) -> Int[Tensor, "rows time"]:
        digit = kinds == DIGIT
        places = _within_runs(digit)
        if not draw.training or self.max_offset == 0:
            return places
        row = tokens.row if self.per == "row" else torch.zeros_like(tokens.row)
        offset = drawn(draw, row, self.max_offset + 1, self._salt())[:, None]
        return torch.where(digit, places + offset, places)

    def headroom(self) -> int:
        return self.max_offset


@dataclass(frozen=True)
class Coupled(PositionIds):
    """Position coupling: digits of the same significance share position ids in all numbers of a row.

    Cho et al. (2024), https://arxiv.org/abs/2405.20671.

    Unlike in `DigitIndex`, operators and `=` are included, one below the units, so that the step from `=` to the units
    is the step from any digit to the next. `321+654=975` gets 2 3 4 1 2 3 4 1 2 3 4, and in training one random offset
    per row is added to all but special tokens.

    `operands="normal"` is for operands written most significant digit first: a number before other text is counted from
    its right end, `123+456=975` gets 4 3 2 1 4 3 2 1 2 3 4. The last number, which is the answer, is counted from its
    first digit, so it has to be written units first (`Digits(digit_order="answer reversed")`).
    """

    max_offset: int = setting(0, "largest random offset in training")
    operands: Literal["reversed", "normal"] = setting("reversed", "digit order of the operands")

    def __post_init__(self) -> None:
        if self.max_offset < 0:
            raise UserError(f"max_offset: {self.max_offset} is negative; 0 or more is right")
        if self.operands not in ("reversed", "normal"):
            raise UserError(f"operands: {self.operands!r} is neither 'reversed' nor 'normal'")

    def assign(self, tokens: Tokens, kinds: Int[Tensor, "rows time"], draw: StepContext) -> Int[Tensor, "rows time"]:
        digit = kinds == DIGIT
        places = _within_runs(digit)
        if self.operands == "normal":
            from_right = _within_runs(digit.flip(1)).flip(1)
            text = torch.nn.functional.pad((kinds != DIGIT) & (kinds != SPECIAL), (0, 1))
            column = torch.arange(digit.shape[1], device=digit.device)
            followed = text.gather(1, (column + from_right).clamp(max=digit.shape[1]))
            places = torch.where(followed & digit, from_right, places)
        places = torch.where(kinds == SPECIAL, 0, places + 1)
        if not draw.training or self.max_offset == 0:
            return places
        offset = drawn(draw, tokens.row, self.max_offset + 1, self._salt())[:, None]
        return torch.where(places > 0, places + offset, 0)

    def headroom(self) -> int:
        return self.max_offset


@dataclass(frozen=True)
class NumberIndex(PositionIds):
    """Position ids that are the index of the number in the row: 0 for the first, 1 for the second, ...

    The coarse level of multi-level position coupling (Cho et al., 2024, https://arxiv.org/abs/2410.15787): with digit
    positions within numbers, it distinguishes operands and answer at any length. It is the number of texts (an
    operator, `=`) before a token: `321+654=975` gets 0 0 0 0 1 1 1 1 2 2 2.
    """

    def assign(self, tokens: Tokens, kinds: Int[Tensor, "rows time"], draw: StepContext) -> Int[Tensor, "rows time"]:
        text = (kinds != DIGIT) & (kinds != SPECIAL)
        return text.long().cumsum(1) - text.long()


@dataclass(frozen=True)
class RandomSubset(PositionIds):
    """Randomised position ids: in training a sorted random subset of 0 .. max_length - 1, in evaluation 0, 1, ...

    Ruoss et al. (2023), https://arxiv.org/abs/2305.16843. A row draws as many positions as it has tokens, so that short
    rows have long distances. For any position scheme: `FIRE(position_ids=RandomSubset(128))`,
    `Learned(position_ids=RandomSubset(512), max_position_embeddings=512)`. A row longer than max_length gets 0, 1, ...

    `size` draws that many positions and gives a row the first of them: with the padded length of a batch as `size` and
    `per="batch"` it is the published arithmetic code (which draws again in every layer; here all layers share a draw).
    Evaluation takes every `stride`-th position. With stride=3: 0, 3, 6, ...

    With `helper_positions="next"`, as in the published counting, a row of n tokens that are no helpers draws n + 1
    positions, and a helper gets that of the next real token.
    """

    max_length: int = setting(512, "number of positions to sample from")
    size: int | None = setting(None, "number of sampled positions; null: the sequence length")
    stride: int = setting(1, "step between positions in evaluation")
    per: Literal["row", "batch"] = setting("row", "draw one subset per sequence (row), or per batch as published")
    helper_positions: Helpers = setting(
        "own", "position of a helper token: its own, or that of the next regular token", later=True
    )

    def __post_init__(self) -> None:
        _check_helpers(self.helper_positions)
        if self.max_length < 1:
            raise UserError(f"max_length: {self.max_length} places are none; 1 or more is right")
        if self.size is not None and not 1 <= self.size <= self.max_length:
            raise UserError(
                f"size: {self.size} of {self.max_length} places cannot be chosen; 1 to {self.max_length} can"
            )
        if self.stride < 1:
            raise UserError(f"stride: {self.stride} would put several tokens at one place; 1 or more is right")

    def by_place(self) -> bool:
        return self.helper_positions == "own"

    def assign(
        self, tokens: Tokens, kinds: Int[Tensor, "rows time"], draw: StepContext
    ) -> Int[Tensor, "rows time"] | Int[Tensor, "1 time"]:
        plain = _counted(tokens, kinds, self.helper_positions)
        if not draw.training:
            return plain * self.stride
        spare = int(self.helper_positions == "next")
        time = tokens.ids.shape[1] + spare
        row = tokens.row if self.per == "row" else torch.zeros_like(tokens.row)
        one_for_all = self.per == "batch" and self.size is not None
        row = row[:1] if one_for_all and not draw.several else row
        wanted = (
            _real(tokens, kinds, self.helper_positions) + spare
            if self.size is None
            else torch.full_like(row, self.size)
        )
        most = min(self.max_length, time if self.size is None else self.size)
        slot = torch.arange(self.max_length, device=plain.device)
        keys = drawn_many(draw, row, self.max_length, self._salt()) * self.max_length + slot
        drawn_first = keys.topk(most, dim=1, largest=False).indices
        # The chosen positions come first, sorted; a row with more tokens than positions continues above all of them.
        kept = torch.arange(most, device=plain.device) < wanted[:, None]
        chosen = torch.where(kept, drawn_first, self.max_length).sort(dim=1).values
        chosen = torch.nn.functional.pad(chosen, (0, max(0, time - most)), value=self.max_length)[:, :time]
        if spare:
            chosen = chosen.expand(len(plain), -1).gather(1, plain)
        behind = (plain - wanted[:, None]).clamp(min=0)
        places = torch.where((wanted <= self.max_length)[:, None], chosen + behind, plain)
        if one_for_all:
            return places
        return torch.where(_inside(tokens), places, 0)

    def headroom(self) -> int:
        return self.max_length

    def reach(self, highest: int) -> int:
        last = highest // self.stride
        above = last - self.size if self.size is not None and last >= self.size else -1
        return max(last, self.max_length + above)


@dataclass(frozen=True)
class Zooming(PositionIds):
    """Fractional positions 1/n, 2/n, ... of a row with n - 1 real tokens. Not causal.

    "Zooming" in the published counting (Chang and Bisk, 2024, https://arxiv.org/abs/2405.20131). A helper gets the
    position of the next real token. Positions depend on the length of the row, which leaks part of the answer: so it is
    `causal = False`, scores with it prove nothing, and a model with it cannot generate. Only position schemes that take
    fractions can use it: `Scalar(position_ids=Zooming())`.

    `65 a a` gets 1/4, 2/4 and 3/4.
    """

    causal: ClassVar[bool] = False
    whole: ClassVar[bool] = False

    def assign(self, tokens: Tokens, kinds: Int[Tensor, "rows time"], draw: StepContext) -> Float[Tensor, "rows time"]:
        return (_counted(tokens, kinds, "next") + 1) / (_real(tokens, kinds, "next") + 1)[:, None]


def _check_helpers(helpers: str) -> None:
    if helpers not in ("own", "next"):
        raise UserError(f"helper_positions: {helpers!r} is neither 'own' nor 'next'")


def _inside(tokens: Tokens) -> Bool[Tensor, "rows time"]:
    return torch.arange(tokens.ids.shape[1], device=tokens.ids.device) < tokens.lengths[:, None]


def _counted(
    tokens: Tokens, kinds: Int[Tensor, "rows time"], helpers: Helpers
) -> Int[Tensor, "rows time"] | Int[Tensor, "1 time"]:
    """0, 1, 2, ... for all rows; with helpers="next", the number of real tokens before, and 0 for padding."""
    if helpers == "own":
        return torch.arange(tokens.ids.shape[1], device=tokens.ids.device)[None]
    real = (kinds != HELPER).long()
    return torch.where(_inside(tokens), real.cumsum(1) - real, 0)


def _real(tokens: Tokens, kinds: Int[Tensor, "rows time"], helpers: Helpers) -> Int[Tensor, " rows"]:
    """Number of tokens of each row with their own position id."""
    return tokens.lengths if helpers == "own" else ((kinds != HELPER) & _inside(tokens)).sum(1)


def _within_runs(digit: Bool[Tensor, "rows time"]) -> Int[Tensor, "rows time"]:
    """1, 2, 3, ... inside each run of digits, 0 elsewhere."""
    seen = digit.long().cumsum(1)
    return seen - torch.where(digit, 0, seen).cummax(1).values
