"""Position ids: which integer each token gets. How they are used is up to the positional encoding.

Position ids are a pure function of the tokens and of a `StepContext`. At the fixed offsets of evaluation they do not
change when a row grows longer, so that generation token by token agrees with training; in training they do not depend
on padding or on the other rows of a batch (tested for every variant).

A helper token (`<pad>` or `<blk>`, `numerate.vocabulary.HELPER_TOKENS`) follows a symbol to give the model one more
step, as in the published counting tasks (Chang and Bisk, 2024, https://arxiv.org/abs/2405.20131): `a <pad> a <pad>`.
It is a token of the text, unlike [PAD]. A separator is a token that is neither a digit nor special: an operator, `=`.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from numerate.batch import StepContext, Tokens
from numerate.config import Spec, setting
from numerate.config.settings import settings_in_key
from numerate.positions.counter import random_integers, random_uint32
from numerate.vocabulary import DIGIT, HELPER, SPECIAL

HelperPositions = Literal["own", "next"]
"""The position id of a helper token: its own, or that of the next other token, as in the published code."""


class PositionIds(Spec, ABC):
    """The spec of position ids, from 0 on."""

    causal: ClassVar[bool] = True
    """Whether position ids in evaluation do not depend on later tokens. A model with others cannot generate, and its
    teacher-forced scores leak the answer."""

    is_integer: ClassVar[bool] = True
    """Whether position ids are integers; fractions are only for positional encodings that take them."""

    @abstractmethod
    def assign(
        self, tokens: Tokens, token_kinds: Int[Tensor, "rows time"], step_context: StepContext
    ) -> Int[Tensor, "rows time"] | Int[Tensor, "1 time"] | Float[Tensor, "rows time"]:
        """The position ids. `token_kinds` is the kind of each token (`numerate.vocabulary.DIGIT` ...).

        If all rows have the same position ids, one row may be returned for all.
        """

    def is_same_for_all_rows(self) -> bool:
        """Whether position ids in evaluation are the same for all rows, independent of their length and tokens, so that
        they are computed only once."""
        return False

    def num_position_offsets(self) -> int:
        """Number of fixed offsets for evaluation; the 0-th is 0. `StepContext.position_offset` is an index into
        them."""
        return 1

    def max_training_offset(self) -> int:
        """The most by which a training position id can exceed the one used in evaluation at offset 0."""
        return 0

    def max_training_position(self, max_eval_position: int) -> int:
        """The highest position id in training, where `max_eval_position` is the highest in evaluation at offset 0."""
        return max_eval_position + self.max_training_offset()

    def _salt(self) -> int:
        """A hash of the settings, part of the seed: different encodings of a model draw different random numbers."""
        kind, settings = settings_in_key(self)
        text = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        return zlib.crc32(f"{kind}({text})".encode())


@dataclass(frozen=True)
class Sequential(PositionIds):
    """Position ids 0, 1, 2, ... from the left.

    With `helper_positions="next"` a helper token has the position id of the next other token:
    `5 <pad> a <pad>` gets 0 1 1 2.
    """

    helper_positions: HelperPositions = setting(
        "own", "position id of a helper token (<pad>, <blk>): its own, or that of the next other token"
    )

    def is_same_for_all_rows(self) -> bool:
        return self.helper_positions == "own"

    def assign(
        self, tokens: Tokens, token_kinds: Int[Tensor, "rows time"], step_context: StepContext
    ) -> Int[Tensor, "rows time"] | Int[Tensor, "1 time"]:
        return _sequential_ids(tokens, token_kinds, self.helper_positions)


@dataclass(frozen=True)
class Shifted(PositionIds):
    """Position ids 0, 1, 2, ... plus a random offset from 0 to max_shift in training.

    Random shifts as in Kiyono et al. (2021), https://arxiv.org/abs/2109.05644. Evaluation is not random: it uses
    `num_eval_offsets` fixed offsets, evenly spaced from 0 to max_shift. With max_shift=60 and num_eval_offsets=3: 0, 30
    and 60.

    `shift_within=128` is as in the published counting code (Chang and Bisk, 2024, https://arxiv.org/abs/2405.20131): a
    training row of n tokens draws its offset from 0 to 128 - (n + 1), so that it ends within 128 positions, and
    max_shift says only how far evaluation goes. A row that does not fit is not shifted. With `helper_positions="next"`,
    also from that code, a helper token gets the position id of the next other token and does not count as one of the
    n.
    """

    max_shift: int = setting(64, "largest random offset", at_least=0)
    num_eval_offsets: int = setting(
        3, "number of fixed offsets in evaluation, evenly spaced from 0 to max_shift", at_least=1
    )
    shift_within: int | None = setting(
        None,
        "number of positions within which a training sequence is shifted, for any length; null: shifts up to max_shift",
        at_least=1,
    )
    helper_positions: HelperPositions = setting(
        "own", "position id of a helper token (<pad>, <blk>): its own, or that of the next other token"
    )

    def is_same_for_all_rows(self) -> bool:
        return self.helper_positions == "own"

    def assign(
        self, tokens: Tokens, token_kinds: Int[Tensor, "rows time"], step_context: StepContext
    ) -> Int[Tensor, "rows time"] | Int[Tensor, "1 time"]:
        position_ids = _sequential_ids(tokens, token_kinds, self.helper_positions)
        if step_context.training:
            max_offset = (
                self.max_shift
                if self.shift_within is None
                else self._max_offsets(self.shift_within, tokens, token_kinds)
            )
            shifted_ids = (
                position_ids
                + random_integers(step_context, tokens.example_indices, max_offset + 1, self._salt())[:, None]
            )
            if self.shift_within is None:
                return shifted_ids
            # Otherwise the padding of a short row could exceed the embedding table that a long row fits into.
            return torch.where(
                torch.arange(shifted_ids.shape[1], device=position_ids.device) < tokens.lengths[:, None], shifted_ids, 0
            )
        return position_ids + self.max_shift * step_context.position_offset // max(self.num_eval_offsets - 1, 1)

    def _max_offsets(
        self, max_length: int, tokens: Tokens, token_kinds: Int[Tensor, "rows time"]
    ) -> Int[Tensor, " rows"]:
        """The largest offset of each row: one position is reserved for a helper token at its end."""
        return (max_length - 1 - _num_own_positions(tokens, token_kinds, self.helper_positions)).clamp(min=0)

    def num_position_offsets(self) -> int:
        return self.num_eval_offsets if self.max_shift else 1

    def max_training_offset(self) -> int:
        return self.max_shift if self.shift_within is None else max(self.max_shift, self.shift_within - 1)

    def max_training_position(self, max_eval_position: int) -> int:
        if self.shift_within is None:
            return max_eval_position + self.max_shift
        return max(max_eval_position, self.shift_within - (1 if self.helper_positions == "next" else 2))


@dataclass(frozen=True)
class DigitIndex(PositionIds):
    """Position ids 1, 2, 3, ... within each run of digits, 0 elsewhere (Abacus).

    McLeish et al. (2024), https://arxiv.org/abs/2405.17399.

    `321+654=975` gets 1 2 3 0 1 2 3 0 1 2 3. In training a random offset from 0 to max_offset is added at digits, so
    that positions beyond the longest training number are trained too; in evaluation no offset is added. With numbers
    written least significant digit first, digits of equal significance have equal position ids.

    The published code draws one offset for a whole batch (`offset_per="batch"`); `offset_per="row"` draws one for each
    row, which is less noisy when batches are small.

    With one offset, two indices that differ by as much as the longest training number has digits, or more, never occur
    in one training row, and a model mistakes some of them for each other in longer numbers. With `random_gaps` they
    can: training also leaves out random indices, the same ones in all numbers of a row. If the longest number of a row,
    its answer included, has n digits, a number m from 0 to max_offset and an offset from 0 to max_offset - m are drawn;
    its indices are n of offset + 1, ..., offset + n + m, a random subset in increasing order as in Ruoss et al. (2023),
    https://arxiv.org/abs/2305.16843. `321+654=975` may get 4 5 9 0 4 5 9 0 4 5 9. An index does not tell the next one
    then; a bias on the distance of tokens, such as `T5Bias`, helps to find it. (With `offset_per="batch"` rows have the
    same indices if their longest numbers are of one length.)
    """

    max_offset: int = setting(0, "largest random offset of digit positions in training; 100 in the paper", at_least=0)
    offset_per: Literal["row", "batch"] = setting(
        "row", "draw the offset per sequence (row), or per batch as in McLeish et al. (2024)"
    )
    random_gaps: bool = setting(
        False, "whether training also leaves out random positions, so that distant ones meet in a row", key_name=""
    )

    def conflicts(self) -> Iterator[str]:
        if self.random_gaps and self.max_offset == 0:
            yield "random_gaps: needs a max_offset of 1 or more, the number of positions that may be left out"

    def assign(
        self, tokens: Tokens, token_kinds: Int[Tensor, "rows time"], step_context: StepContext
    ) -> Int[Tensor, "rows time"]:
        is_digit = token_kinds == DIGIT
        position_ids = _index_in_digit_run(is_digit)
        if not step_context.training or self.max_offset == 0:
            return position_ids
        row_keys = tokens.example_indices if self.offset_per == "row" else torch.zeros_like(tokens.example_indices)
        if self.random_gaps:
            return self._with_random_gaps(position_ids, row_keys, step_context)
        offset = random_integers(step_context, row_keys, self.max_offset + 1, self._salt())[:, None]
        return torch.where(is_digit, position_ids + offset, position_ids)

    def _with_random_gaps(
        self, position_ids: Int[Tensor, "rows time"], row_keys: Int[Tensor, " rows"], step_context: StepContext
    ) -> Int[Tensor, "rows time"]:
        """Index k of a row becomes the k-th of its random positions, of which none exceeds longest + max_offset."""
        time, longest = position_ids.shape[1], position_ids.amax(1)
        draws = random_uint32(step_context, row_keys, 2 + self.max_offset + time, self._salt())
        num_left_out = draws[:, 0] * (self.max_offset + 1) >> 32
        offset = draws[:, 1] * (self.max_offset - num_left_out + 1) >> 32
        candidates = torch.arange(self.max_offset + time, device=position_ids.device)
        is_candidate = candidates < (longest + num_left_out)[:, None]
        chosen = _smallest_columns(draws[:, 2:].where(is_candidate, 2**32), longest, time)
        return torch.nn.functional.pad(chosen + offset[:, None] + 1, (1, 0)).gather(1, position_ids)

    def max_training_offset(self) -> int:
        return self.max_offset


@dataclass(frozen=True)
class Coupled(PositionIds):
    """Position coupling: digits of the same significance share position ids in all numbers of a row.

    Cho et al. (2024), https://arxiv.org/abs/2405.20671.

    Unlike in `DigitIndex`, operators and `=` are included, one below the units, so that the step from `=` to the units
    is the step from any digit to the next. `321+654=975` gets 2 3 4 1 2 3 4 1 2 3 4, and in training one random offset
    per row is added to all but special tokens.

    `operand_digit_order="normal"` is for operands written most significant digit first: a number before a separator is
    counted from its right end, `123+456=975` gets 4 3 2 1 4 3 2 1 2 3 4. The last number, which is the answer, is
    counted from its first digit, so it has to be written units first (`Digits(digit_order="answer_reversed")`).
    """

    max_offset: int = setting(0, "largest random offset in training", at_least=0)
    operand_digit_order: Literal["reversed", "normal"] = setting("reversed", "digit order of the operands")

    def assign(
        self, tokens: Tokens, token_kinds: Int[Tensor, "rows time"], step_context: StepContext
    ) -> Int[Tensor, "rows time"]:
        is_digit = token_kinds == DIGIT
        position_ids = _index_in_digit_run(is_digit)
        if self.operand_digit_order == "normal":
            index_from_right = _index_in_digit_run(is_digit.flip(1)).flip(1)
            is_separator = torch.nn.functional.pad((token_kinds != DIGIT) & (token_kinds != SPECIAL), (0, 1))
            index = torch.arange(is_digit.shape[1], device=is_digit.device)
            is_followed_by_separator = is_separator.gather(1, (index + index_from_right).clamp(max=is_digit.shape[1]))
            position_ids = torch.where(is_followed_by_separator & is_digit, index_from_right, position_ids)
        position_ids = torch.where(token_kinds == SPECIAL, 0, position_ids + 1)
        if not step_context.training or self.max_offset == 0:
            return position_ids
        offset = random_integers(step_context, tokens.example_indices, self.max_offset + 1, self._salt())[:, None]
        return torch.where(position_ids > 0, position_ids + offset, 0)

    def max_training_offset(self) -> int:
        return self.max_offset


@dataclass(frozen=True)
class NumberIndex(PositionIds):
    """Position ids that are the index of the number in the row: 0 for the first, 1 for the second, ...

    The coarse level of multi-level position coupling (Cho et al., 2024, https://arxiv.org/abs/2410.15787): with digit
    positions within numbers, it distinguishes operands and answer at any length. It is the number of separators
    before a token: `321+654=975` gets 0 0 0 0 1 1 1 1 2 2 2.
    """

    def assign(
        self, tokens: Tokens, token_kinds: Int[Tensor, "rows time"], step_context: StepContext
    ) -> Int[Tensor, "rows time"]:
        is_separator = (token_kinds != DIGIT) & (token_kinds != SPECIAL)
        return is_separator.long().cumsum(1) - is_separator.long()


@dataclass(frozen=True)
class RandomSubset(PositionIds):
    """Randomized position ids: in training a sorted random subset of 0 .. max_length - 1, in evaluation 0, 1, ...

    Ruoss et al. (2023), https://arxiv.org/abs/2305.16843. A row draws as many positions as it has tokens, so that short
    rows have long distances. For any positional encoding: `FIRE(position_ids=RandomSubset(128))`,
    `Learned(position_ids=RandomSubset(512), max_position_embeddings=512)`. A row longer than max_length gets 0, 1, ...

    With `subset_size`, that many positions are drawn, and a row of n tokens uses the first n: with the padded length of
    a batch as `subset_size` and `subset_per="batch"` this is what the code of McLeish et al. (2024) does (which draws
    again in every layer; here all layers share a draw). Evaluation takes every `eval_stride`-th position. With
    eval_stride=3: 0, 3, 6, ...

    With `helper_positions="next"`, as in the published counting code, a row of n tokens that are not helper tokens
    draws n + 1 positions, and a helper token gets that of the next other token.
    """

    max_length: int = setting(512, "number of positions to sample from", at_least=1)
    subset_size: int | None = setting(None, "number of sampled positions; null: the sequence length", at_least=1)
    eval_stride: int = setting(1, "step between positions in evaluation", at_least=1)
    subset_per: Literal["row", "batch"] = setting(
        "row", "draw one subset per sequence (row), or per batch as in McLeish et al. (2024)"
    )
    helper_positions: HelperPositions = setting(
        "own", "position id of a helper token (<pad>, <blk>): its own, or that of the next other token"
    )

    def conflicts(self) -> Iterator[str]:
        if self.subset_size is not None and self.subset_size > self.max_length:
            yield f"subset_size: must be from 1 to max_length ({self.max_length}), not {self.subset_size}"

    def is_same_for_all_rows(self) -> bool:
        return self.helper_positions == "own"

    def assign(
        self, tokens: Tokens, token_kinds: Int[Tensor, "rows time"], step_context: StepContext
    ) -> Int[Tensor, "rows time"] | Int[Tensor, "1 time"]:
        sequential_ids = _sequential_ids(tokens, token_kinds, self.helper_positions)
        if not step_context.training:
            return sequential_ids * self.eval_stride
        num_extra = int(self.helper_positions == "next")
        time = tokens.ids.shape[1] + num_extra
        row_keys = tokens.example_indices if self.subset_per == "row" else torch.zeros_like(tokens.example_indices)
        is_shared_by_batch = self.subset_per == "batch" and self.subset_size is not None
        row_keys = row_keys[:1] if is_shared_by_batch else row_keys
        subset_sizes = (
            _num_own_positions(tokens, token_kinds, self.helper_positions) + num_extra
            if self.subset_size is None
            else torch.full_like(row_keys, self.subset_size)
        )
        max_subset_size = min(self.max_length, time if self.subset_size is None else self.subset_size)
        # The chosen positions come first, sorted; a row with more tokens than positions continues above all of them.
        numbers = random_uint32(step_context, row_keys, self.max_length, self._salt())
        subset = _smallest_columns(numbers, subset_sizes, max_subset_size)
        subset = torch.nn.functional.pad(subset, (0, max(0, time - max_subset_size)), value=self.max_length)[:, :time]
        if num_extra:
            subset = subset.expand(len(sequential_ids), -1).gather(1, sequential_ids)
        overflow = (sequential_ids - subset_sizes[:, None]).clamp(min=0)
        position_ids = torch.where((subset_sizes <= self.max_length)[:, None], subset + overflow, sequential_ids)
        if is_shared_by_batch:
            return position_ids
        return torch.where(_non_padding_mask(tokens), position_ids, 0)

    def max_training_offset(self) -> int:
        return self.max_length

    def max_training_position(self, max_eval_position: int) -> int:
        max_sequential_id = max_eval_position // self.eval_stride
        overflow = (
            max_sequential_id - self.subset_size
            if self.subset_size is not None and max_sequential_id >= self.subset_size
            else -1
        )
        return max(max_sequential_id, self.max_length + overflow)


@dataclass(frozen=True)
class Zooming(PositionIds):
    """Fractional positions 1/n, 2/n, ... of a row with n - 1 tokens (without helper tokens). Not causal.

    "Zooming" in the published counting code (Chang and Bisk, 2024, https://arxiv.org/abs/2405.20131). A helper token
    gets the position of the next other token. Positions depend on the length of the row, which leaks part of the
    answer: therefore `causal` is False, its scores are not comparable, and a model with it cannot generate. Only
    positional encodings that take fractions can use it: `Scalar(position_ids=Zooming())`.

    `65 a a` gets 1/4, 2/4 and 3/4.
    """

    causal: ClassVar[bool] = False
    is_integer: ClassVar[bool] = False

    def assign(
        self, tokens: Tokens, token_kinds: Int[Tensor, "rows time"], step_context: StepContext
    ) -> Float[Tensor, "rows time"]:
        return (_sequential_ids(tokens, token_kinds, "next") + 1) / (
            _num_own_positions(tokens, token_kinds, "next") + 1
        )[:, None]


def _non_padding_mask(tokens: Tokens) -> Bool[Tensor, "rows time"]:
    return torch.arange(tokens.ids.shape[1], device=tokens.ids.device) < tokens.lengths[:, None]


def _sequential_ids(
    tokens: Tokens, token_kinds: Int[Tensor, "rows time"], helper_positions: HelperPositions
) -> Int[Tensor, "rows time"] | Int[Tensor, "1 time"]:
    """0, 1, 2, ... for all rows; with helper_positions="next", the number of tokens before it that are not helper
    tokens, and 0 for padding."""
    if helper_positions == "own":
        return torch.arange(tokens.ids.shape[1], device=tokens.ids.device)[None]
    is_not_helper = (token_kinds != HELPER).long()
    return torch.where(_non_padding_mask(tokens), is_not_helper.cumsum(1) - is_not_helper, 0)


def _num_own_positions(
    tokens: Tokens, token_kinds: Int[Tensor, "rows time"], helper_positions: HelperPositions
) -> Int[Tensor, " rows"]:
    """Number of tokens of each row with their own position id."""
    return tokens.lengths if helper_positions == "own" else ((token_kinds != HELPER) & _non_padding_mask(tokens)).sum(1)


def _index_in_digit_run(is_digit: Bool[Tensor, "rows time"]) -> Int[Tensor, "rows time"]:
    """1, 2, 3, ... inside each run of digits, 0 elsewhere."""
    digit_count = is_digit.long().cumsum(1)
    return digit_count - torch.where(is_digit, 0, digit_count).cummax(1).values


def _smallest_columns(
    numbers: Int[Tensor, "rows columns"], counts: Int[Tensor, " rows"], max_count: int
) -> Int[Tensor, "rows max_count"]:
    """The columns of the `counts` smallest numbers of each row in increasing order, then the number of columns."""
    columns = torch.arange(numbers.shape[1], device=numbers.device)
    smallest = (numbers * len(columns) + columns).topk(max_count, dim=1, largest=False).indices
    is_chosen = torch.arange(max_count, device=numbers.device) < counts[:, None]
    return torch.where(is_chosen, smallest, len(columns)).sort(dim=1).values
