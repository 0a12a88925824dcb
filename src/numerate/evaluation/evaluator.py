"""Exact match in one forward, and the records that come of it.

For a causal model whose answers have one tokenisation and are fed back by argmax, greedy decoding says exactly the
right answer if and only if every argmax is right when the right answer is read: by induction over the answer, the
prefix that decoding reads is then the right one. So one parallel forward scores a whole batch. Where that does not hold
(`one_pass_holds` says when), answers are decoded token by token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from numerate.batch import IGNORE, Batch, Draw, Model, Tokens
from numerate.config import setting
from numerate.errors import Mistake
from numerate.evaluation.beams import PUBLISHED_SPARE, beam_search
from numerate.evaluation.generate import greedy
from numerate.evaluation.grid import Grid
from numerate.evaluation.labels import Labels
from numerate.evaluation.statistics import wilson
from numerate.evaluation.text_answers import TextAnswers
from numerate.evaluation.token_bytes import TokenBytes
from numerate.tasks.draws import Draws, key
from numerate.tasks.language_modelling import LanguageModelling
from numerate.tasks.questions import Questions
from numerate.tasks.task import Task
from numerate.tokens.layout import Continuation, Layout
from numerate.tokens.tokenizer import Tokenizer
from numerate.vocabulary import DIGIT, NUMBER, PAD

Method = Literal["one pass", "decoding", "beams"]
"""How answers are scored: in one forward, by greedy decoding, or by a search with the published number of beams."""

METHODS: tuple[Method, ...] = ("one pass", "decoding", "beams")

CHUNK = 32_768
"""Tokens that are read at once (rows x time): a fixed number, so that a cell is always computed in the same pieces."""

PIECE = 4_096
"""Tokens that one forward of `mark` reads on a CPU: what a layer makes of them is small enough for the cache."""

SPARE = 10
"""Tokens that an answer which is a text may be longer than the longest right one of its batch: it is to be read."""


@dataclass(frozen=True)
class Evaluation:
    """What a run is evaluated on when nothing else is said."""

    grid: str | None = setting(
        None, "cells, such as 1:12x1:12 or equal:1:18; the trained sizes and as many beyond if null", identity=False
    )
    count: int = setting(100, "questions per cell", identity=False)
    seed: int = setting(0, "key of the questions, the same for all runs that are to be compared", identity=False)
    during: int = setting(256, "questions per evaluation during training, on each development split")
    batches: int | None = setting(
        None, "of running text: evaluate during training on so many batches; null: on `during` chunks", later=True
    )
    chunks: int | None = setting(
        None, "of running text: chunks of the final evaluation; null: all there are", later=True, identity=False
    )

    def __post_init__(self) -> None:
        if self.grid is not None and not self.grid.strip():
            raise Mistake("grid: is empty; 1:12x1:12 is one, and null stands for the trained sizes and as many beyond")
        if self.count < 1:
            raise Mistake(f"count: {self.count} questions measure nothing; 100 give +-10 points at 50 %")
        if self.during < 1:
            raise Mistake(f"during: {self.during} questions measure nothing; 256 are usual")
        for name in ("batches", "chunks"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise Mistake(f"{name}: {value} of them measure nothing; 1 or more is right, or null")


class Exam:
    """The asking side of a recipe: questions as batches."""

    def __init__(self, task: Task, tokenizer: Tokenizer, layout: Layout) -> None:
        self.task, self.tokenizer = task, tokenizer
        self.layout = replace(layout, ask="answer") if isinstance(layout, Continuation) else layout
        self.vocabulary = tokenizer.vocabulary(task)
        self.symbols = np.array(self.vocabulary.symbols)
        self._digit = torch.from_numpy(self.vocabulary.kinds == DIGIT)
        carrier = (self.vocabulary.kinds == NUMBER) & np.isnan(self.vocabulary.values)
        self._carrier, self.carries = torch.from_numpy(carrier), bool(carrier.any())

    @property
    def labelled(self) -> bool:
        """Whether what is asked are labels, each at its own place, so that right ones are counted by place too."""
        return not self.layout.continues and not self.layout.masks

    @property
    def running(self) -> bool:
        """Whether it is running text, of which every token is asked, and nothing is right or wrong as a whole."""
        return self.task.running

    @cached_property
    def token_bytes(self) -> TokenBytes | None:
        """The bytes of text of each token, of running text; None of all else."""
        return TokenBytes.of(self.task.pieces()) if isinstance(self.task, LanguageModelling) else None

    @cached_property
    def texts(self) -> bool:
        """Whether questions and answers are texts in a file: one of them tells."""
        return not self.running and self.task.draw(Draws(key("cost")), np.arange(1)).texts is not None

    @cached_property
    def trained_labels(self) -> int | None:
        """The most labels that a row of training has; None where the task does not say."""
        return self.task.trained_labels() if self.labelled else None

    def batch(self, questions: Questions, first: int = 0) -> Batch:
        """All of them as one batch, whatever its length; rows are numbered from `first`."""
        rows = self.tokenizer.rows(questions, self.vocabulary)
        return self.layout.batch(rows, np.arange(first, first + len(questions)))

    def is_digit(self, ids: Tensor) -> Tensor:
        return self._digit.to(ids.device)[ids.clamp(min=0)] & (ids >= 0)

    def is_carrier(self, ids: Tensor) -> Tensor:
        """Which are tokens that stand for any number, with the number beside them."""
        return self._carrier.to(ids.device)[ids.clamp(min=0)] & (ids >= 0)

    def longest(self, task: Task, split: str = "development", count: int = 64) -> Tokens:
        """Tokens of the largest questions of a task: what tables of places are checked against."""
        largest = {axis: span.high for axis, span in task.trained().items()}
        pinned = task.pinned(**largest) if largest else task
        known = pinned.longest()
        return self.batch(pinned.examples(split, 0, 0, count) if known is None else known).tokens


@dataclass(frozen=True)
class Marks:
    """How each row of a batch was answered.

    `right`: everything that was asked, the end token included. `first_wrong`: the place in the answer (from 0) of the
    first argmax that is wrong, -1 where none is. `digits_right` of `digits` asked digits are right when the right
    prefix is read. `said_right` tells of each asked token whether it is right, in the order in which a row asks them;
    `asked` where a row asks one at all.
    """

    right: Bool[Tensor, " rows"]
    first_wrong: Int[Tensor, " rows"]
    digits_right: int
    digits: int
    said_right: Bool[Tensor, "rows asked"]
    asked: Bool[Tensor, "rows asked"]


@torch.no_grad()
def mark(model: Model, exam: Exam, batch: Batch, placement: int = 0) -> Marks:
    """Scores a batch in one forward (on a CPU, in one per piece: rows know nothing of each other)."""
    return _mark_at_once(model, exam, batch, placement)[0]


def _mark_at_once(model: Model, exam: Exam, batch: Batch, placement: int) -> tuple[Marks, Tensor, Tensor | None]:
    said = torch.cat([_said_in(model, piece, placement) for piece in pieces(batch)])
    values = _numbers_in(model, batch, placement) if exam.layout.masks or exam.carries else None
    return _marked(exam, said, batch, values), said, values if exam.layout.masks else None


def _numbers_in(model: Model, batch: Batch, placement: int) -> Tensor | None:
    """The numbers that are said at the asked places, of a model that says numbers."""
    found: list[Tensor] = []
    for piece in pieces(batch):
        values = model(model.place(piece.tokens, Draw.fixed(placement)), piece.source, asked=piece.asked).values
        if values is None:
            return None
        found.append(values)
    return torch.cat(found)


def _said_in(model: Model, batch: Batch, placement: int) -> Int[Tensor, "rows asked"]:
    tokens = model.place(batch.tokens, Draw.fixed(placement))
    return model(tokens, batch.source, asked=batch.asked).logits.argmax(-1)  # type: ignore[no-any-return]


def _marked(exam: Exam, said: Int[Tensor, "rows asked"], batch: Batch, values: Tensor | None = None) -> Marks:
    """What was said beside what was asked; `values` are the numbers said beside the tokens."""
    targets = batch.asked_targets
    asked = targets != IGNORE
    wrong = asked & (said != targets)
    if exam.carries:
        wrong |= exam.is_carrier(targets) & _other_number(batch, values)
    digit = exam.is_digit(targets) & asked
    first = torch.where(wrong.any(1), wrong.long().argmax(1), -1)
    return Marks(~wrong.any(1), first, int((digit & ~wrong).sum()), int(digit.sum()), asked & ~wrong, asked)


def _other_number(batch: Batch, values: Tensor | None) -> Tensor:
    """Where another number is said than asked for, by more than float32 tells apart; everywhere if none is said."""
    if values is None or batch.target_values is None:
        return torch.ones_like(batch.asked_targets, dtype=torch.bool)
    wanted = batch.target_values.gather(1, batch.asked)
    return ~torch.isclose(values[:, : wanted.shape[1]].to(wanted), wanted, rtol=1e-6, atol=0.0)


def labels_of(exam: Exam, batch: Batch, marks: Marks) -> Labels:
    """What the marks of a batch with labels say of each place of its rows."""
    answers = exam.symbols[batch.asked_targets.clamp(min=0).cpu().numpy()]
    return Labels.of(marks.said_right.cpu().numpy(), marks.asked.cpu().numpy(), answers, exam.trained_labels)


def pieces(batch: Batch) -> Sequence[Batch]:
    """Consecutive rows of a batch, few enough on a CPU that what a layer makes of them stays in its cache."""
    rows, time = batch.tokens.ids.shape
    if batch.tokens.ids.device.type != "cpu" or rows * time <= PIECE:
        return [batch]
    share = max(1, PIECE // time)
    return [rows_of(batch, slice(first, first + share)) for first in range(0, rows, share)]


def rows_of(batch: Batch, chosen: slice) -> Batch:
    """These rows of a batch, as long as it is."""
    return replace(
        batch,
        tokens=_tokens_of(batch.tokens, chosen),
        targets=batch.targets[chosen],
        asked=batch.asked[chosen],
        asked_targets=batch.asked_targets[chosen],
        target_values=None if batch.target_values is None else batch.target_values[chosen],
        source=None if batch.source is None else _tokens_of(batch.source, chosen),
    )


def _tokens_of(tokens: Tokens, chosen: slice) -> Tokens:
    return replace(
        tokens,
        ids=tokens.ids[chosen],
        lengths=tokens.lengths[chosen],
        row=tokens.row[chosen],
        values=None if tokens.values is None else tokens.values[chosen],
        hidden=None if tokens.hidden is None else tokens.hidden[chosen],
        places=None,
    )


@torch.no_grad()
def mark_by_decoding(
    model: Model, exam: Exam, batch: Batch, placement: int = 0, spare: int = 0, *, beams: bool = False
) -> tuple[Marks, Tensor]:
    """Scores a batch by decoding every answer; returns what was said as well (rows x places, PAD behind the end).

    `spare` tokens beyond the longest right answer may be said. They change nothing of what is right, as that has ended.
    With `beams` by beam search, which is given the published number of spare tokens at least.
    """
    marks, said, _ = _mark_decoded(model, exam, batch, placement, spare, beams)
    return marks, said


def _mark_decoded(
    model: Model, exam: Exam, batch: Batch, placement: int, spare: int, beams: bool
) -> tuple[Marks, Tensor, Tensor | None]:
    """And the numbers that were said beside the tokens, of a model that says numbers."""
    prompts, most = prompts_of(batch)
    most += max(spare, PUBLISHED_SPARE) if beams else spare
    search = beam_search if beams else greedy
    found = search(model, prompts, most, source=batch.source, placement=placement)
    targets = batch.asked_targets
    width = targets.shape[1]
    more = max(0, width - found.ids.shape[1])
    said = torch.nn.functional.pad(found.ids, (0, more))
    values = None if found.values is None else torch.nn.functional.pad(found.values, (0, more), value=1.0)
    return _marked(exam, said[:, :width], batch, values), said, values


@torch.no_grad()
def likelihood(model: Model, batch: Batch, placement: int = 0) -> tuple[float, int, int]:
    """Of the right answers of a batch, their ends included and padding not: the sum of -ln(probability) of their tokens
    behind the right prefix, in nats; how many tokens that are; and how many of them are the likeliest."""
    nll, tokens, right = 0.0, 0, 0
    for piece in pieces(batch):
        logits = model(model.place(piece.tokens, Draw.fixed(placement)), piece.source, asked=piece.asked).logits
        scores, targets = logits.float().flatten(0, 1), piece.asked_targets.flatten()
        each = torch.nn.functional.cross_entropy(scores, targets, ignore_index=IGNORE, reduction="none")
        nll += float(each.double().sum())
        tokens += int((targets != IGNORE).sum())
        right += int((scores.argmax(-1) == targets).sum())
    return nll, tokens, right


def prompts_of(batch: Batch) -> tuple[Tokens, int]:
    """The questions of a batch without their answers, and the tokens of the longest answer."""
    lengths = batch.asked[:, 0] + 1
    width = int(lengths.max())
    ids = batch.tokens.ids[:, :width]
    within = torch.arange(width, device=ids.device)[None, :] < lengths[:, None]
    hidden = None if batch.tokens.hidden is None else batch.tokens.hidden[:, :width]
    values = None if batch.tokens.values is None else torch.where(within, batch.tokens.values[:, :width], 1.0)
    ids = torch.where(within, ids, 0)
    prompts = replace(batch.tokens, ids=ids, lengths=lengths, values=values, hidden=hidden, places=None)
    return prompts, batch.asked_targets.shape[1]


def one_pass_holds(exam: Exam) -> bool:
    """Whether exact match may be read off one forward: one tokenisation per answer, ids fed back by argmax.

    For aligned labels it always may: what is said is never read.
    """
    return not exam.layout.continues or exam.tokenizer.unique


def method_for(exam: Exam, wanted: Method) -> Method:
    """How answers are scored: as wanted, unless one forward would not be exact, or answers are texts, of which it is
    measured how far they are from the right ones. Raises `Mistake` for decoding where there is nothing to decode."""
    if exam.running:
        if wanted != "one pass":
            raise Mistake(f"method: {wanted!r} is for answers, and running text has none: 'one pass' is right")
        return wanted
    if not exam.layout.continues:
        if wanted != "one pass":
            how = f"layout={type(exam.layout).__name__} has every place said by itself, in one forward"
            raise Mistake(f"method: {wanted!r} is for answers said token by token; {how}, so 'one pass' is right")
        return "one pass"
    if wanted == "beams":
        return wanted
    return wanted if one_pass_holds(exam) and not exam.texts else "decoding"


def evaluate_cell(
    model: Model,
    exam: Exam,
    cell: Mapping[str, int],
    *,
    count: int,
    seed: int = 0,
    placement: int = 0,
    method: Method = "one pass",
    split: str = "test",
) -> dict[str, Any]:
    """The record of one cell: a pure function of the weights and of what is given here.

    >>> evaluate_cell(model, exam, {"first_digits": 3, "second_digits": 4}, count=100)
    {"cell": {"first_digits": 3, "second_digits": 4}, "correct": 98, "count": 100, "low": 0.929988, "high": 0.994498}

    An answer is `correct` if all of it is, the end token included: one that goes on, or stops early, is wrong, for
    every task. `low` and `high` are the 95 % Wilson interval of the share. `first_correct` counts the answers whose
    first token is right (in sorting: the label of the smallest item); it needs no prefix, so it is exact however
    answers are scored. `first_wrong` counts, for each place of the answer, the questions whose first wrong token stands
    there. `digit_accuracy` is the share of the asked digits that are right: in one pass behind the right prefix, by
    decoding behind what the model said itself.

    A cell that has no more than `count` different questions is asked each of them once; `count` in the record is then
    how many there were. `seen` says that training may have met them, as they are too few to hold any out.

    Where answers are decoded `numbers` says how far those said are from the right ones, and of answers that are texts
    `texts` how near they are as such: sums by which cells can be taken together
    (`numerate.evaluation.number_metrics`, `text_metrics`).

    For a task with labels the record has `labels` as well: by place in the row how many were asked and right, what
    follows from it, and what a model that had only memorised would score (`numerate.evaluation.labels`). `looks_ahead`
    is there where a model sees at each place what comes later, and says how: nothing may then be claimed of it. `names`
    has what the sizes of a cell are called, where these have names, so that nobody needs the data to read it.

    Raises `Mistake` for a cell that the task does not have, and for answers that such a model would have to decode.
    """
    ahead = refuse_ahead(model, exam)
    method = method_for(exam, method)
    task = exam.task.pinned(**cell) if cell else exam.task
    questions = questions_of(exam.task, cell, count=count, seed=seed, split=split)
    count = len(questions)
    correct = digits = digits_right = 0
    first_wrong: list[np.ndarray] = []
    labels: list[Labels] = []
    decoded = method != "one pass" or exam.layout.masks
    told = TextAnswers(exam.tokenizer, exam.vocabulary, questions) if decoded else None
    for batch in chunks(exam, questions, model):
        if method == "one pass":
            marks, said, values = _mark_at_once(model, exam, batch, placement)
        else:
            spare = SPARE if exam.texts else 0
            marks, said, values = _mark_decoded(model, exam, batch, placement, spare, method == "beams")
        if told is not None:
            said = said.where(batch.asked_targets != IGNORE, PAD) if exam.layout.masks else said
            told.add(said.tolist(), None if values is None else values.tolist())
            if exam.texts:
                told.read(*likelihood(model, batch, placement))
        correct += int(marks.right.sum())
        digits, digits_right = digits + marks.digits, digits_right + marks.digits_right
        first_wrong.append(marks.first_wrong.cpu().numpy())
        labels += [labels_of(exam, batch, marks)] if exam.labelled else []
    places = np.concatenate(first_wrong)
    histogram = np.bincount(places[places >= 0]) if (places >= 0).any() else np.zeros(0, dtype=int)
    low, high = wilson(correct, count)
    names = {axis: name for axis, size in cell.items() if (name := exam.task.cell_name(axis, size)) != str(size)}
    return {
        "cell": dict(cell),
        **({"names": names} if names else {}),
        "correct": correct,
        "count": count,
        "low": round(float(low), 6),
        "high": round(float(high), 6),
        "first_correct": count - int((places == 0).sum()),
        "digit_accuracy": round(digits_right / digits, 6) if digits else None,
        "first_wrong": histogram.tolist(),
        "placement": placement,
        "seen": not task.held_out(split),
        "method": method,
        **({"labels": Labels.together(labels).record()} if labels else {}),
        **(told.record() if told is not None else {}),
        **({"looks_ahead": ahead} if ahead is not None else {}),
    }


def refuse_ahead(model: Model, exam: Exam) -> str | None:
    """How a model sees at each place what comes later in its row, in words; None where it does not, as a model should.

    Where answers are masked it has nothing to see of them. Raises `Mistake` where answers would have to be decoded,
    token by token: what such a model says to a prefix is not what it says to the whole row.
    """
    if exam.layout.masks:
        return None
    ahead = model.looks_ahead()
    if ahead is not None and not exam.labelled:
        raise Mistake(
            f"model: {ahead}, so that it cannot answer by continuing a text; layout=Masked is right, or labels"
        )
    return ahead


def questions_of(task: Task, cell: Mapping[str, int], *, count: int, seed: int = 0, split: str = "test") -> Questions:
    """What a cell is asked: `count` questions of a split, or each that there is, where those are no more."""
    pinned = task.pinned(**cell) if cell else task
    whole = pinned.whole(split)
    return whole if whole is not None and len(whole) <= count else pinned.examples(split, seed, 0, count)


def size_of(task: Task, cell: Mapping[str, int], count: int, split: str = "test") -> int:
    """How many questions a cell is asked where `count` are wanted: fewer, where there are no more."""
    whole = (task.pinned(**cell) if cell else task).whole(split)
    return count if whole is None else min(count, len(whole))


def chunks(exam: Exam, questions: Questions, model: Model) -> "Sequence[Batch]":
    """Batches of a fixed number of tokens, on the model's device."""
    device = next(model.parameters()).device
    whole = exam.batch(questions)
    time = whole.tokens.ids.shape[1]
    rows = max(1, CHUNK // time)
    if len(questions) <= rows:
        return [whole.to(device)]
    return [
        exam.batch(questions.take(slice(first, first + rows)), first).to(device)
        for first in range(0, len(questions), rows)
    ]


def default_grid(task: Task) -> Grid:
    """The trained sizes and as many again: 1:5 on each axis becomes 1:10. Where none are further, the trained ones that
    there are questions of. Raises `Mistake` for a task without axes."""
    trained = task.trained()
    if not trained:
        raise Mistake(f"grid: {type(task).__name__} has no axes to make a grid of")
    text = "x".join(f"{span.low}:{(1 + task.endless) * span.high}" for span in trained.values())
    if task.running:
        return Grid.parse("x".join(map(str, trained.values())), tuple(trained))
    grid, there = Grid.parse(text, tuple(trained)), task.cells()
    return grid if there is None or len(there) == len(grid.cells()) else Grid.of(there, tuple(trained))
