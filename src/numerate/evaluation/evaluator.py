"""Evaluation of a cell: exact match in one forward pass, by greedy decoding or by beam search, and its record.

For a causal model whose answers have one tokenization, greedy decoding gives the correct answer if and only if every
argmax is correct with teacher forcing: by induction over the answer, the prefix that decoding reads is then the correct
one. So one forward pass scores a whole batch. If this does not hold (`is_one_pass_exact`), answers are decoded token by
token.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from numerate.batch import IGNORE_INDEX, Model
from numerate.config import setting
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EXTRA_TEXT_TOKENS, EvaluationData, cell_questions, make_batches
from numerate.evaluation.exact_match import decode_and_score, score_labels, score_with_predictions, target_likelihood
from numerate.evaluation.grid import Grid, matches_axes
from numerate.evaluation.labels import LabelCounts
from numerate.evaluation.statistics import wilson_interval
from numerate.evaluation.text_answers import AnswerScorer
from numerate.evaluation.text_metrics import require_text_packages
from numerate.tasks.task import Task
from numerate.vocabulary import PAD

Method = Literal["one pass", "decoding", "beams"]
"""How answers are scored: in one forward pass, by greedy decoding, or by beam search with the beam width of the
published evaluation."""

METHODS: tuple[Method, ...] = ("one pass", "decoding", "beams")


@dataclass(frozen=True)
class Evaluation:
    """The default evaluation of a run."""

    grid: str | None = setting(
        None,
        "cells to evaluate, such as 1:12x1:12 or diagonal:1:18; null: the training sizes and as many larger ones",
        in_run_id=False,
    )
    examples_per_cell: int = setting(100, "examples per cell; at most the number of rows for files", in_run_id=False)
    seed: int = setting(0, "seed of the test examples; the same for all runs to be compared", in_run_id=False)
    validation_examples: int = setting(256, "examples of each validation split per evaluation during training")
    validation_batches: int | None = setting(
        None,
        "language modeling: batches per evaluation during training; null: validation_examples chunks",
    )
    chunks: int | None = setting(None, "language modeling: chunks of the final evaluation; null: all", in_run_id=False)

    def __post_init__(self) -> None:
        if self.grid is not None and not self.grid.strip():
            raise UserError("grid: must not be empty; use e.g. 1:12x1:12, or null for the default grid")
        if self.examples_per_cell < 1:
            raise UserError(
                f"examples_per_cell: must be at least 1, not {self.examples_per_cell} "
                "(with 100, the 95 % interval at 50 % is about +-10 points)"
            )
        if self.validation_examples < 1:
            raise UserError(f"validation_examples: must be at least 1, not {self.validation_examples}")
        for name in ("validation_batches", "chunks"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"{name}: must be at least 1 or null, not {value}")


def is_one_pass_exact(evaluation_data: EvaluationData) -> bool:
    """Whether exact match can be computed in one forward pass: one tokenization per answer, ids fed back by argmax.

    For per-token labels it always can: predictions are never fed back.
    """
    return not evaluation_data.layout.is_autoregressive or evaluation_data.tokenizer.has_unique_tokenization


def resolve_method(evaluation_data: EvaluationData, requested: Method) -> Method:
    """How answers are scored: as requested, except that answers are decoded if one forward pass would not be exact, and
    if they are texts, whose distance to the correct answers is measured. Raises `UserError` for decoding of a layout
    that predicts all positions in one forward pass."""
    if evaluation_data.is_language_modeling:
        if requested != "one pass":
            raise UserError(f"method: must be 'one pass' for language modeling, not {requested!r}")
        return requested
    if evaluation_data.has_text_answers:
        require_text_packages()
    if not evaluation_data.layout.is_autoregressive:
        if requested != "one pass":
            raise UserError(
                f"method: must be 'one pass', not {requested!r}, since "
                f"layout={type(evaluation_data.layout).__name__} predicts all positions in one forward pass"
            )
        return "one pass"
    if requested == "beams":
        return requested
    return requested if is_one_pass_exact(evaluation_data) and not evaluation_data.has_text_answers else "decoding"


def evaluate_cell(
    model: Model,
    evaluation_data: EvaluationData,
    cell: Mapping[str, int],
    *,
    count: int,
    seed: int = 0,
    position_offset: int = 0,
    method: Method = "one pass",
    split: str = "test",
) -> dict[str, Any]:
    """The record of one cell: a pure function of the weights and the arguments.

        evaluate_cell(model, evaluation_data, {"first_digits": 3, "second_digits": 4}, count=100)
        {"cell": {"first_digits": 3, "second_digits": 4}, "correct": 98, "count": 100, "low": 0.93, "high": 0.994, ...}

    An answer is `correct` if all of its tokens are, including the end token: a longer or shorter answer is
    wrong. `low` and `high` are the 95 % Wilson interval of the accuracy. `first_token_correct` counts the answers
    whose first token is correct (in sorting: the label of the smallest item); it needs no prefix, so it is exact for
    every scoring method. `first_error_counts` counts, for each position of the answer, the questions whose first wrong
    token is there. `digit_accuracy` is the share of target digits that are correct: in one forward pass, with teacher
    forcing; when decoding, conditioned on the model's own tokens.

    If a cell has at most `count` distinct questions, each is used once, and `count` in the record is their number.
    `overlaps_training` says whether they may occur in training, since too few exist to hold any out.

    For decoded answers, `numbers` (and `texts` for text answers) hold metrics as sums that can be merged over cells
    (`numerate.evaluation.number_metrics`, `text_metrics`).

    `position_offset` is the index of one of the model's fixed position offsets (`PositionIds`); 0 shifts nothing. If
    each token has a label, `labels` has counts by position in the row, metrics, and the memorization baseline: the
    score of predictions that are correct at each position of training alone (`numerate.evaluation.labels`).
    `non_causal_reason` describes how the model depends on later tokens, if it does: its scores are then meaningless.
    `names` are the names of the sizes of a cell, if they have names.

    Raises `UserError` for a cell that the task does not have, and if a non-causal model would have to decode.
    """
    non_causal_reason = check_causal(model, evaluation_data)
    method = resolve_method(evaluation_data, method)
    task = evaluation_data.task.at_cell(**cell) if cell else evaluation_data.task
    questions = cell_questions(evaluation_data.task, cell, count=count, seed=seed, split=split)
    count = len(questions)
    num_correct = num_digits = num_correct_digits = 0
    first_error: list[np.ndarray] = []
    labels: list[LabelCounts] = []
    is_decoded = method != "one pass" or evaluation_data.layout.has_mask_tokens
    answers = AnswerScorer(evaluation_data.tokenizer, evaluation_data.vocabulary, questions) if is_decoded else None
    for batch in make_batches(evaluation_data, questions, model):
        if method == "one pass":
            match_counts, predictions, number_values = score_with_predictions(
                model, evaluation_data, batch, position_offset
            )
        else:
            extra_tokens = EXTRA_TEXT_TOKENS if evaluation_data.has_text_answers else 0
            match_counts, predictions, number_values = decode_and_score(
                model, evaluation_data, batch, position_offset, extra_tokens, method == "beams"
            )
        if answers is not None:
            predictions = (
                predictions.where(batch.target_ids != IGNORE_INDEX, PAD)
                if evaluation_data.layout.has_mask_tokens
                else predictions
            )
            answers.add_predictions(predictions.tolist(), None if number_values is None else number_values.tolist())
            if evaluation_data.has_text_answers:
                answers.add_likelihood(*target_likelihood(model, batch, position_offset))
        num_correct += int(match_counts.correct.sum())
        num_digits, num_correct_digits = (
            num_digits + match_counts.num_digits,
            num_correct_digits + match_counts.num_correct_digits,
        )
        first_error.append(match_counts.first_error.cpu().numpy())
        labels += (
            [score_labels(evaluation_data, batch, match_counts)] if evaluation_data.is_token_classification else []
        )
    first_error_positions = np.concatenate(first_error)
    first_error_counts = (
        np.bincount(first_error_positions[first_error_positions >= 0])
        if (first_error_positions >= 0).any()
        else np.zeros(0, dtype=int)
    )
    low, high = wilson_interval(num_correct, count)
    names = {
        axis: name for axis, size in cell.items() if (name := evaluation_data.task.cell_name(axis, size)) != str(size)
    }
    return {
        "cell": dict(cell),
        **({"names": names} if names else {}),
        "correct": num_correct,
        "count": count,
        "low": round(float(low), 6),
        "high": round(float(high), 6),
        "first_token_correct": count - int((first_error_positions == 0).sum()),
        "digit_accuracy": round(num_correct_digits / num_digits, 6) if num_digits else None,
        "first_error_counts": first_error_counts.tolist(),
        "position_offset": position_offset,
        "overlaps_training": not task.is_held_out(split),
        "method": method,
        **({"labels": LabelCounts.merge(labels).record()} if labels else {}),
        **(answers.to_record() if answers is not None else {}),
        **({"non_causal_reason": non_causal_reason} if non_causal_reason is not None else {}),
    }


def check_causal(model: Model, evaluation_data: EvaluationData) -> str | None:
    """Why the model is not causal, as text; None if it is causal, or if answers are masked.

    Raises `UserError` if such a model would have to decode answers token by token, since its predictions for a prefix
    differ from those for the whole row.
    """
    if evaluation_data.layout.has_mask_tokens:
        return None
    non_causal_reason = model.non_causal_reason()
    if non_causal_reason is not None and not evaluation_data.is_token_classification:
        raise UserError(
            f"model: {non_causal_reason}, so it cannot generate token by token; "
            "use layout=MaskedLM, or a task with a label per token"
        )
    return non_causal_reason


def resolve_grid(task: Task, text: str | None) -> Grid:
    """The grid of a recipe: its setting, or the default grid if there is none. For a task without larger sizes than
    those of training, such as a file, the default grid also replaces one with another number of axes.

    >>> from numerate.tasks import Arithmetic
    >>> str(resolve_grid(Arithmetic(digits=5), None)), str(resolve_grid(Arithmetic(), "1:12x1:12"))
    ('5:10x5:10', '1:12x1:12')
    """
    return default_grid(task) if text is None or _has_other_axes(task, text) else Grid.parse(text, task.axes())


def warn_replaced_grid(task: Task, text: str | None) -> str | None:
    """A warning if the grid of a recipe does not fit its task, with the grid used instead; None if it fits."""
    if text is None or not _has_other_axes(task, text):
        return None
    axes = ", ".join(task.axes()) or "no axis"
    return (
        f"evaluation.grid: {text!r} does not fit the axes of {type(task).__name__} ({axes}), so the default grid "
        f"{default_grid(task)} is used; set evaluation.grid=null to select it without this warning"
    )


def _has_other_axes(task: Task, text: str) -> bool:
    return not (task.has_ood_sizes or matches_axes(text, task.axes()))


def default_grid(task: Task) -> Grid:
    """The trained sizes and as many larger ones: 1:5 on each axis becomes 1:10. For a task that enumerates its cells,
    those cells; for a file of rows, only the trained ones among them. Raises `UserError` for a task without axes."""
    training_spans = task.training_spans()
    if not training_spans:
        raise UserError(f"grid: {type(task).__name__} has no axes, so no grid can be made")
    text = "x".join(f"{span.low}:{(1 + task.has_ood_sizes) * span.high}" for span in training_spans.values())
    if task.is_language_modeling:
        return Grid.parse("x".join(map(str, training_spans.values())), tuple(training_spans))
    grid, cells = Grid.parse(text, tuple(training_spans)), task.cells()
    points = cells
    if cells is not None and task.default_grid_in_distribution:
        points = [*({*cells} & {tuple(size for _, size in cell) for cell in grid.cells()})]
    return (
        grid if points is None or len(points) == len(grid.cells()) else Grid.from_points(points, tuple(training_spans))
    )
