"""Answers of several variants to the same questions, compared question by question.

They are the predictions that `numerate evaluate RUN predictions=true` keeps. Since both variants have the same
questions, their difference has a narrower interval than that of two samples of questions.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations, product
from statistics import fmean
from typing import TYPE_CHECKING, Any

from numerate.config import from_tree
from numerate.config.differences import format_settings
from numerate.evaluation.generation_settings import Generation
from numerate.evaluation.numbers_in_texts import ANSWER_PATTERN, answer_number, correct_number
from numerate.evaluation.statistics import paired_difference
from numerate.evaluation.sums import signed_log
from numerate.records.heads import RECIPE_FILE
from numerate.records.kinds import PREDICTIONS
from numerate.records.reading import read_records
from numerate.records.schema import CHECKSUM_KEY
from numerate.results.rows import RunEntry
from numerate.results.summary import MAX_ALL_PAIRS, is_lower_better, reported
from numerate.results.tables import Table
from numerate.results.words import is_share, p_text, value_text

if TYPE_CHECKING:
    from pandas import DataFrame

MEASURES = {"exact_match": "correct, %", "number_accuracy": "correct numbers, %", "log_mae": "log error"}
"""The measures of an answer. The log error is that of sign(x) log10(|x| + 1)."""

NOTE = (
    "Over the questions that both were asked; brackets: 95 % intervals of the difference. Better : worse counts the "
    "questions that the first answers better and worse; p: sign test on these (McNemar's for correct answers). "
    "The log error is the distance of sign(x) log10(|x| + 1), over the questions to which both answer a number."
)


def same_questions(entries: Sequence[RunEntry], cells: "DataFrame") -> Table | None:
    """A table of pairs of variants at the reported checkpoint: of all pairs if they are few, else of each with the
    first. None without questions that both were asked and whose answers were kept."""
    from pandas import DataFrame

    answered: dict[str, list[DataFrame]] = {}
    kept = {one.run: one for one in entries if (one.folder / "predictions.jsonl").is_file()}
    for (variant, run), own in reported(cells).groupby(["variant", "run"], sort=False) if kept else ():
        answered.setdefault(str(variant), []).append(_answers(kept[run], own) if run in kept else DataFrame())
    known = [(name, each) for name, each in answered.items() if all(map(len, each))]
    pairs = combinations(known, 2) if len(known) <= MAX_ALL_PAIRS else product(known[:1], known[1:])
    rows = [row for first, second in pairs for row in _rows(second, first)]
    return Table(DataFrame(rows), notes=[NOTE]) if rows else None


def _rows(*pair: "tuple[str, Sequence[DataFrame]]") -> Iterator[dict[str, str]]:
    """A row for each measure, over the questions that all runs of a pair of variants were asked: means over seeds."""
    runs = [run for _, own in pair for run in own]
    asked = runs[0].index[[all(key in run.index for run in runs) for key in runs[0].index]]
    means = [sum(run.loc[asked] for run in own) / len(own) for _, own in pair]
    measured: list[list[list[float]]] = []
    for measure, title in MEASURES.items():
        is_known = means[0][measure].notna() & means[1][measure].notna()
        values = [one.loc[is_known, measure].tolist() for one in means]
        if not is_known.any() or values in measured:  # where an answer is correct if its number is
            continue
        measured.append(values)
        found = paired_difference(*values)
        scale, unit = (100, " points") if is_share(measure) else (1, "")
        ends = [f"{round(scale * value, 6) + 0.0:+.3g}" for value in (found.value, found.low, found.high)]
        counts = [found.num_higher, found.num_lower]
        better, worse = counts[::-1] if is_lower_better(measure) else counts
        yield {
            "pair": " / ".join(name for name, _ in pair),
            "measure": title,
            "means": " : ".join(value_text(measure, fmean(each)) for each in values),
            "difference": f"{ends[0]}{unit} [{ends[1]}, {ends[2]}]",
            "better : worse": f"{better:,} : {worse:,}",
            "questions": f"{is_known.sum():,}",
            "p": p_text(found.p_value),
        }


def _answers(entry: RunEntry, cells: "DataFrame") -> "DataFrame":
    """The measures of the answers of a run at the step and with the settings of its cells, without a position offset:
    by cell, question and correct answer, and by how many equal ones come before. Of several evaluations of a cell the
    one of most questions counts, the last of equal ones."""
    from pandas import DataFrame

    from numerate.evaluation.kinds.generated_answers import with_correct  # which imports torch

    tree = (entry.recipe.get("evaluation") or {}).get("generation")
    generation = None if tree is None else from_tree(tree, entry.folder / RECIPE_FILE, Generation)
    pattern = ANSWER_PATTERN if generation is None else generation.answer_pattern
    step, settings = cells["step"].iloc[0], cells["settings"].fillna("").iloc[0]
    evaluations: dict[str, dict[tuple[Any, ...], dict[int, dict[str, Any]]]] = {}
    for line in read_records(entry.folder / "predictions.jsonl", PREDICTIONS, run_id=entry.id):
        changed = format_settings(line["settings"]) if line.get("settings") else ""
        is_answer = CHECKSUM_KEY in line and line.get("correct_answer") is not None and not line["position_offset"]
        if is_answer and line["step"] == step and changed == settings:
            place = json.dumps([line.get("stratum"), line["cell"]], sort_keys=True)
            key = tuple(line.get(name) for name in ("checkpoint", "method", "count", "evaluation_seed"))
            answers = evaluations.setdefault(place, {}).setdefault(key, {})
            answers.setdefault(line.get("row", len(answers)), with_correct(generation, line))  # two may write a row
    measures: dict[tuple[Any, ...], tuple[float | None, ...]] = {}
    for place, several in evaluations.items():
        seen = Counter[tuple[str, str]]()
        for line in max(reversed(several.values()), key=len).values():
            question = (line["question"], target := line["correct_answer"])
            number = answer_number(target).value if generation is None else correct_number(target, pattern)
            answer = _measures(line["correct"], number, answer_number(line["prediction"], pattern).value)
            measures[place, *question, seen[question]] = answer
            seen[question] += 1
    return DataFrame.from_dict(measures, orient="index", columns=list(MEASURES), dtype=float)


def _measures(is_correct: bool, target: Any, prediction: Any) -> tuple[float | None, ...]:
    """The `MEASURES` of an answer; without a number there is no distance."""
    is_number = None if target is None else float(prediction == target)
    if target is None or prediction is None:
        return float(is_correct), is_number, None
    distance = abs(signed_log(Fraction(prediction)) - signed_log(Fraction(target)))
    return float(is_correct), is_number, float(distance)
