"""`compare` and `plot`: several runs, or all of a study, as a page, a figure and text."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten, wrap
from typing import Any

from numerate.commands.pretrained import evaluate_with_progress, is_pretrained, pretrained_runs
from numerate.errors import UserError
from numerate.results import style
from numerate.results.figures import FIGURES
from numerate.results.figures import plot as draw
from numerate.results.page import page, text
from numerate.results.rows import find_runs
from numerate.results.words import joined
from numerate.runs.run import load
from numerate.runs.status import RunState, read_states
from numerate.runs.study_folder import STUDY_FILE, StudyFolder
from numerate.terminal import MAX_PROSE_WIDTH, output_width
from numerate.training.output_files import check_output_file, write_output
from numerate.training.run_folder import resolve_runs_dir

MAX_NAMED_RUNS = 7
"""Failed runs, and variants without any run, that are named; of more six, and the others are counted."""


def compare(
    *addresses: str,
    out: str = "compare.html",
    baseline: str | None = None,
    metric: str | None = None,
    settings: Sequence[str] = (),
    device: str | None = None,
    runs_dir: str | None = None,
) -> None:
    """Writes a page or figure of runs side by side, and prints its tables. `hf:` models are evaluated first, with
    `settings` of their recipes."""
    check_suffix(out)
    if settings and not any(map(is_pretrained, addresses)):
        raise UserError(f"{settings[0]}: a comparison has settings of hf: models only, and none is named")
    paths: list[str] = []
    for address in addresses:
        models = pretrained_runs(address, settings, runs_dir, device) if is_pretrained(address) else []
        for run in models:
            evaluate_with_progress(run)
        paths += [str(run.path) for run in models] or [address]
    runs = resolve_runs(paths, runs_dir)
    entries = find_runs(runs.folders, runs_dir, runs.labels)
    warning = missing_runs_note(len(runs.folders), runs.failed, runs.missing_variants)
    options: Any = {"metric": metric, "baseline": baseline}
    if Path(out).suffix.lower() in (".html", ".htm"):
        check_output_file(out, "html")
        title = joined(list(dict.fromkeys(entry.variant for entry in entries)), 4)
        html = page(entries, title, warnings=[warning] * bool(warning), **options)
        path = write_output(out, html.encode(), "The records are unchanged.")
    else:
        path = style.save(draw("compare", entries, metric=metric), out)
    print(
        "\n\n".join(
            [*[warning] * bool(warning), text(entries, output_width() or MAX_PROSE_WIDTH, **options), str(path)]
        )
    )


def missing_runs_note(
    num_shown: int, failed: Sequence[tuple[str, str]], missing_variants: Sequence[str] = (), location: str = "below"
) -> str:
    """Sentences on failed runs with their errors, and on variants without any run; or "".

    >>> missing_runs_note(3, [("rotary seed 1", "the loss is nan")], [])
    '1 of 4 runs failed and is not in anything below: rotary seed 1 (the loss is nan).'
    """
    parts = []
    if failed:
        texts = [f"{label} ({shorten(error, 100, placeholder=' ...')})" for label, error in failed]
        named = joined(texts, MAX_NAMED_RUNS)
        verb = "is" if len(failed) == 1 else "are"
        parts.append(
            f"{len(failed)} of {num_shown + len(failed)} runs failed and {verb} not in anything {location}: {named}."
        )
    if missing_variants:
        parts.append(f"No run of {joined(list(missing_variants), MAX_NAMED_RUNS)} succeeded.")
    return " ".join(parts)


def check_suffix(out: str) -> None:
    """Raises `UserError` for a file that a comparison cannot be written to."""
    if Path(out).suffix.lower() not in (".html", ".htm", ".png", ".svg", ".pdf"):
        raise UserError(f"out: the suffix of {out} must be one of .html, .png, .svg, .pdf")


def plot(kind: str, *addresses: str, out: str | None = None, runs_dir: str | None = None, **options: Any) -> None:
    """Plots a figure of runs; the other options are those of `numerate.results.figures.plot`."""
    path = out or f"{kind}.png"
    runs = resolve_runs(addresses if kind in FIGURES else (), runs_dir)
    style.check_path(path)
    entries = find_runs(runs.folders, runs_dir, runs.labels) if runs.folders else []
    print(style.save(draw(kind, entries, **options), path))
    if warning := missing_runs_note(len(runs.folders), runs.failed, runs.missing_variants, location="drawn"):
        print("\n".join(wrap(warning, output_width() or MAX_PROSE_WIDTH)))


@dataclass(frozen=True)
class ResolvedRuns:
    """Unique run folders, the labels of recipes in studies, the name and error of each failed run, and the variants of
    which every run that ended has failed."""

    folders: list[Path]
    labels: dict[str, str]
    failed: Sequence[tuple[str, str]] = ()
    missing_variants: Sequence[str] = ()


def resolve_runs(addresses: Sequence[str], runs_dir: str | None = None) -> ResolvedRuns:
    """The runs at addresses, in order.

    A study, by its folder or title, resolves to its completed runs in the order of its plan. With several addresses,
    files of a study are skipped, so that `runs/addition_abacus/*` means the runs in that folder even if it is also the
    folder of a study.

    Raises `UserError` for an address that is neither a run nor a study, and if there are no runs.
    """
    folders: list[Path] = []
    labels: dict[str, str] = {}
    states: list[RunState] = []
    for address in addresses:
        if len(addresses) > 1 and _is_study_file(Path(address).expanduser()):
            continue
        study = StudyFolder.find_existing(address, resolve_runs_dir(runs_dir))
        if study is None:
            folders.append(load(address, runs_dir).path)
            continue
        content = study.read()
        of_study = read_states(study.runs_dir, content.plan())
        done = [study.runs_dir / state.run.run for state in of_study if state.status == "done"]
        if not done and len(addresses) == 1:
            raise UserError(f"{address}: no run of this study is done yet; see `numerate status {address}`")
        folders += done
        states += of_study
        labels = {**content.labels, **labels}
    if addresses and not folders:
        raise UserError(f"{addresses[0]}{' ...' * (len(addresses) > 1)}: none of these has a completed run")
    unique_folders = {path.resolve(): path for path in folders}
    present = {state.run.label for state in states if state.status == "done"}
    failed = {state.run.run: state for state in states if state.status == "failed"}.values()
    errors = [(one.run.display_name, str(one.error)) for one in failed]
    missing = dict.fromkeys(one.run.label for one in failed if one.run.label not in present)
    return ResolvedRuns(list(unique_folders.values()), labels, errors, list(missing))


def _is_study_file(path: Path) -> bool:
    """Whether a path is a file of a study, rather than a run or a study."""
    names = ("recipe.yaml", STUDY_FILE)
    is_run_or_study = path.name == "recipe.yaml" or any((path / name).is_file() for name in names)
    return path.exists() and not is_run_or_study and (path.absolute().parent / STUDY_FILE).is_file()
