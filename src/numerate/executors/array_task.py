"""A task of a Slurm array: processes part of the items with the local pool, and writes each result as a line of a
shared file."""

import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from numerate.config import UserFile, load_user_files, user_files
from numerate.errors import UserError
from numerate.executors.executor import Failure, ItemOutcome, Work, WorkerContext, pickle_with
from numerate.executors.local import Local
from numerate.executors.worker import failure_from_exception
from numerate.records.kinds import TASK
from numerate.records.reading import read_records
from numerate.training import disk
from numerate.training.stopping import Stop

PREEMPTION_WAIT = 900.0
"""Seconds that a task waits after SIGTERM before it ends: Slurm requeues a preempted task only if it is still
running."""


PickledItem = tuple[str, bytes]
"""The name of an item and the item pickled, for another machine; only the worker that processes it unpickles it."""


@dataclass(frozen=True)
class PickledWork(Work):
    """Pickled work for another machine, with the paths and files that its classes need there.

    It may be defined anywhere: in a module, in the script that was started (`__main__`), in a `--parts` file. Its items
    are `PickledItem`s, its results plain data, so that only the worker and the command need to import their classes.
    """

    content: bytes
    files: tuple[UserFile, ...] = ()
    """The user's files (`--parts`) with their contents, loaded before unpickling."""
    sys_path: tuple[str, ...] = ()
    """Python's module search path."""

    @classmethod
    def from_work(cls, work: Work) -> "PickledWork":
        """Raises `UserError` for a work that cannot be pickled."""
        sys_path = tuple(os.path.abspath(place) for place in sys.path)
        return cls(pickle_value(work, type(work).__name__), user_files(), sys_path)

    def open(self, context: WorkerContext) -> Callable[[PickledItem], Any]:
        signal.signal(_preemption_signal(), signal.SIG_IGN)  # Slurm may send the signal to every process of a task
        sys.path += [place for place in self.sys_path if place not in sys.path]
        load_user_files(self.files)
        work: Work = pickle.loads(self.content)
        process = work.open(context)
        return lambda item: _to_plain_data(process(pickle.loads(item[1])), item[0])

    def item_name(self, item: PickledItem) -> str:
        return item[0]


def pickle_value(value: Any, name: str) -> bytes:
    """Pickles with cloudpickle, which includes classes defined in `__main__`. Raises `UserError` if that is not
    possible."""
    import cloudpickle

    return pickle_with(cloudpickle.dumps, value, name)


@dataclass(frozen=True)
class ArrayTask:
    """A submitted task: part of the items, each with its number in the submission, and the pool that processes them.

    Every line of `results_file` is one of: `{"started": .., "host": .., "pid": ..}`; `{"item": number, ..}`,
    as soon as that item is finished; `{"refused": failure}` if the task could not start; `{"signal": name}` if it was
    stopped; `{"finished": true}` as the last line. A requeued task processes the items without a line.

    The pool is stopped when Slurm warns the task (SIGUSR2) or ends it (SIGTERM). When runs have written their
    checkpoints, the warning is passed on to submitit, which requeues the task.
    """

    results_file: str
    work: PickledWork
    items: tuple[tuple[int, PickledItem], ...]
    pool: Local

    def __call__(self) -> None:
        if os.environ.get("SUBMITIT_EXECUTOR") == "local" and os.getpid() != os.getpgrp():
            os.setsid()  # Ctrl-C in a terminal only reaches the command, as with Slurm
        self._append({"started": time.time(), "host": socket.gethostname(), "pid": os.getpid()})
        done = {record.get("item") for record in read_records(Path(self.results_file), TASK)}
        remaining = {number: item for number, item in self.items if number not in done}
        warning: list[str] = []  # by Slurm, before the time limit or preemption

        def on_warning(number: int, frame: FrameType | None) -> None:
            warning.append(signal.Signals(number).name)
            stop.request()

        with Stop() as stop:
            requeue = signal.signal(_preemption_signal(), on_warning)
            try:
                self._run_items(remaining, stop)
            except Exception as error:
                self._append({"refused": asdict(failure_from_exception(error))})
                raise
            finally:
                signal.signal(_preemption_signal(), requeue)
        if not remaining:
            self._append({"finished": True})
            return
        self._append({"signal": warning[0] if warning else stop.signal and stop.signal.name})
        if warning and callable(requeue):  # by submitit, where it can; it ends this process
            requeue(_preemption_signal(), None)
        elif not warning and stop.signal == signal.SIGTERM and os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
            time.sleep(PREEMPTION_WAIT)

    def checkpoint(self) -> Any:
        """What submitit requeues on timeout or preemption: the same task, since its file records finished items, and
        runs resume from their checkpoints."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _run_items(self, remaining: dict[int, PickledItem], stop: Stop) -> None:
        numbers = list(remaining)
        for outcome in self.pool.run(self.work, list(remaining.values()), stop=stop):
            failure = outcome.failure
            if failure is None or failure.kind not in ("stopped", "not started"):
                number = numbers[outcome.index]
                self._append(outcome_record(number, outcome))
                del remaining[number]

    def _append(self, record: Mapping[str, Any]) -> None:
        disk.append_records(Path(self.results_file), [record])


def _to_plain_data(result: Any, name: str) -> Any:
    """A result as plain data. Raises `UserError` for anything else."""
    try:
        return disk.to_plain_data(result)
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise UserError(f"the result of {name} must be JSON data, not {type(result).__name__}") from error


def outcome_record(number: int, outcome: ItemOutcome) -> dict[str, Any]:
    """A finished item, as a line of JSON; its result is plain data."""
    record: dict[str, Any] = {"item": number, "seconds": outcome.seconds, "worker": outcome.worker}
    if outcome.failure is not None:
        return record | {"failure": asdict(outcome.failure)}
    return record | {"result": outcome.result}


def outcome_from_record(record: Mapping[str, Any], index: int, work: Work) -> ItemOutcome:
    """Parses what `outcome_record` wrote, with the item's index in the reading command. An invalid record is a failure
    of that item."""
    try:
        seconds, worker = float(record["seconds"]), str(record["worker"])
        if "failure" in record:
            return ItemOutcome(index, None, Failure.from_dict(record["failure"]), seconds, worker)
        work.check_result(record["result"])
        return ItemOutcome(index, record["result"], None, seconds, worker)
    except (KeyError, TypeError, ValueError, AttributeError):
        text = "its recorded result is damaged; the same command repeats it"
        return ItemOutcome(index, failure=Failure("operational error", text))


def _preemption_signal() -> signal.Signals:
    return signal.Signals["SIG" + os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2")]


def split_round_robin(count: int, chunks: int) -> list[Sequence[int]]:
    """Splits item indices round-robin, so that neighboring expensive items are distributed.

    >>> [list(numbers) for numbers in split_round_robin(5, 2)]
    [[0, 2, 4], [1, 3]]
    """
    return [range(first, count, chunks) for first in range(chunks)]
