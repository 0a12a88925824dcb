"""`compare` and `plot`: several runs, or all of a study, as a page, a figure and text."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numerate.commands.pretrained import evaluate_with_progress, is_pretrained, pretrained_runs
from numerate.errors import UserError
from numerate.reports.compare import comparison_text, read_comparison, write_comparison
from numerate.reports.evaluation_results import Results, content_text, models_content
from numerate.reports.groups import Group
from numerate.reports.page import missing_runs_note
from numerate.reports.plots import FIGURES, write_plot
from numerate.reports.terminal_writer import TerminalStyle
from numerate.runs.run import load
from numerate.runs.status import RunState, read_states
from numerate.runs.study_folder import STUDY_FILE, StudyFolder
from numerate.terminal import output_width
from numerate.training.run_folder import resolve_runs_dir


def compare(
    *addresses: str,
    out: str = "compare.html",
    baseline: str | None = None,
    metric: str | None = None,
    settings: Sequence[str] = (),
    device: str | None = None,
    runs_dir: str | None = None,
) -> None:
    """Writes a page or figure of runs side by side, and prints their heat maps. `hf:` models are evaluated first, with
    `settings` of their recipes."""
    check_suffix(out)
    if settings and not any(map(is_pretrained, addresses)):
        raise UserError(f"{settings[0]}: a comparison has settings of hf: models only, and none is named")
    paths: list[str] = []
    results: dict[Path, Results] = {}
    for address in addresses:
        models = pretrained_runs(address, settings, runs_dir, device) if is_pretrained(address) else []
        results |= {run.path: evaluate_with_progress(run) for run in models}
        paths += [str(run.path) for run in models] or [address]
    runs = resolve_runs(paths, runs_dir)
    failed, variants = runs.failed, runs.missing_variants
    subject = read_comparison(runs.folders, labels=runs.labels, baseline=baseline, metric=metric)
    page = write_comparison(subject, out, failed_runs=failed, missing_variants=variants)
    if warning := missing_runs_note(len(runs.folders), failed, variants):
        print(f"{warning}\n")
    text = comparison_text(subject.groups, TerminalStyle.from_stream(sys.stdout), subject.answer_metric)
    table = [content_text(models_content(_by_label(results, subject.groups)), output_width())] if results else []
    print("\n\n".join([*table, text, str(page)]))


def _by_label(results: Mapping[Path, Results], groups: Sequence[Group]) -> dict[str, Results]:
    """The results of runs by the labels of their groups, with the seed where a group has several runs."""
    labels: dict[Path, str] = {}
    for group in groups:
        for run in group.runs:
            seed = f" seed {run.seed}" if len(group.runs) > 1 else ""
            labels.setdefault(run.folder.resolve(), f"{group.label}{seed}")
    return {labels[path.resolve()]: result for path, result in results.items()}


def check_suffix(out: str) -> None:
    """Raises `UserError` for a file that a comparison cannot be written to."""
    if Path(out).suffix.lower() not in (".html", ".htm", ".png", ".svg", ".pdf"):
        raise UserError(f"out: the suffix of {out} must be one of .html, .png, .svg, .pdf")


def plot(kind: str, *addresses: str, out: str | None = None, runs_dir: str | None = None, **options: Any) -> None:
    """Plots a figure of runs; the other options are those of `write_plot`."""
    runs = resolve_runs(addresses if kind in FIGURES else (), runs_dir)
    print(write_plot(kind, runs.folders, out or f"{kind}.png", labels_by_recipe=runs.labels, **options))
    if warning := missing_runs_note(len(runs.folders), runs.failed, runs.missing_variants, location="drawn"):
        print(warning)


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
