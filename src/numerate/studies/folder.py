"""The folder of a study: its plan, results and worker states. Reading and writing it needs no torch.

    runs/<study>/
      study.yaml               title, question, labels, format
      plan.jsonl               one line per run: those of the last command, then those of earlier ones; and their number
      results/<worker>.jsonl   results of runs; appended by that worker only, whole lines
      states/<worker>.json     the current state of a worker, updated every second; removed when it ends
      log.txt                  messages of the commands
      report.html figure.png   of the last command

The runs are stored in `runs/<recipe>/<id>/` as usual, and may belong to several studies.
"""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numerate import catalogue
from numerate.config import yaml_text
from numerate.errors import UserError, did_you_mean
from numerate.executors.executor import MAX_DEATHS, Failure
from numerate.records.heads import read_checked_yaml
from numerate.records.kinds import RESULT, WORKER_STATE
from numerate.records.reading import FORMAT, TailFolder, read_bytes, read_object
from numerate.records.schema import CHECKSUM_KEY, checksum
from numerate.studies.plan import SETTINGS_WITHOUT_EFFECT as SETTINGS_WITHOUT_EFFECT
from numerate.studies.plan import PlannedRun as PlannedRun
from numerate.studies.plan import RequestedRun as RequestedRun
from numerate.studies.plan import content_key as content_key
from numerate.studies.plan import merge_plans, plan_lines, read_plan
from numerate.training import disk
from numerate.training.lock import Lock
from numerate.training.run_folder import folder_name

_REPAIR_HINT = "Remove the file; the command that created the study writes it again. The runs are not affected."

_LOCK_TIMEOUT = 60.0  # seconds to wait for another process that writes the plan


@dataclass(frozen=True)
class MissingRuns:
    """`failed`: name and error of each failed run. `missing_variants`: variants of which every finished run failed, so
    that a comparison lacks them."""

    failed: tuple[tuple[str, str], ...] = ()
    missing_variants: tuple[str, ...] = ()


class StudyFolder:
    """A study on disk. Missing files count as empty; damaged files raise `UserError`.

    For example:

        folder = StudyFolder.find("abacus_laptop", resolve_runs_dir())
        results = folder.results()
        [results[planned.result_key]["final"] for planned in folder.plan() if planned.result_key in results]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._results: dict[tuple[str, str], dict[str, Any]] = {}
        self._result_files = TailFolder(path / "results", RESULT)

    @classmethod
    def find_existing(cls, address: str, runs: Path) -> "StudyFolder | None":
        """The study with a title or at a path, None if there is none."""
        paths = [path for path in _study_paths(address, runs) if (path / "plan.jsonl").is_file()]
        return cls(paths[0]) if paths else None

    @classmethod
    def find(cls, address: str, runs: Path) -> "StudyFolder":
        """The study with a title or at a path. Raises `UserError` if there is none (with the most similar title), for a
        recipe that was not run as a study, and for a search."""
        if (found := cls.find_existing(address, runs)) is not None:
            return found
        text = address.rstrip("/")
        for path in _study_paths(address, runs):
            if (path / "journal.log").is_file():
                raise UserError(
                    f"{address} is a search, not a study; its table is {path / 'trials.jsonl'}, and the same `numerate "
                    "search ...` that started it shows its results"
                )
        recipe = text.replace("-", "_")
        if recipe in catalogue.parts_by_kind().get("Recipe", {}) or catalogue.family_row("Recipe", recipe) is not None:
            raise UserError(f"{address} is a recipe, not a study; `numerate run {recipe}` creates one in {runs}")
        titles = sorted(plan.parent.name for plan in runs.glob("*/plan.jsonl"))
        titles_text = f"; there are: {', '.join(titles[:12])}{', ...' if len(titles) > 12 else ''}" if titles else ""
        hint = "" if titles else "; `numerate run quickstart` creates one"
        suggestion = did_you_mean(text.replace("-", "_"), titles)
        raise UserError(f"no study in {runs} is called {address!r}{titles_text}{hint}.{suggestion}")

    @classmethod
    def from_title(cls, title: str, runs: Path) -> "StudyFolder":
        """The folder of a study of this title, existing or not."""
        return cls(runs / folder_name(title))

    @property
    def title(self) -> str:
        return self.path.absolute().name

    @property
    def runs_dir(self) -> Path:
        """The folder that contains its runs."""
        return self.path.parent

    # The plan -------------------------------------------------------------------------------------------------------

    def metadata(self) -> dict[str, Any]:
        """The content of `study.yaml`: title, question, labels. Raises `UserError` if it was damaged or modified, or
        written by a later version."""
        path = self.path / "study.yaml"
        if not path.is_file():
            return {"title": self.title, "question": "", "labels": {}}
        metadata = read_checked_yaml(path, _REPAIR_HINT)
        return {"title": self.title, "question": "", **metadata, "labels": metadata.get("labels") or {}}

    def plan(self) -> list[PlannedRun]:
        """The runs of the current plan: those that the last command requested, in its order."""
        return [planned for planned in self.all_runs() if planned.current]

    def all_runs(self) -> list[PlannedRun]:
        """The runs of the current plan, then those that only earlier commands requested. Raises `UserError` for a
        damaged plan."""
        return read_plan(self.path / "plan.jsonl")

    def update_plan(
        self,
        requested: Sequence[RequestedRun],
        *,
        question: str = "",
        labels: Mapping[str, str] | None = None,
        write: bool = True,
    ) -> list[PlannedRun]:
        """Makes these runs the current plan and returns their lines, in the requested order.

        Runs of earlier commands stay in the file and are marked. Two commands may call this at the same time. With
        `write=False` nothing is written, and the returned plan is only a preview.
        """
        if not write:
            merged = merge_plans(self.all_runs(), requested, labels or {})
            return [merged[run.run] for run in requested]
        disk.make_folder(self.path)
        with self._plan_lock():
            old_metadata = self.metadata() if (self.path / "study.yaml").is_file() else {}
            all_labels = {**old_metadata.get("labels", {}), **(labels or {})}
            merged = merge_plans(self.all_runs(), requested, all_labels)
            content = plan_lines(merged.values())
            if read_bytes(self.path / "plan.jsonl") != content:
                disk.write_atomically(self.path / "plan.jsonl", content, unharmed_note="The runs are unharmed.")
            self._write_metadata(
                old_metadata, {"title": self.title, "question": question, "labels": all_labels, "format": FORMAT}
            )
        return [merged[run.run] for run in requested]

    def update_metadata(self, **entries: str) -> None:
        """Sets further entries of `study.yaml`."""
        with self._plan_lock():
            self._write_metadata(metadata := self.metadata(), {**metadata, **entries})

    def _write_metadata(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        if old != (metadata := {**old, **new}):
            text = yaml_text({**metadata, CHECKSUM_KEY: checksum(metadata)})
            disk.write_atomically(self.path / "study.yaml", text.encode(), unharmed_note="The runs are unharmed.")

    def _plan_lock(self) -> AbstractContextManager[bool]:
        """Waits until no other process writes the plan, which takes no longer than reading and writing it."""
        return Lock(self.path / "plan.lock").hold("planning", timeout=_LOCK_TIMEOUT)

    # Results --------------------------------------------------------------------------------------------------------

    def results(self, worker: str | None = None) -> dict[tuple[str, str], dict[str, Any]]:
        """The result of each run, by its path and its content key; only new lines are read, of all workers or of one.

        If a run has several lines, one with status "done" is preferred, otherwise the latest. Raises `UserError` for a
        damaged line.
        """
        names = [f"{worker}.jsonl"] if worker is not None else []
        for _, record in self._result_files.read_new(*names):
            key = (record["run"], record["key"])
            if key not in self._results or _priority(record) >= _priority(self._results[key]):
                self._results[key] = record
        return self._results

    def add_results(self, worker: str, records: Sequence[Mapping[str, Any]]) -> None:
        """Appends results of runs to the file of one worker: all lines, or none if the disk is full."""
        path = self.path / "results" / f"{worker}.jsonl"
        disk.make_folder(path.parent)
        disk.append_records(path, records, unharmed_note="The runs are unharmed.")

    def existing_runs(self, runs: Sequence[str]) -> set[str]:
        """The runs whose folder exists."""
        existing: dict[str, set[str]] = {}
        for name in {run.partition("/")[0] for run in runs}:
            try:
                existing[name] = set(os.listdir(self.runs_dir / name))
            except OSError:
                existing[name] = set()
        return {run for run in runs if run.partition("/")[2] in existing[run.partition("/")[0]]}

    def done_results(self, planned: Sequence[PlannedRun]) -> dict[str, dict[str, Any]]:
        """The results of runs that are complete: they are done, with the same content key, and their folder exists.

        A run that reached `training.minutes` is not complete: the same command resumes it.
        """
        results, existing = self.results(), self.existing_runs([run.run for run in planned])
        return {
            run.run: results[run.result_key]
            for run in planned
            if run.run in existing and run.result_key in results and is_done(results[run.result_key])
        }

    def failed_results(self, planned: Sequence[PlannedRun]) -> dict[str, dict[str, Any]]:
        """The results of runs that have failed."""
        results = self.results()
        return {
            run.run: results[run.result_key]
            for run in planned
            if run.result_key in results and is_failed(results[run.result_key])
        }

    def missing_runs(self, plan: Sequence[PlannedRun], shown: Collection[str]) -> "MissingRuns":
        """The failed runs that a comparison of the `shown` runs of a plan must report."""
        records = self.failed_results(plan)
        failed = [planned for planned in plan if planned.run in records and planned.run not in shown]
        present_variants = {planned.label for planned in plan if planned.run in shown}
        missing_variants = [planned.label for planned in failed if planned.label not in present_variants]
        errors = [(one.display_name, str(records[one.run].get("error") or "no error was recorded")) for one in failed]
        return MissingRuns(tuple(errors), tuple(dict.fromkeys(missing_variants)))

    # States ---------------------------------------------------------------------------------------------------------

    def states(self) -> list[dict[str, Any]]:
        """The last state of each worker, in the order of their names."""
        try:
            names = sorted(name for name in os.listdir(self.path / "states") if re.fullmatch(r"[^.].*\.json", name))
        except OSError:
            return []
        states = (read_object(self.path / "states" / name, WORKER_STATE) for name in names)
        return [state for state in states if state is not None]


def _study_paths(address: str, runs: Path) -> list[Path]:
    """Where a study may be: at the path, or under its title, in which `-` equals `_`."""
    text = address.rstrip("/")
    return [Path(os.path.expanduser(text)), runs / text, runs / text.replace("-", "_")] if text else []


def is_done(record: Mapping[str, Any]) -> bool:
    """Whether a result is final: done, and not because of `training.minutes`."""
    return record.get("status") == "done" and record.get("stop_reason") != "minutes"


def is_failed(record: Mapping[str, Any]) -> bool:
    """Whether a run has failed and is only repeated with `retry`, including a run whose worker died `MAX_DEATHS` times
    without progress."""
    if record.get("status") != "failed":
        return False
    return not Failure(record.get("failure", "error"), "").is_transient or record.get("worker_deaths", 0) >= MAX_DEATHS


def _priority(record: Mapping[str, Any]) -> tuple[bool, float]:
    return record["status"] == "done", (record.get("timing") or {}).get("ended") or 0.0
