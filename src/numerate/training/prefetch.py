"""Batches made ahead: a background thread makes those of the next step while a device computes the current one."""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Generic, TypeVar

Key = TypeVar("Key")
Made = TypeVar("Made")


class Prefetcher(Generic[Key, Made]):
    """Calls `make(key)`, and while `running`, afterwards `make(next_key(key))` on a background thread.

    `make` is a function of its key, so the results are the same as without a thread. It is never called by two threads
    at once, as tasks of users need not be thread-safe: `get` and `wait` wait for the background thread. `next_key`
    returns None after the last key; it is called by the thread that calls `get`.
    """

    def __init__(self, make: Callable[[Key], Made], next_key: Callable[[Key], Key | None]) -> None:
        self.make, self.next_key = make, next_key
        self._keys: SimpleQueue[tuple[Key, Future[Made]] | None] | None = None
        self._ahead: tuple[Key, Future[Made]] | None = None

    @contextmanager
    def running(self, *, enabled: bool) -> Iterator[None]:
        """The context in which a background thread makes results ahead, if `enabled`."""
        if not enabled:
            yield
            return
        self._keys = SimpleQueue()
        # A daemon, for which Ctrl-C waits a second at most: a task may take long, or never return.
        thread = threading.Thread(target=self._make_ahead, args=(self._keys,), name="prefetch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._keys.put(None)
            self._keys = self._ahead = None
            thread.join(1 if isinstance(sys.exception(), KeyboardInterrupt) else None)

    def get(self, key: Key) -> Made:
        """The result for `key`. Raises what `make` raises, with the traceback of the background thread if it was called
        there; an error in making a result that is never asked for is not raised."""
        self.wait()
        ahead, self._ahead = self._ahead, None
        made = ahead[1].result() if ahead is not None and ahead[0] == key else self.make(key)
        if self._keys is not None and (next_key := self.next_key(key)) is not None:
            self._ahead = next_key, Future()
            self._keys.put(self._ahead)
        return made

    def wait(self) -> None:
        """Waits until nothing is being made in the background, before the same task or tokenizer is used otherwise."""
        if self._ahead is not None:
            wait([self._ahead[1]])

    def _make_ahead(self, keys: "SimpleQueue[tuple[Key, Future[Made]] | None]") -> None:
        while (request := keys.get()) is not None:
            key, future = request
            try:
                future.set_result(self.make(key))
            except BaseException as error:
                future.set_exception(error)
