"""The code inside a worker: does one item at a time, and converts its errors to failures."""

import contextlib
import functools
import os
import pickle
import re
import secrets
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from numerate.config import UserFile, load_user_files, user_files
from numerate.runs.engines import memory
from numerate.runs.engines.engine import Engine, Outcome, name_of, pickle_value
from numerate.runs.engines.failures import failure_from_exception as failure_from_exception
from numerate.runs.engines.failures import failure_to_record as failure_to_record
from numerate.runs.engines.failures import timeout_failure, to_failure
from numerate.training.stopping import Stop

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)

_stop = Stop(handles_signals=False)
_warnings: dict[str, None] = {}


def current_stop() -> Stop:
    """The stop of the item that this worker does: requested when it should end early, at the next safe point.

    An item ends early by `KeyboardInterrupt`.
    """
    return _stop


@functools.cache
def worker_name() -> str:
    """A name of this process that is unique across machines and time, so that a file named by it has one writer."""
    host = re.sub(r"[^A-Za-z0-9.]+", "-", socket.gethostname())
    return f"{host}-{os.getpid()}-{secrets.token_hex(2)}"


@dataclass(frozen=True)
class Job:
    """What a worker needs besides the items.

    `function` is pickled, `files` are the user's files with their contents, which are loaded before it is unpickled,
    `sys_path` and `folder` the module search path and working directory of the command, for workers elsewhere.
    """

    function: bytes
    files: tuple[UserFile, ...]
    sys_path: tuple[str, ...]
    folder: str
    threads: int
    timeout: float | None

    @classmethod
    def of(cls, function: Callable[[Any], Any], engine: Engine, dumps: Callable[[Any], bytes] = pickle.dumps) -> "Job":
        """Raises `UserError` for a function that cannot be pickled."""
        name = getattr(function, "__qualname__", type(function).__qualname__)
        path = tuple(os.path.abspath(place) for place in sys.path)
        pickled = pickle_value(function, name, dumps)
        return cls(pickled, user_files(), path, os.getcwd(), engine.threads, engine.timeout)


@dataclass(frozen=True)
class Reply:
    """A worker's reply about an item: its outcome (index 0) whose result is pickled, the Python warnings since the last
    reply, and whether no item can be done, since the function could not be loaded."""

    outcome: Outcome
    warnings: tuple[str, ...] = ()
    is_fatal: bool = False


def run_item(job: Job, item: bytes, stop: Stop, dumps: Callable[[Any], bytes] = pickle.dumps) -> Reply:
    """Does one pickled item, in a worker process."""
    warnings.showwarning = _collect_warning
    try:
        function = load_function(job)
    except BaseException as error:
        return Reply(Outcome(0, failure=to_failure(error, "the start of a worker", stop)), is_fatal=True)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(job.threads)
    outcome = perform(
        lambda: _call(function, item, dumps), lambda: name_of(function, pickle.loads(item)), stop, job.timeout
    )
    texts = tuple(_warnings)
    _warnings.clear()
    return Reply(outcome, texts)


def perform(call: Callable[[], Any], name: Callable[[], str], stop: Stop, timeout: float | None = None) -> Outcome:
    """Calls `call` as the current item of this process, and converts its error to a failure. The stop is requested
    after `timeout` seconds."""
    start_time, is_late = time.perf_counter(), threading.Event()
    result, failure = None, None
    try:
        with _current(stop), _time_limit(timeout, stop, is_late):
            result = call()
    except BaseException as error:
        item_name = "an item"
        with contextlib.suppress(Exception):
            item_name = name()
        failure = to_failure(error, item_name, stop)
        if failure.kind == "stopped" and timeout is not None and is_late.is_set():
            failure = timeout_failure(timeout)
    return Outcome(0, result, failure, time.perf_counter() - start_time, worker_name())


def received(index: int, reply: Reply, stop: Stop) -> Outcome:
    """The outcome of an item in the command, which issues the worker's warnings as its own.

    Raises the error of a worker that could not load the function.
    """
    for text in reply.warnings:
        warnings.warn(text, stacklevel=2)
    outcome = replace(reply.outcome, index=index)
    if outcome.failure is None:
        try:
            return replace(outcome, result=pickle.loads(outcome.result))
        except Exception as error:
            return replace(outcome, result=None, failure=failure_from_exception(error))
    if reply.is_fatal and outcome.failure.kind != "stopped":
        raise outcome.failure.to_error()
    if outcome.failure.kind == "stopped":
        return replace(outcome, failure=replace(outcome.failure, status=stop.status or outcome.failure.status))
    return outcome


@functools.cache
def load_function(job: Job) -> Callable[[Any], Any]:
    """Unpickles the function of a job, which imports its libraries: once per worker."""
    os.environ.update(thread_variables(job.threads))
    sys.path.extend(place for place in job.sys_path if place not in sys.path)
    with contextlib.suppress(OSError):
        os.chdir(job.folder)
    load_user_files(job.files)
    return pickle.loads(job.function)  # type: ignore[no-any-return]


def load_quietly(job: Job) -> None:
    """Loads the function before the first item, whose time the imports then are not; that says why it fails."""
    with contextlib.suppress(BaseException):
        load_function(job)


def _call(function: Callable[[Any], Any], item: bytes, dumps: Callable[[Any], bytes]) -> bytes:
    result = function(pickle.loads(item))
    try:
        return dumps(result)
    except Exception as error:
        if memory.out_of_memory_error(error) is not None:
            raise
        raise TypeError(f"the result cannot be sent to the command: {error}") from error


def _collect_warning(message: Warning | str, *_: object, **__: object) -> None:
    _warnings[str(message)] = None


@contextlib.contextmanager
def _current(stop: Stop) -> Iterator[None]:
    global _stop
    previous, _stop = _stop, stop
    try:
        yield
    finally:
        _stop = previous


@contextlib.contextmanager
def _time_limit(seconds: float | None, stop: Stop, is_late: threading.Event) -> Iterator[None]:
    def expire() -> None:
        is_late.set()
        stop.request()

    timer = None if seconds is None else threading.Timer(seconds, expire)
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


def thread_variables(threads: int) -> dict[str, str]:
    """The environment variables that limit libraries to a number of threads; they are read on import."""
    return dict.fromkeys(_THREAD_VARIABLES, str(threads))
