"""The interface of all executors: they take items and yield results or failures as completed."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from numerate.config import Spec, setting
from numerate.errors import OperationalError, UserError
from numerate.training.stopping import Stop

FailureKind = Literal[
    "user error",
    "operational error",
    "error",
    "out of memory",
    "disk full",
    "busy",
    "died",
    "timeout",
    "stopped",
    "not started",
]
"""How an item failed: "user error" (also an exception in a user's file), "operational error" (of the environment),
"error" (an unexpected exception), "out of memory", "disk full", "busy" (another process holds its lock), "died" (its
worker), "timeout", "stopped", or "not started" because everything was stopped."""


MAX_DEATHS = 3
"""A run or a trial has failed if its worker died this often in a row without progress."""

DEFAULT_NUM_WORKERS = 64
"""Assumed number of workers if it is unknown: more shards of a grid than needed cost little."""


@dataclass(frozen=True)
class Failure:
    """The reason why an item has no result: `text` for the user, `traceback` for debugging.

    `status` is the exit status of a command with this failure only.
    """

    kind: FailureKind
    text: str
    status: int = 1
    traceback: str | None = None

    @classmethod
    def from_dict(cls, data: object) -> "Failure":
        """From plain data, as returned by `dataclasses.asdict`. Raises `ValueError` for any other."""
        if not isinstance(data, dict) or data.get("kind") not in get_args(FailureKind):
            raise ValueError("not a failure")
        kind, text, status, traceback = (data.get(name) for name in ("kind", "text", "status", "traceback"))
        if not isinstance(text, str) or not isinstance(status, int) or not isinstance(traceback, str | None):
            raise ValueError("not a failure")
        return cls(kind, text, status, traceback)  # type: ignore[arg-type]

    @property
    def is_transient(self) -> bool:
        """Whether the item may succeed if it is started again: it was stopped, or its worker died."""
        return self.kind in ("died", "stopped", "not started", "busy", "disk full")

    def to_error(self, text: str | None = None) -> UserError | OperationalError:
        """The exception of a command that ends with this failure, with another text if given."""
        message = self.text if text is None else text
        error = UserError(message) if self.kind == "user error" else OperationalError(message)
        if self.traceback is not None:
            error.add_note(self.traceback)
        return error


@dataclass(frozen=True)
class ItemOutcome:
    """A finished item: its `index` among the items, and its result or its failure.

    `seconds` is its time in the worker, without waiting; `worker` is the name of that worker.
    """

    index: int
    result: Any = None
    failure: Failure | None = None
    seconds: float = 0.0
    worker: str = ""


@dataclass(frozen=True)
class WorkerContext:
    """The context of a worker.

    `worker` is a name unique across machines and time, so that a file named by it has one writer. `stop` is requested
    when the current item should end early, at the next safe point.
    """

    worker: str
    threads: int
    stop: Stop


class Work(ABC):
    """The work to do on each item. It is pickled to every worker and opened there once: expensive setup (libraries, a
    model) happens in `open`, not per item. Items are pickled too. What must outlive the command, each item writes to a
    file itself: its result only informs a command that is waiting. On Slurm it must be plain (JSON) data.

    >>> class Square(Work):
    ...     def open(self, context):
    ...         return lambda item: item * item
    """

    @abstractmethod
    def open(self, context: WorkerContext) -> Callable[[Any], Any]:
        """Returns the function that processes one item. An exception that it raises is the failure of that item
        only."""

    def item_name(self, item: Any) -> str:
        """The name of an item in errors and in `status`."""
        return str(item)

    def __repr__(self) -> str:
        """Names the work: that of an earlier command is the same if it is printed the same."""
        return f"{type(self).__module__}.{type(self).__qualname__}({vars(self)!r})"

    def check_result(self, result: Any) -> None:
        """Raises `ValueError` or `TypeError` for a result, read from a file, that no item of this work returns."""
        return


@dataclass(frozen=True)
class Executor(Spec, ABC):
    """Processes items with several workers: `Local`, `Ray` or `Slurm`. The results are the same on each.

    For example:

        sorted(one.result for one in Local(workers=2).run(Square(), [1, 2, 3]))  # 1, 4, 9
    """

    workers: int | None = setting(
        None, "number of workers; null: one per core (local), one per free CPU of the cluster (ray)", at_least=1
    )
    threads: int = setting(1, "CPU threads per worker", at_least=1)
    timeout: float | None = setting(
        None, "time limit per item (a run, a shard of a grid), in seconds; null: none", above=0
    )
    memory: float | None = setting(
        None, "memory limit per worker in bytes, in addition to its libraries, such as 4e9; null: none", above=0
    )

    @property
    def num_workers(self) -> int:
        """The number of concurrent workers, or a guess if that is unknown before they start."""
        return self.workers or DEFAULT_NUM_WORKERS

    def check_available(self) -> None:
        """Checks that this executor is available, before anything is written or started.

        Raises the `UserError` that `run` would raise for a package or a program that is not installed, or for an
        address that does not answer, if that can be checked before anything is started.
        """
        return

    @abstractmethod
    def run(
        self,
        work: Work,
        items: Sequence[Any],
        *,
        folder: Path | None = None,
        stop: Stop | None = None,
        on_tick: Callable[[], None] = lambda: None,
    ) -> Iterator[ItemOutcome]:
        """Yields one `ItemOutcome` for every item, in the order in which they are completed.

        `folder` is for files of the executor (logs, job scripts). When `stop` is requested, running items are stopped
        and waiting ones end as "not started". `on_tick` is called about twice a second while waiting. Raises
        `UserError` before anything is started if the executor is not available (a package that is not installed, an
        address that does not answer).
        """

    def script(self, work: Work, items: Sequence[Any], folder: Path) -> str:
        """The job script that would be submitted, for `--dry-run`. Nothing is started or written."""
        raise UserError(f"{type(self).__name__} has no job script; use executor=slurm")


def pickle_with(dumps: Callable[[Any], bytes], value: Any, name: str) -> bytes:
    """A value as bytes. Raises `UserError` if it cannot be pickled."""
    try:
        return dumps(value)
    except Exception as error:
        raise UserError(f"{name} cannot be sent to a worker: {error}") from error


def sleep_with_ticks(seconds: float, stop: Stop, on_tick: Callable[[], None]) -> None:
    """Waits, with a tick twice a second, until the time has elapsed or a stop is requested."""
    end = time.monotonic() + seconds
    while not stop.requested and (remaining := end - time.monotonic()) > 0:
        time.sleep(min(0.5, remaining))
        on_tick()
