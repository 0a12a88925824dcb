"""A task of a Slurm array: does its items with workers of its machine, and writes a line for each."""

import json
import os
import pickle
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from numerate.errors import OperationalError, UserError
from numerate.runs.engines import worker
from numerate.runs.engines.engine import Failure, Outcome
from numerate.runs.engines.local import Local
from numerate.training import disk
from numerate.training.stopping import Stop

PREEMPTION_WAIT = 900.0  # seconds from SIGTERM to the end: Slurm requeues a preempted task only if it still runs
STOP_TIMEOUT = 3600.0  # seconds for checkpoints of running items: Slurm itself ends a task when its time is over


@dataclass(frozen=True)
class ArrayTask:
    """A task of the array: does pickled items (by index) with workers, and appends the `Outcome` of each to a file.

    The items are stopped when Slurm warns the task (SIGUSR2) or ends it (SIGTERM). When runs have written their
    checkpoints, the warning is passed on to submitit, which requeues the task; it then does the items without a line.
    """

    path: Path
    job: worker.Job
    items: dict[int, bytes]
    pool: Local

    def __call__(self) -> None:
        done = {outcome.index for outcome in read_outcomes(self.path)}
        indices = [index for index in self.items if index not in done]
        items, is_warned, is_done = [self.items[index] for index in indices], False, True

        def on_warning(*_: object) -> None:
            nonlocal is_warned
            is_warned = True
            stop.request()

        with Stop() as stop:
            requeue = signal.signal(signal.SIGUSR2, on_warning)
            try:
                for outcome in self.pool.map_job(self.job, items, stop, stop_timeout=STOP_TIMEOUT):
                    index, failure = indices[outcome.index], outcome.failure
                    if failure is not None and failure.kind in ("stopped", "not started"):
                        is_done = False
                        continue
                    if failure is not None and not failure.is_transient:  # the command may be gone
                        fail = getattr(worker.load_function(self.job), "fail", lambda *_: None)
                        with suppress(UserError, OperationalError):  # which a command then meets
                            fail(pickle.loads(self.items[index]), failure)
                    disk.append_records(self.path, [_line(replace(outcome, index=index))])
            finally:
                signal.signal(signal.SIGUSR2, requeue)
        if is_warned and not is_done and callable(requeue):  # by submitit, where it can; it ends this process
            requeue(signal.SIGUSR2, None)
        elif stop.signal == signal.SIGTERM and not is_done and "SLURM_JOB_ID" in os.environ:
            time.sleep(PREEMPTION_WAIT)

    def checkpoint(self) -> Any:
        """What submitit requeues: the same task, since its file shows what is done, and runs resume."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def _line(outcome: Outcome) -> dict[str, Any]:
    try:
        return asdict(replace(outcome, result=disk.to_plain_data(outcome.result)))
    except (AttributeError, TypeError, ValueError, RecursionError):
        text = f"on Slurm a result must be JSON data, not {type(outcome.result).__name__}"
        return asdict(replace(outcome, result=None, failure=Failure("user error", text, 2)))


def read_outcomes(path: Path) -> list[Outcome]:
    """The outcomes that a task has written. A line that no task wrote so is skipped: the folder of an item says whether
    it is done."""
    outcomes = []
    with suppress(OSError):
        for line in path.read_bytes().splitlines():
            with suppress(ValueError, msgspec.MsgspecError, RecursionError):  # names of files may be no Unicode
                outcomes.append(msgspec.convert(json.loads(line), type=Outcome))
    return outcomes
