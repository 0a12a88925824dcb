"""An engine without workers: the process that asks does all items itself."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numerate.runs.engines.engine import TICK_INTERVAL, Engine, Function, OnTick, Outcome, not_started
from numerate.runs.engines.worker import perform
from numerate.training.stopping import Stop


@dataclass(frozen=True)
class InProcess(Engine):
    """This process, one item after the other: for scripts without `if __name__ == "__main__":` and notebooks."""

    def conflicts(self) -> Iterator[str]:
        for name, allowed in (("workers", 1), ("timeout", None)):
            if getattr(self, name) not in (None, allowed):
                yield f"{name}: must be null for InProcess, which has no worker to limit; use Local"

    @property
    def num_workers(self) -> int:
        return 1

    def _map(
        self, function: Function, items: Sequence[Any], folder: Path | None, stop: Stop, on_tick: OnTick
    ) -> Iterator[Outcome]:
        import torch

        threads = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            for index, item in enumerate(items):
                if stop.requested:
                    yield not_started(index, stop)
                    continue
                with _ticks(on_tick):
                    outcome = perform(lambda: function(item), stop)  # noqa: B023
                on_tick()
                yield replace(outcome, index=index)
        finally:
            torch.set_num_threads(threads)


@contextmanager
def _ticks(on_tick: OnTick) -> Iterator[None]:
    """Calls `on_tick` twice a second meanwhile, from another thread."""
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
