"""Worker processes on this machine: each imports its libraries once and does one item after the other."""

import atexit
import math
import multiprocessing
import os
import pickle
import signal
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from numerate.errors import OperationalError
from numerate.runs.engines import engine, failures, worker
from numerate.runs.engines.engine import Engine, Function, OnTick, Outcome, not_started
from numerate.runs.engines.machine import num_available_cpus
from numerate.training.stopping import Stop

START_TIMEOUT = 600.0  # seconds for a worker to import its libraries, also from a slow disk with many others
_UNGUARDED = 78  # exit status of a worker that imports a script which starts workers itself


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

    def check_available(self) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            os._exit(_UNGUARDED)  # which the command explains

    def _map(
        self, function: Function, items: Sequence[Any], folder: Path | None, stop: Stop, on_tick: OnTick
    ) -> Iterator[Outcome]:
        return self.map_job(worker.Job.of(function, self), [*map(pickle.dumps, items)], stop, on_tick)

    def map_job(
        self,
        job: worker.Job,
        items: Sequence[bytes],
        stop: Stop,
        on_tick: OnTick = lambda: None,
        stop_timeout: float | None = None,
    ) -> Iterator[Outcome]:
        """Like `map`, for a function and items that are pickled; they have so many seconds to stop."""
        return _Map(job, items, self.num_workers, stop, on_tick, stop_timeout or engine.STOP_TIMEOUT).run()


@dataclass(eq=False)
class _Map:
    """One call of `map`: gives items to idle workers, replaces workers that died, and tries their items again."""

    job: worker.Job
    items: Sequence[bytes]
    num_workers: int
    stop: Stop
    on_tick: OnTick
    stop_timeout: float

    def __post_init__(self) -> None:
        self.waiting = deque(range(len(self.items)))
        self.deaths: Counter[int] = Counter()  # by item
        self.workers: dict[int, _Worker] = {}  # by slot
        self.has_started = False  # any worker
        self.limit = math.inf if self.job.timeout is None else self.job.timeout + engine.STOP_TIMEOUT

    @property
    def is_running(self) -> bool:
        return any(one.index is not None for one in self.workers.values())

    def run(self) -> Iterator[Outcome]:
        atexit.register(self.close)  # if nobody closes this generator: before Python waits for its processes
        next_tick = time.monotonic()
        try:
            while self.waiting or self.is_running:
                if self.stop.requested:
                    yield from (not_started(index, self.stop) for index in self.waiting)
                    self.waiting.clear()
                    for one in self.workers.values():
                        one.end()
                for slot in range(self.num_workers):
                    self._give_item(slot)
                wait([one.connection for one in self.workers.values()], engine.TICK_INTERVAL)
                for one in list(self.workers.values()):
                    yield from self._look_at(one)
                if time.monotonic() >= next_tick:
                    self.on_tick()
                    next_tick = time.monotonic() + engine.TICK_INTERVAL
        finally:
            self.close()

    def close(self) -> None:
        """Ends all workers; at once if a stop was requested before and items are still running (a second Ctrl-C)."""
        atexit.unregister(self.close)
        is_hurried = self.stop.requested and self.is_running
        for one in self.workers.values():
            one.end()
        for one in list(self.workers.values()):
            one.process.join(0.0 if is_hurried else max(0.0, one.end_time - time.monotonic()))
            self._kill(one)

    def _kill(self, one: "_Worker") -> None:
        del self.workers[one.slot]
        one.process.kill()
        one.process.join()
        one.connection.close()

    def _give_item(self, slot: int) -> None:
        """Gives the next item to the worker in a slot, if it is idle; it is started if there is none."""
        if self.waiting and (slot not in self.workers or self.workers[slot].index is None):
            if slot not in self.workers:
                self.workers[slot] = _Worker(slot, self.job, self.stop_timeout)
            one = self.workers[slot]
            one.index, one.start_time = self.waiting.popleft(), time.monotonic()
            one.send(self.items[one.index])

    def _look_at(self, one: "_Worker") -> Iterator[Outcome]:
        """The outcome of the item of a worker that has replied, died or taken too long, unless it is tried again."""
        is_alive, index = one.process.is_alive(), one.index
        try:
            reply = one.connection.recv_bytes() if one.connection.poll() else None
        except (EOFError, OSError):
            one.process.join(1.0)  # it is ending, with a status of its own
            is_alive, reply = False, None
        if reply is None:
            seconds, limit = time.monotonic() - one.start_time, self.limit if one.is_ready else START_TIMEOUT
            is_late = index is not None and seconds >= limit
            if not is_alive or is_late or time.monotonic() >= one.end_time:
                self._kill(one)
                late = "" if one.is_ready else f"did not start within {START_TIMEOUT:g} s"
                yield from self._lost(one, index, late if is_alive else failures.exit_text(one.process.exitcode))
        elif not one.is_ready:
            if reply:  # the function cannot be loaded
                raise pickle.loads(reply).to_error()
            self.has_started, one.is_ready, one.start_time = True, True, time.monotonic()
        elif index is not None:
            one.index = None
            outcome = worker.received(index, reply)
            kind = None if outcome.failure is None else outcome.failure.kind
            if kind == "out of memory":
                self._kill(one)  # which frees what it holds
            if kind == "stopped":  # by its command, or else by `kill PID`
                yield from self._lost(one, index, "was stopped from outside")
            else:
                yield outcome

    def _lost(self, one: "_Worker", index: int | None, reason: str) -> Iterator[Outcome]:
        """The outcome of the item of a worker that died for a reason, or without one took too long, unless it is tried
        again."""
        if index is None:
            return
        self.deaths[index] += 1
        if self.stop.requested:
            failure = failures.stopped_failure(self.stop)
        elif not reason:
            failure = failures.timeout_failure(self.job.timeout or 0.0)
        elif self.deaths[index] < engine.MAX_TRIES and one.process.exitcode != _UNGUARDED:
            self.waiting.appendleft(index)  # in the order of the items: a search proposes by the trials before
            return
        elif self.has_started:
            failure = failures.died_failure(reason, engine.MAX_TRIES)
        else:
            raise OperationalError(
                f"no worker could start: its process {reason}. If this is a script, it needs "
                "`if __name__ == '__main__':` around its code, which each worker imports; workers=1 alone starts none"
            )
        yield Outcome(index, failure=failure)


class _Worker:
    """A worker process as its command sees it: with the `index` of an item or idle; ready when it has begun to work."""

    def __init__(self, slot: int, job: worker.Job, stop_timeout: float) -> None:
        self.slot, self.stop_timeout, self.is_ready = slot, stop_timeout, False
        self.index: int | None = None
        self.start_time = self.end_time = math.inf  # of its item; and when it is killed
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=worker.serve, args=(theirs, job, slot, os.getpid(), stop_timeout))
        resource_tracker.ensure_running()  # it would let signals through again
        old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the process inherits it
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
            theirs.close()

    def end(self) -> None:
        """Asks it to stop its item and to end; one that is still starting is killed."""
        if self.end_time == math.inf:
            self.end_time = time.monotonic() + (engine.STOP_TIMEOUT if self.index is None else self.stop_timeout)
            self.send(worker.END)
            if not self.is_ready and not self.connection.poll():  # which has said nothing since
                self.process.kill()

    def send(self, item: bytes) -> None:
        with suppress(OSError):  # it has died, which is noticed when it is looked at
            self.connection.send_bytes(item)
