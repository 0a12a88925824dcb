"""What tasks do in the tests of Slurm. Workers import this file by its name, hence one that nobody else has."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numerate.errors import UserError
from numerate.executors.executor import Work, WorkerContext


@dataclass(frozen=True)
class Diary(Work):
    """Keeps a diary in a folder: one line for each time that an item is begun, one for each that is done.

    `until NAME` waits for a file of that name; on stop, it notes a checkpoint.
    """

    folder: str
    command: str = field(default="", repr=False)

    def open(self, context: WorkerContext) -> Callable[[str], str]:
        def do(item: str) -> str:
            self.note("begun", item)
            what, _, name = item.partition(" ")
            if what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "refuse":
                raise UserError(f"{item}: no")
            if what == "until":
                self.wait(name, context)
            self.note("done", item)
            return item.upper()

        return do

    def wait(self, name: str, context: WorkerContext) -> None:
        end = time.monotonic() + 40
        while not (Path(self.folder) / name).exists():
            if context.stop.requested:
                self.note("checkpoint", name)
                raise KeyboardInterrupt
            assert time.monotonic() < end, "nobody came"
            time.sleep(0.02)

    def note(self, what: str, item: str) -> None:
        with open(Path(self.folder) / "diary.txt", "a") as file:
            file.write(f"{what}: {item}\n")

    def count(self, line: str) -> int:
        diary = Path(self.folder) / "diary.txt"
        return diary.read_text().splitlines().count(line) if diary.exists() else 0


@dataclass(frozen=True)
class Closed(Work):
    """Cannot be opened."""

    def open(self, context: WorkerContext) -> Callable[[Any], Any]:
        raise UserError("closed today")
