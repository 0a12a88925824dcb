"""Worker processes on this machine: each imports its libraries once and does one item after the other."""

import atexit
import math
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

from numerate.errors import OperationalError
from numerate.runs.engines import engine, failures, worker
from numerate.runs.engines.engine import Engine, Function, OnTick, Outcome, not_started
from numerate.runs.engines.machine import num_available_cpus, visible_gpus
from numerate.training.stopping import Stop

_MAX_FAILED_STARTS = 3  # consecutive deaths of workers that were starting, after which no more are started
_END = b""  # in the place of an item: the worker stops the item that it does, and ends


@dataclass(frozen=True)
class Local(Engine):
    """Worker processes on this machine, one per core by default; GPUs are assigned round-robin.

    The processes are spawned (not forked), each with a pipe of its own, so that a crash of one affects no other. They
    ignore Ctrl-C, which the command handles for all of them, and end when the command does, at the next safe point of
    their items. A script that uses this needs `if __name__ == "__main__":`.
    """

    @property
    def num_workers(self) -> int:
        return self.workers or max(1, num_available_cpus() // self.threads)

    def _map(
        self, function: Function, items: Sequence[Any], folder: Path | None, stop: Stop, on_tick: OnTick
    ) -> Iterator[Outcome]:
        return self.map_job(worker.Job.of(function, self), items, stop, on_tick)

    def map_job(
        self,
        job: worker.Job,
        items: Sequence[Any],
        stop: Stop,
        on_tick: OnTick = lambda: None,
        *,
        dumps: Callable[[Any], bytes] = pickle.dumps,
        stop_timeout: float | None = None,
    ) -> Iterator[Outcome]:
        """Like `map`, for the function of a job and items that `dumps` pickles; running items have so many seconds to
        stop."""
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            os._exit(1)  # a worker that imports a script without a guard, which the command explains
        num_workers = min(self.num_workers, len(items))
        seconds = engine.STOP_TIMEOUT if stop_timeout is None else stop_timeout
        return _Map(job, items, num_workers, stop, on_tick, dumps, seconds).run()


class _Map:
    """One call of `map`: gives items to idle workers, replaces workers that died, and tries their items again."""

    def __init__(
        self,
        job: worker.Job,
        items: Sequence[Any],
        num_workers: int,
        stop: Stop,
        on_tick: OnTick,
        dumps: Callable[[Any], bytes],
        stop_timeout: float,
    ) -> None:
        self.job, self.items, self.stop, self.on_tick, self.stop_timeout = job, items, stop, on_tick, stop_timeout
        self.dumps = dumps
        self.waiting = deque(range(len(items)))
        self.deaths: Counter[int] = Counter()  # by item
        self.failed_starts, self.num_workers = 0, num_workers
        self.workers: dict[int, _Worker] = {}  # by slot
        self.ending: list[_Worker] = []
        self.is_stopping = False

    @property
    def running(self) -> bool:
        return any(one.index is not None for one in self.workers.values())

    def run(self) -> Iterator[Outcome]:
        atexit.register(self.close)  # before Python waits for processes, if nobody closes this generator
        last_tick = time.monotonic()
        try:
            while self.waiting or self.running:
                if self.stop.requested:
                    yield from self._stop_all()
                yield from self._give_items()
                self._start_workers()
                wait([one.connection for one in self.workers.values()], engine.TICK_INTERVAL)
                for one in list(self.workers.values()):
                    yield from self._look_at(one)
                if time.monotonic() - last_tick >= engine.TICK_INTERVAL:
                    self.on_tick()
                    last_tick = time.monotonic()
        finally:
            self.close()

    def _stop_all(self) -> Iterator[Outcome]:
        while self.waiting:
            yield not_started(self.waiting.popleft(), self.stop)
        if not self.is_stopping:
            self.is_stopping = True
            for one in self.workers.values():
                one.end()
                one.kill_at = min(one.kill_at, time.monotonic() + self.stop_timeout)

    def close(self) -> None:
        """Ends all workers, at once if there are items at work although a stop was requested (a second Ctrl-C)."""
        atexit.unregister(self.close)
        start_time, is_hurried = time.monotonic(), self.stop.requested and self.running
        for one in self.workers.values():
            one.end()
        for one in [*self.workers.values(), *self.ending]:
            seconds = engine.STOP_TIMEOUT if one.index is None else self.stop_timeout
            one.process.join(0.0 if is_hurried else max(0.0, start_time + seconds - time.monotonic()))
            one.kill()
        self.workers, self.ending = {}, []

    def _start_workers(self) -> None:
        num_starting = sum(not one.is_ready for one in self.workers.values())
        for slot in set(range(self.num_workers)) - self.workers.keys():
            if num_starting >= len(self.waiting):
                return
            try:
                self.workers[slot] = _Worker(slot, self.job, self.stop_timeout)
            except OSError as error:  # those that there are do all
                if not self.workers:
                    raise OperationalError(f"no worker could be started: {error.strerror or error}") from error
                return
            num_starting += 1

    def _give_items(self) -> Iterator[Outcome]:
        for slot, one in list(self.workers.items()):
            while self.waiting and one.is_ready and one.index is None:
                index = self.waiting.popleft()
                try:
                    one.give(index, self.dumps(self.items[index]), self.job.timeout)
                except Exception as error:
                    yield failures.not_sent(index, error)
            if not self.waiting and one.index is None:
                self._dismiss(slot)

    def _dismiss(self, slot: int) -> None:
        """Ends an idle worker; another one may take its slot."""
        self.workers[slot].end()
        self.ending.append(self.workers.pop(slot))

    def _look_at(self, one: "_Worker") -> Iterator[Outcome]:
        """The outcome of the item of a worker that has replied, died or taken too long, unless it is tried again."""
        is_alive, reply = one.process.is_alive(), None
        try:
            if one.connection.poll():
                reply = one.connection.recv_bytes()
        except (EOFError, OSError):
            is_alive = False
        if reply is None:
            if not is_alive or time.monotonic() >= one.kill_at:
                del self.workers[one.slot]
                one.kill()
                yield from self._lost(one, is_late=is_alive)
        elif not one.is_ready:
            if reply:
                failure: engine.Failure = pickle.loads(reply)
                raise failure.to_error()
            one.is_ready, self.failed_starts = True, 0
        elif one.index is not None:
            index, one.index, one.kill_at = one.index, None, math.inf
            outcome = worker.received(index, reply)
            if outcome.failure is not None and outcome.failure.kind == "out of memory":
                self._dismiss(one.slot)
            yield outcome

    def _lost(self, one: "_Worker", *, is_late: bool) -> Iterator[Outcome]:
        """What becomes of the item of a worker that died or was killed for taking too long."""
        reason, index = exit_text(one.process.exitcode), one.index
        if not one.is_ready and not self.stop.requested:
            self.failed_starts += 1
            if self.failed_starts == _MAX_FAILED_STARTS:
                raise OperationalError(
                    f"no worker could start: its process {reason} while it was starting. If this is a script, it needs "
                    "`if __name__ == '__main__':` around its code, since each worker imports the script again; without "
                    "engine=, workers=1 starts none"
                )
        if index is None:
            return
        self.deaths[index] += 1
        if self.stop.requested:
            failure = failures.stopped_failure(self.stop)
        elif is_late:
            failure = failures.timeout_failure(self.job.timeout or 0.0)
        elif self.deaths[index] < engine.MAX_TRIES:
            self.waiting.appendleft(index)  # in the order of the items: a search proposes by the trials before
            return
        else:
            failure = failures.died_failure(reason, self.deaths[index])
        yield Outcome(index, failure=failure, seconds=time.monotonic() - one.start_time)


class _Worker:
    """A worker process as its command sees it: started, then ready, then with the `index` of an item or idle."""

    def __init__(self, slot: int, job: worker.Job, stop_timeout: float) -> None:
        self.slot, self.is_ready = slot, False
        self.index: int | None = None
        self.start_time, self.kill_at = 0.0, math.inf
        gpus, context = visible_gpus(), multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        gpu = gpus[slot % len(gpus)] if gpus else None
        self.process = context.Process(target=_work, args=(theirs, job, gpu, os.getpid(), stop_timeout))
        resource_tracker.ensure_running()  # it would unblock signals
        old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a process inherits it
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
            theirs.close()

    def give(self, index: int, item: bytes, timeout: float | None) -> None:
        self.index, self.start_time = index, time.monotonic()
        self.kill_at = math.inf if timeout is None else self.start_time + timeout + engine.STOP_TIMEOUT
        with suppress(OSError):  # it has died, which is seen when it is looked at
            self.connection.send_bytes(item)

    def end(self) -> None:
        """Asks it to stop its item and to end; one that is still starting is killed."""
        with suppress(OSError):
            self.connection.send_bytes(_END)
        if not self.is_ready:
            self.process.kill()

    def kill(self) -> None:
        """Kills it, if it has not ended, and waits for it."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def exit_text(code: int | None) -> str:
    """How a process ended, as in "its worker was killed by signal 9 (SIGKILL)".

    >>> exit_text(-11)
    'was killed by signal 11 (SIGSEGV)'
    """
    if code is None or code >= 0:
        return f"ended by itself with exit status {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else "?"
    advice = ", as by the kernel where no memory is left" if code == -signal.SIGKILL else ""
    return f"was killed by signal {-code} ({name}){advice}"


# Inside a worker ------------------------------------------------------------------------------------------------------


def _work(connection: Connection, job: worker.Job, gpu: str | None, command: int, stop_timeout: float) -> None:
    """Does the items that come from the command, until that ends this worker, or is gone."""
    stop, is_ending, items = worker.ItemStop(), threading.Event(), SimpleQueue[bytes]()

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.signal = signal.Signals(number)
        stop.request()

    def read() -> None:
        with suppress(EOFError, OSError):
            while os.getppid() == command:
                if connection.poll(1.0):
                    items.put(item := connection.recv_bytes())
                    if item == _END:
                        break
        is_ending.set()
        stop.request()
        items.put(_END)
        time.sleep(stop_timeout)
        os._exit(1)

    signal.signal(signal.SIGTERM, on_signal)
    for number in (signal.SIGHUP, signal.SIGUSR2):  # Slurm may warn every process of a task
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=read, daemon=True).start()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    try:
        worker.load_function(job)
    except BaseException as error:
        failure = failures.to_failure(error, stop)
        connection.send_bytes(pickle.dumps(failure))
        return
    with suppress(OSError):  # the command is gone
        connection.send_bytes(b"")
        while item := items.get():
            stop = worker.ItemStop(job.timeout)
            if is_ending.is_set():
                stop.request()
            connection.send_bytes(worker.run_item(job, item, stop))
