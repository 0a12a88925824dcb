"""A pool of workers on a list of items: scheduling, timeouts, and workers that die.

The pool schedules; a backend runs the workers: processes of this machine or actors of a cluster.
"""

import pickle
import time
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numerate.errors import OperationalError
from numerate.executors.executor import Failure, ItemOutcome, Work
from numerate.executors.worker import Reply, failure_from_exception, stopped_failure
from numerate.training.stopping import Stop

STOP_TIMEOUT = 10.0
"""Seconds between requesting a worker to stop its item and killing it."""

_TICK_INTERVAL = 0.5
MAX_CONSECUTIVE_DEATHS = 100
"""Consecutive deaths of workers (or 4 per worker if that is more) after which no more are started."""

_MAX_FAILED_STARTS = 3  # consecutive deaths of workers before they are ready, after which no more are started


@dataclass(frozen=True)
class Exit:
    """How a worker ended unexpectedly: `reason`, such as "was killed by signal 9", and the failure that this
    is for a worker that was still starting."""

    reason: str
    start_failure: Failure
    is_out_of_memory: bool = False
    traceback: str | None = None

    def failure(self, *, was_ready: bool) -> Failure:
        """The failure of the worker's item, or of its start."""
        if self.is_out_of_memory:
            reason = "its worker was killed, since there was no memory left"
            return Failure("out of memory", f"{reason}; use fewer workers, or a smaller batch or model")
        if not was_ready:
            return self.start_failure
        return Failure("died", f"its worker {self.reason}; the same command resumes", traceback=self.traceback)


Message = str | Reply | Failure | Exit
"""A message about a worker: its name once it is ready, the reply to its item, why it could not open the work, or how it
ended. It works no more after the last two."""


class Backend(ABC):
    """The interface between a pool and its workers. It makes no decisions, and only `wait` blocks.

    `dumps` pickles an item.
    """

    dumps: Callable[[Any], bytes]

    @abstractmethod
    def start_worker(self, slot: int) -> Hashable:
        """Starts a worker in a slot (0 to workers - 1, unique among running ones) and returns its handle."""

    @abstractmethod
    def send_item(self, worker: Hashable, item: bytes) -> None:
        """Gives a pickled item to an idle worker. If the worker is gone, a message says so later."""

    @abstractmethod
    def wait(self, seconds: float) -> list[tuple[Hashable, Message]]:
        """Waits for messages and returns each with its worker; an empty list after a timeout in seconds."""

    @abstractmethod
    def request_stop(self, worker: Hashable) -> None:
        """Requests a worker to stop its item at the next safe point."""

    @abstractmethod
    def release(self, worker: Hashable) -> None:
        """Ends an idle worker. No more messages follow."""

    @abstractmethod
    def kill(self, worker: Hashable) -> None:
        """Kills a worker, if it is still there. No more messages follow."""

    @abstractmethod
    def close(self) -> None:
        """Waits briefly for dismissed workers, and kills the remaining ones."""


@dataclass
class WorkerState:
    """The pool's state of a worker: its item and when that started, and when it was requested to stop
    (`timed_out_at`)."""

    slot: int
    name: str = ""
    is_ready: bool = False
    item: int | None = None
    started_at: float = 0.0
    timed_out_at: float | None = None
    stop_requested: bool = False


@dataclass
class Pool:
    """Runs `items` on up to `workers` workers; `run` yields each as soon as it is finished.

    Up to `workers` workers are started at once, no more than there are waiting items, and get an item whenever they are
    idle. If a worker dies, its item fails and the worker is replaced. If an item takes longer than `timeout` seconds,
    its worker is asked to stop, killed `STOP_TIMEOUT` seconds later, and replaced. Raises `UserError` or
    `OperationalError` if no worker can start, or if many die in a row without finishing an item.
    """

    backend: Backend
    work: Work
    items: Sequence[Any]
    workers: int
    timeout: float | None
    stop: Stop
    on_tick: Callable[[], None]
    _waiting: deque[int] = field(default_factory=deque)
    _workers: dict[Hashable, WorkerState] = field(default_factory=dict)
    _outcomes: deque[ItemOutcome] = field(default_factory=deque)
    _failed_starts: int = 0
    _consecutive_deaths: int = 0
    _last_failure: Failure | None = None

    def run(self) -> Iterator[ItemOutcome]:
        """One `ItemOutcome` for every item, as completed."""
        self._waiting.extend(range(len(self.items)))
        num_remaining, last_tick = len(self.items), time.monotonic()
        try:
            while num_remaining:
                if self.stop.requested:
                    self._cancel_waiting()
                self._schedule()
                if not self._outcomes and not self._workers:
                    raise (
                        OperationalError("no worker could be started")
                        if self._last_failure is None
                        else self._last_failure.to_error()
                    )
                for worker, message in self.backend.wait(0 if self._outcomes else _TICK_INTERVAL):
                    self._handle_message(worker, message)
                self._stop_timed_out()
                self._schedule()
                if time.monotonic() - last_tick >= _TICK_INTERVAL:
                    self.on_tick()
                    last_tick = time.monotonic()
                while self._outcomes:
                    num_remaining -= 1
                    yield self._outcomes.popleft()
                if self._consecutive_deaths >= max(MAX_CONSECUTIVE_DEATHS, 4 * self.workers):
                    assert self._last_failure is not None
                    raise OperationalError(
                        f"{self._consecutive_deaths} consecutive workers died without finishing an item, the last one: "
                        f"{self._last_failure.text}. Finished items are kept; try `workers=1` if they run out of "
                        "memory together."
                    )
        finally:
            try:
                if not self.stop.requested or num_remaining == 0:  # else a second Ctrl-C: at once
                    self._stop_workers()
            finally:
                for worker in list(self._workers):
                    self.backend.kill(worker)
                self.backend.close()

    def _schedule(self) -> None:
        """Gives items to idle workers, starts workers for waiting items, dismisses those not needed."""
        idle = [worker for worker, state in self._workers.items() if state.is_ready and state.item is None]
        while self._waiting and idle and not self.stop.requested:
            index = self._waiting.popleft()
            try:
                serialized = self.backend.dumps(self.items[index])
            except Exception as error:
                text = f"{self._item_name(index)} cannot be sent to a worker: {error}"
                self._fail_item(index, failure_from_exception(TypeError(text).with_traceback(error.__traceback__)))
                continue
            worker = idle.pop(0)
            state = self._workers[worker]
            state.item, state.started_at = index, time.monotonic()
            self.backend.send_item(worker, serialized)
        if not self._waiting:
            for worker in [worker for worker, state in self._workers.items() if state.item is None]:
                (self.backend.release if self._workers.pop(worker).is_ready else self.backend.kill)(worker)
            return
        num_starting = sum(not state.is_ready for state in self._workers.values())
        while (
            len(self._workers) < self.workers
            and num_starting < len(self._waiting)
            and self._failed_starts < _MAX_FAILED_STARTS
        ):
            slot = min(set(range(self.workers)) - {state.slot for state in self._workers.values()})
            try:
                self._workers[self.backend.start_worker(slot)] = WorkerState(slot)
                num_starting += 1
            except OSError as error:
                self._failed_starts = _MAX_FAILED_STARTS
                self._last_failure = Failure(
                    "operational error", f"no worker could be started: {error.strerror or error}"
                )

    def _handle_message(self, worker: Hashable, message: Message) -> None:
        state = self._workers[worker]
        if isinstance(message, str):
            state.is_ready, state.name, self._failed_starts = True, message, 0
            return
        if isinstance(message, Reply):
            self._handle_reply(worker, state, message)
            return
        del self._workers[worker]
        self.backend.kill(worker)
        failure = message.failure(was_ready=state.is_ready) if isinstance(message, Exit) else message
        self._last_failure = failure
        if state.item is None:
            is_final = isinstance(message, Failure) or (not state.is_ready and failure.kind == "user error")
            self._failed_starts = _MAX_FAILED_STARTS if is_final else self._failed_starts + (not state.is_ready)
            if is_final and any(other.is_ready for other in self._workers.values()):
                warnings.warn(f"a worker could not start, the others continue: {failure.text}", stacklevel=2)
        else:
            self._consecutive_deaths += 1
            if state.timed_out_at is not None:
                failure = self._timeout_failure()
            elif state.stop_requested:  # it may have ended before it received the item
                failure = stopped_failure(self.stop)
            self._fail_item(state.item, failure, time.monotonic() - state.started_at, state.name)

    def _handle_reply(self, worker: Hashable, state: WorkerState, reply: Reply) -> None:
        assert state.item is not None
        index, failure, result = state.item, reply.failure, None
        state.item = None
        self._consecutive_deaths = 0
        for text in reply.warnings:
            warnings.warn(text, stacklevel=2)
        if failure is None:
            try:
                result = pickle.loads(reply.result)
            except Exception as error:
                failure = failure_from_exception(error)
        elif failure.kind == "stopped" and state.timed_out_at is not None:
            failure = self._timeout_failure()
        elif failure.kind == "stopped":
            failure = replace(failure, status=self.stop.status or failure.status)
        self._outcomes.append(ItemOutcome(index, result, failure, reply.seconds, state.name))
        if reply.is_last or state.timed_out_at is not None:
            del self._workers[worker]
            self.backend.release(worker)

    def _fail_item(self, index: int, failure: Failure, seconds: float = 0.0, worker: str = "") -> None:
        if failure.kind == "out of memory":
            failure = replace(failure, text=f"out of memory in {self._item_name(index)}: {failure.text}")
        self._outcomes.append(ItemOutcome(index, None, failure, seconds, worker))

    def _stop_timed_out(self) -> None:
        if self.timeout is None:
            return
        now = time.monotonic()
        for worker, state in list(self._workers.items()):
            if state.item is None or now - state.started_at <= self.timeout:
                continue
            if state.timed_out_at is None:
                state.timed_out_at = now
                self._request_stop(worker, state)
            elif now - state.timed_out_at > STOP_TIMEOUT:
                del self._workers[worker]
                self.backend.kill(worker)
                self._fail_item(state.item, self._timeout_failure(), now - state.started_at, state.name)

    def _cancel_waiting(self) -> None:
        while self._waiting:
            failure = Failure("not started", "not started; the same command resumes", self.stop.status or 130)
            self._fail_item(self._waiting.popleft(), failure)
        for worker, state in self._workers.items():
            self._request_stop(worker, state)

    def _request_stop(self, worker: Hashable, state: WorkerState) -> None:
        if not state.stop_requested and state.item is not None:
            state.stop_requested = True
            self.backend.request_stop(worker)

    def _stop_workers(self) -> None:
        """Stops the running items when the results are no longer needed, for at most `STOP_TIMEOUT` seconds."""
        for worker, state in self._workers.items():
            self._request_stop(worker, state)
        end = time.monotonic() + STOP_TIMEOUT
        while any(state.item is not None for state in self._workers.values()) and time.monotonic() < end:
            for worker, message in self.backend.wait(0.1):
                self._handle_message(worker, message)

    def _timeout_failure(self) -> Failure:
        assert self.timeout is not None
        return Failure("timeout", f"took longer than timeout={self.timeout:g} s")

    def _item_name(self, index: int) -> str:
        try:
            return self.work.item_name(self.items[index])
        except Exception:
            return f"item {index}"
