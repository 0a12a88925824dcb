"""How the runs of a study stand, read from their folders, and the time left. Imports no torch."""

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Literal

from numerate.errors import OperationalError, UserError
from numerate.records.reading import parse_record
from numerate.runs.end import End, read_end
from numerate.runs.engines.engine import Failure
from numerate.runs.study_folder import StudyFolder, StudyRun
from numerate.training.lock import Lock

_MAX_READ_BYTES = 1 << 16  # at the end of metrics.jsonl


@dataclass(frozen=True)
class RunState:
    """How a run of a study, in the folder `path`, stands: done, failed, running, or left, also after it was stopped or
    killed. `end` is that of a run that is done or failed, `failure` why a command that made the others left it."""

    run: StudyRun
    path: Path
    status: Literal["done", "failed", "running", "left"]
    end: End | None = None
    failure: Failure | None = None

    @property
    def error(self) -> str | None:
        """Why it is not done; None if it is."""
        if self.end is not None:
            return None if self.status == "done" else self.end.error or "no error was recorded"
        return "not done; the same command resumes" if self.failure is None else self.failure.text

    @property
    def exit_status(self) -> int:
        """The exit status of a command with this run alone."""
        if self.end is None:
            return 130 if self.failure is None else self.failure.status
        return 0 if self.status == "done" else 2 if self.end.kind == "user error" else 1


def read_state(runs_dir: Path, run: StudyRun) -> RunState:
    """How a run stands. It failed if its `end.json` is damaged, which is its error."""
    path = runs_dir / run.run
    try:
        end = read_end(path)
        if end is not None and end.is_done(run.key):
            if (path / "recipe.yaml").exists():
                return RunState(run, path, "done", end)
            raise UserError(f"{path}: is done, but has no recipe.yaml; restore it, or move this folder")
    except (UserError, OperationalError) as error:
        end = End.now("failed", key=run.key, seconds=0.0, kind="user error", error=str(error))
    if Lock(path / "lock").is_held():
        return RunState(run, path, "running")
    if end is not None and end.is_failed(run.key):
        return RunState(run, path, "failed", end)
    return RunState(run, path, "left")


def read_states(runs_dir: Path, runs: Sequence[StudyRun]) -> list[RunState]:
    """How each run stands."""
    return [read_state(runs_dir, run) for run in runs]


@dataclass(frozen=True)
class RunningRun:
    """A run that a process is at: its last logged `step` of `steps` and loss, since when (Unix time), and where."""

    run: StudyRun
    step: int
    steps: int | None
    loss: float | None
    phase: str
    started: float
    worker: str

    @property
    def share(self) -> float:
        """The share of its steps that are done."""
        return min(1.0, self.step / self.steps) if self.steps else 0.0


def read_running(path: Path, run: StudyRun) -> RunningRun:
    """What the files of a running run say about it: the last lines of its metrics, and who holds its lock."""
    holder, head, tail = (_read_tail(path / name) for name in ("lock", "recipe.yaml", "metrics.jsonl"))
    found, known = re.search(rb"^total_steps: (\d+)$", head, re.MULTILINE), parse_record(holder) or {}
    lines = [record for line in tail.splitlines()[-50:] if (record := parse_record(line)) is not None]
    losses = [line["loss"] for line in lines if "split" not in line and isinstance(line.get("loss"), float)]
    return RunningRun(
        run,
        step=max((line["step"] for line in lines if isinstance(line.get("step"), int)), default=0),
        steps=int(found[1]) if found else None,
        loss=losses[-1] if losses else None,
        phase=str(known.get("doing", "training")),
        started=(path / "lock").stat().st_mtime if known else time.time(),
        worker=f"{known.get('host', '?')}-{known.get('pid', '?')}",
    )


def _read_tail(path: Path) -> bytes:
    with suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - _MAX_READ_BYTES))
        return file.read()
    return b""


@dataclass(frozen=True)
class StudyStatus:
    """How a study stood when its folder was read. `num_earlier` counts the done runs of earlier commands alone, which
    no other number includes."""

    folder: StudyFolder
    states: Sequence[RunState]
    question: str = ""
    num_earlier: int = 0

    def count(self, status: str) -> int:
        """The number of runs with a status."""
        return sum(state.status == status for state in self.states)

    @cached_property
    def running(self) -> list[RunningRun]:
        """The runs that processes are at."""
        return [read_running(state.path, state.run) for state in self.states if state.status == "running"]

    @property
    def seconds_left(self) -> float | None:
        """Seconds until all runs are done with as many at once as now; None if unknown, or if nothing is running."""
        return time_left(self.states, self.running, time.time())


def study_status(folder: StudyFolder) -> StudyStatus:
    """Reads the status of a study."""
    content = folder.read()
    states = read_states(folder.runs_dir, content.runs)
    num_earlier = sum(state.status == "done" for state in states if not state.run.current)
    return StudyStatus(folder, [state for state in states if state.run.current], content.question, num_earlier)


def time_left(states: Sequence[RunState], running: Sequence[RunningRun], now: float) -> float | None:
    """The `seconds_left` of a study at a Unix time.

    Waiting runs and the rest of the running ones are expected to take the mean time of the done runs of their variant,
    or else an estimate from the progress of its running ones, or else the mean time of all. The sum is divided by the
    number of running ones, and is at least the longest remaining time of one.
    """
    waiting, known = [state.run.label for state in states if state.status == "left"], dict[str, list[float]]()
    for state in states:
        if state.status == "done" and state.end is not None:
            known.setdefault(state.run.label, []).append(state.end.seconds)
    done = [seconds for several in known.values() for seconds in several]
    for one in running:
        if one.share > 0.05:
            known.setdefault(one.run.label, [max(0.0, now - one.started) / one.share])
    if not running or not known:
        return None if running or waiting else 0.0
    expected = {label: fmean(values) for label, values in known.items()}
    default = fmean(done or expected.values())
    remaining = [expected.get(one.run.label, default) * (1 - one.share) for one in running]
    return max(max(remaining), (sum(remaining) + sum(expected.get(one, default) for one in waiting)) / len(running))
