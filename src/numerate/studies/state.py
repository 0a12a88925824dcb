"""The current state of a worker, in a file that other processes read: a heartbeat."""

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

from numerate.training.lock import has_ended as has_ended

WRITE_INTERVAL = 1.0
"""Minimum seconds between two writes, to limit the load on a shared file system."""

HEARTBEAT_INTERVAL = 5.0
"""Seconds after which the file is written even if nothing changed, to show that the worker is alive."""

LOST_AFTER = 60.0
"""Seconds without a heartbeat after which a worker counts as lost."""

COMMAND_PHASE = "command"
"""The phase of the coordinating command, which trains no run itself; it shows that the study is running while workers
start."""

_MAX_WRITTEN_MESSAGES, _MAX_MESSAGES = 20, 500  # texts in the file, and in the worker


class WorkerStateFile:
    """The file `states/<worker>.json` of one worker. It is informational: write errors are ignored. A thread writes it
    while the worker executes an item; it is removed when the worker ends."""

    def __init__(self, folder: Path, worker: str) -> None:
        self.path = folder / f"{worker}.json"
        self._identity = {"worker": worker, "host": socket.gethostname(), "pid": os.getpid()}
        self._fields: dict[str, Any] = self._identity
        self._messages: list[tuple[int, str]] = []
        self._num_messages = 0
        self._last_write = -HEARTBEAT_INTERVAL
        self._has_changed = True
        atexit.register(self.remove)
        Finalize(None, self.remove, exitpriority=0)  # processes of multiprocessing may end without atexit

    @contextlib.contextmanager
    def publish(self, **fields: Any) -> Iterator[None]:
        """Publishes a state while the body runs."""
        self._fields = {**self._identity, **fields, "started": time.time()}
        self._has_changed = True
        finished = threading.Event()
        thread = threading.Thread(target=self._write_heartbeats, args=(finished,), daemon=True)
        self._write(WRITE_INTERVAL)
        thread.start()
        try:
            yield
        finally:
            finished.set()
            thread.join()
            self._fields = {**self._identity, "run": None}
            self._write(WRITE_INTERVAL)

    @contextlib.contextmanager
    def publish_temporarily(self, **fields: Any) -> Iterator[None]:
        """Like `publish`, but the file is removed at the end."""
        try:
            with self.publish(**fields):
                yield
        finally:
            self.remove()

    def update(self, **fields: Any) -> None:
        """Updates fields of the state."""
        self._fields.update(fields)
        self._has_changed = True

    def add_message(self, text: str) -> None:
        """Adds a numbered message; the last twenty are written."""
        self._num_messages += 1
        self._messages = [*self._messages[-_MAX_MESSAGES:], (self._num_messages, text)]
        self._has_changed = True

    def messages(self, after: int = 0) -> list[tuple[int, str]]:
        """The messages after number `after`, each with its number."""
        return [(number, text) for number, text in self._messages if number > after]

    @property
    def num_messages(self) -> int:
        """The number of messages so far."""
        return self._num_messages

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _write_heartbeats(self, finished: threading.Event) -> None:
        while not finished.wait(WRITE_INTERVAL):
            self._write(0.5 * WRITE_INTERVAL if self._has_changed else HEARTBEAT_INTERVAL)

    def _write(self, min_interval: float) -> None:
        if time.monotonic() - self._last_write < min_interval:
            return
        self._last_write, self._has_changed = time.monotonic(), False
        content = {**self._fields, "heartbeat": time.time(), "messages": self._messages[-_MAX_WRITTEN_MESSAGES:]}
        temporary_path = self.path.with_name(f".{self.path.name}")
        with contextlib.suppress(OSError):
            temporary_path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8", errors="replace")
            os.replace(temporary_path, self.path)


def is_lost(state: Mapping[str, Any], now: float | None = None) -> bool:
    """Whether a worker has had no heartbeat for `LOST_AFTER` seconds."""
    return (time.time() if now is None else now) - float(state["heartbeat"]) > LOST_AFTER
