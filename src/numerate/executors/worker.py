"""The code inside a worker (process or actor): opens the work once, then processes items."""

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
from typing import Any

from numerate.config import UserFile, load_user_files
from numerate.errors import OperationalError, UserError, describe_error, user_code_location
from numerate.executors import memory
from numerate.executors.executor import Failure, Work, WorkerContext
from numerate.training import disk
from numerate.training.lock import LockedError
from numerate.training.stopping import Stop

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


@dataclass(frozen=True)
class Reply:
    """A worker's reply about a finished item: the pickled `result` or the `failure`, whether it was its last item
    (`is_last`), and the Python warnings since the last reply."""

    result: bytes = b""
    failure: Failure | None = None
    seconds: float = 0.0
    is_last: bool = False
    warnings: tuple[str, ...] = ()


class Worker:
    """Processes items one after the other and converts exceptions into a `Failure`.

    For example:

        worker = Worker(threads=1, memory_limit=None)
        worker.open(pickle.dumps(Square()))
        pickle.loads(worker.run_item(pickle.dumps(3)).result)  # 9
    """

    def __init__(
        self,
        *,
        threads: int,
        memory_limit: float | None,
        dumps: Callable[[Any], bytes] = pickle.dumps,
        name: str | None = None,
        stop: Stop | None = None,
    ) -> None:
        self.name = name or unique_worker_name()
        # The command handles Ctrl-C, which a terminal sends to every process.
        self.stop = stop or Stop(handles_signals=False)
        self._threads, self._memory_limit, self._dumps = threads, memory_limit, dumps
        self._work: Work
        self._process: Callable[[Any], Any]

    def open(self, work: bytes, files: Sequence[UserFile] = ()) -> Failure | None:
        """Opens the pickled work, after importing the user's files of parts; returns a failure if that is not
        possible."""
        os.environ.update(thread_variables(self._threads))
        try:
            load_user_files(files)
            self._work = pickle.loads(work)
            self._process = self._work.open(WorkerContext(self.name, self._threads, self.stop))
            if "torch" in sys.modules:
                sys.modules["torch"].set_num_threads(self._threads)
        except BaseException as error:
            return self._to_failure(error, "the start of a worker")
        if self._memory_limit is not None:
            memory.limit_memory(self._memory_limit)
        return None

    def run_item(self, item: bytes) -> Reply:
        """Processes one pickled item."""
        start_time = time.perf_counter()
        result, failure, unpickled = b"", None, None
        try:
            unpickled = pickle.loads(item)
            result = self._pickle_result(self._process(unpickled))
        except BaseException as error:
            failure = self._to_failure(error, self._item_name(unpickled))
        is_last = self.stop.requested or (failure is not None and failure.kind == "out of memory")
        return Reply(result, failure, time.perf_counter() - start_time, is_last)

    def _pickle_result(self, result: Any) -> bytes:
        try:
            return self._dumps(result)
        except Exception as error:
            if memory.out_of_memory_error(error, is_limited=self._memory_limit is not None) is not None:
                raise
            raise TypeError(f"the result cannot be sent to the command: {error}") from error

    def _item_name(self, item: Any) -> str:
        with contextlib.suppress(Exception):
            return self._work.item_name(item)
        return "an item"

    def _to_failure(self, error: BaseException, name: str) -> Failure:
        if isinstance(error, KeyboardInterrupt | SystemExit) and self.stop.requested:
            return stopped_failure(self.stop)
        cause = memory.out_of_memory_error(error, is_limited=self._memory_limit is not None)
        if cause is not None:
            is_explained = isinstance(error, OperationalError) and memory.is_on_gpu(cause)
            text = str(error) if is_explained else memory.out_of_memory_text(cause, self._memory_limit)
            del error
            return Failure("out of memory", f"out of memory in {name}: {text}", traceback=_trace(cause))
        return failure_from_exception(error)


def unique_worker_name() -> str:
    """A name for this process that is unique across machines and time."""
    host = re.sub(r"[^A-Za-z0-9.]+", "-", socket.gethostname())
    return f"{host}-{os.getpid()}-{secrets.token_hex(2)}"


def thread_variables(threads: int) -> dict[str, str]:
    """The environment variables that limit libraries to a number of threads; they are read on import."""
    return dict.fromkeys(_THREAD_VARIABLES, str(threads))


def stopped_failure(stop: Stop) -> Failure:
    """The failure of an item that was stopped."""
    return Failure("stopped", "stopped; the same command resumes from here", stop.status or 130)


def failure_from_exception(error: BaseException) -> Failure:
    """Converts an exception to a `Failure`. An unexpected one is a user error if it comes from a user's file, otherwise
    an error of the program."""
    if isinstance(error, UserError | OperationalError):
        notes = "\n".join(getattr(error, "__notes__", [])) or None
        if isinstance(error, LockedError):
            return Failure("busy", str(error), 2)
        if isinstance(error, UserError):
            return Failure("user error", str(error), 2, notes)
        return Failure("disk full" if disk.is_full(error) else "operational error", str(error), traceback=notes)
    location = user_code_location(error)
    if isinstance(error, SystemExit):
        call = f"it called sys.exit({'' if error.code is None else repr(error.code)})"
        return Failure("error", f"{call} in {location}" if location else call, traceback=_trace(error))
    if location is not None and isinstance(error, Exception):
        return Failure("user error", describe_error(error), 2, _trace(error))
    return Failure("error", f"{describe_error(error)} (--traceback shows where)", traceback=_trace(error))


def failure_to_record(error: Exception) -> Failure:
    """The failure of a run that ended with an error. Raises the error again if it is not the run's own: another process
    trains it, the disk is full, or its worker has no memory left."""
    if isinstance(error, LockedError) or disk.is_full(error) or memory.out_of_memory_error(error) is not None:
        raise error
    return failure_from_exception(error)


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))
