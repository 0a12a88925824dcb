"""`train`, `evaluate`, `report`, `export` and `import`: a run from its training to its export."""

import os
import sys
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Any

from numerate.commands.pretrained import evaluate_with_progress, is_pretrained, pretrained_runs
from numerate.config import expand_sweep, override
from numerate.evaluation.statistics import wilson_interval
from numerate.integrations import hf_export
from numerate.integrations.tracked_results import track_results
from numerate.recipes.naming import load_recipe, with_settings
from numerate.recipes.preset import debug
from numerate.results.evaluated import evaluations
from numerate.results.summary import has_parts, of_map
from numerate.results.terminal_map import console_of, legend_text, maps_text
from numerate.results.words import value_text
from numerate.runs import importing
from numerate.runs.engines.engine import Engine
from numerate.runs.initial_weights import initial_run
from numerate.runs.results import Results
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
            print_wrapped(f"\nshard {options['shard']}; `numerate evaluate` without shard= evaluates what is left")
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
    """Prints heat maps, the tables of the results, and how the "best" checkpoint was selected.

    For labels, maps show the accuracy on unseen counts, or on all if none is unseen.
    """
    _show_maps(results)
    print(f"\n{results.text(output_width())}")
    frame = results.frame
    if "items" in frame and frame.get("first_token_correct", frame["items"] * 0).notna().all():  # of sorting
        correct, count = int(frame["first_token_correct"].sum()), int(frame["questions"].sum())
        share = value_text("exact_match", correct / count, *map(float, wilson_interval(correct, count)))
        print(f"\nfirst label correct, %: {share}, of {count:,} questions over all cells")
    if results.best is not None and (frame["checkpoint"] == "best").any():
        print_wrapped(_selection_text(results))
    if other_methods := sorted({*frame["method"]} - {"one pass"}):
        print(f"method: {', '.join(other_methods)}")


def _show_maps(results: Results) -> None:
    inside = of_map(results.frame)
    if "correct" not in inside or not len(inside) or has_parts(inside):
        return
    console = console_of(sys.stdout)
    for title, cells in evaluations(inside).items():
        print(f"\n{maps_text(cells, title, console)}", end="")
    print(legend_text(console))


def _selection_text(results: Results) -> str:
    """By which score the best checkpoint was selected."""
    assert results.best is not None
    best, frame = results.best, results.frame
    split, of, note = best["split"], "of labels correct" if "accuracy" in frame else "correct", ""
    if "correct" not in frame:
        split, of = "part of the validation text during training", "of tokens"
    score = f"loss {best['score']:.4g}" if best.get("metric") == "loss" else f"{best['score']:.1%} {of}"
    if ((frame["checkpoint"] == "best") & (frame["region"] == split)).any():
        note = ": its OOD validation score is biased by this selection" * (split == "ood_validation")
    return f"best: step {best['step']:,}, selected on {split} ({score}){note}"
