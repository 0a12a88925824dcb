"""Answers to the same questions, compared question by question: of a run before and after training, or of several runs.

They are the predictions that `numerate evaluate RUN predictions=true` keeps. Since both have the same questions, their
difference has a narrower interval than that of two samples of questions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import fmean
from typing import Any

from numerate.evaluation.answer_metrics import LOWER_IS_BETTER
from numerate.evaluation.numbers_in_texts import last_number
from numerate.evaluation.statistics import paired_difference
from numerate.evaluation.sums import signed_log
from numerate.records.kinds import PREDICTIONS
from numerate.records.reading import read_records
from numerate.reports.content import Content
from numerate.reports.groups import Group
from numerate.reports.metrics import format_metric, is_proportion, metric_title
from numerate.reports.pairs import format_p
from numerate.reports.records import Records
from numerate.reports.table import TextTable

Answers = Mapping[tuple[Any, ...], Mapping[str, Any]]
"""The line of each question in predictions.jsonl, by its cell, text and correct answer."""

MEASURES = ("exact_match", "number_accuracy", "log_mae")

CAPTION = (
    "In brackets the 95 % interval of the difference (bootstrap over questions); better : worse "
    "is how many questions the second answers better and worse than the first, and p that of the sign test on these "
    "(McNemar's for correct answers). Errors are over the questions to which both answer a number."
)


@dataclass(frozen=True)
class AnsweredQuestions:
    """The answers of one checkpoint, or of several runs that differ in the seed."""

    label: str
    runs: Sequence[Answers]


def before_and_after(run: Records) -> Content:
    """The answers of a run at step 0 and at the last evaluated step; nothing without both."""
    steps = sorted({line["step"] for line in _predictions(run)})
    if steps[:1] != [0] or len(steps) < 2:
        return []
    before, after = (_answers(run, step) for step in (0, steps[-1]))
    return _tables([AnsweredQuestions("before", [before]), AnsweredQuestions("after", [after])])


def same_questions(groups: Sequence[Group]) -> Content:
    """The answers of each group and of the first, at the reported checkpoint; nothing where one has none."""
    answered = []
    for group in groups:
        checkpoints = [(run, run.reported_checkpoint(group.settings)) for run in group.runs]
        runs = [_answers(run, found[1], group.settings or {}) for run, found in checkpoints if found is not None]
        answered.append(AnsweredQuestions(group.label, runs))
    return _tables(answered)


def _tables(answered: Sequence[AnsweredQuestions]) -> Content:
    return [table for other in answered[1:] if (table := paired_table(answered[0], other)).rows]


def paired_table(first: AnsweredQuestions, second: AnsweredQuestions) -> TextTable:
    """Both means of each measure over the questions that all runs were asked, their difference (second - first) with
    its 95 % interval, and how many questions the second answers better and worse; no rows without such questions."""
    runs = [*first.runs, *second.runs] if first.runs and second.runs else [{}]
    keys = [key for key in runs[0] if all(key in run for run in runs)]
    rows: list[list[str]] = []
    measured: list[tuple[list[float], list[float]]] = []
    for measure in MEASURES:
        pairs = [(_mean(first, key, measure), _mean(second, key, measure)) for key in keys]
        known = [(one, other) for one, other in pairs if one is not None and other is not None]
        values = ([one for one, _ in known], [other for _, other in known])
        if not known or values in measured:  # where an answer is correct if its number is
            continue
        measured.append(values)
        found = paired_difference(*values)
        scale, unit = (100, " points") if is_proportion(measure) else (1, "")
        difference, low, high = (f"{scale * value:+.3g}" for value in (found.value, found.low, found.high))
        counts = [found.num_higher, found.num_lower]
        better, worse = counts[::-1] if measure in LOWER_IS_BETTER else counts
        rows.append(
            [
                metric_title(measure),
                *(format_metric(measure, fmean(each)) for each in values),
                f"{difference}{unit} [{low}, {high}]",
                f"{better:,} : {worse:,}",
                f"{len(known):,}",
                format_p(found.p_value),
            ]
        )
    header = ["measure", first.label, second.label, "difference", "better : worse", "questions", "p"]
    return TextTable(header, rows, CAPTION)


def _mean(answered: AnsweredQuestions, key: tuple[Any, ...], measure: str) -> float | None:
    """The mean of a measure of a question over the runs; None where one has none."""
    values = [_measure(run[key], measure) for run in answered.runs]
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _measure(line: Mapping[str, Any], measure: str) -> float | None:
    if measure == "exact_match":
        return float(line["correct"])
    target, prediction = (last_number(line[name]).value for name in ("correct_answer", "prediction"))
    if target is None or measure == "number_accuracy":
        return None if target is None else float(prediction == target)
    return None if prediction is None else float(abs(signed_log(Fraction(prediction)) - signed_log(Fraction(target))))


def _answers(run: Records, step: int, settings: Mapping[str, Any] | None = None) -> Answers:
    """The answers at a step with these settings, without a position offset."""
    return {
        (*line["cell"].values(), line["question"], line["correct_answer"]): line
        for line in _predictions(run)
        if line["step"] == step and line.get("settings", {}) == (settings or {}) and not line["position_offset"]
    }


def _predictions(run: Records) -> list[dict[str, Any]]:
    lines = read_records(run.folder / "predictions.jsonl", PREDICTIONS)
    return [line for line in lines if line.get("correct_answer") is not None]
