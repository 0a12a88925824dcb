"""Resolves addresses of runs and studies to folders of runs."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from numerate.errors import UserError
from numerate.experiments.run import load
from numerate.studies.folder import StudyFolder
from numerate.studies.missing import Missing, missing_of
from numerate.training.run_folder import runs_directory


@dataclass(frozen=True)
class Meant:
    """Unique folders of runs, the labels of recipes in studies, and the failed runs."""

    folders: list[Path]
    labels: dict[str, str]
    missing: Missing = Missing()


def runs_meant(words: Sequence[str], runs_dir: str | None = None) -> Meant:
    """The runs of some addresses, in their order.

    A study, by its folder or title, resolves to its completed runs in the order of its plan. Of several addresses those
    that are files of a study and no runs are skipped, so that `runs/addition_abacus/*` means the runs there also
    where that folder is a study's too.

    Raises `UserError` for an address that is no run and no study, and where nothing is left.
    """
    folders: dict[Path, Path] = {}
    labels: dict[str, str] = {}
    failed: list[tuple[str, str]] = []
    absent: list[str] = []
    for word in words:
        if len(words) > 1 and _of_a_study(word):
            continue
        study = _study(word, runs_directory(runs_dir))
        if study is None:
            found = [load(word, runs_dir).path]
        else:
            plan = study.plan()
            done = study.done(plan)
            found = [study.runs / planned.run for planned in plan if planned.run in done]
            lost = missing_of(study, plan, done)
            failed += [one for one in lost.failed if one not in failed]
            absent += [one for one in lost.absent if one not in absent]
            labels = {**study.head()["labels"], **labels}
            if not found and len(words) == 1:
                raise UserError(
                    f"{word}: of this study no run is done yet; `numerate status {word}` says how it stands"
                )
        for path in found:
            folders.setdefault(path.resolve(), path)
    if words and not folders:
        raise UserError(f"{words[0]}{' ...' * (len(words) > 1)}: there is no run that is done among these")
    return Meant(list(folders.values()), labels, Missing(tuple(failed), tuple(absent)))


def _of_a_study(word: str) -> bool:
    """Whether an address is a path beside a study's own file, and neither a run nor a study itself."""
    path = Path(os.path.expanduser(word))
    if not path.exists() or (path / "recipe.yaml").is_file() or (path / "plan.jsonl").is_file():
        return False
    return path.name != "recipe.yaml" and (path.absolute().parent / "study.yaml").is_file()


def _study(word: str, runs: Path) -> StudyFolder | None:
    """The study at an address, if there is one."""
    path = Path(os.path.expanduser(word))
    if not word.strip("./") or (path / "recipe.yaml").is_file():
        return StudyFolder(path) if word and (path / "plan.jsonl").is_file() else None
    for folder in (path, runs / word, runs / word.replace("-", "_")):
        if (folder / "plan.jsonl").is_file():
            return StudyFolder(folder)
    return None
