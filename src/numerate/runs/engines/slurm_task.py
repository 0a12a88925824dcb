"""A task of a Slurm array: does its items with workers of its machine, and writes a line for each."""

import os
import pickle
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from numerate.errors import UserError
from numerate.runs.engines import worker
from numerate.runs.engines.engine import Failure
from numerate.runs.engines.local import Local
from numerate.training import disk
from numerate.training.stopping import Stop

PREEMPTION_WAIT = 900.0
"""Seconds that a task waits after SIGTERM before it ends: Slurm requeues a preempted task only if it is still
running."""

STOP_TIMEOUT = 3600.0
"""Seconds that running items have to write their checkpoints: Slurm itself ends a task when its time is over."""

Item = tuple[int, str, bytes]
"""An item in a task: its number in the submission, its name, and the item pickled."""


class Line(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A finished item, as its task writes it; the result is plain data."""

    item: int
    seconds: float
    worker: str
    result: Any = None
    failure: Failure | None = None


@dataclass(frozen=True)
class ArrayTask:
    """A task of the array: processes its items with workers of its machine, and appends a `Line` for each to a file.

    The items are stopped when Slurm warns the task (SIGUSR2) or ends it (SIGTERM). When runs have written their
    checkpoints, the warning is passed on to submitit, which requeues the task; it then does the items without a line.
    """

    outcomes: str
    job: worker.Job
    items: tuple[Item, ...]
    pool: Local

    def __call__(self) -> None:
        disk.append_text(Path(self.outcomes), "")  # shows that the task started, and where
        done = {line.item for line in LineReader(Path(self.outcomes)).read()}
        remaining = [item for item in self.items if item[0] not in done]
        warning: list[str] = []  # by Slurm, before the time limit or preemption

        def on_warning(number: int, frame: FrameType | None) -> None:
            warning.append(signal.Signals(number).name)
            stop.request()

        with Stop() as stop:
            requeue = signal.signal(_preemption_signal(), on_warning)
            try:
                is_done = self._do(remaining, stop)
            finally:
                signal.signal(_preemption_signal(), requeue)
        if is_done:
            return
        if warning and callable(requeue):  # by submitit, where it can; it ends this process
            requeue(_preemption_signal(), None)
        elif stop.signal == signal.SIGTERM and "SLURM_JOB_ID" in os.environ:
            time.sleep(PREEMPTION_WAIT)

    def checkpoint(self) -> Any:
        """What submitit requeues: the same task, since its file shows finished items, and runs resume from their
        checkpoints."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _do(self, items: Sequence[Item], stop: Stop) -> bool:
        is_done = True
        for outcome in self.pool.map_with(_RemoteFunction(self.job), items, stop, stop_timeout=STOP_TIMEOUT):
            failure = outcome.failure
            if failure is not None and failure.kind in ("stopped", "not started"):
                is_done = False
                continue
            line = Line(items[outcome.index][0], outcome.seconds, outcome.worker, outcome.result, failure)
            disk.append_records(Path(self.outcomes), [msgspec.to_builtins(line)])
        return is_done


@dataclass(frozen=True)
class _RemoteFunction:
    """The function of a job on another machine. It may be defined anywhere: in a module, in the script that was started
    (`__main__`), in a `--parts` file."""

    job: worker.Job

    def __call__(self, item: Item) -> Any:
        function = worker.load_function(self.job)
        result = function(pickle.loads(item[2]))
        try:
            return disk.to_plain_data(result)
        except (AttributeError, TypeError, ValueError, RecursionError) as error:
            raise UserError(f"the result of {item[1]} must be JSON data, not {type(result).__name__}") from error

    def name_of(self, item: Item) -> str:
        return item[1]


def _preemption_signal() -> signal.Signals:
    return signal.Signals["SIG" + os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2")]


class LineReader:
    """Reads the lines of a task that are new since the last call. One that is not such a line is skipped: its item has
    no outcome, and the same command does what is missing."""

    def __init__(self, path: Path) -> None:
        self._path, self._position = path, 0

    def read(self) -> Iterator[Line]:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._position)
                content = file.read()
        except OSError:
            return
        complete = content[: content.rfind(b"\n") + 1]
        self._position += len(complete)
        for text in complete.splitlines():
            try:
                yield msgspec.json.decode(text, type=Line)
            except (msgspec.MsgspecError, RecursionError):
                continue
