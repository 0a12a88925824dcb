"""An engine without workers: the process that asks does all items itself."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numerate.runs.engines.engine import TICK_INTERVAL, Engine, Outcome, name_of, not_started
from numerate.runs.engines.machine import temporary_environment
from numerate.runs.engines.worker import perform, thread_variables
from numerate.training.stopping import Stop


@dataclass(frozen=True)
class InProcess(Engine):
    """This process, one item after the other: for scripts without `if __name__ == "__main__":`, notebooks, debuggers.

    What kills an item kills the script, which resumes when it is started again.
    """

    def conflicts(self) -> Iterator[str]:
        for name, allowed in (("workers", 1), ("timeout", None)):
            if getattr(self, name) not in (None, allowed):
                yield f"{name}: must be null for InProcess, which has no worker to limit; use Local"

    @property
    def num_workers(self) -> int:
        return 1

    def map(
        self,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        *,
        folder: Path | None = None,
        stop: Stop | None = None,
        on_tick: Callable[[], None] = lambda: None,
    ) -> Iterator[Outcome]:
        stop = stop or Stop()
        with temporary_environment(thread_variables(self.threads)), _torch_threads(self.threads):
            for index, item in enumerate(items):
                if stop.requested:
                    yield not_started(index, stop)
                    continue
                with _ticks(on_tick):
                    outcome = perform(lambda: function(item), lambda: name_of(function, item), stop)  # noqa: B023
                on_tick()
                yield replace(outcome, index=index)


@contextmanager
def _torch_threads(threads: int) -> Iterator[None]:
    import torch

    previous = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(previous)


@contextmanager
def _ticks(on_tick: Callable[[], None]) -> Iterator[None]:
    """Calls `on_tick` twice a second, from another thread, meanwhile."""
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(TICK_INTERVAL):
            on_tick()

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
