"""The small protocol of all executors: items in; item and result, or failure, out as completed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from numerate.config import refuse_other_words, setting
from numerate.errors import UserError
from numerate.training.stopping import Stop

Kind = Literal["mistake", "fault", "error", "out of memory", "died", "timeout", "stopped", "not begun"]
"""How an item failed: the user's mistake (also an exception in a file of theirs), a fault of the world's, an exception
of the program that nobody expected, no memory left, its worker died, it took longer than `timeout`, it was stopped, or
it was never begun since all was stopped."""


@dataclass(frozen=True)
class Failure:
    """Why an item has no result: `text` in words for a person, `trace` for who looks for a fault of the program.

    `status` is the exit status that this alone would give a command.
    """

    kind: Kind
    text: str
    status: int = 1
    trace: str | None = None

    @classmethod
    def of(cls, data: object) -> "Failure":
        """From plain data, as `dataclasses.asdict` gives it. Raises `ValueError` for any other."""
        if not isinstance(data, dict) or data.get("kind") not in get_args(Kind):
            raise ValueError("this is no failure")
        kind, text, status, trace = (data.get(name) for name in ("kind", "text", "status", "trace"))
        if not isinstance(text, str) or not isinstance(status, int) or not isinstance(trace, str | None):
            raise ValueError("this is no failure")
        return cls(kind, text, status, trace)  # type: ignore[arg-type]

    @property
    def passing(self) -> bool:
        """Whether the same item may well succeed when it is simply begun again: it was stopped, not refused."""
        return self.kind in ("died", "stopped", "not begun")


@dataclass(frozen=True)
class Finished:
    """An item that is over: its `index` among the items, its result or its failure.

    `seconds` are those that it took in its worker, without any waiting; `worker` is the name of that worker.
    """

    index: int
    result: Any = None
    failure: Failure | None = None
    seconds: float = 0.0
    worker: str = ""


@dataclass(frozen=True)
class WorkerContext:
    """Where a worker works.

    `worker` is a name that no other worker has or had, also on other machines, so that a file named by it has one
    writer. `stop` is asked when the item at hand should end early, at a good place.
    """

    worker: str
    threads: int
    stop: Stop


class Work(ABC):
    """What is done with each item. It is pickled to every worker and opened there once: what is costly (libraries, a
    model) is paid for in `open`, not per item. Items and results are pickled too, but for results on Slurm, which are
    lines of JSON (`to_plain`).

    >>> class Square(Work):
    ...     def open(self, context):
    ...         return lambda item: item * item
    """

    @abstractmethod
    def open(self, context: WorkerContext) -> Callable[[Any], Any]:
        """What does one item. An exception that it raises is that item's failure and nobody else's."""

    def name_of(self, item: Any) -> str:
        """What an item is called where it is spoken of: in errors, in `status`."""
        return str(item)

    def to_plain(self, result: Any) -> Any:
        """A result as plain data (what JSON holds), by which it travels where files are all that is shared. What is
        plain data already needs none of this."""
        return result

    def from_plain(self, data: Any) -> Any:
        """A result from plain data. Raises `ValueError` for data that `to_plain` does not give."""
        return data

    def keeps(self, result: Any) -> bool:
        """Whether a result that an earlier start left is still good. Where it is not, its item is done again."""
        return True


@dataclass(frozen=True)
class Executor(ABC):
    """Does work on items with several workers: `Local`, `Ray` or `Slurm`. The same items give the same results on each.

    >>> from numerate.executors import Local
    >>> sorted(one.result for one in Local(workers=2).run(Square(), [1, 2, 3]))
    [1, 4, 9]
    """

    workers: int | None = setting(
        None, "number of workers; null: one per core (local), one per free CPU of the cluster (ray)"
    )
    threads: int = setting(1, "CPU threads per worker")
    timeout: float | None = setting(None, "time limit per item (a run, a shard of a grid), in seconds; null: none")
    memory: float | None = setting(None, "memory limit per worker in bytes beside what it loads, as 4e9; null: none")
    stack_size: int = setting(
        1, "how many runs that differ in seed or scalar settings only are trained as one stacked model"
    )

    def __post_init__(self) -> None:
        refuse_other_words(self)
        for name in ("workers", "threads", "stack_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name}: {value} is too few; 1 or more is right")
        for name, unit, example in (("timeout", "seconds", "600"), ("memory", "bytes", "4e9")):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(
                    f"{name}: {value:g} is nothing; {unit} above 0 are right, as {example}, or null for no limit"
                )

    def ready(self) -> None:
        """Whether this executor can be had here; for who asks before anything is written. Nothing is begun.

        Raises the `UserError` that `run` would raise for a package or a program that is not installed, or for an
        address where nobody answers, as far as that shows before anything is begun.
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
        tick: Callable[[], None] = lambda: None,
    ) -> Iterator[Finished]:
        """Yields one `Finished` for every item, in the order in which they are completed.

        `folder` is where an executor may keep files of its own (logs, job scripts). When `stop` is asked, the items at
        hand are asked to end, those that are waiting end as "not begun". `tick` is called about twice a second while
        waiting. Raises `UserError` before anything is begun where the executor itself cannot be had (a package that is
        not installed, an address where nobody answers).
        """

    def script(self, work: Work, items: Sequence[Any], folder: Path) -> str:
        """What would be submitted, as text, for `--dry-run`. Nothing is begun and nothing is written."""
        raise UserError(f"{type(self).__name__} submits no script; executor=slurm does")
