"""What happens inside a worker, be it a process or an actor: the work is opened once, then item after item is done."""

import contextlib
import os
import pickle
import re
import secrets
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from numerate.config import UserFile, load_user_files
from numerate.errors import OperationalError, UserError, in_words, users_line
from numerate.executors import memory
from numerate.executors.executor import Failure, Work, WorkerContext
from numerate.training.stopping import Stop

_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


@dataclass(frozen=True)
class Reply:
    """What a worker says of an item that is over: the pickled `result`, or the `failure`; whether it was its `last`."""

    result: bytes = b""
    failure: Failure | None = None
    seconds: float = 0.0
    last: bool = False


class RequestedStop(Stop):
    """A `Stop` that is requested through the worker and handles no signals.

    So Ctrl-C, which a terminal sends to every process, is handled once, by the command, and not by each worker.
    """

    def __enter__(self) -> "RequestedStop":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return


class Worker:
    """Does items one after the other and converts whatever they raise into a `Failure`.

    >>> worker = Worker(threads=1, limit=None)
    >>> worker.open(pickle.dumps(Square()))
    >>> pickle.loads(worker.do(pickle.dumps(3)).result)
    9
    """

    def __init__(
        self, *, threads: int, limit: float | None, pack: Callable[[Any], bytes] = pickle.dumps, name: str | None = None
    ) -> None:
        host = re.sub(r"[^A-Za-z0-9.]+", "-", socket.gethostname())
        self.name = name or f"{host}-{os.getpid()}-{secrets.token_hex(2)}"
        self.stop = RequestedStop()
        self._threads, self._limit, self._pack = threads, limit, pack
        self._work: Work
        self._do: Callable[[Any], Any]

    def open(self, work: bytes, files: Sequence[UserFile] = ()) -> Failure | None:
        """Opens the pickled work, after the user's files of parts; a failure where that is not possible."""
        os.environ.update(threads_in(self._threads))
        try:
            load_user_files(files)
            self._work = pickle.loads(work)
            self._do = self._work.open(WorkerContext(self.name, self._threads, self.stop))
            if "torch" in sys.modules:
                sys.modules["torch"].set_num_threads(self._threads)
        except BaseException as error:
            return self._failure(error, "the start of a worker")
        if self._limit is not None:
            memory.limit(self._limit)
        return None

    def do(self, item: bytes) -> Reply:
        """Does one pickled item."""
        began = time.perf_counter()
        result, failure, read = b"", None, None
        try:
            read = pickle.loads(item)
            result = self._packed(self._do(read))
        except BaseException as error:
            failure = self._failure(error, self._called(read))
        last = self.stop.requested or (failure is not None and failure.kind == "out of memory")
        return Reply(result, failure, time.perf_counter() - began, last)

    def _packed(self, result: Any) -> bytes:
        try:
            return self._pack(result)
        except Exception as error:
            if memory.ran_out(error, limited=self._limit is not None) is not None:
                raise
            raise TypeError(f"the result cannot be sent to the command: {error}") from error

    def _called(self, item: Any) -> str:
        with contextlib.suppress(Exception):
            return self._work.name_of(item)
        return "an item"

    def _failure(self, error: BaseException, name: str) -> Failure:
        if isinstance(error, KeyboardInterrupt | SystemExit) and self.stop.requested:
            return stopped(self.stop)
        cause = memory.ran_out(error, limited=self._limit is not None)
        if cause is not None:
            del error
            text = f"out of memory in {name}: {memory.told(cause, self._limit)}"
            return Failure("out of memory", text, trace=_trace(cause))
        return failure_of(error)


def threads_in(threads: int) -> dict[str, str]:
    """The environment that keeps libraries to a number of threads; they read it when they are imported."""
    return dict.fromkeys(_THREADS, str(threads))


def stopped(stop: Stop) -> Failure:
    """The failure of an item that was stopped."""
    return Failure("stopped", "stopped; the same command resumes from here", stop.status or 130)


def failure_of(error: BaseException) -> Failure:
    """An exception as a `Failure`. An unexpected one is a user error where it comes from a user's file, else an error
    of the program."""
    if isinstance(error, UserError | OperationalError):
        notes = "\n".join(getattr(error, "__notes__", [])) or None
        if isinstance(error, UserError):
            return Failure("mistake", str(error), 2, notes)
        return Failure("fault", str(error), trace=notes)
    location = users_line(error)
    if isinstance(error, SystemExit):
        call = f"it called sys.exit({'' if error.code is None else repr(error.code)})"
        return Failure("error", f"{call} in {location}" if location else call, trace=_trace(error))
    if location is not None and isinstance(error, Exception):
        return Failure("mistake", in_words(error), 2, _trace(error))
    return Failure("error", f"{in_words(error)} (--traceback shows where)", trace=_trace(error))


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))
