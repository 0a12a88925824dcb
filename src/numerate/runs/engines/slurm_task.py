"""A task of a Slurm array: does its items with workers of its machine."""

import os
import pickle
import signal
import sys
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from numerate.errors import OperationalError, UserError
from numerate.runs.engines import worker
from numerate.runs.engines.engine import name_of
from numerate.runs.engines.local import Local
from numerate.training.stopping import Stop

PREEMPTION_WAIT = 900.0  # seconds from SIGTERM to the end: Slurm requeues a preempted task only if it still runs
STOP_TIMEOUT = 3600.0  # seconds for checkpoints of running items: Slurm itself ends a task when its time is over


@dataclass(frozen=True)
class ArrayTask:
    """A task of the array: does those of its pickled items that are not done, with workers. Why an item failed is
    printed, which is the log of the task, and written into its folder by `fail` of its function.

    The items are stopped when Slurm warns the task (SIGUSR2) or ends it (SIGTERM). When runs have written their
    checkpoints, the warning is passed on to submitit, which requeues the task.
    """

    job: worker.Job
    items: tuple[bytes, ...]
    pool: Local

    def __call__(self) -> None:
        with warnings.catch_warnings():  # which are printed here
            function: Any = worker.load_function(self.job)
        items = [item for item in self.items if not function.done(pickle.loads(item))]
        is_warned, is_done = False, True

        def on_warning(*_: object) -> None:
            nonlocal is_warned
            is_warned = True
            stop.request()

        with Stop() as stop:
            requeue = signal.signal(signal.SIGUSR2, on_warning)
            try:
                for outcome in self.pool.map_job(self.job, items, stop, stop_timeout=STOP_TIMEOUT):
                    item, failure = pickle.loads(items[outcome.index]), outcome.failure
                    if failure is None:
                        continue
                    if failure.kind in ("stopped", "not started"):
                        is_done = False
                        continue
                    text = f"{name_of(function, item)}: {failure.text}\n{failure.traceback or ''}"
                    print(text, file=sys.stderr, flush=True)
                    if not failure.is_transient and (fail := getattr(function, "fail", None)) is not None:
                        with suppress(UserError, OperationalError):  # which a command then meets
                            fail(item, failure)
            finally:
                signal.signal(signal.SIGUSR2, requeue)
        if is_warned and not is_done and callable(requeue):  # by submitit, where it can; it ends this process
            requeue(signal.SIGUSR2, None)
        elif stop.signal == signal.SIGTERM and not is_done and "SLURM_JOB_ID" in os.environ:
            time.sleep(PREEMPTION_WAIT)

    def checkpoint(self) -> Any:
        """What submitit requeues: the same task, since folders show what is done, and runs resume."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)
