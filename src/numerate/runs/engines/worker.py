"""The code inside a worker: does one item at a time, and converts its errors to failures."""

import functools
import math
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from numerate.config import UserFile, load_user_files, user_files
from numerate.runs.engines.engine import Engine, Function, Outcome
from numerate.runs.engines.failures import failure_from_exception, stopped_failure, timeout_failure
from numerate.runs.engines.machine import visible_gpus
from numerate.training.stopping import Stop

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")

END = b""  # in the place of an item: the worker stops the item that it does, and ends

_stop = Stop(handles_signals=False)
_warnings: list[str] = []


def current_stop() -> Stop:
    """The stop of the item that this worker does: requested when it should end early, by `KeyboardInterrupt`."""
    return _stop


@dataclass(frozen=True)
class Job:
    """What a worker needs besides the items: the pickled `function`, the user's `files`, which are loaded before it,
    and the module search path (`sys_path`) and the working directory (`folder`) of the command."""

    function: bytes
    files: tuple[UserFile, ...]
    sys_path: tuple[str, ...]
    folder: str
    threads: int
    timeout: float | None

    @classmethod
    def of(cls, function: Function, engine: Engine, dumps: Callable[[Any], bytes] = pickle.dumps) -> "Job":
        path = tuple(os.path.abspath(place) for place in sys.path)
        return cls(dumps(function), user_files(), path, os.getcwd(), engine.threads, engine.timeout)


class ItemStop(Stop):
    """The stop of an item, which is also requested when `timeout` seconds are over."""

    def __init__(self, timeout: float | None = None, *, handles_signals: bool = False) -> None:
        super().__init__(handles_signals=handles_signals)
        self._end_time = math.inf if timeout is None else time.monotonic() + timeout

    @property
    def is_late(self) -> bool:
        """Whether the time is over, and no stop was requested before."""
        return time.monotonic() > self._end_time and not self._requested

    @property
    def requested(self) -> bool:
        return self._requested or self.is_late


@functools.cache
def load_function(job: Job) -> Function:
    """Unpickles the function of a job, which imports its libraries: once per worker."""
    warnings.showwarning = lambda message, *_, **__: _warnings.append(str(message))
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(job.threads)))  # which libraries read on import
    sys.path.extend(place for place in job.sys_path if place not in sys.path)
    with suppress(OSError):
        os.chdir(job.folder)
    load_user_files(job.files)
    return pickle.loads(job.function)  # type: ignore[no-any-return]


def run_item(job: Job, item: bytes, stop: ItemStop) -> bytes:
    """Does one pickled item. Returns the reply for `received`: its outcome and the warnings since the last reply."""
    function = load_function(job)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(job.threads)
    outcome = perform(lambda: function(pickle.loads(item)), stop)
    if outcome.failure is not None and outcome.failure.kind == "stopped" and stop.is_late:
        outcome = replace(outcome, failure=timeout_failure(job.timeout or 0.0))
    texts = tuple(dict.fromkeys(_warnings))
    _warnings.clear()
    return pickle.dumps((outcome, texts))


def perform(call: Callable[[], Any], stop: Stop) -> Outcome:
    """Calls `call` as the current item of this process, and converts its error to a failure. Raises `KeyboardInterrupt`
    where no stop was requested."""
    global _stop
    previous, _stop = _stop, stop
    try:
        return Outcome(0, call())
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit) and stop.requested:
            return Outcome(0, failure=stopped_failure(stop))
        if isinstance(error, KeyboardInterrupt):
            raise
        return Outcome(0, failure=failure_from_exception(error))
    finally:
        _stop = previous


def received(index: int, reply: bytes) -> Outcome:
    """The outcome of an item in the command, which issues the worker's warnings as its own."""
    outcome, texts = pickle.loads(reply)
    for text in texts:
        warnings.warn(text, stacklevel=2)
    return replace(outcome, index=index)  # type: ignore[no-any-return]


def serve(connection: Connection, job: Job, slot: int, command: int, stop_timeout: float) -> None:
    """Does the items that come from the command of a `Local` worker, until that ends it, or is gone."""
    stop, is_ending, items = ItemStop(), threading.Event(), SimpleQueue[bytes]()

    def read() -> None:
        with suppress(EOFError, OSError):
            while os.getppid() == command:
                if connection.poll(1.0):
                    items.put(item := connection.recv_bytes())
                    if item == END:
                        break
        is_ending.set()
        stop.request()
        items.put(END)
        time.sleep(stop_timeout)
        os._exit(1)

    signal.signal(signal.SIGTERM, lambda *_: stop.request())
    for number in (signal.SIGHUP, signal.SIGUSR2):  # Slurm may warn every process of a task
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=read, daemon=True).start()
    if gpus := visible_gpus():
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
    reply = b""
    try:
        load_function(job)
    except BaseException as error:
        reply = pickle.dumps(failure_from_exception(error))
    with suppress(OSError):  # the command is gone
        connection.send_bytes(reply)
        while item := items.get():
            stop = ItemStop(job.timeout)
            if is_ending.is_set():
                stop.request()
            connection.send_bytes(run_item(job, item, stop))
