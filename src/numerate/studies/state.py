"""The current state of a worker, in a file that others read: a heartbeat."""

import atexit
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from numerate.training.lock import gone as gone

EVERY = 1.0
"""Seconds between two writes at least, so that a shared file system has little to do."""

AT_LEAST = 5.0
"""Seconds after which the file is written even if nothing changed, so that it says that the worker is alive."""

LOST = 60.0
"""Seconds without a heartbeat after which a worker counts as lost."""

COMMAND = "command"
"""The phase of the one who gives out runs and does none: it says that somebody is at the study while workers start."""

_KEPT, _REMEMBERED = 20, 500  # texts in the file, and in the worker


class State:
    """The file `states/<worker>.json` of one worker. It is only for people to look at: that it cannot be written stops
    nothing. A thread writes it while the worker has something to do; it is removed when the worker ends."""

    def __init__(self, folder: Path, worker: str) -> None:
        self.path = folder / f"{worker}.json"
        self._who = {"worker": worker, "host": socket.gethostname(), "pid": os.getpid()}
        self._now: dict[str, Any] = self._who
        self._messages: list[tuple[int, str]] = []
        self._count = 0
        self._written = -AT_LEAST
        self._changed = True
        atexit.register(self.remove)
        Finalize(None, self.remove, exitpriority=0)  # processes of multiprocessing may end without the former

    @contextlib.contextmanager
    def about(self, **facts: Any) -> Iterator[None]:
        """Publishes a state while the body runs."""
        self._now = {**self._who, **facts, "began": time.time()}
        self._changed = True
        over = threading.Event()
        thread = threading.Thread(target=self._beat, args=(over,), daemon=True)
        self._write(EVERY)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self._now = {**self._who, "run": None}
            self._write(EVERY)

    @contextlib.contextmanager
    def whole(self, **facts: Any) -> Iterator[None]:
        """As `about`, for who has nothing else to say: the file is removed at the end."""
        try:
            with self.about(**facts):
                yield
        finally:
            self.remove()

    def tell(self, **facts: Any) -> None:
        """Notes what changed."""
        self._now.update(facts)
        self._changed = True

    def say(self, text: str) -> None:
        """Adds a numbered message; the last twenty are written."""
        self._count += 1
        self._messages = [*self._messages[-_REMEMBERED:], (self._count, text)]
        self._changed = True

    def messages(self, after: int = 0) -> list[tuple[int, str]]:
        """The messages after number `after`, each with its number."""
        return [(number, text) for number, text in self._messages if number > after]

    @property
    def count(self) -> int:
        """The number of messages so far."""
        return self._count

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _beat(self, over: threading.Event) -> None:
        while not over.wait(EVERY):
            self._write(0.5 * EVERY if self._changed else AT_LEAST)

    def _write(self, after: float) -> None:
        if time.monotonic() - self._written < after:
            return
        self._written, self._changed = time.monotonic(), False
        content = {**self._now, "beat": time.time(), "said": self._messages[-_KEPT:]}
        new = self.path.with_name(f".{self.path.name}")
        with contextlib.suppress(OSError):
            new.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8", errors="replace")
            os.replace(new, self.path)


def silent(state: Mapping[str, Any], now: float | None = None) -> bool:
    """Whether a worker has had no heartbeat for long."""
    return (time.time() if now is None else now) - float(state["beat"]) > LOST
