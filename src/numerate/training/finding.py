"""Finding runs and checkpoints by what a user calls them."""

import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from numerate import catalogue
from numerate.errors import UserError, did_you_mean
from numerate.training import checkpoint, disk
from numerate.training.checkpoint import Checkpoint, DamagedError
from numerate.training.run_folder import STARTS_FILE, RunFolder, folders_of_runs, read_metadata_entry


def all_runs(runs: Path) -> list[RunFolder]:
    """All runs in a folder of runs, by recipe and id."""
    with disk.convert_os_errors(runs):
        heads = sorted(runs.glob("[!.]*/[!.]*/recipe.yaml"))
    return [RunFolder(head.parent) for head in heads]


def latest_run(runs: Path) -> RunFolder | None:
    """The run that was created or resumed last (by the order of sessions, not by a clock) of those with a checkpoint,
    or of all if none has one. Warns if a later one has none yet."""
    newest = None
    for run in _newest_first(runs):
        if checkpoint.list_steps(run.checkpoints):
            if newest is not None:
                message = f"latest: {newest.path} has no checkpoint yet; taking {run.path}, the newest run that has one"
                warnings.warn(message, stacklevel=3)
            return run
        newest = newest or run
    return newest


def _newest_first(runs: Path) -> Iterator[RunFolder]:
    try:
        lines = (runs / STARTS_FILE).read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        lines = []
    known_paths = [runs / name for name in dict.fromkeys(reversed(lines)) if name]
    yield from (RunFolder(path) for path in known_paths if os.path.isfile(path / "recipe.yaml"))
    others = [run for run in all_runs(runs) if run.path not in known_paths]
    yield from sorted(others, key=lambda run: (read_metadata_entry(run, "  started") or "", run.path), reverse=True)


def find_run(address: str | os.PathLike[str], runs: Path) -> RunFolder:
    """Finds a run by its path, `latest`, a `name=`, an id or the beginning of one, or a recipe with one run. Raises
    `UserError` that lists the matches if there are several, or the nearest name if there is none.
    """
    text = os.fspath(address)
    path = Path(os.path.expanduser(text))
    for folder in (
        path,
        path.parent if path.name == "recipe.yaml" else path,
        runs / text if text.strip("./") else path,
    ):
        if os.path.isfile(folder / "recipe.yaml"):
            return RunFolder(folder)
    if text == "latest":
        if (newest_run := latest_run(runs)) is None:
            raise UserError(f"{runs}: there is no run here yet; `numerate train RECIPE` creates one.")
        return newest_run
    runs_found = all_runs(runs)
    names = {run.path: read_metadata_entry(run, "name") for run in runs_found}
    for is_meant in (
        lambda run: run.id == text,
        lambda run: names[run.path] == text,
        lambda run: text and run.id.startswith(text),
        lambda run: run.recipe_name == text.rstrip("/"),
        lambda run: "/" in text and f"{run.recipe_name}/{run.id}".startswith(text),
    ):
        if len(matches := [run for run in runs_found if is_meant(run)]) == 1:
            return matches[0]
        if matches:
            first = ", ".join(f"{run.recipe_name}/{run.id}" for run in matches[:8]) + ", ..." * (len(matches) > 8)
            raise UserError(f"{text!r} may mean {len(matches)} runs in {runs}: {first}. Use one of these, or a path.")
    if os.path.isdir(path):
        raise UserError(f"{path}: is no run: it has no recipe.yaml.{_advice(path)}")
    if os.sep in text:
        raise UserError(f"{path}: there is no such folder.{did_you_mean(path.name, folders_of_runs(path.parent))}")
    if catalogue.is_recipe(text):
        command = "run" if text.replace("-", "_") in catalogue.parts_by_kind()["Study"] else "train"
        raise UserError(f"there is no run of {text} in {runs}; `numerate {command} {text}` makes one")
    known = [run.id for run in runs_found] + [name for name in names.values() if name] + ["latest"]
    raise UserError(f"no run in {runs} has the id, name or path {text!r}.{did_you_mean(text, known)}")


def _advice(path: Path) -> str:
    """Advice for a folder that is part of a run, or that contains runs or other weights."""
    here = path.absolute()
    for run in (here.parent, here.parent.parent):
        if (run / "recipe.yaml").is_file():
            step = re.fullmatch(r"step-0*(\d+)", here.name)
            return f" Its run is {run}" + (f"; checkpoint={step[1]} is this checkpoint." if step else ".")
    if inside := sorted(path.glob("*/recipe.yaml")):
        return f" There are runs inside: {inside[0].parent}" + f" and {len(inside) - 1} more" * (len(inside) > 1) + "."
    if (config := path / "config.json").is_file() and b'"model_type": "numerate"' in config.read_bytes():
        return f" It holds an exported run: `numerate import {path}` imports it."
    return f" It holds weights of Hugging Face: hf:{path} names them in place of a run." if config.is_file() else ""


def select_checkpoints(folder: Path, selector: str) -> tuple[list[Checkpoint], list[str]]:
    """The checkpoints with intact weights that are selected by `final` (the last one), `best`, `all` or a step such as
    `500`, with warnings about those that are skipped.

    Raises `UserError` for a missing one, listing those that exist; `DamagedError` for a selected one that is incomplete
    or corrupted, with the file, what is wrong with it, and the checkpoints that can be used.
    """
    steps = checkpoint.list_steps(folder)
    steps_text = ", ".join(map(str, steps)) or "none yet"
    if not re.fullmatch(r"final|best|all|(step-)?\d+", selector):
        hint = did_you_mean("final" if selector in ("last", "latest") else selector, ("final", "best", "all"))
        raise UserError(f"checkpoint: {selector!r} must be final, best, all or a step ({steps_text}).{hint}")
    if not steps:
        renamed = ", ".join(path.name for path in sorted(folder.glob("torn-*")))
        damaged_text = f"; {renamed} cannot be used" if renamed else ""
        raise UserError(f"{folder}: has no checkpoint yet{damaged_text}; train the run first.")
    last, warnings = checkpoint.latest_valid(folder, ["weights"])
    if last is None:
        raise DamagedError(f"{warnings[0]} No other checkpoint of the run can be used; train it again.")
    if selector == "final":
        return [last], warnings
    if selector == "all":
        damage = _damage(folder, steps)
        usable = [checkpoint.read_checkpoint(folder / checkpoint.step_folder(at)) for at in steps if damage[at] is None]
        return usable, [f"{reason} It is skipped." for reason in damage.values() if reason is not None]
    step = last.best if selector == "best" else int(selector.removeprefix("step-"))
    if step is None:
        raise UserError(f"{folder}: no best checkpoint was chosen in this run; there are final, all and {steps_text}.")
    if step not in steps:
        raise UserError(f"{folder}: has no checkpoint of step {step}; there are: {steps_text}.")
    if (reason := _damage(folder, [step])[step]) is not None:
        usable_text = ", ".join(str(at) for at, problem in _damage(folder, steps).items() if problem is None)
        raise DamagedError(f"{reason} Checkpoints that can be used: {usable_text}.")
    return [checkpoint.read_checkpoint(folder / checkpoint.step_folder(step))], warnings if selector == "best" else []


def _damage(folder: Path, steps: list[int]) -> dict[int, str | None]:
    """Why the weights of these checkpoints cannot be used; None where they can."""
    return {at: checkpoint.find_corruption(folder / checkpoint.step_folder(at), ["weights"]) for at in steps}
