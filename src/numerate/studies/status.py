"""How a study stands: done, running, failed, left, and the time left. Read from its folder alone, without torch."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numerate.reports.table import text_table
from numerate.studies.folder import Planned, StudyFolder, is_failed
from numerate.studies.state import COMMAND, gone, silent
from numerate.training.progress import duration

SHOWN = 10
"""Failures that are listed; the others are counted."""


@dataclass(frozen=True)
class StudyStatus:
    """How a study stood when its folder was read.

    `died` are those of the left whose worker died. `starting` says that a command is at it, whose workers may not be
    there yet. `earlier` counts the done runs of earlier plans, which are in no other number. `running` and `lost` are
    states of workers; the lost have had no heartbeat for a minute. `seconds` are those left, None where nothing is
    known yet or nobody is at work.
    """

    folder: StudyFolder
    question: str
    total: int
    done: int
    running: Sequence[Mapping[str, Any]]
    failed: Sequence[tuple[Planned, Mapping[str, Any]]]
    died: Sequence[tuple[Planned, Mapping[str, Any]]]
    lost: Sequence[Mapping[str, Any]]
    left: int
    seconds: float | None
    starting: bool = False
    earlier: int = 0

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        return not self.left and not self.running


def standing(folder: StudyFolder) -> StudyStatus:
    """Reads how a study stands. A run that was stopped or whose worker died is left, not failed."""
    every = folder.every()
    plan = [planned for planned in every if planned.current]
    done, results = folder.done(plan), folder.results()
    earlier = folder.done([planned for planned in every if not planned.current])
    ended = {planned.run: results[planned.at] for planned in plan if planned.at in results}
    alive = [state for state in folder.states() if not gone(state)]
    at_work = [state for state in alive if not _is_over(state, ended)]
    running = [state for state in at_work if not silent(state)]
    begun = {run for state in running for run in runs_of(state)}
    failed, died, left = [], [], []
    for planned in plan:
        if planned.run in done:
            continue
        record = results.get(planned.at)
        if planned.run not in begun and record is not None and is_failed(record):
            failed.append((planned, record))
        else:
            left.append(planned)
            if planned.run not in begun and record is not None and record.get("kind") == "died":
                died.append((planned, record))
    waiting = [planned.label for planned in left if planned.run not in begun]
    return StudyStatus(
        folder,
        str(folder.head()["question"]),
        len(plan),
        len(done),
        running,
        failed,
        died,
        [state for state in at_work if silent(state)],
        len(waiting),
        time_left(waiting, running, Pace((one.label, done[one.run]) for one in plan if one.run in done).means()),
        any(state.get("phase") == COMMAND and not silent(state) for state in alive),
        len(earlier),
    )


def runs_of(state: Mapping[str, Any]) -> list[str]:
    """The runs that a worker is at: one, several where they are trained as one, or none."""
    runs = state.get("runs") or [state.get("run")]
    return [run for run in runs if isinstance(run, str)]


def _is_over(state: Mapping[str, Any], ended: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the runs of a worker's last state have ended since."""
    began = state.get("began", 0.0)
    return all(
        run in ended and (ended[run]["status"] == "done" or ended[run].get("took", {}).get("at", 0.0) >= began)
        for run in runs_of(state)
    )


class Pace:
    """How long runs take: the mean of each variant, by label, and under "" that of all; of runs done in one go."""

    def __init__(self, done: Iterable[tuple[str, Mapping[str, Any]]] = ()) -> None:
        self._sums: dict[str, tuple[float, int]] = {}
        for label, record in done:
            self.add(label, record)

    def add(self, variant: str, record: Mapping[str, Any]) -> None:
        """Notes a run of a variant that was done."""
        took = record.get("took", {})
        if took.get("from") == 0 and isinstance(took.get("seconds"), int | float):
            for label in (variant, ""):
                seconds, count = self._sums.get(label, (0.0, 0))
                self._sums[label] = (seconds + took["seconds"], count + 1)

    def means(self) -> dict[str, float]:
        """Seconds, by label."""
        return {label: seconds / count for label, (seconds, count) in self._sums.items()}


def time_left(
    waiting: Sequence[str], running: Sequence[Mapping[str, Any]], known: Mapping[str, float], now: float | None = None
) -> float | None:
    """Seconds until all is done, by the workers that are at work now; None where that is not known yet.

    What waits (labels) and what is left of what runs is taken to last as long as its variant did so far, else as what
    runs of it lets expect, else as all runs do; it is shared equally, and lasts at least as long as the longest.

    >>> time_left(["a", "a", "a"], [], {"a": 10.0})  # nobody is at work
    >>> running = [{"label": "a", "step": 5, "steps": 10, "began": 0}, {"label": "a", "step": 0, "began": 5}]
    >>> time_left(["a", "a", "a"], running, {"a": 10.0}, now=5)
    22.5
    """
    now = time.time() if now is None else now
    if not running:
        return 0.0 if not waiting else None
    whole, rest = dict(known), []
    for state in running:
        elapsed, share = max(0.0, now - state.get("began", now)), _share(state)
        label, size = str(state.get("label")), max(1, len(runs_of(state)))
        if label not in whole and share > 0.05:
            whole[label] = elapsed / share / size
        expected = whole.get(label, whole.get(""))
        if expected is None:
            return None
        rest.append(max(0.0, min(expected * size - elapsed, expected * size * (1 - share))))
    fallback = whole.get("", sum(whole.values()) / len(whole) if whole else None)
    each = [whole.get(label, fallback) for label in waiting]
    if None in each:
        return None
    return float(max(max(rest), (sum(rest) + sum(filter(None, each))) / len(running)))


def _share(state: Mapping[str, Any]) -> float:
    steps = state.get("steps")
    return min(1.0, state.get("step", 0) / steps) if steps else 0.0


def standing_text(now: StudyStatus) -> str:
    """The standing as a person reads it."""
    parts = [f"{now.folder.title}: {now.question}".rstrip(": ")]
    counts = [("done", now.done), ("running", sum(len(runs_of(one)) for one in now.running))]
    counts += [("failed", len(now.failed)), ("left", now.left)]
    lines = [f"  {name:<9} {count:>8,}" for name, count in counts]
    lines[0] += f" of {now.total:,}"
    if now.earlier:
        lines.append(f"  {'earlier':<9} {now.earlier:>8,} done, of plans before this one")
    if now.over:
        lines.append(f"  {'time left':<9} {'none':>8}")
    elif now.seconds is not None:
        workers = f"{len(now.running)} worker{'s' * (len(now.running) != 1)}"
        lines.append(f"  {'time left':<9} {duration(now.seconds):>8} with {workers}")
    else:
        who = "workers are starting" if now.starting else "nobody is at work on it"
        lines.append(f"  {'time left':<9} {'unknown':>8}" + ("" if now.running else f"; {who}"))
    parts.append("\n".join(lines))
    if now.running:
        parts.append(text_table(["running", "step", "loss", "for", "worker"], [_row(state) for state in now.running]))
    if now.lost:
        since = [time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state["beat"])) for state in now.lost]
        parts.append(
            "\n".join(
                f"no heartbeat since {at}: {state['worker']} at {_called(state)}"
                for at, state in zip(since, now.lost, strict=True)
            )
        )
    if now.failed:
        parts.append(_listed("failed", now.failed) + "\nretry=true tries them again")
    if now.died:
        parts.append(_listed("died, will be resumed", now.died))
    parts.append(str(now.folder.path))
    return "\n\n".join(parts)


def _listed(what: str, runs: Sequence[tuple[Planned, Mapping[str, Any]]]) -> str:
    """Runs with their errors, each on one line: the first ten, and a count of the others."""
    lines = [f"{what}: {one.called}: {' '.join(str(record.get('error')).split())}" for one, record in runs[:SHOWN]]
    if len(runs) > SHOWN:
        lines.append(f"... and {len(runs) - SHOWN} more")
    return "\n".join(lines)


def _row(state: Mapping[str, Any]) -> list[str]:
    step, steps, loss = state.get("step", 0), state.get("steps"), state.get("loss")
    where = f"{step}/{steps}" if steps else str(step)
    if state.get("phase") != "training":
        cells = state.get("cells")
        where = f"{state.get('phase')} {cells[0]}/{cells[1]}" if cells else str(state.get("phase"))
    return [
        _called(state),
        where,
        f"{loss:.3g}" if isinstance(loss, int | float) else "",
        duration(max(0.0, time.time() - state.get("began", time.time()))),
        str(state["worker"]),
    ]


def _called(state: Mapping[str, Any]) -> str:
    seed = f" seed {state['seed']}" if state.get("seed") else ""
    more = len(runs_of(state)) - 1
    return f"{state.get('label')}{seed}" + (f" and {more} more" if more else "")
