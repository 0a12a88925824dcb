"""The interface of all engines: they apply a function to items and yield results or failures as completed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from numerate.config import Spec, setting
from numerate.errors import OperationalError, UserError
from numerate.training.stopping import Stop

FailureKind = Literal[
    "user error",  # or an exception in a user's file
    "operational error",  # of the environment
    "error",  # an unexpected exception
    "out of memory",
    "disk full",
    "busy",  # another process holds its lock
    "died",  # its worker did, each time
    "timeout",
    "stopped",
    "not started",  # since everything was stopped
]

MAX_TRIES = 3  # an item has failed if its worker died this often in one command
STOP_TIMEOUT = 10.0  # seconds between requesting an item to stop and killing its worker
TICK_INTERVAL = 0.5  # seconds between two calls of `on_tick`
DEFAULT_NUM_WORKERS = 64  # if the number is unknown: more shards of a grid than needed cost little

Function = Callable[[Any], Any]
OnTick = Callable[[], None]


@dataclass(frozen=True)
class Failure:
    """The reason why an item has no result: `text` for the user, `traceback` for debugging.

    `status` is the exit status of a command with this failure only.
    """

    kind: FailureKind
    text: str
    status: int = 1
    traceback: str | None = None

    @property
    def is_transient(self) -> bool:
        """Whether the item has not failed for good, so that the same command does it again."""
        return self.kind in ("stopped", "not started", "busy", "disk full")

    def to_error(self, text: str | None = None) -> UserError | OperationalError:
        """The exception of a command that ends with this failure, with another text if given."""
        message = self.text if text is None else text
        error = UserError(message) if self.kind == "user error" else OperationalError(message)
        error.exit_status = self.status
        if self.traceback is not None:
            error.add_note(self.traceback)
        return error


@dataclass(frozen=True)
class Outcome:
    """A finished item: its `index` among the items, and its result or its failure."""

    index: int
    result: Any = None
    failure: Failure | None = None


@dataclass(frozen=True)
class Engine(Spec, ABC):
    """Applies a function to items with several workers: `Local`, `Ray` or `Slurm`. The results are the same on each.

        sorted(one.result for one in Local(workers=2).map(math.sqrt, [1, 4, 9]))  # 1.0, 2.0, 3.0

    The function, its items and their results are pickled. An item is done at least once, and may be done again after
    its worker died: it opens the folder of its run, does what is missing there, and writes how it ended. Its result
    only informs a waiting command. Inside a worker, `worker.current_stop()` says when an item should end early. A
    function may have three methods besides: `name_of(item)`, the name of an item in errors; `done(item)`, whether the
    folder of an item shows that nothing is left to do, which `Slurm` needs; and `fail(item, failure)`, which writes
    there why an item failed whose worker could not.
    """

    workers: int | None = setting(
        None, "number of workers; null: one per core (local), one per free CPU of the cluster (ray)", at_least=1
    )
    threads: int = setting(1, "CPU threads per worker", at_least=1)
    timeout: float | None = setting(
        None, "time limit per item (a run, a shard of a grid), in seconds; null: none", above=0
    )

    @property
    def num_workers(self) -> int:
        """The number of concurrent workers, or a guess if that is unknown before they start."""
        return self.workers or DEFAULT_NUM_WORKERS

    def check_available(self) -> None:
        """Raises the `UserError` of `map` for an engine that is not available, before anything is started."""

    def map(
        self,
        function: Function,
        items: Sequence[Any],
        *,
        folder: Path | None = None,
        stop: Stop | None = None,
        on_tick: OnTick = lambda: None,
    ) -> Iterator[Outcome]:
        """Yields one `Outcome` for every item, in the order in which they are completed.

        `folder` is for files of the engine (logs, job scripts). When `stop` is requested, running items are stopped and
        waiting ones end as "not started". `on_tick` is called about twice a second while waiting. Raises `UserError`
        before anything is started if a package is not installed, or an address does not answer.
        """
        self.check_available()
        return self._map(function, items, folder, stop or Stop(), on_tick)

    @abstractmethod
    def _map(
        self, function: Function, items: Sequence[Any], folder: Path | None, stop: Stop, on_tick: OnTick
    ) -> Iterator[Outcome]:
        """What `map` promises, on this engine."""

    def script(self, function: Function, items: Sequence[Any], folder: Path) -> str:
        """The job script that would be submitted, for `--dry-run`. Raises `UserError` if there is none."""
        raise UserError(f"{type(self).__name__} has no job script; use engine=slurm")


def name_of(function: Function, item: Any) -> str:
    """The name of an item in errors: as its function says, or as it is printed."""
    return str(getattr(function, "name_of", str)(item))


def not_started(index: int, stop: Stop) -> Outcome:
    """The outcome of an item that was still waiting when everything was stopped."""
    return Outcome(index, failure=Failure("not started", "not started; the same command resumes", stop.status or 130))
