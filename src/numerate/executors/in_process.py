"""An executor without workers: the process that asks does all items itself."""

import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numerate.executors.executor import Executor, Failure, ItemOutcome, Work, pickle_with
from numerate.executors.local import temporary_environment
from numerate.executors.worker import Worker, thread_variables
from numerate.training.stopping import Stop

_TICK_INTERVAL = 0.5


@dataclass(frozen=True)
class InProcess(Executor):
    """This process, one item after the other: for scripts without `if __name__ == "__main__":`, notebooks, debuggers.

    What kills an item kills the script, which resumes when it is started again.
    """

    def conflicts(self) -> Iterator[str]:
        for name, allowed in (("workers", 1), ("timeout", None), ("memory", None)):
            if getattr(self, name) not in (None, allowed):
                yield f"{name}: must be null for InProcess, which has no worker to limit; use Local"

    @property
    def num_workers(self) -> int:
        return 1

    def run(
        self,
        work: Work,
        items: Sequence[Any],
        *,
        folder: Path | None = None,
        stop: Stop | None = None,
        on_tick: Callable[[], None] = lambda: None,
    ) -> Iterator[ItemOutcome]:
        worker = Worker(threads=self.threads, memory_limit=None, stop=stop or Stop())
        with temporary_environment(thread_variables(self.threads)), _torch_threads_restored():
            if (failure := worker.open(pickle_with(pickle.dumps, work, type(work).__name__))) is not None:
                raise failure.to_error()
            for index, item in enumerate(items):
                if worker.stop.requested:
                    text = "not started; the same command resumes"
                    yield ItemOutcome(index, failure=Failure("not started", text, worker.stop.status or 130))
                    continue
                with _ticks(on_tick):
                    reply = worker.run_item(pickle.dumps(item))
                on_tick()
                result = None if reply.failure is not None else pickle.loads(reply.result)
                yield ItemOutcome(index, result, reply.failure, reply.seconds, worker.name)


@contextmanager
def _torch_threads_restored() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _ticks(on_tick: Callable[[], None]) -> Iterator[None]:
    """Calls `on_tick` twice a second, from another thread, meanwhile."""
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(_TICK_INTERVAL):
            on_tick()

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
