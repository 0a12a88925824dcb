"""The status of a study: its runs done, running, failed and left, and the time left. Read from the folders of the runs
alone, without torch."""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal

from numerate.errors import pluralize
from numerate.records.reading import parse_record
from numerate.reports.table import text_table
from numerate.runs.end import End, read_end
from numerate.runs.study_folder import StudyFolder, StudyRun, existing_runs
from numerate.training.lock import Lock
from numerate.training.progress import format_duration

MAX_SHOWN_FAILURES = 10
"""Failures that are listed; the others are counted."""

_MAX_READ_BYTES = 1 << 16  # at the end of metrics.jsonl


@dataclass(frozen=True)
class RunState:
    """How a run of a study stands: done, failed, running, or left, also after it was stopped or killed. `end` is that
    of a run that is done or failed."""

    run: StudyRun
    status: Literal["done", "failed", "running", "left"]
    end: End | None = None


def read_states(runs_dir: Path, runs: Sequence[StudyRun]) -> list[RunState]:
    """How each run stands. Raises `UserError` for a damaged `end.json`."""
    existing = {one.run for one in existing_runs(runs_dir, runs)}
    return [_read_state(runs_dir, one) if one.run in existing else RunState(one, "left") for one in runs]


def _read_state(runs_dir: Path, run: StudyRun) -> RunState:
    path = runs_dir / run.run
    end = read_end(path)
    if end is not None and end.is_done(run.key) and (path / "recipe.yaml").exists():
        return RunState(run, "done", end)
    if Lock(path / "lock").is_held():
        return RunState(run, "running")
    return RunState(run, "failed", end) if end is not None and end.is_failed(run.key) else RunState(run, "left")


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
    holder, head, tail = (_read_end_of(path / name) for name in ("lock", "recipe.yaml", "metrics.jsonl"))
    steps = re.search(rb"^total_steps: (\d+)$", head, re.MULTILINE)
    lines = [record for line in tail.splitlines()[-50:] if (record := parse_record(line)) is not None]
    losses = (line["loss"] for line in reversed(lines) if "split" not in line and isinstance(line.get("loss"), float))
    step = max((line["step"] for line in lines if isinstance(line.get("step"), int)), default=0)
    known = parse_record(holder) or {}
    try:
        started = (path / "lock").stat().st_mtime
    except OSError:
        started = time.time()
    phase, worker = str(known.get("doing", "training")), f"{known.get('host', '?')}-{known.get('pid', '?')}"
    return RunningRun(run, step, int(steps[1]) if steps else None, next(losses, None), phase, started, worker)


def _read_end_of(path: Path) -> bytes:
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
    states = read_states(folder.runs_dir, content.plan())
    earlier = read_states(folder.runs_dir, [run for run in content.runs if not run.current])
    running = [read_running(folder.runs_dir, state.run) for state in states if state.status == "running"]
    num_earlier = sum(state.status == "done" for state in earlier)
    return StudyStatus(folder, content.question, states, running, num_earlier)


def mean_durations(states: Iterable[RunState]) -> dict[str, float]:
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
        label, elapsed = one.run.label, max(0.0, now - one.started)
        fraction_done = min(1.0, one.step / one.steps) if one.steps else 0.0
        if label not in expected_seconds and fraction_done > 0.05:
            expected_seconds[label] = elapsed / fraction_done
        expected = expected_seconds.get(label, expected_seconds.get(""))
        if expected is None:
            return None
        remaining_seconds.append(max(0.0, min(expected - elapsed, expected * (1 - fraction_done))))
    fallback = expected_seconds.get("", fmean(expected_seconds.values()) if expected_seconds else None)
    waiting_seconds = [expected_seconds.get(label, fallback) for label in waiting]
    if None in waiting_seconds:
        return None
    return float(
        max(max(remaining_seconds), (sum(remaining_seconds) + sum(filter(None, waiting_seconds))) / len(running))
    )


def status_text(status: StudyStatus) -> str:
    """The status as a page of text."""
    parts, seconds_left = [f"{status.folder.title}: {status.question}".rstrip(": ")], status.seconds_left
    counts = [(name, status.count(name)) for name in ("done", "running", "failed")]
    lines = [f"  {name:<9} {count:>8,}" for name, count in [*counts, ("remaining", status.count("left"))]]
    lines[0] += f" of {len(status.states):,}"
    if status.num_earlier:
        lines.append(f"  {'earlier':<9} {status.num_earlier:>8,} done, from earlier plans")
    if status.is_finished:
        lines.append(f"  {'time left':<9} {'none':>8}")
    elif seconds_left is not None:
        workers = pluralize(len(status.running), "worker")
        lines.append(f"  {'time left':<9} {format_duration(seconds_left):>8} with {workers}")
    else:
        lines.append(f"  {'time left':<9} {'unknown':>8}" + ("" if status.running else "; no run is running"))
    parts.append("\n".join(lines))
    if status.running:
        parts.append(text_table(["running", "step", "loss", "for", "worker"], list(map(_row, status.running))))
    if failed := [state for state in status.states if state.status == "failed"]:
        errors = [(state.run.display_name, " ".join(str(state.end and state.end.error).split())) for state in failed]
        shown = [f"failed: {name}: {error}" for name, error in errors[:MAX_SHOWN_FAILURES]]
        more = [f"... and {len(failed) - MAX_SHOWN_FAILURES} more"] if len(failed) > MAX_SHOWN_FAILURES else []
        parts.append("\n".join([*shown, *more, "retry=true runs them again"]))
    parts.append(str(status.folder.path))
    return "\n\n".join(parts)


def _row(one: RunningRun) -> list[str]:
    step = f"{one.step}/{one.steps}" if one.steps else str(one.step)
    return [
        one.run.display_name,
        step if one.phase == "training" else one.phase,
        "" if one.loss is None else f"{one.loss:.3g}",
        format_duration(max(0.0, time.time() - one.started)),
        one.worker,
    ]
