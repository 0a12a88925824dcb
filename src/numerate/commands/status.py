"""`status`: the progress of a study, once or live. Imports no torch."""

import contextlib
import sys
import time

from numerate import terminal
from numerate.runs.status import status_text, study_status
from numerate.runs.study_folder import StudyFolder
from numerate.training.run_folder import resolve_runs_dir

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
            if current.is_finished:
                return
            time.sleep(max(_MIN_INTERVAL, 4 * (time.monotonic() - began)))
