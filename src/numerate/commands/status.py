"""`numerate status STUDY`: the progress of a study, once or live. Imports no torch."""

import argparse
import contextlib
import sys
import time

from numerate import terminal
from numerate.commands.words import first, no_more, options, truth
from numerate.studies.folder import StudyFolder
from numerate.studies.status import standing, standing_text
from numerate.training.run_folder import runs_directory

_EVERY = 2.0  # seconds between updates, or longer where an update is slow


def command(given: argparse.Namespace) -> int:
    address = first(given.words, "the study", "numerate status quickstart")
    words, own = options(given.words[1:], {"watch": truth, "runs_dir": str})
    no_more(words, ["watch", "runs_dir"])
    folder = StudyFolder.find(address, runs_directory(own.get("runs_dir")))
    if not own.get("watch", False):
        print(standing_text(standing(folder)))
        return 0
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends the watch
        _watch(folder)
    return 0


def _watch(folder: StudyFolder) -> None:
    """Refreshes the status until all is done; on a terminal in place."""
    again = sys.stdout.isatty()
    while True:
        began = time.monotonic()
        now = standing(folder)
        if again:
            terminal.drawn(sys.stdout).write("\x1b[H\x1b[2J")
        print(standing_text(now), end="\n" if again else "\n\n", flush=True)
        if now.over:
            return
        time.sleep(max(_EVERY, 4 * (time.monotonic() - began)))
