"""From rows of token ids to batches: model inputs and targets."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from numerate.batch import IGNORE_INDEX, Batch, Tokens
from numerate.config import Spec, setting
from numerate.errors import UserError
from numerate.tokenizers.number_formats import Ids
from numerate.tokenizers.tokenizer import TokenizedExamples
from numerate.vocabulary import BOS, EOS, PAD, UNK


class Layout(Spec, ABC):
    """Builds model inputs and targets from tokenized questions and answers."""

    is_autoregressive: ClassVar[bool] = True
    """Whether answers are generated token by token (autoregressively); False: one prediction per position."""

    has_mask_tokens: ClassVar[bool] = False
    """Whether mask tokens replace the answer in the input, so that attention may be bidirectional."""

    @abstractmethod
    def build_batch(self, rows: TokenizedExamples, row_index: NDArray[np.int64]) -> Batch:
        """The batch of these rows; `row_index` is the global index of each. Raises `UserError` for unsuitable rows."""

    def check_unlabeled(self, rows: TokenizedExamples) -> None:
        """Raises `UserError` for rows with a label per token, in a layout of questions that answers follow."""
        if rows.labels is not None:
            raise UserError(
                f"layout: {type(self).__name__} does not support a label per token; use layout=TokenClassification"
            )


@dataclass(frozen=True)
class Continuation(Layout):
    """Causal language modeling: the answer follows the question, and each token predicts the next one.

    The input is `2 1 + 9 = 1 2 [EOS]` without its last token; the targets at `=`, `1` and `2` are `1`, `2` and
    `[EOS]`. With `targets="all"` the tokens of the question are targets too.
    """

    targets: Literal["answer", "all"] = setting("answer", "which tokens are targets: the answer with its end, or all")

    def build_batch(self, rows: TokenizedExamples, row_index: NDArray[np.int64]) -> Batch:
        self.check_unlabeled(rows)
        lengths = rows.lengths - 1
        longest = int(lengths.max(initial=0))
        input_mask = np.arange(longest) < lengths[:, None]
        ids = np.where(input_mask, rows.ids[:, :longest], rows.ids.dtype.type(PAD))
        target_mask = rows.target_mask[:, 1 : longest + 1] if self.targets == "answer" else input_mask
        batch = _build_batch(ids, lengths, target_mask, rows.ids[:, 1 : longest + 1], row_index)
        if rows.number_values is None:
            return batch
        return _with_number_values(
            batch, np.where(input_mask, rows.number_values[:, :longest], 1), rows.number_values[:, 1 : longest + 1]
        )


@dataclass(frozen=True)
class NextToken(Layout):
    """Causal language modeling on a corpus: every next token is a target.

    The input is `[BOS] Once upon a time` without its last token; its targets are `Once`, `upon`, `a` and `time`. Rows
    are chunks of a corpus; stories may cross chunk boundaries, and attention is not masked between two stories.

    Raises `UserError` for questions with answers.
    """

    def build_batch(self, rows: TokenizedExamples, row_index: NDArray[np.int64]) -> Batch:
        if int(rows.target_mask.sum()) < int((rows.lengths - 1).sum()):
            raise UserError(
                "layout: NextToken supports language modeling only; for questions with answers use layout=Continuation"
            )
        return Continuation(targets="all").build_batch(rows, row_index)


@dataclass(frozen=True)
class Seq2Seq(Layout):
    """Encoder-decoder: the encoder reads the question, the decoder generates the answer, as in T5.

    Raffel et al. (2020), https://arxiv.org/abs/1910.10683: `2 1 + 9 = 1 2 [EOS]` becomes the source `2 1 + 9 = [EOS]`
    and the decoder input `[PAD] 1 2` with the targets `1`, `2` and `[EOS]`. T5 starts with its padding token;
    `decoder_start_token` makes that [BOS] or [EOS]. `source_eos=False` leaves out the source's [EOS]. With
    `answer_bos=True` [BOS] is the first target, as in BART, which begins with [EOS].

    `sentinel_token="<extra_id_0>"` is T5's pretraining format: the sentinel token follows the question in the source
    and starts the answer. Raises `UserError` for a sentinel that is not in the vocabulary.
    """

    decoder_start_token: Literal["pad", "bos", "eos"] = setting(
        "pad", "first decoder input: [PAD] as in T5, [BOS], or [EOS] as in BART"
    )
    source_eos: bool = setting(True, "whether the source ends with [EOS]")
    sentinel_token: str | None = setting(
        None, "a mask token that replaces the answer in the source and starts it in the target; null: none"
    )
    answer_bos: bool = setting(False, "whether the target starts with [BOS], as in BART")

    def build_batch(self, rows: TokenizedExamples, row_index: NDArray[np.int64]) -> Batch:
        self.check_unlabeled(rows)
        sentinel_ids = [] if self.sentinel_token is None else [_token_id(rows, self.sentinel_token, "sentinel_token")]
        answer_starts = np.where(rows.target_mask.any(axis=1), rows.target_mask.argmax(axis=1), rows.lengths)
        answer_lengths = rows.lengths - answer_starts
        suffix = [*sentinel_ids, *([EOS] if self.source_eos else [])]
        source_ids, source_number_values = _slice_rows(rows, np.zeros_like(answer_starts), answer_starts)
        source_ids, source_lengths = _append_suffix(source_ids, answer_starts, suffix)
        answer_ids, answer_number_values = _slice_rows(rows, answer_starts, answer_lengths)
        target_mask = _slice_array_rows(rows.target_mask, answer_starts, answer_lengths)
        for token_id in [*sentinel_ids, *([BOS] if self.answer_bos else [])]:
            answer_ids, target_mask, answer_lengths = (
                _prepend(token_id, answer_ids),
                _prepend(True, target_mask),
                answer_lengths + 1,
            )
            answer_number_values = None if answer_number_values is None else _prepend(1, answer_number_values)
        decoder_ids = _prepend({"pad": PAD, "bos": BOS, "eos": EOS}[self.decoder_start_token], answer_ids)[:, :-1]
        input_mask = np.arange(answer_ids.shape[1]) < answer_lengths[:, None]
        batch = _build_batch(np.where(input_mask, decoder_ids, PAD), answer_lengths, target_mask, answer_ids, row_index)
        source_tokens = Tokens(
            _to_tensor(source_ids.astype(np.int64)), _to_tensor(source_lengths), batch.tokens.example_indices
        )
        if source_number_values is not None and answer_number_values is not None:
            padded_source_values = np.pad(
                source_number_values,
                ((0, 0), (0, source_ids.shape[1] - source_number_values.shape[1])),
                constant_values=1,
            )
            source_tokens = replace(source_tokens, number_values=_to_tensor(padded_source_values))
            batch = _with_number_values(
                batch, np.where(input_mask, _prepend(1, answer_number_values)[:, :-1], 1), answer_number_values
            )
        return replace(batch, source=source_tokens, num_input_tokens=batch.num_input_tokens + int(source_lengths.sum()))


@dataclass(frozen=True)
class MaskedLM(Layout):
    """Masked language modeling: the answer's tokens are replaced by mask tokens and predicted in parallel.

    `2 1 + 9 = 1 2 [EOS]` becomes `2 1 + 9 =` and three masks with the targets `1`, `2` and `[EOS]` (Devlin et al.,
    2019, https://arxiv.org/abs/1810.04805). Values of the answer's numbers are masked too.

    The number of masks reveals the answer's length.
    """

    is_autoregressive: ClassVar[bool] = False
    has_mask_tokens: ClassVar[bool] = True

    mask_token: str | None = setting(None, "the mask token; null: [UNK]")

    def build_batch(self, rows: TokenizedExamples, row_index: NDArray[np.int64]) -> Batch:
        self.check_unlabeled(rows)
        mask_id = UNK if self.mask_token is None else _token_id(rows, self.mask_token, "mask_token")
        ids, is_masked = rows.ids, rows.target_mask
        batch = _build_batch(np.where(is_masked, ids.dtype.type(mask_id), ids), rows.lengths, is_masked, ids, row_index)
        if rows.number_values is None:
            return batch
        return _with_number_values(batch, np.where(is_masked, 1, rows.number_values), rows.number_values)


@dataclass(frozen=True)
class TokenClassification(Layout):
    """Token classification: each token has a label at its own position, as in counting or tagging.

    `blocked_tokens` names tokens that are masked as attention keys. They remain inputs and may have a label: with
    `blocked_tokens=("<pad>",)`, no position of `a <pad> a <pad>` attends to an earlier `<pad>` (Chang and Bisk, 2024,
    https://arxiv.org/abs/2405.20131). Only attention mixers support this.
    """

    is_autoregressive: ClassVar[bool] = False

    blocked_tokens: tuple[str, ...] = setting((), "tokens that no query may attend to")

    def build_batch(self, rows: TokenizedExamples, row_index: NDArray[np.int64]) -> Batch:
        if rows.labels is None:
            raise UserError(
                "layout: TokenClassification needs a label per token, and this task has none; use layout=Continuation"
            )
        batch = _build_batch(rows.ids, rows.lengths, rows.target_mask, rows.labels, row_index)
        if not self.blocked_tokens:
            return batch
        blocked_mask = np.any([rows.ids == i for i in self._blocked_ids(rows)], axis=0)
        if not bool(blocked_mask.any()):
            return batch
        return replace(batch, tokens=replace(batch.tokens, blocked_keys=_to_tensor(blocked_mask)))

    def _blocked_ids(self, rows: TokenizedExamples) -> list[int]:
        return [_token_id(rows, text, "blocked_tokens") for text in self.blocked_tokens]


def _token_id(rows: TokenizedExamples, token: str, setting_name: str) -> int:
    """The id of a token of the rows' vocabulary."""
    if rows.vocabulary is None:
        raise UserError(f"layout.{setting_name}: {token!r} is unknown, since these rows have no vocabulary")
    ids = rows.vocabulary.token_to_id
    if token not in ids:
        tokens = rows.vocabulary.tokens[4:]
        token_list = f"{', '.join(tokens[:100])}{' ...' if len(tokens) > 100 else ''}"
        raise UserError(f"layout.{setting_name}: must be a token of the task ({token_list}), not {token!r}")
    return ids[token]


def _slice_rows(
    rows: TokenizedExamples, starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[Ids, NDArray[np.float32] | None]:
    """The ids and values of each row from its entry of `starts`, padded with PAD and 1."""
    ids = _slice_array_rows(rows.ids, starts, lengths, PAD)
    return ids, None if rows.number_values is None else _slice_array_rows(rows.number_values, starts, lengths, 1)


def _slice_array_rows(
    array: NDArray[Any], starts: NDArray[np.int64], lengths: NDArray[np.int64], fill_value: int = 0
) -> NDArray[Any]:
    """`lengths` entries of each row from its entry of `starts`, padded with `fill_value`."""
    columns = np.arange(int(lengths.max(initial=0)))
    valid_mask = columns < lengths[:, None]
    positions = np.where(valid_mask, starts[:, None] + columns, 0)
    return np.where(valid_mask, np.take_along_axis(array, positions, axis=1), array.dtype.type(fill_value))


def _prepend(value: int, array: NDArray[Any]) -> NDArray[Any]:
    """Every row with `value` prepended."""
    return np.pad(array, ((0, 0), (1, 0)), constant_values=value)


def _append_suffix(ids: Ids, lengths: NDArray[np.int64], suffix: list[int]) -> tuple[Ids, NDArray[np.int64]]:
    """Rows with `suffix` appended to each."""
    ids = np.pad(ids, ((0, 0), (0, len(suffix))))
    for offset, token_id in enumerate(suffix):
        ids[np.arange(len(ids)), lengths + offset] = token_id
    return ids, lengths + len(suffix)


def _with_number_values(batch: Batch, number_values: NDArray[Any], target_number_values: NDArray[Any]) -> Batch:
    """A batch with input `number_values` and `target_number_values`."""
    tokens = replace(batch.tokens, number_values=_to_tensor(number_values.astype(np.float32)))
    return replace(batch, tokens=tokens, target_number_values=_to_tensor(target_number_values.astype(np.float32)))


def _build_batch(
    ids: Ids,
    lengths: NDArray[np.int64],
    target_mask: NDArray[np.bool_],
    labels: Ids,
    row_index: NDArray[np.int64],
) -> Batch:
    """A batch of inputs `ids` with the targets `labels` where `target_mask` is true, all `[rows, time]`."""
    targets = np.where(target_mask, labels.astype(np.int64), IGNORE_INDEX)
    num_targets = target_mask.sum(axis=1)
    target_positions, target_ids = _target_positions(target_mask, targets, num_targets)
    return Batch(
        Tokens(_to_tensor(ids.astype(np.int64)), _to_tensor(lengths.copy()), _to_tensor(row_index.copy())),
        targets=_to_tensor(targets),
        target_positions=_to_tensor(target_positions),
        target_ids=_to_tensor(target_ids),
        counts={"tokens": int(num_targets.sum()), "examples": len(ids)},
        num_input_tokens=int(lengths.sum()),
    )


def _target_positions(
    target_mask: NDArray[np.bool_], targets: NDArray[np.int64], num_targets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The target positions of each row, padded with the last one, and the target ids there, padded with IGNORE."""
    target_index = np.arange(int(num_targets.max(initial=0)))
    last_index = np.maximum(num_targets - 1, 0)[:, None]
    clipped_index = np.minimum(target_index, last_index)
    padding_mask = target_index > last_index
    row_offsets = np.arange(len(targets))[:, None] * targets.shape[1]
    positions = clipped_index + target_mask.argmax(axis=1)[:, None] if len(target_index) else clipped_index
    target_ids = targets.take(row_offsets + positions)
    # The targets of a row are usually contiguous, as gathered; otherwise some positions have no target.
    if np.count_nonzero(target_ids == IGNORE_INDEX) and bool(
        ((target_ids == IGNORE_INDEX) & (target_index < num_targets[:, None])).any()
    ):
        target_columns = np.append(np.nonzero(target_mask)[1], 0)  # an entry for rows without a target
        positions = np.where(
            num_targets[:, None] > 0, target_columns[(num_targets.cumsum() - num_targets)[:, None] + clipped_index], 0
        )
        target_ids = targets.take(row_offsets + positions)
    target_ids[padding_mask] = IGNORE_INDEX
    return positions, target_ids


def _to_tensor(array: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))
