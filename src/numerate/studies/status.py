"""The status of a study: runs done, running, failed and remaining, and the time left. Read from its folder alone,
without torch."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean as mean
from typing import Any

from numerate.errors import pluralize
from numerate.reports.table import text_table
from numerate.studies.folder import PlannedRun, StudyFolder
from numerate.studies.state import COMMAND_PHASE, has_ended, is_lost
from numerate.training.progress import format_duration

MAX_SHOWN_FAILURES = 10
"""Failures that are listed; the others are counted."""


@dataclass(frozen=True)
class StudyStatus:
    """How a study stood when its folder was read.

    `remaining` are the runs that are neither done, running nor failed, `died` those of them whose worker died.
    `is_starting` says that a command is running, whose workers may still be starting. `num_earlier` counts the done
    runs of earlier plans, which no other number includes. `running` and `lost` are states of workers; lost ones have
    had no heartbeat for a minute. `seconds_left` is None if it is not known yet or no worker is running.
    """

    folder: StudyFolder
    question: str
    num_runs: int
    num_done: int
    running: Sequence[Mapping[str, Any]]
    failed: Sequence[tuple[PlannedRun, Mapping[str, Any]]]
    died: Sequence[tuple[PlannedRun, Mapping[str, Any]]]
    lost: Sequence[Mapping[str, Any]]
    remaining: Sequence[PlannedRun]
    seconds_left: float | None
    is_starting: bool = False
    num_earlier: int = 0

    @property
    def num_remaining(self) -> int:
        return len(self.remaining)

    @property
    def is_finished(self) -> bool:
        """Whether no run remains or is running."""
        return not self.num_remaining and not self.running


def study_status(folder: StudyFolder, all_runs: Sequence[PlannedRun] | None = None) -> StudyStatus:
    """Reads the status of a study, or of some of its runs. A run that was stopped or whose worker died counts as
    remaining, not as failed."""
    all_runs = folder.all_runs() if all_runs is None else all_runs
    plan = [planned for planned in all_runs if planned.current]
    done, all_failed, results = folder.done_results(plan), folder.failed_results(plan), folder.results()
    earlier = folder.done_results([planned for planned in all_runs if not planned.current])
    ended = {planned.run: results[planned.result_key] for planned in plan if planned.result_key in results}
    alive = [state for state in folder.states() if not has_ended(state)]
    active = [state for state in alive if not _has_ended(state, ended)]
    running = [state for state in active if not is_lost(state)]
    running_runs = {state["run"] for state in running}
    waiting_runs = [planned for planned in plan if planned.run not in done and planned.run not in running_runs]
    failed = [(planned, all_failed[planned.run]) for planned in waiting_runs if planned.run in all_failed]
    remaining = [planned for planned in waiting_runs if planned.run not in all_failed]
    died = [
        (planned, ended[planned.run]) for planned in remaining if ended.get(planned.run, {}).get("failure") == "died"
    ]
    mean_seconds = mean_durations((planned.label, done[planned.run]) for planned in plan if planned.run in done)
    return StudyStatus(
        folder,
        str(folder.metadata()["question"]),
        len(plan),
        len(done),
        running,
        failed,
        died,
        [state for state in active if is_lost(state)],
        remaining,
        time_left([planned.label for planned in remaining], running, mean_seconds),
        any(state.get("phase") == COMMAND_PHASE and not is_lost(state) for state in alive),
        len(earlier),
    )


def _has_ended(state: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a worker is idle, or the run of its last state has ended since."""
    if (run := state.get("run")) is None:
        return True
    result, started = results.get(run), state.get("started", 0.0)
    return result is not None and (result["status"] == "done" or result.get("timing", {}).get("ended", 0.0) >= started)


def mean_durations(done: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, float]:
    """Mean seconds of the completed runs of each variant, by label, and of all runs under ""; only of runs that were
    never resumed."""
    seconds: dict[str, list[float]] = {}
    for variant, record in done:
        timing = record.get("timing", {})
        if timing.get("start_step") == 0 and isinstance(timing.get("seconds"), int | float):
            for label in (variant, ""):
                seconds.setdefault(label, []).append(timing["seconds"])
    return {label: mean(values) for label, values in seconds.items()}


def time_left(
    waiting: Sequence[str],
    running: Sequence[Mapping[str, Any]],
    mean_seconds: Mapping[str, float],
    now: float | None = None,
) -> float | None:
    """Seconds until all runs are done with the current workers; None if unknown.

    Waiting runs (labels) and the rest of the running ones are expected to take the mean time of their variant, or else
    an estimate from the progress of its running ones, or else the mean time of all runs. The sum is divided by the
    number of workers, and is at least the longest remaining time of a running one.

    >>> time_left(["a", "a", "a"], [], {"a": 10.0})  # no worker is running
    >>> running = [{"label": "a", "step": 5, "steps": 10, "started": 0}, {"label": "a", "step": 0, "started": 5}]
    >>> time_left(["a", "a", "a"], running, {"a": 10.0}, now=5)
    22.5
    """
    now = time.time() if now is None else now
    if not running:
        return 0.0 if not waiting else None
    expected_seconds, remaining_seconds = dict(mean_seconds), []
    for state in running:
        elapsed, fraction_done = max(0.0, now - state.get("started", now)), _fraction_done(state)
        label = str(state.get("label"))
        if label not in expected_seconds and fraction_done > 0.05:
            expected_seconds[label] = elapsed / fraction_done
        expected = expected_seconds.get(label, expected_seconds.get(""))
        if expected is None:
            return None
        remaining_seconds.append(max(0.0, min(expected - elapsed, expected * (1 - fraction_done))))
    fallback = expected_seconds.get(
        "", sum(expected_seconds.values()) / len(expected_seconds) if expected_seconds else None
    )
    waiting_seconds = [expected_seconds.get(label, fallback) for label in waiting]
    if None in waiting_seconds:
        return None
    return float(
        max(max(remaining_seconds), (sum(remaining_seconds) + sum(filter(None, waiting_seconds))) / len(running))
    )


def _fraction_done(state: Mapping[str, Any]) -> float:
    steps = state.get("steps")
    return min(1.0, state.get("step", 0) / steps) if steps else 0.0


def status_text(status: StudyStatus) -> str:
    """The status as a page of text."""
    parts = [f"{status.folder.title}: {status.question}".rstrip(": ")]
    counts = [("done", status.num_done), ("running", len(status.running))]
    counts += [("failed", len(status.failed)), ("remaining", status.num_remaining)]
    lines = [f"  {name:<9} {count:>8,}" for name, count in counts]
    lines[0] += f" of {status.num_runs:,}"
    if status.num_earlier:
        lines.append(f"  {'earlier':<9} {status.num_earlier:>8,} done, from earlier plans")
    if status.is_finished:
        lines.append(f"  {'time left':<9} {'none':>8}")
    elif status.seconds_left is not None:
        workers = pluralize(len(status.running), "worker")
        lines.append(f"  {'time left':<9} {format_duration(status.seconds_left):>8} with {workers}")
    else:
        reason = "workers are starting" if status.is_starting else "no command is running"
        lines.append(f"  {'time left':<9} {'unknown':>8}" + ("" if status.running else f"; {reason}"))
    parts.append("\n".join(lines))
    if status.running:
        parts.append(
            text_table(["running", "step", "loss", "for", "worker"], [_row(state) for state in status.running])
        )
    if status.lost:
        since = [time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state["heartbeat"])) for state in status.lost]
        parts.append(
            "\n".join(
                f"no heartbeat since {at}: {state['worker']} at {_display_name(state)}"
                for at, state in zip(since, status.lost, strict=True)
            )
        )
    if status.failed:
        parts.append(_format_failures("failed", status.failed) + "\nretry=true runs them again")
    if status.died:
        parts.append(_format_failures("died, will be resumed", status.died))
    parts.append(str(status.folder.path))
    return "\n\n".join(parts)


def _format_failures(heading: str, runs: Sequence[tuple[PlannedRun, Mapping[str, Any]]]) -> str:
    """Runs with their errors, each on one line: the first ten, and a count of the others."""
    lines = [
        f"{heading}: {planned.display_name}: {' '.join(str(record.get('error')).split())}"
        for planned, record in runs[:MAX_SHOWN_FAILURES]
    ]
    if len(runs) > MAX_SHOWN_FAILURES:
        lines.append(f"... and {len(runs) - MAX_SHOWN_FAILURES} more")
    return "\n".join(lines)


def _row(state: Mapping[str, Any]) -> list[str]:
    step, steps, loss = state.get("step", 0), state.get("steps"), state.get("loss")
    progress_text = f"{step}/{steps}" if steps else str(step)
    if state.get("phase") != "training":
        cells = state.get("cells")
        progress_text = f"{state.get('phase')} {cells[0]}/{cells[1]}" if cells else str(state.get("phase"))
    return [
        _display_name(state),
        progress_text,
        f"{loss:.3g}" if isinstance(loss, int | float) else "",
        format_duration(max(0.0, time.time() - state.get("started", time.time()))),
        str(state["worker"]),
    ]


def _display_name(state: Mapping[str, Any]) -> str:
    seed = f" seed {state['seed']}" if state.get("seed") else ""
    return f"{state.get('label')}{seed}"
