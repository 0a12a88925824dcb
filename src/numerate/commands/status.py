"""`numerate status STUDY`: the progress of a study, once or live. Imports no torch."""

import argparse
import contextlib
import sys
import time

from numerate import terminal
from numerate.commands.words import check_no_more_words, parse_bool, parse_options, require_word
from numerate.studies.folder import StudyFolder
from numerate.studies.status import status_text, study_status
from numerate.training.run_folder import resolve_runs_dir

_MIN_INTERVAL = 2.0  # seconds between updates, or longer if an update is slow


def command(args: argparse.Namespace) -> int:
    address = require_word(args.words, "the study", "numerate status quickstart")
    words, option_values = parse_options(args.words[1:], {"watch": parse_bool, "runs_dir": str})
    check_no_more_words(words, ["watch", "runs_dir"])
    folder = StudyFolder.find(address, resolve_runs_dir(option_values.get("runs_dir")))
    if not option_values.get("watch", False):
        print(status_text(study_status(folder)))
        return 0
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends the watch
        _watch(folder)
    return 0


def _watch(folder: StudyFolder) -> None:
    """Refreshes the status until all runs are done; in place on a terminal."""
    in_place = sys.stdout.isatty()
    while True:
        began = time.monotonic()
        status = study_status(folder)
        if in_place:
            terminal.raw_stream(sys.stdout).write("\x1b[H\x1b[2J")
        print(status_text(status), end="\n" if in_place else "\n\n", flush=True)
        if status.is_finished:
            return
        time.sleep(max(_MIN_INTERVAL, 4 * (time.monotonic() - began)))
