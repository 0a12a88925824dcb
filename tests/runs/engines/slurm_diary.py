"""What tasks do in the tests of Slurm. Workers import this file by its name, hence one that nobody else has."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from numerate.errors import UserError
from numerate.runs.engines.engine import Failure
from numerate.runs.engines.worker import current_stop


@dataclass(frozen=True)
class Diary:
    """Keeps a diary in a folder: one line for each time that an item is begun, one for each that is done.

    `until NAME` waits for a file of that name; on stop, it notes a checkpoint.
    """

    folder: str

    def __call__(self, item: str) -> None:
        self.note("begun", item)
        what, _, name = item.partition(" ")
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "refuse":
            raise UserError(f"{item}: no")
        if what == "until":
            self.wait(name)
        self.note("done", item)

    def done(self, item: str) -> bool:
        return self.count(f"done: {item}") + self.count(f"failed: {item}") > 0

    def fail(self, item: str, failure: Failure) -> None:
        self.note("failed", item)
        self.note(failure.kind, failure.text)

    def wait(self, name: str) -> None:
        end = time.monotonic() + 60
        while not (Path(self.folder) / name).exists():
            if current_stop().requested:
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
