"""Evaluation of a cell: exact match in one forward pass or by decoding, and its record.

For a causal model whose answers have one tokenisation, greedy decoding gives exactly the right answer if and only if
every argmax is right with teacher forcing: by induction over the answer, the prefix that decoding reads is then the
right one. So one parallel forward pass scores a whole batch. Where that does not hold (`one_pass_holds`), answers are
decoded token by token.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from numerate.batch import IGNORE, Model
from numerate.config import setting
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import SPARE, EvaluationData, chunks, questions_of
from numerate.evaluation.exact_match import decode_with_predictions, labels_of, likelihood, mark_with_predictions
from numerate.evaluation.grid import Grid, fits
from numerate.evaluation.labels import Labels
from numerate.evaluation.statistics import wilson
from numerate.evaluation.text_answers import TextAnswers
from numerate.tasks.task import Task
from numerate.vocabulary import PAD

Method = Literal["one pass", "decoding", "beams"]
"""How answers are scored: in one forward pass, by greedy decoding, or by beam search with the published width."""

METHODS: tuple[Method, ...] = ("one pass", "decoding", "beams")


@dataclass(frozen=True)
class Evaluation:
    """The default evaluation of a run."""

    grid: str | None = setting(
        None,
        "cells to evaluate, such as 1:12x1:12 or equal:1:18; null: the trained sizes and as many beyond",
        identity=False,
    )
    examples_per_cell: int = setting(100, "examples per cell; for files at most their rows", identity=False)
    seed: int = setting(0, "seed of the test examples; the same for all runs to be compared", identity=False)
    validation_examples: int = setting(256, "examples of each validation split per evaluation during training")
    validation_batches: int | None = setting(
        None,
        "language modeling: batches per evaluation during training; null: validation_examples chunks",
        later=True,
    )
    chunks: int | None = setting(
        None, "language modeling: chunks of the final evaluation; null: all", later=True, identity=False
    )

    def __post_init__(self) -> None:
        if self.grid is not None and not self.grid.strip():
            raise UserError(
                "grid: is empty; 1:12x1:12 is one, and null stands for the trained sizes and as many beyond"
            )
        if self.examples_per_cell < 1:
            raise UserError(
                f"examples_per_cell: {self.examples_per_cell} questions measure nothing; 100 give +-10 points at 50 %"
            )
        if self.validation_examples < 1:
            raise UserError(f"validation_examples: {self.validation_examples} questions measure nothing; 256 are usual")
        for name in ("validation_batches", "chunks"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"{name}: {value} of them measure nothing; 1 or more is right, or null")


def one_pass_holds(exam: EvaluationData) -> bool:
    """Whether exact match may be read off one forward: one tokenisation per answer, ids fed back by argmax.

    For aligned labels it always may: predictions are never read.
    """
    return not exam.layout.continues or exam.tokenizer.unique


def method_for(exam: EvaluationData, wanted: Method) -> Method:
    """How answers are scored: as wanted, unless one forward would not be exact, or answers are texts, of which it is
    measured how far they are from the right ones. Raises `UserError` for decoding where there is nothing to decode."""
    if exam.running:
        if wanted != "one pass":
            raise UserError(f"method: {wanted!r} is for answers, and running text has none: 'one pass' is right")
        return wanted
    if not exam.layout.continues:
        if wanted != "one pass":
            how = f"layout={type(exam.layout).__name__} predicts every position in one forward pass"
            raise UserError(f"method: {wanted!r} is for answers decoded token by token; {how}, so 'one pass' is right")
        return "one pass"
    if wanted == "beams":
        return wanted
    return wanted if one_pass_holds(exam) and not exam.texts else "decoding"


def evaluate_cell(
    model: Model,
    exam: EvaluationData,
    cell: Mapping[str, int],
    *,
    count: int,
    seed: int = 0,
    position_offset: int = 0,
    method: Method = "one pass",
    split: str = "test",
) -> dict[str, Any]:
    """The record of one cell: a pure function of the weights and of what is given here.

    >>> evaluate_cell(model, exam, {"first_digits": 3, "second_digits": 4}, count=100)
    {"cell": {"first_digits": 3, "second_digits": 4}, "correct": 98, "count": 100, "low": 0.929988, "high": 0.994498}

    An answer is `correct` if all of it is, the end token included: one that is longer or shorter is wrong, for every
    task. `low` and `high` are the 95 % Wilson interval of the share. `first_correct` counts the answers whose first
    token is right (in sorting: the label of the smallest item); it needs no prefix, so it is exact however answers are
    scored. `first_wrong` counts, for each position of the answer, the questions whose first wrong token is there.
    `digit_accuracy` is the share of target digits that are right: in one pass with teacher forcing, by decoding behind
    the model's own tokens.

    If a cell has no more than `count` different questions, each is used once and `count` in the record is how many
    there were. `seen` is whether training may have met them, as they are too few to hold any out.

    Where answers are decoded, `numbers` and, of answers that are texts, `texts` have their metrics, as sums that can be
    merged over cells (`numerate.evaluation.number_metrics`, `text_metrics`).

    For a task with labels, `labels` has counts by position in the row, metrics, and the score of memorising
    (`numerate.evaluation.labels`). `sees_future` is how a model sees later tokens at a position, if it does: its scores
    then mean nothing. `names` are the names of the sizes of a cell, where they have any.

    Raises `UserError` for a cell that the task does not have, and for answers that such a model would have to decode.
    """
    future = refuse_ahead(model, exam)
    method = method_for(exam, method)
    task = exam.task.pinned(**cell) if cell else exam.task
    questions = questions_of(exam.task, cell, count=count, seed=seed, split=split)
    count = len(questions)
    correct = digits = digits_right = 0
    first_wrong: list[np.ndarray] = []
    labels: list[Labels] = []
    decoded = method != "one pass" or exam.layout.masks
    answers = TextAnswers(exam.tokenizer, exam.vocabulary, questions) if decoded else None
    for batch in chunks(exam, questions, model):
        if method == "one pass":
            marks, predictions, values = mark_with_predictions(model, exam, batch, position_offset)
        else:
            spare = SPARE if exam.texts else 0
            marks, predictions, values = decode_with_predictions(
                model, exam, batch, position_offset, spare, method == "beams"
            )
        if answers is not None:
            predictions = predictions.where(batch.target_ids != IGNORE, PAD) if exam.layout.masks else predictions
            answers.add(predictions.tolist(), None if values is None else values.tolist())
            if exam.texts:
                answers.read(*likelihood(model, batch, position_offset))
        correct += int(marks.right.sum())
        digits, digits_right = digits + marks.digits, digits_right + marks.digits_right
        first_wrong.append(marks.first_wrong.cpu().numpy())
        labels += [labels_of(exam, batch, marks)] if exam.labelled else []
    positions = np.concatenate(first_wrong)
    histogram = np.bincount(positions[positions >= 0]) if (positions >= 0).any() else np.zeros(0, dtype=int)
    low, high = wilson(correct, count)
    names = {axis: name for axis, size in cell.items() if (name := exam.task.cell_name(axis, size)) != str(size)}
    return {
        "cell": dict(cell),
        **({"names": names} if names else {}),
        "correct": correct,
        "count": count,
        "low": round(float(low), 6),
        "high": round(float(high), 6),
        "first_correct": count - int((positions == 0).sum()),
        "digit_accuracy": round(digits_right / digits, 6) if digits else None,
        "first_wrong": histogram.tolist(),
        "position_offset": position_offset,
        "seen": not task.held_out(split),
        "method": method,
        **({"labels": Labels.together(labels).record()} if labels else {}),
        **(answers.record() if answers is not None else {}),
        **({"sees_future": future} if future is not None else {}),
    }


def refuse_ahead(model: Model, exam: EvaluationData) -> str | None:
    """How a model sees later tokens at a position, in words; None where it does not, and where answers are masked.

    Raises `UserError` where answers would have to be decoded
    token by token: the predictions of such a model on a prefix are not those on the whole row.
    """
    if exam.layout.masks:
        return None
    ahead = model.sees_future()
    if ahead is not None and not exam.labelled:
        raise UserError(
            f"model: {ahead}, so that it cannot answer by continuing a text; layout=Masked is right, or labels"
        )
    return ahead


def grid_of(task: Task, text: str | None) -> Grid:
    """The grid of a recipe: its setting, or the default one, which also replaces a grid with another number of axes,
    as where a task over files replaced the task of the recipe.

    >>> str(grid_of(QuestionFiles(train_file="q.jsonl"), "1:12x1:12"))
    '1'
    """
    return default_grid(task) if text is None or _is_of_another(task, text) else Grid.parse(text, task.axes())


def replaced_grid(task: Task, text: str | None) -> str | None:
    """A warning that the grid of a recipe does not fit its task, and which one is used; None where it fits."""
    if text is None or not _is_of_another(task, text):
        return None
    axes = ", ".join(task.axes()) or "no axis"
    return (
        f"evaluation.grid: {text!r} does not fit the axes of {type(task).__name__} ({axes}), so its default grid is "
        f"taken, {default_grid(task)}; evaluation.grid=null names that one"
    )


def _is_of_another(task: Task, text: str) -> bool:
    return not (task.endless or fits(text, task.axes()))


def default_grid(task: Task) -> Grid:
    """The trained sizes and as many again: 1:5 on each axis becomes 1:10. Where a task lists its cells it is those;
    of a file of rows the trained ones among them. Raises `UserError` for a task without axes."""
    trained = task.trained()
    if not trained:
        raise UserError(f"grid: {type(task).__name__} has no axes to make a grid of")
    text = "x".join(f"{span.low}:{(1 + task.endless) * span.high}" for span in trained.values())
    if task.running:
        return Grid.parse("x".join(map(str, trained.values())), tuple(trained))
    grid, known = Grid.parse(text, tuple(trained)), task.cells()
    there = known
    if known is not None and task.grid_of_trained:
        there = [*({*known} & {tuple(size for _, size in cell) for cell in grid.cells()})]
    return grid if there is None or len(there) == len(grid.cells()) else Grid.of(there, tuple(trained))
