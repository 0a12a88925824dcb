"""How far a run is: a bar with the time left on a terminal, plain lines elsewhere, and always a log file."""

import contextlib
import io
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from numerate import terminal
from numerate.errors import OperationalError, UserError
from numerate.training import disk


class Nowhere(io.StringIO):
    """A stream that forgets, for runs that show nothing but keep their log."""

    def write(self, text: str) -> int:
        return len(text)


class ProgressBar:
    """Shows how far a run of `total` steps is.

    On a terminal a bar; elsewhere a line at the first step, then one every `every` seconds and one at the end:

        2026-03-01 12:00:30  addition_abacus 500/2500 (20 %), 2:04 left, loss 0.0123

    Lines go to `log` as well. A terminal that has gone, or a log that cannot be written, never stops the run.
    `silent` shows nothing and writes nothing, for the ranks that are not the first. `position` is the line of the bar
    where several runs share a terminal. `left` returns the seconds left, for a better estimate than the steps so far
    give. Times are taken from a monotonic clock.
    """

    def __init__(
        self,
        total: int,
        *,
        label: str = "",
        done: int = 0,
        log: Path | None = None,
        every: float = 30.0,
        silent: bool = False,
        position: int = 0,
        unit: str = "step",
        left: Callable[[], float | None] | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total, self.label, self.log, self.every, self.silent = total, label, log, every, silent
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._left = left
        self._done = done
        self._start: tuple[float, int] | None = None  # after the first step, which compiles and warms up
        self._shown: tuple[float, int, str] | None = None
        self._text = ""
        self._bar: Any = None
        if not silent and _is_terminal(self._stream):
            from tqdm import tqdm

            tqdm.monitor_interval = 0  # no thread of its own: runs fork
            self._bar = tqdm(
                total=total,
                initial=done,
                desc=label or None,
                position=position,
                file=terminal.drawn(self._stream),
                dynamic_ncols=_width(self._stream) > 0,
                ncols=80,  # for terminals that do not tell their width, as in some containers
                leave=position == 0,
                mininterval=0.2,
                unit=unit,
                bar_format=None if left is None else "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]",
            )

    def resize(self, total: int) -> None:
        """Notes that the total is another than was thought."""
        self.total = total
        if self._bar is not None:
            self._bar.total = total

    def step(self, done: int, **shown: float | str) -> None:
        """Notes that `done` steps of the total are done; `shown` are values to show beside, such as `loss=0.0123`."""
        self.show(done, beside(**shown))

    def show(self, done: int, text: str) -> None:
        """Notes that `done` steps of the total are done, with a text to show beside."""
        if self.silent:
            return
        now = self._clock()
        if self._start is None:
            self._start = (now, done)
        self.note(text)
        if self._bar is not None:
            with self._forgiving():
                self._bar.set_postfix_str(self._beside_the_bar(), refresh=False)
                self._bar.update(done - self._done)
        self._done = done
        if self._shown is None or now - self._shown[0] >= self.every:
            self._line(now)

    def note(self, text: str) -> None:
        """Takes another text to show beside, from the next line on: what was measured after the last step."""
        self._text = text

    def left(self) -> float | None:
        """Seconds left, judged from the steps since the first; None while there is nothing to judge from."""
        if self._left is not None:
            return self._left()
        if self._start is None or self._done <= self._start[1]:
            return None
        return (self._clock() - self._start[0]) / (self._done - self._start[1]) * max(0, self.total - self._done)

    def say(self, text: str) -> None:
        """Prints a line above the bar, and writes it to the log."""
        if self.silent:
            return
        with self._forgiving():
            if self._bar is not None:
                self._bar.write(terminal.visible(text), file=terminal.drawn(self._stream))
            else:
                print(text, file=self._stream, flush=True)
        self._write_log(text)

    def close(self) -> None:
        """Shows the last state, once, and leaves the terminal in order."""
        if self.silent:
            return
        if self._shown is not None and self._shown[1:] != (self._done, self._text):
            self._line(self._clock())
        if self._bar is not None:
            with self._forgiving():
                self._bar.set_postfix_str(self._beside_the_bar(), refresh=False)
                self._bar.close()
            self._bar = None

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _beside_the_bar(self) -> str:
        left = None if self._left is None else self._left()
        return ", ".join(filter(None, ("" if left is None else f"{duration(left)} left", self._text)))

    def _line(self, now: float) -> None:
        self._shown = (now, self._done, self._text)
        left = self.left()
        share = f" ({100 * self._done // self.total} %)" if self.total else ""
        parts = [f"{self.label} {self._done}/{self.total}{share}".strip()]
        if left is not None and self._done < self.total:
            parts.append(f"{duration(left)} left")
        text = ", ".join([*parts, *([self._text] if self._text else [])])
        if self._bar is None:
            with self._forgiving():
                print(f"{_clock_time()}  {text}", file=self._stream, flush=True)
        self._write_log(text)

    def _write_log(self, text: str) -> None:
        if self.log is None:
            return
        try:
            disk.append_text(self.log, f"{_clock_time()}  {text}\n")
        except (UserError, OperationalError) as error:
            self.log = None
            self.say(f"warning: the log is not written any more: {error}")

    @contextlib.contextmanager
    def _forgiving(self) -> Any:
        """A terminal that was closed (after SIGHUP, or behind `| head`) must not end the run."""
        try:
            yield
        except (OSError, ValueError):
            self._bar = None


def duration(seconds: float) -> str:
    """Seconds as people read them: `duration(124)` is `"2:04"`, `duration(3723)` is `"1:02:03"`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def beside(**shown: float | str) -> str:
    """Values as they are shown beside: `beside(right="15.6%", loss=4.16612)` is `"right 15.6%, loss 4.166"`."""
    return ", ".join(f"{name} {_short(value)}" for name, value in shown.items())


def _short(value: float | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _clock_time() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return 0


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (ValueError, AttributeError):
        return False
