"""Answers of several runs to the same questions, compared question by question.

They are the predictions that `numerate evaluate RUN predictions=true` keeps. Since both have the same questions, their
difference has a narrower interval than that of two samples of questions.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations, product
from statistics import fmean
from typing import Any

from numerate.config import from_tree
from numerate.errors import pluralize
from numerate.evaluation.answer_metrics import LOWER_IS_BETTER
from numerate.evaluation.generation_settings import Generation
from numerate.evaluation.numbers_in_texts import ANSWER_PATTERN, answer_number, correct_number
from numerate.evaluation.statistics import paired_difference
from numerate.evaluation.sums import signed_log
from numerate.records.heads import RECIPE_FILE
from numerate.records.kinds import PREDICTIONS
from numerate.records.reading import read_records
from numerate.records.schema import CHECKSUM_KEY
from numerate.reports.content import Content, Note
from numerate.reports.groups import Group
from numerate.reports.metrics import format_metric, is_proportion
from numerate.reports.pairs import MAX_GROUPS_ALL_PAIRS, format_p
from numerate.reports.records import Records
from numerate.reports.table import TextTable

Answers = Mapping[tuple[Any, ...], Mapping[str, Any]]
"""The line of each question in predictions.jsonl, by its cell, text and correct answer, and by how many equal ones come
before it."""

MEASURES = {"exact_match": "correct, %", "number_accuracy": "correct numbers, %", "log_mae": "log error"}
"""The measures of an answer, with their names. The log error is that of sign(x) log10(|x| + 1)."""

CAPTION = (
    "Over the questions that both were asked: the means of the first and of the second of a pair, and in brackets "
    "the 95 % interval of their difference. Better : worse counts the questions that the first answers better and "
    "worse; p is of the sign test on these (McNemar's for correct answers). The log error is the distance of sign(x) "
    "log10(|x| + 1), over the questions to which both answer a number."
)


AnsweredQuestions = tuple[str, Sequence[Answers]]
"""The label and the answers of one checkpoint, or of several runs that differ in the seed."""


def same_questions(groups: Sequence[Group]) -> Content:
    """A table of pairs of groups at the reported checkpoint: of all pairs if they are few, else of each with the first.
    It has no rows without questions that both were asked. A note names each run whose answers are missing, or disagree
    with its records, though another has some."""
    answered: list[AnsweredQuestions] = []
    notes: list[Note] = []
    for group in groups:
        checkpoints = [(run, run.reported_checkpoint(group.settings)) for run in group.runs]
        runs = [_answers(run, found[1], group.settings or {}, notes) for run, found in checkpoints if found is not None]
        answered += [(group.label, runs)] if runs and all(runs) else []
    are_expected = answered or any(_generation(run) for group in groups for run in group.runs)
    pairs = combinations(answered, 2) if len(answered) <= MAX_GROUPS_ALL_PAIRS else product(answered[:1], answered[1:])
    header = ["pair", "measure", "means", "difference", "better : worse", "questions", "p"]
    rows = [row for first, second in pairs for row in _rows(second, first)]
    return [TextTable(header, rows, CAPTION, style="pairs"), *(notes if are_expected else [])]


def _rows(first: AnsweredQuestions, second: AnsweredQuestions) -> Iterator[list[str]]:
    """A row for each measure, over the questions that all runs were asked."""
    runs = [*first[1], *second[1]]
    keys = [key for key in runs[0] if all(key in run for run in runs)]
    measured: list[tuple[list[float], list[float]]] = []
    for measure, title in MEASURES.items():
        pairs = [(_mean(first, key, measure), _mean(second, key, measure)) for key in keys]
        known = [(one, other) for one, other in pairs if one is not None and other is not None]
        values = ([one for one, _ in known], [other for _, other in known])
        if not known or values in measured:  # where an answer is correct if its number is
            continue
        measured.append(values)
        found = paired_difference(*values)
        scale, unit = (100, " points") if is_proportion(measure) else (1, "")
        difference, low, high = (
            f"{round(scale * value, 6) + 0.0:+.3g}" for value in (found.value, found.low, found.high)
        )
        counts = [found.num_higher, found.num_lower]
        better, worse = counts[::-1] if measure in LOWER_IS_BETTER else counts
        yield [
            f"{first[0]} / {second[0]}",
            title,
            " : ".join(format_metric(measure, fmean(each)) for each in values),
            f"{difference}{unit} [{low}, {high}]",
            f"{better:,} : {worse:,}",
            f"{len(known):,}",
            format_p(found.p_value),
        ]


def _mean(answered: AnsweredQuestions, key: tuple[Any, ...], measure: str) -> float | None:
    """The mean of a measure of a question over the runs; None where one has none."""
    values = [_measure(run[key], measure) for run in answered[1]]
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _measure(line: Mapping[str, Any], measure: str) -> float | None:
    if measure == "exact_match":
        return float(line["correct"])
    target, prediction = line["numbers"]
    if target is None or measure == "number_accuracy":
        return None if target is None else float(prediction == target)
    return None if prediction is None else float(abs(signed_log(Fraction(prediction)) - signed_log(Fraction(target))))


def _answers(run: Records, step: int, settings: Mapping[str, Any], notes: list[Note]) -> Answers:
    """The answers at a step with these settings, without a position offset, in cells whose record has as many, and if
    they were generated freely as many correct ones; `notes` says of how many cells there are none. Other answers may be
    correct here and not in the record, by rounding: they are decoded, and scored in one pass."""
    from numerate.evaluation.kinds.generated_answers import with_correct  # which imports torch

    generation = _generation(run)
    missing = {
        (cell.stratum, *sorted(cell.coordinates.items())): (cell.count, generation and cell.correct)
        for cell in (*run.cells, *run.strata)
        if (cell.step, cell.settings, cell.position_offset) == (step, settings, 0)
    }
    pattern = ANSWER_PATTERN if generation is None else generation.answer_pattern
    evaluations: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for line in read_records(run.folder / "predictions.jsonl", PREDICTIONS, run_id=run.id):
        is_answer = CHECKSUM_KEY in line and line.get("correct_answer") is not None and not line["position_offset"]
        if is_answer and line["step"] == step and line.get("settings", {}) == settings:
            place = (line.get("stratum"), *sorted(line["cell"].items()))
            key = (place, *(line.get(name) for name in ("checkpoint", "method", "count", "evaluation_seed")))
            evaluations.setdefault(key, []).append(with_correct(generation, line))
    answers: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for (place, *_), asked in evaluations.items():
        if missing.get(place) == (len(asked), generation and sum(one["correct"] for one in asked)):
            del missing[place]
            seen = Counter[tuple[Any, ...]]()
            for one in asked:
                target, prediction = one["correct_answer"], answer_number(one["prediction"], pattern).value
                number = answer_number(target).value if generation is None else correct_number(target, pattern)
                question = (*one["cell"].values(), one["question"], target)
                answers[*question, seen[question]] = {**one, "numbers": (number, prediction)}
                seen[question] += 1
    if missing:
        problem = f"the answers in {pluralize(len(missing), 'cell')} are missing or disagree with cells.jsonl"
        notes.append(Note(f"{run.folder}/predictions.jsonl: {problem}; without its records, they are generated again."))
    return answers


def _generation(run: Records) -> Generation | None:
    """How the answers of a run are generated freely; None if they are not."""
    tree = (run.recipe.get("evaluation") or {}).get("generation")
    return None if tree is None else from_tree(tree, run.folder / RECIPE_FILE, Generation)
