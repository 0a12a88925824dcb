"""Several workers on a list of items: who does what, and what becomes of items whose worker dies or never ends.

The pool decides, a crew carries out: processes of this machine or actors of a cluster, by the same rules.
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
"""Seconds between asking a worker to end its item and killing it."""

_TICK = 0.5
DEATHS = 100
"""Workers that die of their items one after the other, or 4 per worker where that is more, until no more are begun."""

_STARTS = 3  # workers that die one after the other before they are ready, until no more are begun


@dataclass(frozen=True)
class Event:
    """What a crew reports of a worker: it is ready (with its `name`), its item is over (`reply`), it could not open the
    work (`failure`), or it is gone (`failure` says how). After the last two it is heard of no more."""

    worker: Hashable
    kind: Literal["ready", "over", "refused", "gone"]
    name: str = ""
    reply: Reply | None = None
    failure: Failure | None = None


class Backend(ABC):
    """Workers of one kind, as a pool drives them. Nothing here decides anything, and nothing but `wait` waits."""

    @abstractmethod
    def hire(self, place: int) -> Hashable:
        """Begins a worker at a place (0 to workers - 1; two at once never have the same) and says what it is known by.
        It is heard of by an event."""

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
    def ask(self, worker: Hashable) -> None:
        """Asks a worker to end its item at a good place."""

    @abstractmethod
    def dismiss(self, worker: Hashable) -> None:
        """Lets a worker end that has no item. It is heard of no more."""

    @abstractmethod
    def kill(self, worker: Hashable) -> None:
        """Ends a worker at once, whatever it does. It is heard of no more."""

    @abstractmethod
    def close(self) -> None:
        """Waits a little for the workers that were let go, and ends whoever is left."""


@dataclass
class WorkerState:
    """A worker, as the pool knows it: the item at hand since when, and since when it is asked to end it."""

    place: int
    name: str = ""
    ready: bool = False
    item: int | None = None
    since: float = 0.0
    late: float | None = None
    told: bool = False


@dataclass
class Pool:
    """Drives a crew of up to `workers` through `items`; `run` yields each as soon as it is over.

    A worker is begun for each item that waits, up to `workers`, all of them at once, and gets an item whenever it has
    none. One that dies takes its item along and is replaced; one whose item takes longer than `timeout` seconds is
    asked to end it, killed `GRACE` seconds later, and replaced. Raises `UserError` or `OperationalError` where no
    worker can begin, and where many die one after the other without any item done.
    """

    backend: Backend
    work: Work
    items: Sequence[Any]
    workers: int
    timeout: float | None
    stop: Stop
    tick: Callable[[], None]
    _waiting: deque[int] = field(default_factory=deque)
    _hands: dict[Hashable, WorkerState] = field(default_factory=dict)
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
                if not self._over and not self._hands:
                    raise self._refusal()
                for event in self.backend.wait(0 if self._over else self._patience()):
                    self._hear(event)
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
                for worker in list(self._hands):
                    self.backend.kill(worker)
                self.backend.close()

    def _fill(self) -> None:
        """Gives items to workers that have none, begins workers for those that wait, lets go who is not needed."""
        idle = [worker for worker, hand in self._hands.items() if hand.ready and hand.item is None]
        while self._waiting and idle and not self.stop.requested:
            index = self._waiting.popleft()
            try:
                packed = self.backend.pack(self.items[index])
            except Exception as error:
                text = f"{self._called(index)} cannot be sent to a worker: {error}"
                self._end(index, failure_of(TypeError(text).with_traceback(error.__traceback__)))
                continue
            worker = idle.pop(0)
            hand = self._hands[worker]
            hand.item, hand.since = index, time.monotonic()
            self.backend.give(worker, packed)
        if not self._waiting:
            for worker in [worker for worker, hand in self._hands.items() if hand.item is None]:
                (self.backend.dismiss if self._hands.pop(worker).ready else self.backend.kill)(worker)
            return
        beginning = sum(not hand.ready for hand in self._hands.values())
        while len(self._hands) < self.workers and beginning < len(self._waiting) and self._starts < _STARTS:
            place = next(place for place in range(self.workers) if place not in self._places())
            try:
                self._hands[self.backend.hire(place)] = WorkerState(place)
                beginning += 1
            except OSError as error:
                self._starts = _STARTS
                self._ended = Failure("fault", f"no worker can be begun: {error.strerror or error}")

    def _places(self) -> set[int]:
        return {hand.place for hand in self._hands.values()}

    def _hear(self, event: Event) -> None:
        hand = self._hands.get(event.worker)
        if hand is None:
            return
        if event.kind == "ready":
            hand.ready, hand.name, self._starts = True, event.name, 0
            return
        if event.kind == "over":
            assert event.reply is not None
            self._replied(event.worker, hand, event.reply)
            return
        del self._hands[event.worker]
        self._ended = event.failure
        assert event.failure is not None
        if event.kind == "refused":
            self._starts = _STARTS
            if any(other.ready for other in self._hands.values()):
                warnings.warn(f"a worker could not begin, the others go on: {event.failure.text}", stacklevel=2)
        elif hand.item is None:
            self._starts += not hand.ready
        else:
            self._deaths += 1
            failure = event.failure if hand.late is None else self._timed_out()
            if hand.told and hand.late is None:  # it may have ended before it took the item that it was given
                failure = stopped(self.stop)
            self._end(hand.item, failure, time.monotonic() - hand.since, hand.name)

    def _replied(self, worker: Hashable, hand: WorkerState, reply: Reply) -> None:
        assert hand.item is not None
        index, failure, result = hand.item, reply.failure, None
        hand.item = None
        self._deaths = 0
        if failure is None:
            try:
                result = pickle.loads(reply.result)
            except Exception as error:
                failure = failure_of(error)
        elif failure.kind == "stopped" and hand.late is not None:
            failure = self._timed_out()
        elif failure.kind == "stopped":
            failure = replace(failure, status=self.stop.status or failure.status)
        self._over.append(Finished(index, result, failure, reply.seconds, hand.name))
        if reply.last or hand.late is not None:
            del self._hands[worker]
            self.backend.dismiss(worker)

    def _end(self, index: int, failure: Failure, seconds: float = 0.0, worker: str = "") -> None:
        if failure.kind == "out of memory":
            failure = replace(failure, text=f"out of memory in {self._called(index)}: {failure.text}")
        self._over.append(Finished(index, None, failure, seconds, worker))

    def _overdue(self) -> None:
        if self.timeout is None:
            return
        now = time.monotonic()
        for worker, hand in list(self._hands.items()):
            if hand.item is None or now - hand.since <= self.timeout:
                continue
            if hand.late is None:
                hand.late = now
                self._ask(worker, hand)
            elif now - hand.late > GRACE:
                del self._hands[worker]
                self.backend.kill(worker)
                self._end(hand.item, self._timed_out(), now - hand.since, hand.name)

    def _patience(self) -> float:
        """Seconds until something has to be done even if nothing happens."""
        now, next_one = time.monotonic(), _TICK
        for hand in self._hands.values():
            if self.timeout is not None and hand.item is not None:
                due = hand.since + self.timeout if hand.late is None else hand.late + GRACE
                next_one = min(next_one, max(0.01, due - now))
        return next_one

    def _begin_no_more(self) -> None:
        while self._waiting:
            failure = Failure("not begun", "not begun; the same command goes on", self.stop.status or 130)
            self._end(self._waiting.popleft(), failure)
        for worker, hand in self._hands.items():
            self._ask(worker, hand)

    def _ask(self, worker: Hashable, hand: WorkerState) -> None:
        if not hand.told and hand.item is not None:
            hand.told = True
            self.backend.ask(worker)

    def _let_go(self) -> None:
        """When nobody waits for the items any more: those at hand are asked to end, for at most `GRACE` seconds."""
        for worker, hand in self._hands.items():
            self._ask(worker, hand)
        end = time.monotonic() + GRACE
        while any(hand.item is not None for hand in self._hands.values()) and time.monotonic() < end:
            for event in self.backend.wait(0.1):
                hand_of_it = self._hands.get(event.worker)
                if hand_of_it is not None and event.kind == "over":
                    del self._hands[event.worker]
                    self.backend.dismiss(event.worker)
                elif event.kind in ("refused", "gone"):
                    self._hands.pop(event.worker, None)

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
