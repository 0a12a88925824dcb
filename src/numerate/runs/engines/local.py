"""Worker processes on this machine: each imports its libraries once and does one item after the other."""

import math
import multiprocessing
import os
import pickle
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from pebble import ProcessExpired

from numerate.errors import OperationalError, UserError
from numerate.runs.engines import engine, failures, worker
from numerate.runs.engines.engine import Engine, Outcome, name_of, not_started
from numerate.runs.engines.machine import num_available_cpus
from numerate.runs.engines.memory import count_oom_kills
from numerate.runs.engines.processes import WorkerProcess, exit_text
from numerate.training.stopping import Stop

MAX_CONSECUTIVE_DEATHS = 100
"""Consecutive deaths of workers (or 4 per worker if that is more) after which no more are started."""

_MAX_FAILED_STARTS = 3  # consecutive deaths of workers that were starting, after which no more are started
_UNGUARDED = 87  # exit status of a worker that was about to start workers itself
_GUARD_MESSAGE = (
    "a script that starts workers needs `if __name__ == '__main__':` around its code, since each worker imports "
    "the script again; without engine=, workers=1 starts none"
)


@dataclass(frozen=True)
class Local(Engine):
    """Worker processes on this machine, one per core by default; GPUs are assigned round-robin.

    The processes are spawned (not forked), each in a pool of pebble of its own, so that a crash of one affects no
    other. They ignore Ctrl-C, which the command handles for all of them, and end when the command does, at the next
    safe point of their items. A script that uses this needs `if __name__ == "__main__":`.
    """

    @property
    def num_workers(self) -> int:
        return self.workers or max(1, num_available_cpus() // self.threads)

    def map(
        self,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        *,
        folder: Path | None = None,
        stop: Stop | None = None,
        on_tick: Callable[[], None] = lambda: None,
    ) -> Iterator[Outcome]:
        return self.map_with(function, items, stop or Stop(), on_tick)

    def map_with(
        self,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        stop: Stop,
        on_tick: Callable[[], None] = lambda: None,
        *,
        stop_timeout: float | None = None,
    ) -> Iterator[Outcome]:
        """Like `map`; running items have so many seconds to stop."""
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            os._exit(_UNGUARDED)
        job, num_workers = worker.Job.of(function, self), min(self.num_workers, len(items))
        seconds = engine.STOP_TIMEOUT if stop_timeout is None else stop_timeout
        return _Map(job, function, items, num_workers, stop, on_tick, seconds).run()


class _Map:
    """One call of `map`: gives items to idle workers, replaces workers that died, and tries their items again."""

    def __init__(
        self,
        job: worker.Job,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        num_workers: int,
        stop: Stop,
        on_tick: Callable[[], None],
        stop_timeout: float,
    ) -> None:
        self.job, self.function, self.items, self.stop, self.on_tick = job, function, items, stop, on_tick
        self.waiting = deque(range(len(items)))
        self.deaths: Counter[int] = Counter()
        self.consecutive_deaths = self.failed_starts = 0
        self.max_consecutive_deaths = max(MAX_CONSECUTIVE_DEATHS, 4 * num_workers)
        self.oom_kills = count_oom_kills()
        self.idle = list(range(num_workers))  # slots, whose workers start with their first items
        self.workers: dict[int, WorkerProcess] = {}
        self.running: dict[Future[worker.Reply], tuple[WorkerProcess, int, float]] = {}
        self.finished: SimpleQueue[Future[worker.Reply]] = SimpleQueue()
        self.stop_timeout, self.kill_at = stop_timeout, math.inf

    def run(self) -> Iterator[Outcome]:
        # Workers stop when this pipe is closed: by the command, or by the system when the command is gone.
        self.lifeline, self.command_end = multiprocessing.get_context("spawn").Pipe(duplex=False)
        self.closer = ThreadPoolExecutor(max(1, len(self.idle)))
        last_tick = time.monotonic()
        try:
            while self.waiting or self.running:
                if self.stop.requested:
                    yield from self._stop_all()
                yield from self._start_items()
                with suppress(Empty):
                    yield from self._finish(self.finished.get(timeout=engine.TICK_INTERVAL))
                for future in [future for future, (one, *_) in self.running.items() if one.has_lost(future)]:
                    one, index, start_time = self.running.pop(future)
                    yield from self._died(
                        one, index, time.monotonic() - start_time, one.exit_code, was_started=bool(one.name)
                    )
                if time.monotonic() - last_tick >= engine.TICK_INTERVAL:
                    self.on_tick()
                    last_tick = time.monotonic()
        finally:
            self._close()

    def _stop_all(self) -> Iterator[Outcome]:
        while self.waiting:
            yield not_started(self.waiting.popleft(), self.stop)
        if self.kill_at == math.inf:
            self.command_end.close()
            self.kill_at = time.monotonic() + self.stop_timeout
        elif time.monotonic() >= self.kill_at:
            for one, *_ in self.running.values():
                one.kill()

    def _close(self) -> None:
        try:
            self.command_end.close()
            if not (self.stop.requested and self.running):  # otherwise a second Ctrl-C: at once
                wait(self.running, timeout=self.stop_timeout)
        finally:
            for one, *_ in self.running.values():
                one.kill()
            for slot in list(self.workers):
                self._dismiss(slot)
            self.closer.shutdown()
            self.lifeline.close()

    def _dismiss(self, slot: int) -> None:
        """Ends the worker in a slot; the slot gets another one with its next item."""
        self.closer.submit(self.workers.pop(slot).close)

    def _start_items(self) -> Iterator[Outcome]:
        while self.waiting and self.idle and not self.stop.requested:
            index = self.waiting.popleft()
            try:
                item = pickle.dumps(self.items[index])
            except Exception as error:
                yield failures.not_sent(index, name_of(self.function, self.items[index]), error)
                continue
            slot = self.idle.pop(0)
            if slot in self.workers and not self.workers[slot].pool.active:  # it died while it was idle
                self._dismiss(slot)
            if slot not in self.workers:
                self.workers[slot] = WorkerProcess(slot, self.job, self.lifeline, self.stop_timeout)
            try:
                future = self.workers[slot].start(item)
            except (RuntimeError, OSError) as error:  # the slot is given up, if there are others
                self._dismiss(slot)
                self.waiting.appendleft(index)
                if not self.running:
                    cause = error.__cause__ or error
                    reason = getattr(cause, "strerror", None) or cause
                    raise OperationalError(f"no worker could be started: {reason}") from error
                continue
            self.running[future] = (self.workers[slot], index, time.monotonic())
            future.add_done_callback(self.finished.put)
        if not self.waiting:
            for slot in set(self.idle) & set(self.workers):
                self._dismiss(slot)

    def _finish(self, future: "Future[worker.Reply]") -> Iterator[Outcome]:
        """The outcome of the item of a future that is done, unless it is tried again."""
        if future not in self.running:  # its worker was lost
            return
        one, index, start_time = self.running.pop(future)
        seconds = time.monotonic() - start_time
        try:
            reply = future.result()
        except TimeoutError:
            self._dismiss(one.slot)
            self.idle.append(one.slot)
            failure = failures.timeout_failure(self.job.timeout or 0.0)
            yield Outcome(index, failure=failure, seconds=seconds, worker=one.name)
        except ProcessExpired as error:
            yield from self._died(one, index, seconds, error.exitcode, was_started=True)
        except BrokenProcessPool:
            yield from self._died(one, index, seconds, one.exit_code, was_started=bool(one.name))
        except Exception as error:  # there was no reply, such as without memory for it
            self.idle.append(one.slot)
            failure = failures.to_failure(error, name_of(self.function, self.items[index]), self.stop)
            yield Outcome(index, failure=failure, seconds=seconds, worker=one.name)
        else:
            self.consecutive_deaths = self.failed_starts = 0
            one.name = reply.outcome.worker
            self.idle.append(one.slot)
            outcome = worker.received(index, reply, self.stop)
            if outcome.failure is not None and outcome.failure.kind == "out of memory":
                self._dismiss(one.slot)
            yield outcome

    def _died(
        self, one: WorkerProcess, index: int, seconds: float, code: int | None, *, was_started: bool
    ) -> Iterator[Outcome]:
        """Counts the death of a worker: its item is tried again, or has failed."""
        self._dismiss(one.slot)
        self.idle.append(one.slot)
        reason = exit_text(code)
        self.failed_starts = 0 if was_started else self.failed_starts + 1
        self.consecutive_deaths += 1
        self.deaths[index] += 1
        if code == _UNGUARDED:
            raise UserError(_GUARD_MESSAGE) from None
        if self.stop.requested:
            failure = failures.stopped_failure(self.stop)
        elif code == -signal.SIGKILL and count_oom_kills() > self.oom_kills:
            self.oom_kills = count_oom_kills()
            failure = failures.oom_killed_failure(name_of(self.function, self.items[index]))
        elif self.failed_starts >= _MAX_FAILED_STARTS:
            text = f"no worker could start: its process {reason} while it was starting"
            raise OperationalError(f"{text}. If this is a script: {_GUARD_MESSAGE}") from None
        elif self.deaths[index] < engine.MAX_TRIES and self.consecutive_deaths < self.max_consecutive_deaths:
            self.waiting.appendleft(index)  # in the order of the items: a search proposes by the trials before
            return
        else:
            failure = failures.died_failure(reason, self.deaths[index])
        yield Outcome(index, failure=failure, seconds=seconds, worker=one.name)
        if self.consecutive_deaths >= self.max_consecutive_deaths:
            raise OperationalError(
                f"{self.consecutive_deaths} consecutive workers died without finishing an item, the last one: its "
                f"worker {reason}. Finished items are kept; try `workers=1` if they run out of memory together."
            ) from None
