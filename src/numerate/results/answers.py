"""Answers of several variants to the same questions, compared question by question.

They are the predictions that `numerate evaluate RUN predictions=true` keeps. Since both variants have the same
questions, their difference has a narrower interval than that of two samples of questions.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations, product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from numerate.config import from_tree
from numerate.config.differences import format_settings
from numerate.errors import pluralize
from numerate.evaluation.generation_settings import Generation
from numerate.evaluation.numbers_in_texts import ANSWER_PATTERN, answer_number, correct_number
from numerate.evaluation.statistics import paired_difference
from numerate.evaluation.sums import signed_log
from numerate.records.heads import RECIPE_FILE
from numerate.records.kinds import PREDICTIONS
from numerate.records.reading import read_records
from numerate.records.schema import CHECKSUM_KEY
from numerate.results.rows import RunEntry, axes
from numerate.results.summary import MAX_ALL_PAIRS, is_lower_better, reported
from numerate.results.tables import Table
from numerate.results.words import is_share, p_text, value_text

if TYPE_CHECKING:
    from pandas import DataFrame

Answers = Mapping[tuple[Any, ...], Mapping[str, Any]]
"""The line of each question in predictions.jsonl, by its cell, text and correct answer, and by how many equal ones come
before it."""

MEASURES = {"exact_match": "correct, %", "number_accuracy": "correct numbers, %", "log_mae": "log error"}
"""The measures of an answer. The log error is that of sign(x) log10(|x| + 1)."""

NOTE = (
    "Over the questions that both were asked; brackets: 95 % intervals of the difference. Better : worse counts the "
    "questions that the first answers better and worse; p: sign test on these (McNemar's for correct answers). "
    "The log error is the distance of sign(x) log10(|x| + 1), over the questions to which both answer a number."
)


def same_questions(entries: Sequence[RunEntry], cells: "DataFrame") -> Table | None:
    """A table of pairs of variants at the reported checkpoint: of all pairs if they are few, else of each with the
    first. It has no rows without questions that both were asked, and is None where answers are not kept. A note names
    each run whose answers are missing, or disagree with its records, though another has some."""
    from pandas import DataFrame

    folders = {one.run: one for one in entries}
    notes: list[str] = []
    answered: dict[str, list[Answers]] = {}
    for (variant, run), own in reported(cells).groupby(["variant", "run"], sort=False):
        answered.setdefault(str(variant), []).append(_answers(folders[run], own, notes))
    known = [(name, each) for name, each in answered.items() if all(each)]
    pairs = combinations(known, 2) if len(known) <= MAX_ALL_PAIRS else product(known[:1], known[1:])
    rows = [row for first, second in pairs for row in _rows(second, first)]
    is_expected = known or any((one.recipe.get("evaluation") or {}).get("generation") for one in entries)
    return Table(DataFrame(rows), notes=[*[NOTE] * bool(rows), *notes]) if rows or (notes and is_expected) else None


def _rows(first: tuple[str, list[Answers]], second: tuple[str, list[Answers]]) -> Iterator[dict[str, str]]:
    """A row for each measure, over the questions that all runs were asked."""
    runs = [*first[1], *second[1]]
    keys = [key for key in runs[0] if all(key in run for run in runs)]
    measured: list[tuple[list[float], list[float]]] = []
    for measure, title in MEASURES.items():
        pairs = [(_mean(first[1], key, measure), _mean(second[1], key, measure)) for key in keys]
        known = [(one, other) for one, other in pairs if one is not None and other is not None]
        values = ([one for one, _ in known], [other for _, other in known])
        if not known or values in measured:  # where an answer is correct if its number is
            continue
        measured.append(values)
        found = paired_difference(*values)
        scale, unit = (100, " points") if is_share(measure) else (1, "")
        ends = [f"{round(scale * value, 6) + 0.0:+.3g}" for value in (found.value, found.low, found.high)]
        counts = [found.num_higher, found.num_lower]
        better, worse = counts[::-1] if is_lower_better(measure) else counts
        yield {
            "pair": f"{first[0]} / {second[0]}",
            "measure": title,
            "means": " : ".join(value_text(measure, fmean(each)) for each in values),
            "difference": f"{ends[0]}{unit} [{ends[1]}, {ends[2]}]",
            "better : worse": f"{better:,} : {worse:,}",
            "questions": f"{len(known):,}",
            "p": p_text(found.p_value),
        }


def _mean(runs: Sequence[Answers], key: tuple[Any, ...], measure: str) -> float | None:
    """The mean of a measure of a question over the runs; None where one has none."""
    values = [_measure(run[key], measure) for run in runs]
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _measure(line: Mapping[str, Any], measure: str) -> float | None:
    if measure == "exact_match":
        return float(line["correct"])
    target, prediction = line["numbers"]
    if target is None or measure == "number_accuracy":
        return None if target is None else float(prediction == target)
    return None if prediction is None else float(abs(signed_log(Fraction(prediction)) - signed_log(Fraction(target))))


def _answers(entry: RunEntry, cells: "DataFrame", notes: list[str]) -> Answers:
    """The answers of a run at the step and with the settings of its cells, without a position offset, in cells that
    have as many, and if they were generated freely as many correct ones. Other answers may be correct here and not in
    the record, by rounding: they are decoded, and scored in one pass."""
    path = entry.folder / "predictions.jsonl"
    lines = read_records(path, PREDICTIONS, run_id=entry.folder.name)
    if not lines:
        notes.append(_missing_note(path, len(cells)))
        return {}
    from numerate.evaluation.kinds.generated_answers import with_correct  # which imports torch

    tree = (entry.recipe.get("evaluation") or {}).get("generation")
    generation = None if tree is None else from_tree(tree, entry.folder / RECIPE_FILE, Generation)
    own = cells[cells["position_offset"] == 0]
    step, settings = own["step"].iloc[0], own["settings"].iloc[0]
    missing = {
        (row.get("stratum") if row.get("stratum") == row.get("stratum") else None, *_place(row, axes(own))): (
            row["questions"],
            generation and row["correct"],
        )
        for row in own.to_dict("records")
    }
    pattern = ANSWER_PATTERN if generation is None else generation.answer_pattern
    evaluations: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for line in lines:
        is_answer = CHECKSUM_KEY in line and line.get("correct_answer") is not None and not line["position_offset"]
        changed = format_settings(line["settings"]) if line.get("settings") else None
        if is_answer and line["step"] == step and (changed == settings or (changed is None and settings != settings)):
            place = (line.get("stratum"), *sorted(line["cell"].items()))
            key = (place, *(line.get(name) for name in ("checkpoint", "method", "count", "evaluation_seed")))
            evaluations.setdefault(key, []).append(with_correct(generation, line))
    answers: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for (place, *_), asked in evaluations.items():
        if missing.get(place) != (len(asked), generation and sum(one["correct"] for one in asked)):
            continue
        del missing[place]
        seen = Counter[tuple[Any, ...]]()
        for one in asked:
            target, prediction = one["correct_answer"], answer_number(one["prediction"], pattern).value
            number = answer_number(target).value if generation is None else correct_number(target, pattern)
            question = (*one["cell"].values(), one["question"], target)
            answers[*question, seen[question]] = {**one, "numbers": (number, prediction)}
            seen[question] += 1
    if missing:
        notes.append(_missing_note(path, len(missing)))
    return answers


def _missing_note(path: Path, num_cells: int) -> str:
    problem = f"the answers in {pluralize(num_cells, 'cell')} are missing or disagree with cells.jsonl"
    return f"{path}: {problem}; without its records, they are generated again."


def _place(row: Mapping[Any, Any], names: Sequence[str]) -> list[tuple[str, int]]:
    """The sizes of a cell, by their axes."""
    return sorted(
        (name.removeprefix("cell."), int(row[name])) for name in names if str(row[name]) not in ("<NA>", "nan")
    )
