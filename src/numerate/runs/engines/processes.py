"""A worker process of this machine: how the command holds it, and what happens inside."""

import os
import signal
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

from pebble import ProcessPool

from numerate.runs.engines import engine, worker
from numerate.runs.engines.machine import temporary_environment, visible_gpus
from numerate.training.stopping import Stop


class WorkerProcess:
    """A worker process, in a pool of its own: it shares no lock and no pipe that it could leave locked or full."""

    def __init__(self, slot: int, job: worker.Job, lifeline: Connection, stop_timeout: float) -> None:
        self.slot, self.name = slot, ""
        variables, gpus = worker.thread_variables(job.threads), visible_gpus()
        if gpus:
            variables["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
        self.context = _Context(variables)
        initial_arguments = (job, lifeline, os.getpid(), stop_timeout)
        self.pool = ProcessPool(1, initializer=_begin, initargs=initial_arguments, context=self.context)
        self.timeout = None if job.timeout is None else job.timeout + engine.STOP_TIMEOUT

    def start(self, item: bytes) -> "Future[worker.Reply]":
        """Gives it an item. Raises `RuntimeError` or `OSError` if the process cannot be started."""
        return self.pool.schedule(_run, args=(item,), timeout=self.timeout)

    def has_lost(self, future: "Future[worker.Reply]") -> bool:
        """Whether a future will never be done, since the pool broke while it got the item."""
        return not self.pool.active and not future.done()

    @property
    def exit_code(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self.context.process.exitcode

    def kill(self) -> None:
        """Kills the process at once."""
        self.context.process.kill()

    def close(self) -> None:
        """Ends the process and waits for it; it has no item any more."""
        self.pool.stop()  # type: ignore[no-untyped-call]
        self.pool.join()


class _Context(SpawnContext):
    """Starts processes with environment variables, which libraries read when they are imported."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables
        self.process: SpawnProcess

    def Process(self, **settings: Any) -> SpawnProcess:  # type: ignore[override]
        self.process = _Process(**settings)
        self.process.variables = self._variables
        return self.process


class _Process(SpawnProcess):
    variables: Mapping[str, str]
    _starting = threading.Lock()

    def start(self) -> None:
        """Starts the process with Ctrl-C blocked, until it is ready to ignore it."""
        resource_tracker.ensure_running()  # it would let signals through again
        with self._starting, temporary_environment(self.variables):
            old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                super().start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


def exit_text(code: int | None) -> str:
    """How a process ended, as in "its worker was killed by signal 9 (SIGKILL)"."""
    if code is None:
        return "no longer answered"
    if code >= 0:
        return f"ended by itself with exit status {code}"
    with suppress(ValueError):
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    return f"was killed by signal {-code}"


# Inside a worker ------------------------------------------------------------------------------------------------------

_job: worker.Job
_item_stop = Stop(handles_signals=False)
_is_ending = False


def _begin(job: worker.Job, lifeline: Connection, command: int, stop_timeout: float) -> None:
    global _job
    _job = job
    signal.signal(signal.SIGTERM, lambda number, _: _request_stop(signal.Signals(number)))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # Slurm may warn every process of a task
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # pebble has set it to be ignored
    threading.Thread(target=_end_with_command, args=(lifeline, command, stop_timeout), daemon=True).start()
    worker.load_quietly(job)


def _end_with_command(lifeline: Connection, command: int, stop_timeout: float) -> None:
    """Stops this worker when the command has closed its end of the pipe, or is gone."""
    global _is_ending
    while not lifeline.poll(1.0) and os.getppid() == command:
        pass
    _is_ending = True
    _request_stop()
    time.sleep(stop_timeout)
    os._exit(1)


def _request_stop(number: signal.Signals | None = None) -> None:
    _item_stop.signal = number
    _item_stop.request()


def _run(item: bytes) -> worker.Reply:
    global _item_stop
    _item_stop = Stop(handles_signals=False)
    if _is_ending:
        _item_stop.request()
    return worker.run_item(_job, item, _item_stop)
