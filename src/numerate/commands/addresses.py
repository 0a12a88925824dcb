"""Resolves addresses of runs and studies to folders of runs."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from numerate.errors import UserError
from numerate.experiments.run import load
from numerate.studies.folder import StudyFolder
from numerate.studies.missing import MissingRuns, find_missing_in_study
from numerate.training.run_folder import resolve_runs_dir


@dataclass(frozen=True)
class ResolvedRuns:
    """Unique run folders, the labels of recipes in studies, and failed runs."""

    folders: list[Path]
    labels: dict[str, str]
    missing: MissingRuns = MissingRuns()


def resolve_runs(addresses: Sequence[str], runs_dir: str | None = None) -> ResolvedRuns:
    """The runs at addresses, in order.

    A study, by its folder or title, resolves to its completed runs in the order of its plan. With several addresses,
    files of a study are skipped, so that `runs/addition_abacus/*` means the runs in that folder even if it is also the
    folder of a study.

    Raises `UserError` for an address that is neither a run nor a study, and if there are no runs.
    """
    folders: dict[Path, Path] = {}
    labels: dict[str, str] = {}
    failed: list[tuple[str, str]] = []
    missing_variants: list[str] = []
    for address in addresses:
        if len(addresses) > 1 and _is_study_file(address):
            continue
        study = _find_study(address, resolve_runs_dir(runs_dir))
        if study is None:
            run_folders = [load(address, runs_dir).path]
        else:
            plan = study.plan()
            done = study.done_results(plan)
            run_folders = [study.runs_dir / planned.run for planned in plan if planned.run in done]
            missing = find_missing_in_study(study, plan, done)
            failed += [item for item in missing.failed if item not in failed]
            missing_variants += [one for one in missing.missing_variants if one not in missing_variants]
            labels = {**study.metadata()["labels"], **labels}
            if not run_folders and len(addresses) == 1:
                raise UserError(f"{address}: no run of this study is done yet; see `numerate status {address}`")
        for path in run_folders:
            folders.setdefault(path.resolve(), path)
    if addresses and not folders:
        raise UserError(f"{addresses[0]}{' ...' * (len(addresses) > 1)}: none of these has a completed run")
    return ResolvedRuns(list(folders.values()), labels, MissingRuns(tuple(failed), tuple(missing_variants)))


def _is_study_file(address: str) -> bool:
    """Whether an address is a file of a study, rather than a run or a study."""
    path = Path(os.path.expanduser(address))
    if not path.exists() or (path / "recipe.yaml").is_file() or (path / "plan.jsonl").is_file():
        return False
    return path.name != "recipe.yaml" and (path.absolute().parent / "study.yaml").is_file()


def _find_study(address: str, runs: Path) -> StudyFolder | None:
    """The study at an address, if there is one."""
    path = Path(os.path.expanduser(address))
    if not address.strip("./") or (path / "recipe.yaml").is_file():
        return StudyFolder(path) if address and (path / "plan.jsonl").is_file() else None
    for folder in (path, runs / address, runs / address.replace("-", "_")):
        if (folder / "plan.jsonl").is_file():
            return StudyFolder(folder)
    return None
