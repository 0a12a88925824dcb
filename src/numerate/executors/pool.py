"""A pool of workers on a list of items: scheduling, timeouts, and workers that die.

The pool decides, a backend carries out: processes of this machine or actors of a cluster, by the same rules.
"""

import pickle
import time
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from numerate.errors import OperationalError, UserError
from numerate.executors.executor import Failure, Finished, Work
from numerate.executors.worker import Reply, failure_of, stopped
from numerate.training.stopping import Stop

GRACE = 10.0
"""Seconds between requesting a worker to stop its item and killing it."""

_TICK = 0.5
DEATHS = 100
"""Consecutive deaths of workers, or 4 per worker where that is more, until no more are started."""

_STARTS = 3  # workers that die one after the other before they are ready, until no more are begun


@dataclass(frozen=True)
class Event:
    """An event of a worker: it is ready (with its `name`), its item is over (`reply`), it could not open the work
    (`failure`), or it is gone (`failure` says how). The last two are final."""

    worker: Hashable
    kind: Literal["ready", "over", "refused", "gone"]
    name: str = ""
    reply: Reply | None = None
    failure: Failure | None = None


class Backend(ABC):
    """Workers of one kind, as a pool drives them. Nothing here decides anything, and nothing but `wait` waits."""

    @abstractmethod
    def hire(self, slot: int) -> Hashable:
        """Starts a worker in a slot (0 to workers - 1, unique among running ones) and returns its handle. An event
        follows."""

    @abstractmethod
    def pack(self, item: Any) -> bytes:
        """An item, pickled. Raises what pickling raises."""

    @abstractmethod
    def give(self, worker: Hashable, item: bytes) -> None:
        """Gives a packed item to a worker that has none. If the worker is gone, an event says so later."""

    @abstractmethod
    def wait(self, seconds: float) -> list[Event]:
        """What happened, as soon as anything has; nothing after so many seconds."""

    @abstractmethod
    def request_stop(self, worker: Hashable) -> None:
        """Requests a worker to stop its item at the next safe point."""

    @abstractmethod
    def dismiss(self, worker: Hashable) -> None:
        """Ends an idle worker. No more events follow."""

    @abstractmethod
    def kill(self, worker: Hashable) -> None:
        """Kills a worker. No more events follow."""

    @abstractmethod
    def close(self) -> None:
        """Waits a little for the workers that were let go, and ends whoever is left."""


@dataclass
class WorkerState:
    """A worker as the pool sees it: its item and when that started, and when it was requested to stop (`late`)."""

    slot: int
    name: str = ""
    ready: bool = False
    item: int | None = None
    since: float = 0.0
    late: float | None = None
    stopping: bool = False


@dataclass
class Pool:
    """Runs `items` on up to `workers` workers; `run` yields each as soon as it is over.

    A worker is begun for each item that waits, up to `workers`, all of them at once, and gets an item whenever it has
    none. One that dies loses its item and is replaced; one whose item takes longer than `timeout` seconds is requested
    to stop it, killed `GRACE` seconds later, and replaced. Raises `UserError` or `OperationalError` where no worker
    can start, and where many die one after the other without any item done.
    """

    backend: Backend
    work: Work
    items: Sequence[Any]
    workers: int
    timeout: float | None
    stop: Stop
    tick: Callable[[], None]
    _waiting: deque[int] = field(default_factory=deque)
    _workers: dict[Hashable, WorkerState] = field(default_factory=dict)
    _over: deque[Finished] = field(default_factory=deque)
    _starts: int = 0
    _deaths: int = 0
    _ended: Failure | None = None

    def run(self) -> Iterator[Finished]:
        """One `Finished` for every item, as completed."""
        self._waiting.extend(range(len(self.items)))
        left, ticked = len(self.items), time.monotonic()
        try:
            while left:
                if self.stop.requested:
                    self._begin_no_more()
                self._fill()
                if not self._over and not self._workers:
                    raise self._refusal()
                for event in self.backend.wait(0 if self._over else self._patience()):
                    self._handle(event)
                self._overdue()
                self._fill()
                if time.monotonic() - ticked >= _TICK:
                    self.tick()
                    ticked = time.monotonic()
                while self._over:
                    left -= 1
                    yield self._over.popleft()
                if self._deaths >= max(DEATHS, 4 * self.workers):
                    raise OperationalError(self._dying())
        finally:
            try:
                if not self.stop.requested or left == 0:  # else a second Ctrl-C: at once
                    self._let_go()
            finally:
                for worker in list(self._workers):
                    self.backend.kill(worker)
                self.backend.close()

    def _fill(self) -> None:
        """Gives items to idle workers, starts workers for waiting items, dismisses those not needed."""
        idle = [worker for worker, state in self._workers.items() if state.ready and state.item is None]
        while self._waiting and idle and not self.stop.requested:
            index = self._waiting.popleft()
            try:
                packed = self.backend.pack(self.items[index])
            except Exception as error:
                text = f"{self._called(index)} cannot be sent to a worker: {error}"
                self._end(index, failure_of(TypeError(text).with_traceback(error.__traceback__)))
                continue
            worker = idle.pop(0)
            state = self._workers[worker]
            state.item, state.since = index, time.monotonic()
            self.backend.give(worker, packed)
        if not self._waiting:
            for worker in [worker for worker, state in self._workers.items() if state.item is None]:
                (self.backend.dismiss if self._workers.pop(worker).ready else self.backend.kill)(worker)
            return
        beginning = sum(not state.ready for state in self._workers.values())
        while len(self._workers) < self.workers and beginning < len(self._waiting) and self._starts < _STARTS:
            slot = next(slot for slot in range(self.workers) if slot not in self._slots())
            try:
                self._workers[self.backend.hire(slot)] = WorkerState(slot)
                beginning += 1
            except OSError as error:
                self._starts = _STARTS
                self._ended = Failure("fault", f"no worker can be begun: {error.strerror or error}")

    def _slots(self) -> set[int]:
        return {state.slot for state in self._workers.values()}

    def _handle(self, event: Event) -> None:
        state = self._workers.get(event.worker)
        if state is None:
            return
        if event.kind == "ready":
            state.ready, state.name, self._starts = True, event.name, 0
            return
        if event.kind == "over":
            assert event.reply is not None
            self._replied(event.worker, state, event.reply)
            return
        del self._workers[event.worker]
        self._ended = event.failure
        assert event.failure is not None
        if event.kind == "refused":
            self._starts = _STARTS
            if any(other.ready for other in self._workers.values()):
                warnings.warn(f"a worker could not begin, the others continue: {event.failure.text}", stacklevel=2)
        elif state.item is None:
            self._starts += not state.ready
        else:
            self._deaths += 1
            failure = event.failure if state.late is None else self._timed_out()
            if state.stopping and state.late is None:  # it may have ended before it took the item that it was given
                failure = stopped(self.stop)
            self._end(state.item, failure, time.monotonic() - state.since, state.name)

    def _replied(self, worker: Hashable, state: WorkerState, reply: Reply) -> None:
        assert state.item is not None
        index, failure, result = state.item, reply.failure, None
        state.item = None
        self._deaths = 0
        if failure is None:
            try:
                result = pickle.loads(reply.result)
            except Exception as error:
                failure = failure_of(error)
        elif failure.kind == "stopped" and state.late is not None:
            failure = self._timed_out()
        elif failure.kind == "stopped":
            failure = replace(failure, status=self.stop.status or failure.status)
        self._over.append(Finished(index, result, failure, reply.seconds, state.name))
        if reply.last or state.late is not None:
            del self._workers[worker]
            self.backend.dismiss(worker)

    def _end(self, index: int, failure: Failure, seconds: float = 0.0, worker: str = "") -> None:
        if failure.kind == "out of memory":
            failure = replace(failure, text=f"out of memory in {self._called(index)}: {failure.text}")
        self._over.append(Finished(index, None, failure, seconds, worker))

    def _overdue(self) -> None:
        if self.timeout is None:
            return
        now = time.monotonic()
        for worker, state in list(self._workers.items()):
            if state.item is None or now - state.since <= self.timeout:
                continue
            if state.late is None:
                state.late = now
                self._request_stop(worker, state)
            elif now - state.late > GRACE:
                del self._workers[worker]
                self.backend.kill(worker)
                self._end(state.item, self._timed_out(), now - state.since, state.name)

    def _patience(self) -> float:
        """Seconds until something has to be done even if nothing happens."""
        now, next_one = time.monotonic(), _TICK
        for state in self._workers.values():
            if self.timeout is not None and state.item is not None:
                due = state.since + self.timeout if state.late is None else state.late + GRACE
                next_one = min(next_one, max(0.01, due - now))
        return next_one

    def _begin_no_more(self) -> None:
        while self._waiting:
            failure = Failure("not begun", "not begun; the same command resumes", self.stop.status or 130)
            self._end(self._waiting.popleft(), failure)
        for worker, state in self._workers.items():
            self._request_stop(worker, state)

    def _request_stop(self, worker: Hashable, state: WorkerState) -> None:
        if not state.stopping and state.item is not None:
            state.stopping = True
            self.backend.request_stop(worker)

    def _let_go(self) -> None:
        """Stops the running items when nobody waits for them any more, for at most `GRACE` seconds."""
        for worker, state in self._workers.items():
            self._request_stop(worker, state)
        end = time.monotonic() + GRACE
        while any(state.item is not None for state in self._workers.values()) and time.monotonic() < end:
            for event in self.backend.wait(0.1):
                hand_of_it = self._workers.get(event.worker)
                if hand_of_it is not None and event.kind == "over":
                    del self._workers[event.worker]
                    self.backend.dismiss(event.worker)
                elif event.kind in ("refused", "gone"):
                    self._workers.pop(event.worker, None)

    def _timed_out(self) -> Failure:
        assert self.timeout is not None
        return Failure("timeout", f"took longer than timeout={self.timeout:g} s")

    def _called(self, index: int) -> str:
        try:
            return self.work.name_of(self.items[index])
        except Exception:
            return f"item {index}"

    def _refusal(self) -> UserError | OperationalError:
        failure = self._ended
        if failure is None:
            return OperationalError("no worker could be begun")
        error = UserError(failure.text) if failure.kind == "mistake" else OperationalError(failure.text)
        if failure.trace is not None:
            error.add_note(failure.trace)
        return error

    def _dying(self) -> str:
        how = "" if self._ended is None else f", the last one so: {self._ended.text}"
        return (
            f"{self._deaths} workers died one after the other, and no item was done in between{how}. "
            "What is done is kept; `workers=1` shows whether they die of each other's memory."
        )
