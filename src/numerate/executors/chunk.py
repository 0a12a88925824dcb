"""A task of a Slurm array: the local pool on a share of the items, each result a line of a shared file."""

import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from numerate.config import UserFile, load_user_files, user_files
from numerate.errors import UserError
from numerate.executors.executor import Failure, Finished, Work, WorkerContext
from numerate.executors.local import Local
from numerate.executors.worker import failure_of
from numerate.records.kinds import TASK
from numerate.records.reading import read
from numerate.training import disk
from numerate.training.stopping import Stop

LINGER = 900.0
"""Seconds that a task waits for its end after SIGTERM: Slurm queues a preempted one again only if it is still there."""


@dataclass(frozen=True)
class Parcel:
    """An item on its way to another machine: opened by the worker that does it, and by nobody before."""

    name: str
    content: bytes


@dataclass(frozen=True)
class Carried(Work):
    """Pickled work for another machine, with the paths and files that its classes need there.

    It may be defined anywhere: in a module, in the script that was started (`__main__`), in a `--parts` file. Its items
    are `Parcel`s, its results plain data, so that only the worker and the command need to know any class of them.
    """

    content: bytes
    files: tuple[UserFile, ...] = ()
    """The user's files (`--parts`) with their contents, loaded before anything is unpacked."""
    places: tuple[str, ...] = ()
    """Where Python looked for modules."""

    @classmethod
    def of(cls, work: Work) -> "Carried":
        """Raises `UserError` for a work that cannot be pickled."""
        places = tuple(os.path.abspath(place) for place in sys.path)
        return cls(packed(work, type(work).__name__), user_files(), places)

    def parcel(self, name: str, item: Any) -> Parcel:
        """Raises `UserError` for an item that cannot be pickled."""
        return Parcel(name, packed(item, name))

    def open(self, context: WorkerContext) -> Callable[[Parcel], Any]:
        signal.signal(_warning(), signal.SIG_IGN)  # Slurm may send it to every process of a task
        sys.path += [place for place in self.places if place not in sys.path]
        load_user_files(self.files)
        work: Work = pickle.loads(self.content)
        do = work.open(context)
        return lambda item: _to_plain(work, do(pickle.loads(item.content)), item.name)

    def name_of(self, item: Parcel) -> str:
        return item.name


def packed(value: Any, name: str) -> bytes:
    """Pickled by cloudpickle, which also takes along classes that were defined in `__main__`. Raises `UserError` where
    that is not possible."""
    import cloudpickle

    try:
        content: bytes = cloudpickle.dumps(value)
    except Exception as error:
        raise UserError(f"{name} cannot be sent to another machine: {error}") from error
    return content


@dataclass(frozen=True)
class Chunk:
    """A submitted task: a share of the items, each with its number in the submission, and the pool that does them.

    Every line of `file` is one of: `{"began": .., "job": .., "host": .., "pid": ..}`; `{"item": number, ..}`, as soon
    as that item is over; `{"refused": failure}` where nothing could be done; `{"left": signal}` when it was stopped;
    `{"over": true}`, the last. A task that is queued again does what has no line yet.
    """

    file: str
    work: Carried
    items: tuple[tuple[int, Parcel], ...]
    pool: Local

    def __call__(self) -> None:
        if os.environ.get("SUBMITIT_EXECUTOR") == "local" and os.getpid() != os.getpgrp():
            os.setsid()  # a terminal's Ctrl-C is for the command alone, as it is with Slurm
        self._say({"began": time.time(), "job": _job(), "host": socket.gethostname(), "pid": os.getpid()})
        done = {record.get("item") for record in read(Path(self.file), TASK)}
        left = {number: item for number, item in self.items if number not in done}
        with Warned() as warned:
            try:
                self._do(left, warned.stop)
            except Exception as error:
                self._say({"refused": asdict(failure_of(error))})
                raise
        if not left:
            self._say({"over": True})
            return
        ended = warned.stop.signal
        self._say({"left": warned.signal or (ended.name if ended else None)})
        if warned.signal:
            warned.pass_on()
        elif ended == signal.SIGTERM and os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
            time.sleep(LINGER)

    def checkpoint(self) -> Any:
        """What submitit requeues on timeout or preemption: the same task, since its file records what is done, and
        runs resume from their checkpoints."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _do(self, left: dict[int, Parcel], stop: Stop) -> None:
        numbers = list(left)
        for finished in self.pool.run(self.work, list(left.values()), stop=stop):
            failure = finished.failure
            if failure is None or failure.kind not in ("stopped", "not begun"):
                number = numbers[finished.index]
                self._say(record_of(number, finished))
                del left[number]

    def _say(self, record: Mapping[str, Any]) -> None:
        disk.append(Path(self.file), [record])


def _to_plain(work: Work, result: Any, name: str) -> Any:
    """A result as plain data. Raises `UserError` where its work gives none."""
    try:
        return disk.plain(work.to_plain(result))
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise UserError(f"the result of {name} is no plain data, which {type(work).__name__}.to_plain makes") from error


def record_of(number: int, finished: Finished) -> dict[str, Any]:
    """An item that is over, as a line of JSON; its result is plain data."""
    record: dict[str, Any] = {"item": number, "seconds": finished.seconds, "worker": finished.worker}
    if finished.failure is not None:
        return record | {"failure": asdict(finished.failure)}
    return record | {"result": finished.result}


def finished_of(record: Mapping[str, Any], index: int, work: Work) -> Finished:
    """What `record_of` wrote, under the item's index in the command that reads it. A record that is none is a fault of
    that item."""
    try:
        seconds, worker = float(record["seconds"]), str(record["worker"])
        if "failure" in record:
            return Finished(index, None, Failure.of(record["failure"]), seconds, worker)
        return Finished(index, work.from_plain(record["result"]), None, seconds, worker)
    except (KeyError, TypeError, ValueError, AttributeError):
        text = "what its task wrote down is damaged; the same command does it again"
        return Finished(index, failure=Failure("fault", text))


class Warned:
    """Stops the pool when Slurm warns a task (SIGUSR2, before its time limit or preemption) or ends it (SIGTERM). The
    warning is passed on to submitit, which requeues the task, when the pool has ended and runs have written their
    checkpoints."""

    def __init__(self) -> None:
        self.stop = Stop()
        self.signal: str | None = None
        self._before: Any = None

    def __enter__(self) -> "Warned":
        self.stop.__enter__()
        self._before = signal.signal(_warning(), self._received)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(_warning(), self._before)
        self.stop.__exit__(kind, error, trace)

    def _received(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number).name
        self.stop.ask()

    def pass_on(self) -> None:
        """Ends this process where submitit is there to queue the task again."""
        if callable(self._before):
            self._before(_warning(), None)


def _warning() -> signal.Signals:
    return signal.Signals["SIG" + os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2")]


def _job() -> str:
    found = os.environ
    if "SLURM_ARRAY_JOB_ID" in found:
        return f"{found['SLURM_ARRAY_JOB_ID']}_{found.get('SLURM_ARRAY_TASK_ID')}"
    return found.get("SLURM_JOB_ID") or found.get("SUBMITIT_LOCAL_JOB_ID") or str(os.getpid())


def dealt(count: int, chunks: int) -> list[Sequence[int]]:
    """The numbers of items dealt out like cards, so that long ones that stand together are spread.

    >>> [list(numbers) for numbers in dealt(5, 2)]
    [[0, 2, 4], [1, 3]]
    """
    return [range(first, count, chunks) for first in range(chunks)]
