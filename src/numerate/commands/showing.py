"""Results as terminal output."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numerate.evaluation.labels import METRICS, Metric
from numerate.evaluation.statistics import wilson
from numerate.experiments.results import Results
from numerate.reports.answers import split_metric
from numerate.reports.colour import TerminalStyle
from numerate.reports.compare import comparison_text
from numerate.reports.grid import PlotGrid, are_parts, bracket, grids, percent, place_words, points
from numerate.reports.groups import by_metric, grouped, settings_words
from numerate.reports.heat_map import heat_map, legend
from numerate.reports.records import Cell, cell_of, read_each
from numerate.reports.table import text_table


def show_evaluation(results: Results) -> None:
    """Heat maps, region means with intervals, and what "best" was chosen on. Maps of labels show the accuracy on unseen
    counts, or on all where none is unseen."""
    if results.running:
        print(f"\n{results}{_best_by_loss(results)}")
        return
    look = TerminalStyle.of(sys.stdout)
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for record in results:
        words = settings_words(record.get("settings", {}))
        key = (record["checkpoint"], record["step"], record["position_offset"], words)
        groups.setdefault(key, []).append(cell_of(record))
    changed = any(key[3] for key in groups)
    known = all("labels" in record and record["labels"]["trained"] is not None for record in results)
    metric: Metric = "unseen" if known else "exact"
    measured = f", {METRICS[metric]}" if known else ""
    drawn: list[PlotGrid] = []
    for (label, step, position_offset, words), cells in groups.items():
        several = f", placement {position_offset}" if len({key[2] for key in groups}) > 1 else ""
        at = f"{label} checkpoint, step {step}" if label in ("final", "best") else f"step {step}"
        how = f", {words or 'as trained'}" if changed else ""
        if are_parts(cells):
            print(f"\n{at}{several}{how}\n{_parts(cells)}")
            continue
        for grid in grids(points([[cell.of(metric) for cell in cells]]), f"{at}{several}{how}{measured}"):
            drawn.append(grid)
            print(f"\n{heat_map(grid, look)}")
    print(f"\n{legend(look, drawn)}\n" * bool(drawn) + f"\n{results}")
    first = _first_tokens(results)
    if first:
        print(f"\n{first}")
    seen = list(dict.fromkeys(_words(record) for record in results if record["seen"]))
    if seen:
        more = f", ... ({len(seen)} cells)" if len(seen) > 12 else ""
        print(f"\ntoo few questions to hold any out, so training may have met them: {', '.join(seen[:12])}{more}")
    if results.best and results.best.get("step") is not None and any(key[0] == "best" for key in groups):
        best = results.best
        right = "of labels right" if all("labels" in record for record in results) else "right"
        score = f"{best['score']:.1%} {right}" if best.get("by") != "loss" else f"its loss {best['score']:.4g}"
        print(f"best: step {best['step']}, chosen on {best['chosen_on']} ({score}){_choice(results)}")
    slow = {record["method"] for record in results} - {"one pass"}
    if slow:
        print(f"method: {', '.join(sorted(slow))}")


def _best_by_loss(results: Results) -> str:
    """The best step on running text, if it was evaluated."""
    best = results.best
    if best is None or best.get("step") is None or all(record["checkpoint"] != "best" for record in results):
        return ""
    what = f"{best['by']} {best['score']:.4g}" if best.get("by") == "loss" else f"{best['score']:.1%} of tokens"
    return f"\nbest: step {best['step']:,}, chosen during training ({what} on part of the validation text)"


def _parts(cells: Sequence[Cell]) -> str:
    """Named parts as a table, for which a heat map has no meaning."""
    rows = [
        [place_words(cell.at, names=cell.names), cell.region, percent(cell.accuracy), bracket(cell.low, cell.high)]
        for cell in cells
    ]
    return text_table([next(iter(cells[0].at)), "region", "right, %", "95 % interval"], rows)


def _choice(results: Results) -> str:
    """The part of the grid that the best checkpoint was selected on."""
    there = any((record["checkpoint"], record["region"]) == ("best", "ood_validation") for record in results)
    if not there or results.best is None or results.best["chosen_on"] != "beyond-development":
        return ""
    return ": on OOD validation, so that what it has there says how it was chosen, not how good it is"


def _first_tokens(results: Results) -> str:
    """For sorting: the accuracy of the first generated token."""
    records = [record for record in results if "items" in record["cell"] and "first_correct" in record]
    if not records:
        return ""
    correct, count = (sum(record[name] for record in records) for name in ("first_correct", "count"))
    low, high = wilson(correct, count)
    return f"first label correct: {correct / count:.1%} [{low:.1%}, {high:.1%}] of {count:,} questions, over all cells"


def _words(record: Mapping[str, Any]) -> str:
    names = record.get("names", {})
    return "+".join(names.get(axis, str(value)) for axis, value in record["cell"].items())


def summary(folders: Sequence[Path], labels: Mapping[str, str] | None = None, metric: str | None = None) -> str:
    """Heat maps of several runs side by side, their regions, and the finding in words."""
    measure, answer = split_metric(metric)
    return comparison_text(
        by_metric(grouped(read_each(folders), labels), measure), TerminalStyle.of(sys.stdout), answer
    )
