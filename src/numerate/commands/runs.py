"""`train`, `evaluate`, `report`, `export` and `import`: a run from its training to its export."""

import os
import sys
from collections.abc import Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

from numerate.commands.pretrained import evaluate_with_progress, is_pretrained, pretrained_runs
from numerate.config import expand_sweep, override
from numerate.evaluation.labels import Metric
from numerate.evaluation.statistics import wilson_interval
from numerate.integrations import hf_export
from numerate.integrations.tracked_results import track_results
from numerate.recipes.naming import load_recipe, with_settings
from numerate.recipes.preset import debug
from numerate.reports.evaluation_results import Results, cells_by_title
from numerate.reports.figure import HeatMap, heat_maps
from numerate.reports.grid import (
    aggregate_seeds,
    are_named_parts,
    cell_label,
    format_interval,
    format_percent,
    metric_label,
)
from numerate.reports.records import Cell
from numerate.reports.table import text_table
from numerate.reports.terminal_writer import TerminalStyle, heat_map_text, legend_text
from numerate.runs import importing
from numerate.runs.engines.engine import Engine
from numerate.runs.initial_weights import initial_run
from numerate.runs.run import Run, load
from numerate.runs.shards import check_no_shard
from numerate.runs.train import train as train_recipe
from numerate.runs.trial import dry_run as estimate_training
from numerate.terminal import output_width, print_wrapped
from numerate.training.recipe import Recipe
from numerate.training.run_folder import resolve_runs_dir


def train(
    name: str,
    *,
    settings: Sequence[str],
    preset: str | None = None,
    runs_dir: str | None = None,
    dry_run: bool = False,
) -> int:
    """Trains a recipe with every combination of its settings, or resumes; returns the exit status."""
    is_main_process = os.environ.get("RANK", "0") == "0"
    for recipe in sweep(load_recipe(name), settings, preset):
        if dry_run:
            initial_run(recipe, resolve_runs_dir(runs_dir))
            estimate = estimate_training(recipe)
            if is_main_process:
                print(f"{recipe.title} seed={recipe.seed}\n{estimate}")
            continue
        trained = train_recipe(recipe, runs_dir=runs_dir)
        if is_main_process:
            print(trained.run.path)
        if trained.exit_status:
            return trained.exit_status
    return 0


def sweep(recipe: Recipe, settings: Sequence[str], preset: str | None = None) -> list[Recipe]:
    """A recipe, or its small version, with every combination of settings."""
    recipe = debug(recipe, settings) if preset == "debug" else recipe
    recipes = [with_settings(recipe, choice) for choice in expand_sweep(settings)]
    if len({one.title for one in recipes}) > 1:  # a sweep has one title, and labels that name the parts
        return [override(recipe, choice) for choice in expand_sweep(settings)]
    return recipes


def evaluate(
    address: str,
    *,
    settings: Sequence[str],
    engine: Engine | None,
    runs_dir: str | None = None,
    device: str | None = None,
    dry_run: bool = False,
    **options: Any,
) -> None:
    """Evaluates a run, or `hf:` models for each choice of settings, and prints its heat maps; the other options are
    those of `Run.evaluate`."""
    if is_pretrained(address):
        with TemporaryDirectory() as temporary_dir:  # a dry run writes nothing
            runs = pretrained_runs(address, settings, temporary_dir if dry_run else runs_dir, device)
            for run in runs:
                _evaluate(run, engine, dry_run, options)
    else:
        _evaluate(load(address, runs_dir, device), engine, dry_run, options | {"settings": settings})


def _evaluate(run: Run, engine: Engine | None, dry_run: bool, options: dict[str, Any]) -> None:
    if dry_run and engine is not None:
        check_no_shard(engine, options.pop("shard", None))
        print(run.script(engine, **options))
    elif dry_run:
        print(run.estimate(**options))
    else:
        results = evaluate_with_progress(run, engine=engine, **options)
        print(f"{run.path}")
        show_evaluation(results)
        if "shard" in options:
            print_wrapped(f"\nshard {options['shard']}; `numerate evaluate` without shard= merges all finished shards")
        else:
            track_results(run.path, run.recipe)


def report(address: str, *, runs_dir: str | None = None) -> None:
    """Writes the HTML report of a run."""
    print(load(address, runs_dir).report())


def export(
    address: str,
    *,
    out: str,
    checkpoint: str = "final",
    tokenizer: bool = True,
    license: str | None = None,
    runs_dir: str | None = None,
) -> None:
    """Exports a run to Hugging Face."""
    run = load(address, runs_dir, "cpu")
    folder = hf_export.export(run, out, checkpoint_name=checkpoint, tokenizer=tokenizer, license=license)
    needs = " after " + "; ".join(needed) if (needed := hf_export.needed_lines(run)) else " alone"
    print(f"{folder}\nopened by transformers{needs}")


def import_run(folder: str, *, settings: Sequence[str], recipe: str | None = None, **options: Any) -> None:
    """Imports a folder of Hugging Face, or published weights for a recipe, as a run."""
    if recipe is None:
        imported = importing.import_folder(folder, settings=settings, **options)
    else:
        imported = importing.import_published(folder, override(load_recipe(recipe), settings), **options)
    print(imported.path)


def show_evaluation(results: Results) -> None:
    """Prints heat maps, region means with intervals, and how the "best" checkpoint was selected.

    For labels, maps show the accuracy on unseen counts, or on all if none is unseen.
    """
    if not results.counts_answers:
        print(f"\n{results.text(output_width())}")
    else:
        _show_maps(results)
        print(f"\n{results.text(output_width())}\n{_first_tokens(results)}", end="")
    if not_held_out := list(dict.fromkeys(_cell_text(record) for record in results if record["overlaps_training"])):
        more = f", ... ({len(not_held_out)} cells)" * (len(not_held_out) > 12)
        names = ", ".join(not_held_out[:12])
        print_wrapped(f"\ntoo few questions to hold any out, so they may occur in training: {names}{more}")
    if results.best is not None and any(record["checkpoint"] == "best" for record in results):
        print_wrapped(_selection_text(results, results.best))
    if other_methods := {record["method"] for record in results} - {"one pass"}:
        print(f"method: {', '.join(sorted(other_methods))}")


def _show_maps(results: Results) -> None:
    style = TerminalStyle.from_stream(sys.stdout)
    has_unseen_labels = all(record.get("labels", {}).get("max_training_labels") is not None for record in results)
    metric: Metric = "ood_accuracy" if has_unseen_labels else "exact_match"
    plotted: list[HeatMap] = []
    for title, all_cells in cells_by_title(results).items():
        if not (cells := [cell for cell in all_cells if cell.stratum is None]):
            continue
        if are_named_parts(cells):
            print(f"\n{title}\n{_parts_table(cells)}")
            continue
        title += f", {metric_label(metric, cells)}" * has_unseen_labels
        for one in heat_maps(aggregate_seeds([[cell.with_metric(metric) for cell in cells]]), title):
            plotted.append(one)
            print(f"\n{heat_map_text(one, style)}")
    if plotted:
        print(f"\n{legend_text(style, plotted)}")


def _selection_text(results: Results, best: Mapping[str, Any]) -> str:
    """By which score the best checkpoint was selected."""
    split, of, note = best["split"], "correct", ""
    if not results.counts_answers:
        split, of = "part of the validation text during training", "of tokens"
    elif all("labels" in record for record in results):
        of = "of labels correct"
    score = f"loss {best['score']:.4g}" if best.get("metric") == "loss" else f"{best['score']:.1%} {of}"
    if any((record["checkpoint"], record["region"]) == ("best", split) for record in results):
        note = ": its OOD validation score is biased by this selection" * (split == "ood_validation")
    return f"best: step {best['step']:,}, selected on {split} ({score}){note}"


def _parts_table(cells: Sequence[Cell]) -> str:
    """Named categories as a table, since a heat map is not meaningful for them."""
    rows = [
        [cell_label(c.coordinates, names=c.names), c.region, format_percent(c.accuracy), format_interval(c.low, c.high)]
        for c in cells
    ]
    return text_table([next(iter(cells[0].coordinates)), "region", "correct, %", "95 % interval"], rows)


def _first_tokens(results: Results) -> str:
    """For sorting: the accuracy of the first generated token."""
    records = [record for record in results if "items" in record["cell"] and "first_token_correct" in record]
    if not records:
        return ""
    correct, count = (sum(record[name] for record in records) for name in ("first_token_correct", "count"))
    low, high = wilson_interval(correct, count)
    share = f"{correct / count:.1%} [{low:.1%}, {high:.1%}]"
    return f"\nfirst label correct: {share} of {count:,} questions, over all cells\n"


def _cell_text(record: Mapping[str, Any]) -> str:
    names = record.get("names", {})
    text = "+".join(names.get(axis, str(value)) for axis, value in record["cell"].items())
    return f"{text} ({record['stratum']})" if "stratum" in record else text
