"""How the runs of a study stand, read from their folders, and the time left. Imports no torch."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal, Self

from numerate.errors import UserError, pluralize
from numerate.records.reading import parse_record
from numerate.reports.table import text_table
from numerate.runs.end import End, read_end
from numerate.runs.engines.engine import Failure
from numerate.runs.study_folder import StudyFolder, StudyRun
from numerate.training.lock import Lock
from numerate.training.progress import format_duration

MAX_SHOWN_FAILURES = 10
"""Failures that are listed; the others are counted."""

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
    except UserError as error:
        end = End.now("failed", key=run.key, seconds=0.0, kind="user error", error=str(error))
    if end is not None and end.is_done(run.key) and (path / "recipe.yaml").exists():
        return RunState(run, path, "done", end)
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


def read_running(runs_dir: Path, run: StudyRun) -> RunningRun:
    """What the files of a running run say about it: the last line of its metrics, and who holds its lock."""
    path = runs_dir / run.run
    holder, head, tail = (_read_tail(path / name) for name in ("lock", "recipe.yaml", "metrics.jsonl"))
    steps, known = re.search(rb"^total_steps: (\d+)$", head, re.MULTILINE), parse_record(holder) or {}
    lines = [record for line in tail.splitlines()[-50:] if (record := parse_record(line)) is not None]
    losses = (line["loss"] for line in reversed(lines) if "split" not in line and isinstance(line.get("loss"), float))
    step = max((line["step"] for line in lines if isinstance(line.get("step"), int)), default=0)
    phase, worker = str(known.get("doing", "training")), f"{known.get('host', '?')}-{known.get('pid', '?')}"
    started = (path / "lock").stat().st_mtime if known else time.time()
    return RunningRun(run, step, int(steps[1]) if steps else None, next(losses, None), phase, started, worker)


def _read_tail(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - _MAX_READ_BYTES))
            return file.read()
    except OSError:
        return b""


@dataclass(frozen=True)
class StudyStatus:
    """How a study stood when its folder was read. `num_earlier` counts the done runs of earlier commands alone, which
    no other number includes. `seconds_left` is None if it is not known yet or nothing is running."""

    folder: StudyFolder
    question: str
    states: Sequence[RunState]
    running: Sequence[RunningRun]
    num_earlier: int = 0

    @classmethod
    def of(cls, folder: StudyFolder, states: Sequence[RunState], *, question: str = "", num_earlier: int = 0) -> Self:
        """The status of a study whose runs stand so."""
        running = [read_running(folder.runs_dir, state.run) for state in states if state.status == "running"]
        return cls(folder, question, states, running, num_earlier)

    def count(self, status: str) -> int:
        """The number of runs with a status."""
        return sum(state.status == status for state in self.states)

    @property
    def is_finished(self) -> bool:
        """Whether no run is left or running."""
        return all(state.status in ("done", "failed") for state in self.states)

    @property
    def seconds_left(self) -> float | None:
        waiting = [state.run.label for state in self.states if state.status == "left"]
        return time_left(waiting, self.running, mean_durations(self.states))


def study_status(folder: StudyFolder) -> StudyStatus:
    """Reads the status of a study."""
    content = folder.read()
    states = read_states(folder.runs_dir, content.runs)
    num_earlier = sum(state.status == "done" for state in states if not state.run.current)
    current = [state for state in states if state.run.current]
    return StudyStatus.of(folder, current, question=content.question, num_earlier=num_earlier)


def mean_durations(states: Sequence[RunState]) -> dict[str, float]:
    """Mean seconds of the done runs of each variant, by label, and of all of them under ""."""
    seconds: dict[str, list[float]] = {}
    for state in states:
        if state.status == "done" and state.end is not None:
            for label in (state.run.label, ""):
                seconds.setdefault(label, []).append(state.end.seconds)
    return {label: fmean(values) for label, values in seconds.items()}


def time_left(
    waiting: Sequence[str], running: Sequence[RunningRun], mean_seconds: Mapping[str, float], now: float | None = None
) -> float | None:
    """Seconds until all runs are done with as many at once as now; None if unknown.

    Waiting runs (labels) and the rest of the running ones are expected to take the mean time of their variant, or else
    an estimate from the progress of its running ones, or else the mean time of all runs. The sum is divided by the
    number of running ones, and is at least the longest remaining time of one.

    >>> time_left(["a", "a", "a"], [], {"a": 10.0})  # nothing is running
    """
    now = time.time() if now is None else now
    if not running:
        return 0.0 if not waiting else None
    expected_seconds, remaining_seconds = dict(mean_seconds), []
    for one in running:
        elapsed, fraction_done = max(0.0, now - one.started), min(1.0, one.step / one.steps) if one.steps else 0.0
        if fraction_done > 0.05:
            expected_seconds.setdefault(one.run.label, elapsed / fraction_done)
        expected = expected_seconds.get(one.run.label, expected_seconds.get(""))
        if expected is None:
            return None
        remaining_seconds.append(max(0.0, min(expected - elapsed, expected * (1 - fraction_done))))
    fallback = expected_seconds.get("", fmean(expected_seconds.values()))
    waiting_seconds = [expected_seconds.get(label, fallback) for label in waiting]
    return max(max(remaining_seconds), (sum(remaining_seconds) + sum(waiting_seconds)) / len(running))


def status_text(status: StudyStatus) -> str:
    """The status as a page of text."""
    seconds_left, num_running = status.seconds_left, len(status.running)
    if status.is_finished:
        left = f"{'none':>8}"
    elif seconds_left is not None:
        left = f"{format_duration(seconds_left):>8} with {pluralize(num_running, 'worker')}"
    else:
        left = f"{'unknown':>8}{'' if num_running else '; no run is running'}"
    rows = [
        ("done", f"{status.count('done'):>8,} of {len(status.states):,}"),
        ("running", f"{status.count('running'):>8,}"),
        ("failed", f"{status.count('failed'):>8,}"),
        ("remaining", f"{status.count('left'):>8,}"),
        *([("earlier", f"{status.num_earlier:>8,} done, from earlier plans")] if status.num_earlier else []),
        ("time left", left),
    ]
    parts = [f"{status.folder.title}: {status.question}".rstrip(": ")]
    parts.append("\n".join(f"  {name:<9} {text}" for name, text in rows))
    if status.running:
        parts.append(text_table(["running", "step", "loss", "for", "worker"], list(map(_row, status.running))))
    if failed := [state for state in status.states if state.status == "failed"]:
        lines = [f"failed: {one.run.display_name}: {' '.join(str(one.error).split())}" for one in failed]
        more = [f"... and {len(failed) - MAX_SHOWN_FAILURES} more"] if len(failed) > MAX_SHOWN_FAILURES else []
        parts.append("\n".join([*lines[:MAX_SHOWN_FAILURES], *more, "retry=true runs them again"]))
    return "\n\n".join([*parts, str(status.folder.path)])


def _row(one: RunningRun) -> list[str]:
    step = f"{one.step}/{one.steps}" if one.steps else str(one.step)
    return [
        one.run.display_name,
        step if one.phase == "training" else one.phase,
        "" if one.loss is None else f"{one.loss:.3g}",
        format_duration(max(0.0, time.time() - one.started)),
        one.worker,
    ]
