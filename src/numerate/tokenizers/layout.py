"""From rows of token ids to batches: model inputs and targets."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from numerate.batch import IGNORE, Batch, Tokens
from numerate.config import setting
from numerate.errors import UserError
from numerate.tokenizers.number_formats import Ids
from numerate.tokenizers.tokenizer import Rows
from numerate.vocabulary import BEGIN, END, PAD, UNKNOWN


class Layout(ABC):
    """Builds model inputs and targets from tokenized questions and answers."""

    continues: ClassVar[bool] = True
    """Whether answers are generated token by token (autoregressively); False: one prediction per position."""

    masks: ClassVar[bool] = False
    """Whether mask tokens replace the answer in the input, so that attention may be bidirectional."""

    @abstractmethod
    def batch(self, rows: Rows, row_index: NDArray[np.int64]) -> Batch:
        """The batch of these rows; `row_index` is the global index of each. Raises `UserError` for unsuitable rows."""


@dataclass(frozen=True)
class Continuation(Layout):
    """Causal language modeling: the answer follows the question, and each token predicts the next one.

    The input is `2 1 + 9 = 1 2 [EOS]` without its last token; the targets at `=`, `1` and `2` are `1`, `2` and
    `[EOS]`. With `targets="all"` the tokens of the question are targets too.
    """

    targets: Literal["answer", "all"] = setting("answer", "which tokens are targets: the answer with its end, or all")

    def __post_init__(self) -> None:
        if self.targets not in ("answer", "all"):
            raise UserError(f"targets: {self.targets!r} is neither 'answer' nor 'all'")

    def batch(self, rows: Rows, row_index: NDArray[np.int64]) -> Batch:
        if rows.labels is not None:
            raise UserError(
                "layout: a Continuation lays out answers that follow their questions; for labels take "
                "TokenClassification"
            )
        lengths = rows.lengths - 1
        longest = int(lengths.max(initial=0))
        read = np.arange(longest) < lengths[:, None]
        ids = np.where(read, rows.ids[:, :longest], rows.ids.dtype.type(PAD))
        target_mask = rows.target_mask[:, 1 : longest + 1] if self.targets == "answer" else read
        batch = _batch(ids, lengths, target_mask, rows.ids[:, 1 : longest + 1], row_index)
        if rows.values is None:
            return batch
        return _with_values(batch, np.where(read, rows.values[:, :longest], 1), rows.values[:, 1 : longest + 1])


@dataclass(frozen=True)
class NextToken(Layout):
    """Causal language modeling on running text: every next token is a target.

    The input is `[BOS] Once upon a time` without its last token; its targets are `Once`, `upon`, `a` and `time`. Rows
    are chunks of a corpus; stories may cross chunk boundaries, and attention is not masked between two stories.

    Raises `UserError` for questions with answers.
    """

    def batch(self, rows: Rows, row_index: NDArray[np.int64]) -> Batch:
        if rows.labels is not None:
            raise UserError("layout: NextToken lays out running text; for labels take TokenClassification")
        lengths = rows.lengths - 1
        if int(rows.target_mask.sum()) < int(lengths.sum()):
            raise UserError(
                "layout: NextToken is for running text, of which every token is a target; for questions with answers "
                "layout=Continuation is right"
            )
        longest = int(lengths.max(initial=0))
        read = np.arange(longest) < lengths[:, None]
        targets = np.where(read, rows.ids[:, 1 : longest + 1].astype(np.int64), IGNORE)
        count, target_ids = int(lengths.sum()), _tensor(targets)
        return Batch(
            Tokens(
                _tensor(np.where(read, rows.ids[:, :longest].astype(np.int64), PAD)),
                _tensor(lengths.copy()),
                _tensor(row_index.copy()),
            ),
            targets=target_ids,
            target_positions=_tensor(np.minimum(np.arange(longest), np.maximum(lengths - 1, 0)[:, None])),
            target_ids=target_ids,
            counts={"tokens": count, "examples": len(lengths)},
            real=count,
        )


@dataclass(frozen=True)
class Seq2Seq(Layout):
    """Encoder-decoder: the encoder reads the question, the decoder generates the answer, as in T5.

    Raffel et al. (2020), https://arxiv.org/abs/1910.10683: `2 1 + 9 = 1 2 [EOS]` becomes the source `2 1 + 9 = [EOS]`
    and the decoder input `[PAD] 1 2` with the targets `1`, `2` and `[EOS]`. T5 starts with its padding token;
    `decoder_start_token="bos"` makes that [BOS]. `source_eos=False` leaves out the source's [EOS].

    `sentinel="<extra_id_0>"` is T5's pretraining format: the sentinel token follows the question in the source and
    starts the answer. Raises `UserError` for a sentinel that is not in the vocabulary.
    """

    decoder_start_token: Literal["pad", "bos"] = setting("pad", "first decoder input: [PAD] as in T5, or [BOS]")
    source_eos: bool = setting(True, "whether the source ends with [EOS]")
    sentinel: str | None = setting(
        None, "a mask token that replaces the answer in the source and starts it in the target; null: none"
    )

    def __post_init__(self) -> None:
        if self.decoder_start_token not in ("pad", "bos"):
            raise UserError(f"decoder_start_token: {self.decoder_start_token!r} is neither 'pad' nor 'bos'")

    def batch(self, rows: Rows, row_index: NDArray[np.int64]) -> Batch:
        if rows.labels is not None:
            raise UserError(
                "layout: Seq2Seq lays out answers that follow their questions; for labels take TokenClassification"
            )
        mask = [] if self.sentinel is None else [_id_of(rows, self.sentinel, "sentinel")]
        answer_start = np.where(rows.target_mask.any(axis=1), rows.target_mask.argmax(axis=1), rows.lengths)
        answers = rows.lengths - answer_start
        suffix = [*mask, *([END] if self.source_eos else [])]
        source, source_values = _moved(rows, np.zeros_like(answer_start), answer_start)
        source, source_lengths = _ending_with(source, answer_start, suffix)
        answer_ids, answer_values = _moved(rows, answer_start, answers)
        target_mask = _shifted(rows.target_mask, answer_start, answers)
        if mask:
            answer_ids, target_mask, answers = (
                _prepended(mask[0], answer_ids),
                _prepended(True, target_mask),
                answers + 1,
            )
            answer_values = None if answer_values is None else _prepended(1, answer_values)
        decoder_ids = _prepended(PAD if self.decoder_start_token == "pad" else BEGIN, answer_ids)[:, :-1]
        read = np.arange(answer_ids.shape[1]) < answers[:, None]
        batch = _batch(np.where(read, decoder_ids, PAD), answers, target_mask, answer_ids, row_index)
        tokens = Tokens(_tensor(source.astype(np.int64)), _tensor(source_lengths), batch.tokens.row)
        if source_values is not None and answer_values is not None:
            filled = np.pad(source_values, ((0, 0), (0, source.shape[1] - source_values.shape[1])), constant_values=1)
            tokens = replace(tokens, values=_tensor(filled))
            batch = _with_values(batch, np.where(read, _prepended(1, answer_values)[:, :-1], 1), answer_values)
        return replace(batch, source=tokens, real=batch.real + int(source_lengths.sum()))


@dataclass(frozen=True)
class Masked(Layout):
    """Masked language modeling: the answer's tokens are replaced by mask tokens and predicted in parallel.

    `2 1 + 9 = 1 2 [EOS]` is read as `2 1 + 9 =` and three masks with the targets `1`, `2` and `[EOS]` (Devlin et al.,
    2019, https://arxiv.org/abs/1810.04805). Values of the answer's numbers are masked too.

    The number of masks reveals the answer's length, unless `num_masks=8` puts eight after every question; those after
    the answer's end have no target. Raises `UserError` for longer answers.
    """

    continues: ClassVar[bool] = False
    masks: ClassVar[bool] = True

    mask_token: str | None = setting(None, "the mask token; null: [UNK]")
    num_masks: int | None = setting(None, "mask tokens after every question; null: the number of answer tokens")

    def __post_init__(self) -> None:
        if self.num_masks is not None and self.num_masks < 1:
            raise UserError(
                f"num_masks: {self.num_masks} masks leave no room for an answer; 1 or more is right, or null"
            )

    def batch(self, rows: Rows, row_index: NDArray[np.int64]) -> Batch:
        if rows.labels is not None:
            raise UserError(
                "layout: Masked masks answers that follow their questions; for labels take TokenClassification"
            )
        mask = UNKNOWN if self.mask_token is None else _id_of(rows, self.mask_token, "mask_token")
        ids, masked, ends = rows.ids, rows.target_mask, rows.lengths
        if self.num_masks is not None:
            first = np.where(rows.target_mask.any(axis=1), rows.target_mask.argmax(axis=1), rows.lengths)
            longest = int((ends - first).max(initial=0))
            if longest > self.num_masks:
                raise UserError(
                    f"layout.num_masks: an answer has {longest} tokens, and there are {self.num_masks} masks"
                )
            ends = first + self.num_masks
            ids = np.pad(ids, ((0, 0), (0, max(0, int(ends.max(initial=0)) - ids.shape[1]))))
            columns = np.arange(ids.shape[1])
            masked = (columns >= first[:, None]) & (columns < ends[:, None])
        more = ids.shape[1] - rows.ids.shape[1]
        target_mask = np.pad(rows.target_mask, ((0, 0), (0, more)))
        batch = _batch(np.where(masked, ids.dtype.type(mask), ids), ends, target_mask, ids, row_index)
        if rows.values is None:
            return batch
        values = np.pad(rows.values, ((0, 0), (0, more)), constant_values=1)
        return _with_values(batch, np.where(masked, 1, values), values)


@dataclass(frozen=True)
class TokenClassification(Layout):
    """Token classification: each token has a label at its own position, as in counting or tagging.

    `blocked_tokens` names tokens that are masked as attention keys. They are still read at their own position and may
    have a label: with `blocked_tokens=("<pad>",)`, no position of `a <pad> a <pad>` attends to an earlier `<pad>`
    (Chang and Bisk, 2024, https://arxiv.org/abs/2405.20131). Only attention mixers support this.
    """

    continues: ClassVar[bool] = False

    blocked_tokens: tuple[str, ...] = setting((), "tokens that no query may attend to", later=True)

    def batch(self, rows: Rows, row_index: NDArray[np.int64]) -> Batch:
        if rows.labels is None:
            raise UserError(
                "layout: TokenClassification needs a label per token, which this task has not; take Continuation"
            )
        batch = _batch(rows.ids, rows.lengths, rows.target_mask, rows.labels, row_index)
        if not self.blocked_tokens:
            return batch
        hidden = np.any([rows.ids == i for i in self._hidden_ids(rows)], axis=0)
        if not bool(hidden.any()):
            return batch
        return replace(batch, tokens=replace(batch.tokens, blocked_keys=_tensor(hidden)))

    def _hidden_ids(self, rows: Rows) -> list[int]:
        return [_id_of(rows, text, "blocked_tokens") for text in self.blocked_tokens]


def _id_of(rows: Rows, text: str, field: str) -> int:
    """The id of a token of the rows' vocabulary."""
    if rows.vocabulary is None:
        raise UserError(f"layout.{field}: these rows do not say which texts their tokens are, so {text!r} is not known")
    known = rows.vocabulary.ids
    if text not in known:
        names = rows.vocabulary.symbols[4:]
        some = f"{', '.join(names[:100])}{' ...' if len(names) > 100 else ''}"
        raise UserError(f"layout.{field}: the task has no text {text!r}; it has: {some}")
    return known[text]


def _moved(rows: Rows, first: NDArray[np.int64], lengths: NDArray[np.int64]) -> tuple[Ids, NDArray[np.float32] | None]:
    """The ids and values of each row from its own `first` on, padded with PAD and 1."""
    ids = _shifted(rows.ids, first, lengths, PAD)
    return ids, None if rows.values is None else _shifted(rows.values, first, lengths, 1)


def _shifted(part: NDArray[Any], first: NDArray[np.int64], lengths: NDArray[np.int64], fill: int = 0) -> NDArray[Any]:
    """`lengths` entries of each row from its own `first` on, padded with `fill`."""
    columns = np.arange(int(lengths.max(initial=0)))
    there = columns < lengths[:, None]
    positions = np.where(there, first[:, None] + columns, 0)
    return np.where(there, np.take_along_axis(part, positions, axis=1), part.dtype.type(fill))


def _prepended(first: int, part: NDArray[Any]) -> NDArray[Any]:
    """Every row with `first` prepended."""
    return np.pad(part, ((0, 0), (1, 0)), constant_values=first)


def _ending_with(ids: Ids, lengths: NDArray[np.int64], suffix: list[int]) -> tuple[Ids, NDArray[np.int64]]:
    """Rows with `suffix` appended to each."""
    ids = np.pad(ids, ((0, 0), (0, len(suffix))))
    for number, token in enumerate(suffix):
        ids[np.arange(len(ids)), lengths + number] = token
    return ids, lengths + len(suffix)


def _with_values(batch: Batch, values: NDArray[Any], target_values: NDArray[Any]) -> Batch:
    """A batch with input `values` and `target_values`."""
    tokens = replace(batch.tokens, values=_tensor(values.astype(np.float32)))
    return replace(batch, tokens=tokens, target_values=_tensor(target_values.astype(np.float32)))


def _batch(
    ids: Ids,
    lengths: NDArray[np.int64],
    target_mask: NDArray[np.bool_],
    labels: Ids,
    row_index: NDArray[np.int64],
) -> Batch:
    """A batch of inputs `ids` with the targets `labels` where `target_mask` is true, all `[rows, time]`."""
    targets = np.where(target_mask, labels.astype(np.int64), IGNORE)
    counts = target_mask.sum(axis=1)
    positions, target_ids = _target_positions(target_mask, targets, counts)
    return Batch(
        Tokens(_tensor(ids.astype(np.int64)), _tensor(lengths.copy()), _tensor(row_index.copy())),
        targets=_tensor(targets),
        target_positions=_tensor(positions),
        target_ids=_tensor(target_ids),
        counts={"tokens": int(counts.sum()), "examples": len(ids)},
        real=int(lengths.sum()),
    )


def _target_positions(
    target_mask: NDArray[np.bool_], targets: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The target positions of each row, padded with the last one, and the target ids there, padded with IGNORE."""
    nth = np.arange(int(counts.max(initial=0)))
    last = np.maximum(counts - 1, 0)[:, None]
    upto = np.minimum(nth, last)
    filled = nth > last
    rows = np.arange(len(targets))[:, None] * targets.shape[1]
    positions = upto + target_mask.argmax(axis=1)[:, None] if len(nth) else upto
    gathered = targets.take(rows + positions)
    # Usually the targets of a row are contiguous, which is what was gathered; otherwise some positions have no target.
    if np.count_nonzero(gathered == IGNORE) and bool(((gathered == IGNORE) & (nth < counts[:, None])).any()):
        found = np.append(np.nonzero(target_mask)[1], 0)  # an entry for rows without a target
        positions = np.where(counts[:, None] > 0, found[(counts.cumsum() - counts)[:, None] + upto], 0)
        gathered = targets.take(rows + positions)
    gathered[filled] = IGNORE
    return positions, gathered


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))
