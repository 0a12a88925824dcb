"""The folder of a study: its plan, results and worker states. Reading and writing it needs no torch.

    runs/<study>/
      study.yaml               title, question, labels, format
      plan.jsonl               one line per run: those of the last command, then those of earlier ones; and how many
      results/<worker>.jsonl   what came of runs: appended by that worker only, whole lines
      states/<worker>.json     what a worker does now, replaced once a second; removed when it ends
      log.txt                  messages of the commands
      report.html figure.png   of the last command

The runs themselves are where they always are, `runs/<recipe>/<id>/`, and may belong to several studies.
"""

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from numerate import catalogue
from numerate.config import yaml_text
from numerate.errors import UserError, did_you_mean
from numerate.executors.executor import Failure
from numerate.records.heads import CHECKSUM, checksum, read_checked
from numerate.records.kinds import RESULT, STATE
from numerate.records.reading import Tail, read_object
from numerate.studies.plan import NO_RESULT as NO_RESULT
from numerate.studies.plan import Planned as Planned
from numerate.studies.plan import RequestedRun as RequestedRun
from numerate.studies.plan import content_key as content_key
from numerate.studies.plan import joined, plan_lines, read_plan
from numerate.training import disk
from numerate.training.lock import Lock, Locked
from numerate.training.run_folder import folder_name

FORMAT = 2
"""Of study.yaml. A folder of a later format is refused rather than misread."""

_REMEDY = "Remove the file, and the command that made the study writes it again; the runs are unharmed."

_PATIENCE = 60.0  # seconds for whoever writes the plan


class StudyFolder:
    """A study on disk. What is not there yet is empty; what is damaged is refused.

    >>> folder = StudyFolder.find("abacus_laptop", runs_directory())
    >>> results = folder.results()
    >>> [results[planned.at]["final"] for planned in folder.plan() if planned.at in results]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._merged: dict[tuple[str, str], dict[str, Any]] = {}
        self._tails: dict[str, Tail] = {}

    @classmethod
    def find(cls, address: str, runs: Path) -> "StudyFolder":
        """The study of a title, or at a path. Raises `UserError` for a recipe that was not run as one, for a search,
        and with the nearest title where there is none."""
        text = address.rstrip("/")
        paths = [Path(os.path.expanduser(text)), *(runs / name for name in (text, text.replace("-", "_")) if name)]
        for path in paths:
            if text and (path / "plan.jsonl").is_file():
                return cls(path)
        for path in paths:
            if text and (path / "journal.log").is_file():
                raise UserError(
                    f"{address} is a search, no study; its table is {path / 'trials.jsonl'}, and the same `numerate "
                    "search ...` that began it shows what it found"
                )
        recipe = text.replace("-", "_")
        if recipe in catalogue.kinds().get("Recipe", {}) or catalogue.in_family("Recipe", recipe):
            raise UserError(f"{address} is a recipe, no study; `numerate run {recipe}` makes one in {runs}")
        known = sorted(plan.parent.name for plan in runs.glob("*/plan.jsonl"))
        there = f"; there are: {', '.join(known[:12])}{', ...' if len(known) > 12 else ''}" if known else ""
        begins = "" if known else "; `numerate run quickstart` makes the first"
        near = did_you_mean(text.replace("-", "_"), known)
        raise UserError(f"no study in {runs} is called {address!r}{there}{begins}.{near}")

    @classmethod
    def of(cls, title: str, runs: Path) -> "StudyFolder":
        """The folder that a study of this title has, or would have."""
        return cls(runs / folder_name(title))

    @property
    def title(self) -> str:
        return self.path.absolute().name

    @property
    def runs(self) -> Path:
        """Where its runs are."""
        return self.path.parent

    # The plan -------------------------------------------------------------------------------------------------------

    def head(self) -> dict[str, Any]:
        """What `study.yaml` holds: title, question, labels. Raises `UserError` where it was damaged or changed, or a
        later version wrote it."""
        path = self.path / "study.yaml"
        if not path.is_file():
            return {"title": self.title, "question": "", "labels": {}}
        head = read_checked(path, FORMAT, _REMEDY)
        return {"title": self.title, "question": "", **head, "labels": head.get("labels") or {}}

    def plan(self) -> list[Planned]:
        """The runs of the current plan: those that the last command requested, in its order."""
        return [planned for planned in self.every() if planned.current]

    def every(self) -> list[Planned]:
        """The runs of the current plan, then those that only earlier commands requested. Raises `UserError` for a
        damaged plan."""
        return read_plan(self.path / "plan.jsonl")

    def ask(
        self,
        requested: Sequence[RequestedRun],
        *,
        question: str = "",
        labels: Mapping[str, str] | None = None,
        write: bool = True,
    ) -> list[Planned]:
        """Makes these runs the current plan and returns their lines, in the requested order.

        Runs of earlier commands stay in the file and are marked. Two commands may call this at the same time. With
        `write=False` nothing is written: it only returns what the plan would be.
        """
        if not write:
            together = joined(self.every(), requested, labels or {})
            return [together[one.run] for one in requested]
        with disk.explained(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        with self._alone():
            before = self.head() if (self.path / "study.yaml").is_file() else {}
            every = {**before.get("labels", {}), **(labels or {})}
            together = joined(self.every(), requested, every)
            content = plan_lines(together.values())
            if not _is(self.path / "plan.jsonl", content):
                disk.replace(self.path / "plan.jsonl", content, safe="The runs are unharmed.")
            self._write_head(before, {"title": self.title, "question": question, "labels": every, "format": FORMAT})
        return [together[one.run] for one in requested]

    def note(self, **more: str) -> None:
        """Sets further entries of `study.yaml`."""
        with self._alone():
            self._write_head(head := self.head(), {**head, **more})

    def _write_head(self, before: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        if before != (head := {**before, **changed}):
            text = yaml_text({**head, CHECKSUM: checksum(head)})
            disk.replace(self.path / "study.yaml", text.encode(), safe="The runs are unharmed.")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Waits until nobody else writes the plan, which takes no longer than reading and writing it."""
        lock, began = Lock(self.path / "plan.lock"), time.monotonic()
        with contextlib.ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(lock.hold("planning"))
                    break
                except Locked:
                    if time.monotonic() - began > _PATIENCE:
                        raise
                time.sleep(0.05)
            yield

    # Results --------------------------------------------------------------------------------------------------------

    def results(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The result of each run, by its path and its content key; what was read before is not read again.

        Of several lines about a run one that says done is taken, else the latest. Raises `UserError` for a damaged
        line.
        """
        try:
            files = [(file.name, file.stat().st_size) for file in os.scandir(self.path / "results")]
        except FileNotFoundError:
            return self._merged
        except OSError as error:
            raise disk.explain(error, self.path / "results") from error
        for name, size in sorted(files):
            if name.endswith(".jsonl"):
                tail = self._tails.setdefault(name, Tail(self.path / "results" / name, RESULT))
                if size > tail.end:
                    self._merge(tail.new())
        return self._merged

    def _merge(self, records: Sequence[dict[str, Any]]) -> None:
        for record in records:
            at = (record["run"], record["key"])
            if at not in self._merged or _worth(record) >= _worth(self._merged[at]):
                self._merged[at] = record

    def add_results(self, worker: str, records: Sequence[Mapping[str, Any]]) -> None:
        """Appends what came of runs to the file of one worker: all lines, or none when the disk is full."""
        path = self.path / "results" / f"{worker}.jsonl"
        with disk.explained(path):
            path.parent.mkdir(exist_ok=True)
        disk.append(path, records, safe="The runs are unharmed.")

    def present(self, runs: Sequence[str]) -> set[str]:
        """Those of some runs whose folder is there."""
        there: dict[str, set[str]] = {}
        for name in {run.partition("/")[0] for run in runs}:
            try:
                there[name] = set(os.listdir(self.runs / name))
            except OSError:
                there[name] = set()
        return {run for run in runs if run.partition("/")[2] in there[run.partition("/")[0]]}

    def done(self, planned: Sequence[Planned]) -> dict[str, dict[str, Any]]:
        """The results of those that need no more work: a line says so, for this very recipe, and the folder is there.

        A run that ended by the cap of `training.minutes` is not: the same command resumes it.
        """
        results, there = self.results(), self.present([one.run for one in planned])
        return {
            one.run: results[one.at]
            for one in planned
            if one.run in there and one.at in results and is_done(results[one.at])
        }

    # States ---------------------------------------------------------------------------------------------------------

    def states(self) -> list[dict[str, Any]]:
        """The last state of each worker, in the order of their names."""
        try:
            names = sorted(name for name in os.listdir(self.path / "states") if re.fullmatch(r"[^.].*\.json", name))
        except OSError:
            return []
        found = (read_object(self.path / "states" / name, STATE) for name in names)
        return [state for state in found if state is not None]


DEATHS = 3
"""A run whose worker died so often in a row at the same checkpoint has failed."""


def is_done(record: Mapping[str, Any]) -> bool:
    """Whether a result says that nothing is left to do."""
    return record.get("status") == "done" and record.get("why") != "minutes"


def is_failed(record: Mapping[str, Any]) -> bool:
    """Whether a result says that the same would fail again, unless it is retried: also of a run whose worker died
    `DEATHS` times without coming further."""
    if record.get("status") != "failed":
        return False
    return not Failure(record.get("kind", "error"), "").passing or record.get("deaths", 0) >= DEATHS


def _worth(record: Mapping[str, Any]) -> tuple[bool, float]:
    return record["status"] == "done", (record.get("took") or {}).get("at") or 0.0


def _is(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:
        return False
