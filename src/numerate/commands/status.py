"""`status`: the progress of a study, once or live. Imports no torch."""

import contextlib
import sys
import time

from numerate import terminal
from numerate.errors import pluralize
from numerate.runs.status import RunningRun, StudyStatus, study_status
from numerate.runs.study_folder import StudyFolder
from numerate.training.progress import format_duration
from numerate.training.run_folder import resolve_runs_dir

MAX_SHOWN_FAILURES = 10
"""Failures that are listed; the others are counted."""

_MIN_INTERVAL = 2.0  # seconds between updates, or longer if an update is slow


def status(address: str, *, watch: bool = False, runs_dir: str | None = None) -> None:
    """Prints the progress of a study; with `watch` until all runs are done, in place on a terminal."""
    folder = StudyFolder.find(address, resolve_runs_dir(runs_dir))
    if not watch:
        terminal.print_wrapped(status_text(study_status(folder)))
        return
    in_place = sys.stdout.isatty()
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends the watch
        while True:
            began = time.monotonic()
            current = study_status(folder)
            if in_place:
                terminal.raw_stream(sys.stdout).write("\x1b[H\x1b[2J")
            print(status_text(current), end="\n" if in_place else "\n\n", flush=True)
            if is_finished(current):
                return
            time.sleep(max(_MIN_INTERVAL, 4 * (time.monotonic() - began)))


def is_finished(status: StudyStatus) -> bool:
    """Whether no run is left or running."""
    return all(state.end is not None for state in status.states)


def status_text(status: StudyStatus) -> str:
    """The status as a page of text."""
    seconds_left, num_running = status.seconds_left, len(status.running)
    if is_finished(status):
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
        parts.append(terminal.text_table(["running", "step", "loss", "for", "worker"], list(map(_row, status.running))))
    if failed := [state for state in status.states if state.status == "failed"]:
        lines = [f"failed: {one.run.display_name}: {' '.join(str(one.error).split())}" for one in failed]
        more = [f"... and {len(failed) - MAX_SHOWN_FAILURES} more"] if len(failed) > MAX_SHOWN_FAILURES else []
        again = (
            "the same search trains one again without its end.json"
            if any(one.run.trial is not None for one in status.states)
            else "retry=true runs them again"
        )
        parts.append("\n".join([*lines[:MAX_SHOWN_FAILURES], *more, again]))
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
