"""Stopping after the current batch on Ctrl-C, SIGTERM or SIGHUP."""

import contextlib
import os
import signal
import threading
import time
from types import FrameType
from typing import Any

_DEBOUNCE_SECONDS = 0.1  # seconds; a terminal and a launcher often both send the same Ctrl-C


class Stopped(Exception):
    """Aborts an evaluation between two batches after a requested stop; none of it has been recorded."""


class Stop:
    """Turns SIGINT (Ctrl-C), SIGTERM and SIGHUP, within its context, into a flag that is checked after each batch.

    A second Ctrl-C stops immediately with `KeyboardInterrupt`. An ignored SIGHUP (`nohup`) stays ignored. The previous
    handlers are restored at the end. Outside the main thread, where Python allows no handlers, and with
    `handles_signals=False`, `request` still works. The context may be nested.
    """

    def __init__(self, *, handles_signals: bool = True) -> None:
        self._handles_signals = handles_signals
        self.signal: signal.Signals | None = None
        self._requested = False
        self._depth = 0
        self._interrupted_at: float | None = None
        self._previous_handlers: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether to stop after the current batch."""
        return self._requested

    @property
    def status(self) -> int:
        """The conventional exit status for this signal: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.signal if self.signal else 0

    def request(self) -> None:
        """Requests a stop, as a signal does (another rank was stopped, time is up)."""
        self._requested = True

    def __enter__(self) -> "Stop":
        self._depth += 1
        is_outermost = self._depth == 1 and self._handles_signals
        if is_outermost and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                handler = signal.getsignal(number)
                if number == signal.SIGHUP and handler == signal.SIG_IGN:
                    continue
                self._previous_handlers[number] = handler
                signal.signal(number, self._handle_signal)
        return self

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        while not self._depth and self._previous_handlers:
            number, before = self._previous_handlers.popitem()
            signal.signal(number, before if before is not None else signal.SIG_DFL)

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self._interrupted_at is not None:
                if time.monotonic() - self._interrupted_at > _DEBOUNCE_SECONDS:
                    raise KeyboardInterrupt
                return
            self._interrupted_at = time.monotonic()
        self.signal = self.signal or signal.Signals(number)
        self._requested = True
        again = "; again to stop at once" if number == signal.SIGINT else ""
        text = f"\n{signal.Signals(number).name}: stopping after the current batch{again}\n"
        with contextlib.suppress(OSError):  # os.write, since a handler may interrupt a print
            os.write(2, text.encode())
