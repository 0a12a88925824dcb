"""How rows become a batch: what the model reads, and what it must say where."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from numerate.batch import IGNORE, Batch, Tokens
from numerate.config import setting
from numerate.errors import UserError
from numerate.tokens.numbers import Ids
from numerate.tokens.tokenizer import Rows
from numerate.vocabulary import BEGIN, END, PAD, UNKNOWN


class Layout(ABC):
    """How questions and answers are laid out for a model."""

    continues: ClassVar[bool] = True
    """Whether answers are said token by token, each of which is read again; False where each place has a label."""

    masks: ClassVar[bool] = False
    """Whether a mask is read where the answer stands, so that a model may see all of a row and knows nothing of it."""

    @abstractmethod
    def batch(self, rows: Rows, row_index: NDArray[np.int64]) -> Batch:
        """The batch of these rows; `row_index` is the global index of each. Raises `UserError` for rows of another
        kind."""


@dataclass(frozen=True)
class Continuation(Layout):
    """The answer continues the question, and each token says the next one.

    `2 1 + 9 = 1 2 [EOS]` is read without its last token; asked are the places of `=`, `1` and `2`, which must say
    `1`, `2` and `[EOS]`. With `targets="all"` every place is asked, the question's own included.
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
        asked = rows.target_mask[:, 1 : longest + 1] if self.targets == "answer" else read
        batch = _batch(ids, lengths, asked, rows.ids[:, 1 : longest + 1], row_index)
        if rows.values is None:
            return batch
        return _with_values(batch, np.where(read, rows.values[:, :longest], 1), rows.values[:, 1 : longest + 1])


@dataclass(frozen=True)
class NextToken(Layout):
    """Running text: each token says the next one, and all of them are asked.

    `[BOS] Once upon a time` is read without its last token, and its four places must say `Once`, `upon`, `a` and
    `time`. Rows are chunks of a corpus, of which stories run across the ends; nothing is hidden between two stories.

    Raises `UserError` for questions with answers, whose questions are not asked.
    """

    def batch(self, rows: Rows, row_index: NDArray[np.int64]) -> Batch:
        if rows.labels is not None:
            raise UserError("layout: NextToken lays out running text; for labels take TokenClassification")
        lengths = rows.lengths - 1
        if int(rows.target_mask.sum()) < int(lengths.sum()):
            raise UserError(
                "layout: NextToken lays out running text, of which every token is asked; for questions with answers "
                "layout=Continuation is right"
            )
        longest = int(lengths.max(initial=0))
        read = np.arange(longest) < lengths[:, None]
        targets = np.where(read, rows.ids[:, 1 : longest + 1].astype(np.int64), IGNORE)
        count, said = int(lengths.sum()), _tensor(targets)
        return Batch(
            Tokens(
                _tensor(np.where(read, rows.ids[:, :longest].astype(np.int64), PAD)),
                _tensor(lengths.copy()),
                _tensor(row_index.copy()),
            ),
            targets=said,
            target_positions=_tensor(np.minimum(np.arange(longest), np.maximum(lengths - 1, 0)[:, None])),
            target_ids=said,
            counts={"tokens": count, "examples": len(lengths)},
            real=count,
        )


@dataclass(frozen=True)
class Seq2Seq(Layout):
    """An encoder reads the question and a decoder says the answer, as in T5.

    Raffel et al. (2020), https://arxiv.org/abs/1910.10683: `2 1 + 9 = 1 2 [EOS]` becomes the source `2 1 + 9 = [EOS]`
    and the decoder's input `[PAD] 1 2`, whose places must say `1`, `2` and `[EOS]`. T5 begins with its padding token,
    which `decoder_start_token="bos"` makes [BOS]. `source_eos=False` leaves out the source's [EOS].

    `sentinel="<extra_id_0>"` is the masked form that T5 was pretrained in: the source has this text of the vocabulary
    behind the question, and the answer begins with it. Raises `UserError` for a text that the vocabulary has not.
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
        asked_first = np.where(rows.target_mask.any(axis=1), rows.target_mask.argmax(axis=1), rows.lengths)
        answers = rows.lengths - asked_first
        behind = [*mask, *([END] if self.source_eos else [])]
        source, source_values = _moved(rows, np.zeros_like(asked_first), asked_first)
        source, source_lengths = _ending_with(source, asked_first, behind)
        said, said_values = _moved(rows, asked_first, answers)
        asked = _shifted(rows.target_mask, asked_first, answers)
        if mask:
            said, asked, answers = _behind(mask[0], said), _behind(True, asked), answers + 1
            said_values = None if said_values is None else _behind(1, said_values)
        begun = _behind(PAD if self.decoder_start_token == "pad" else BEGIN, said)[:, :-1]
        read = np.arange(said.shape[1]) < answers[:, None]
        batch = _batch(np.where(read, begun, PAD), answers, asked, said, row_index)
        tokens = Tokens(_tensor(source.astype(np.int64)), _tensor(source_lengths), batch.tokens.row)
        if source_values is not None and said_values is not None:
            filled = np.pad(source_values, ((0, 0), (0, source.shape[1] - source_values.shape[1])), constant_values=1)
            tokens = replace(tokens, values=_tensor(filled))
            batch = _with_values(batch, np.where(read, _behind(1, said_values)[:, :-1], 1), said_values)
        return replace(batch, source=tokens, real=batch.real + int(source_lengths.sum()))


@dataclass(frozen=True)
class Masked(Layout):
    """A mask stands where each token of the answer would, and says that token: for models that see all of a row.

    `2 1 + 9 = 1 2 [EOS]` is read as `2 1 + 9 =` and three masks, which must say `1`, `2` and `[EOS]`, as in masked
    language models (Devlin et al., 2019, https://arxiv.org/abs/1810.04805). Nothing of the answer is read, its numbers
    neither; each place is said by itself, not one after the other.

    The number of masks tells how long the answer is, unless `num_masks=8` puts eight behind every question, of which
    those behind the answer's end are not asked. Raises `UserError` for longer answers.
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
        said, masked, ends = rows.ids, rows.target_mask, rows.lengths
        if self.num_masks is not None:
            first = np.where(rows.target_mask.any(axis=1), rows.target_mask.argmax(axis=1), rows.lengths)
            longest = int((ends - first).max(initial=0))
            if longest > self.num_masks:
                raise UserError(
                    f"layout.num_masks: an answer has {longest} tokens, and there are {self.num_masks} masks"
                )
            ends = first + self.num_masks
            said = np.pad(said, ((0, 0), (0, max(0, int(ends.max(initial=0)) - said.shape[1]))))
            columns = np.arange(said.shape[1])
            masked = (columns >= first[:, None]) & (columns < ends[:, None])
        more = said.shape[1] - rows.ids.shape[1]
        asked = np.pad(rows.target_mask, ((0, 0), (0, more)))
        batch = _batch(np.where(masked, said.dtype.type(mask), said), ends, asked, said, row_index)
        if rows.values is None:
            return batch
        values = np.pad(rows.values, ((0, 0), (0, more)), constant_values=1)
        return _with_values(batch, np.where(masked, 1, values), values)


@dataclass(frozen=True)
class TokenClassification(Layout):
    """Each token is answered at its own place by a label, as in counting or in tagging.

    `blocked_tokens` names texts that nobody may attend to. A hidden token is still read where it stands and may be
    asked for a label: with `blocked_tokens=("<pad>",)`, in `a <pad> a <pad>` no place sees a `<pad>` before it (Chang
    and Bisk, 2024, https://arxiv.org/abs/2405.20131). Only mixers that attend can hide anything.
    """

    continues: ClassVar[bool] = False

    blocked_tokens: tuple[str, ...] = setting((), "tokens that no query may attend to", later=True)

    def batch(self, rows: Rows, row_index: NDArray[np.int64]) -> Batch:
        if rows.labels is None:
            raise UserError(
                "layout: TokenClassification lays out a label per token, which this task has not; take Continuation"
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
    """The id of a text of the rows' vocabulary."""
    if rows.vocabulary is None:
        raise UserError(f"layout.{field}: these rows do not say which texts their tokens are, so {text!r} is not known")
    known = rows.vocabulary.ids
    if text not in known:
        names = rows.vocabulary.symbols[4:]
        some = f"{', '.join(names[:100])}{' ...' if len(names) > 100 else ''}"
        raise UserError(f"layout.{field}: the task has no text {text!r}; it has: {some}")
    return known[text]


def _moved(rows: Rows, first: NDArray[np.int64], lengths: NDArray[np.int64]) -> tuple[Ids, NDArray[np.float32] | None]:
    """The ids and values of each row from its own `first` on, PAD and 1 behind."""
    ids = _shifted(rows.ids, first, lengths, PAD)
    return ids, None if rows.values is None else _shifted(rows.values, first, lengths, 1)


def _shifted(part: NDArray[Any], first: NDArray[np.int64], lengths: NDArray[np.int64], fill: int = 0) -> NDArray[Any]:
    """`lengths` entries of each row from its own `first` on, and `fill` behind them."""
    columns = np.arange(int(lengths.max(initial=0)))
    there = columns < lengths[:, None]
    places = np.where(there, first[:, None] + columns, 0)
    return np.where(there, np.take_along_axis(part, places, axis=1), part.dtype.type(fill))


def _behind(first: int, part: NDArray[Any]) -> NDArray[Any]:
    """Every row behind one more entry."""
    return np.pad(part, ((0, 0), (1, 0)), constant_values=first)


def _ending_with(ids: Ids, lengths: NDArray[np.int64], behind: list[int]) -> tuple[Ids, NDArray[np.int64]]:
    """Rows with these ids behind each one's end."""
    ids = np.pad(ids, ((0, 0), (0, len(behind))))
    for number, token in enumerate(behind):
        ids[np.arange(len(ids)), lengths + number] = token
    return ids, lengths + len(behind)


def _with_values(batch: Batch, values: NDArray[Any], said: NDArray[Any]) -> Batch:
    """A batch whose input tokens carry `values`, and whose targets carry `said`."""
    tokens = replace(batch.tokens, values=_tensor(values.astype(np.float32)))
    return replace(batch, tokens=tokens, target_values=_tensor(said.astype(np.float32)))


def _batch(
    ids: Ids,
    lengths: NDArray[np.int64],
    asked: NDArray[np.bool_],
    said: Ids,
    row_index: NDArray[np.int64],
) -> Batch:
    """A batch of inputs `ids` that must say `said` at the places `asked`, all `[rows, time]`."""
    targets = np.where(asked, said.astype(np.int64), IGNORE)
    counts = asked.sum(axis=1)
    places, target_ids = _asked_places(asked, targets, counts)
    return Batch(
        Tokens(_tensor(ids.astype(np.int64)), _tensor(lengths.copy()), _tensor(row_index.copy())),
        targets=_tensor(targets),
        target_positions=_tensor(places),
        target_ids=_tensor(target_ids),
        counts={"tokens": int(counts.sum()), "examples": len(ids)},
        real=int(lengths.sum()),
    )


def _asked_places(
    asked: NDArray[np.bool_], targets: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The asked places of each row in order, filled up with its last one, and the targets there, filled with IGNORE."""
    nth = np.arange(int(counts.max(initial=0)))
    last = np.maximum(counts - 1, 0)[:, None]
    upto = np.minimum(nth, last)
    filled = nth > last
    rows = np.arange(len(targets))[:, None] * targets.shape[1]
    places = upto + asked.argmax(axis=1)[:, None] if len(nth) else upto
    gathered = targets.take(rows + places)
    # Almost always the asked places of a row are one run, which is what was gathered; otherwise places are among them
    # that are not asked.
    if np.count_nonzero(gathered == IGNORE) and bool(((gathered == IGNORE) & (nth < counts[:, None])).any()):
        found = np.append(np.nonzero(asked)[1], 0)  # a row that asks nothing takes whichever comes next
        places = np.where(counts[:, None] > 0, found[(counts.cumsum() - counts)[:, None] + upto], 0)
        gathered = targets.take(rows + places)
    gathered[filled] = IGNORE
    return places, gathered


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))
