"""Results as terminal output."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numerate.evaluation.labels import METRICS, Metric
from numerate.evaluation.statistics import wilson_interval
from numerate.experiments.results import Results
from numerate.reports.answers import split_metric
from numerate.reports.colour import TerminalStyle
from numerate.reports.compare import comparison_text
from numerate.reports.figure import HeatMap
from numerate.reports.grid import (
    aggregate_seeds,
    are_named_parts,
    cell_label,
    format_interval,
    format_percent,
    make_grids,
)
from numerate.reports.groups import format_settings, group_runs, with_metric
from numerate.reports.records import Cell, cell_from_record, read_runs
from numerate.reports.table import text_table
from numerate.reports.terminal_writer import heat_map_text, legend_text


def show_evaluation(results: Results) -> None:
    """Heat maps, region means with intervals, and the criterion of the "best" checkpoint. For labels, maps show the
    accuracy on unseen counts, or on all if none is unseen."""
    if results.is_language_modeling:
        print(f"\n{results}{_best_by_loss(results)}")
        return
    style = TerminalStyle.from_stream(sys.stdout)
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for record in results:
        words = format_settings(record.get("settings", {}))
        key = (record["checkpoint"], record["step"], record["position_offset"], words)
        groups.setdefault(key, []).append(cell_from_record(record))
    has_settings = any(key[3] for key in groups)
    has_unseen_labels = all(
        "labels" in record and record["labels"]["max_training_labels"] is not None for record in results
    )
    metric: Metric = "ood_accuracy" if has_unseen_labels else "exact_match"
    metric_text = f", {METRICS[metric]}" if has_unseen_labels else ""
    plotted: list[HeatMap] = []
    for (label, step, position_offset, words), cells in groups.items():
        offset_text = f", position offset {position_offset}" if len({key[2] for key in groups}) > 1 else ""
        checkpoint_text = f"{label} checkpoint, step {step}" if label in ("final", "best") else f"step {step}"
        settings_text = f", {words or 'as trained'}" if has_settings else ""
        if are_named_parts(cells):
            print(f"\n{checkpoint_text}{offset_text}{settings_text}\n{_parts_table(cells)}")
            continue
        for grid in make_grids(
            aggregate_seeds([[cell.with_metric(metric) for cell in cells]]),
            f"{checkpoint_text}{offset_text}{settings_text}{metric_text}",
        ):
            plotted.append(HeatMap.from_grid(grid, has_tooltips=False))
            print(f"\n{heat_map_text(plotted[-1], style)}")
    print(f"\n{legend_text(style, plotted)}\n" * bool(plotted) + f"\n{results}")
    first = _first_tokens(results)
    if first:
        print(f"\n{first}")
    cells_not_held_out = list(dict.fromkeys(_cell_text(record) for record in results if record["overlaps_training"]))
    if cells_not_held_out:
        more = f", ... ({len(cells_not_held_out)} cells)" if len(cells_not_held_out) > 12 else ""
        print(
            "\ntoo few questions to hold any out, so they may occur in training: "
            f"{', '.join(cells_not_held_out[:12])}{more}"
        )
    if results.best and results.best.get("step") is not None and any(key[0] == "best" for key in groups):
        best = results.best
        right = "of labels correct" if all("labels" in record for record in results) else "correct"
        score = f"{best['score']:.1%} {right}" if best.get("metric") != "loss" else f"its loss {best['score']:.4g}"
        print(f"best: step {best['step']}, selected on {best['split']} ({score}){_selection_note(results)}")
    other_methods = {record["method"] for record in results} - {"one pass"}
    if other_methods:
        print(f"method: {', '.join(sorted(other_methods))}")


def _best_by_loss(results: Results) -> str:
    """The best step for language modeling, if it was evaluated."""
    best = results.best
    if best is None or best.get("step") is None or all(record["checkpoint"] != "best" for record in results):
        return ""
    what = f"{best['metric']} {best['score']:.4g}" if best.get("metric") == "loss" else f"{best['score']:.1%} of tokens"
    return f"\nbest: step {best['step']:,}, selected during training ({what} on part of the validation text)"


def _parts_table(cells: Sequence[Cell]) -> str:
    """Named categories as a table, since a heat map is not meaningful for them."""
    rows = [
        [
            cell_label(cell.coordinates, names=cell.names),
            cell.region,
            format_percent(cell.accuracy),
            format_interval(cell.low, cell.high),
        ]
        for cell in cells
    ]
    return text_table([next(iter(cells[0].coordinates)), "region", "correct, %", "95 % interval"], rows)


def _selection_note(results: Results) -> str:
    """The part of the grid that the best checkpoint was selected on."""
    there = any((record["checkpoint"], record["region"]) == ("best", "ood_validation") for record in results)
    if not there or results.best is None or results.best["split"] != "ood_validation":
        return ""
    return ": its OOD validation score is biased by this selection"


def _first_tokens(results: Results) -> str:
    """For sorting: the accuracy of the first generated token."""
    records = [record for record in results if "items" in record["cell"] and "first_token_correct" in record]
    if not records:
        return ""
    correct, count = (sum(record[name] for record in records) for name in ("first_token_correct", "count"))
    low, high = wilson_interval(correct, count)
    return f"first label correct: {correct / count:.1%} [{low:.1%}, {high:.1%}] of {count:,} questions, over all cells"


def _cell_text(record: Mapping[str, Any]) -> str:
    names = record.get("names", {})
    return "+".join(names.get(axis, str(value)) for axis, value in record["cell"].items())


def comparison_summary(
    folders: Sequence[Path], labels: Mapping[str, str] | None = None, metric: str | None = None
) -> str:
    """Heat maps of several runs side by side, their regions, and a summary sentence."""
    measure, answer = split_metric(metric)
    return comparison_text(
        with_metric(group_runs(read_runs(folders), labels), measure), TerminalStyle.from_stream(sys.stdout), answer
    )
