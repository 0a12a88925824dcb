"""Progress of a run: a bar on a terminal, plain lines elsewhere, and a log file."""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from numerate import terminal
from numerate.errors import OperationalError, UserError
from numerate.training import disk


class ProgressBar:
    """Shows the progress of a run of `total` steps.

    On a terminal a bar; elsewhere a line at the first step, then one every `log_interval` seconds and one at the end:

        2026-03-01 12:00:30  addition_abacus 500/2500 (20 %), 2:04 left, loss 0.0123

    Lines go to `log_path` as well; without `show` they go only there. A closed terminal, or a log that cannot be
    written, never stops the run. `estimate_seconds_left` is asked in place of the average time per step.
    """

    def __init__(
        self,
        total: int,
        *,
        label: str = "",
        num_done: int = 0,
        log_path: Path | None = None,
        log_interval: float = 30.0,
        show: bool = True,
        unit: str = "step",
        estimate_seconds_left: Callable[[], float | None] | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total, self.label, self.log_path, self.log_interval = total, label, log_path, log_interval
        self.unit = {"step": "", "kB": " kB"}.get(unit, f" {unit}s")
        self._show = show
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._estimate_seconds_left = estimate_seconds_left
        self._num_done = num_done
        self._start: tuple[float, int] | None = None  # after the first step, which compiles and warms up
        self._last_line: tuple[float, int, str] | None = None
        self._postfix_text = ""
        self._bar: Any = None
        width = _terminal_width(self._stream)
        if show and width is not None:
            from tqdm import tqdm

            tqdm.monitor_interval = 0  # no thread of its own: runs fork
            self._bar = tqdm(
                total=total,
                initial=num_done,
                desc=f"{label if len(label) <= 25 else f'{label[:11]}...{label[-11:]}'}: " if label else "",
                file=terminal.raw_stream(self._stream),
                dynamic_ncols=width > 0,
                ncols=80,  # for terminals without a known width, as in some containers
                mininterval=0.2,
                unit=unit,
                # the bar last, since a narrow terminal has no room for it
                bar_format="{desc}{percentage:3.0f}% {n_fmt}/{total_fmt} [{elapsed}{postfix}] {bar}",
            )

    def step(self, num_done: int, **values: float | str) -> None:
        """Updates the progress to `num_done` steps; `values` are shown next to it, such as `loss=0.0123`."""
        self.update(num_done, format_values(**values))

    def update(self, num_done: int, text: str) -> None:
        """Updates the progress to `num_done` steps, with a text to show next to it."""
        now = self._clock()
        self._start = self._start or (now, num_done)
        self._postfix_text = text
        self._num_done = num_done
        if self._bar is not None:
            with self._ignore_terminal_errors():
                self._bar.set_postfix_str(self._status(), refresh=False)
                self._bar.update(num_done - self._bar.n)
        if self._last_line is None or now - self._last_line[0] >= self.log_interval:
            self._write_line(now)

    def set_postfix(self, text: str) -> None:
        """Sets the text to show, from the next line on, such as what was measured after the last step."""
        self._postfix_text = text

    def seconds_left(self) -> float | None:
        """Seconds left, estimated from the steps after the first; None before there are any."""
        if self._estimate_seconds_left is not None:
            return self._estimate_seconds_left()
        if self._start is None or self._num_done <= self._start[1]:
            return None
        seconds_per_step = (self._clock() - self._start[0]) / (self._num_done - self._start[1])
        return seconds_per_step * max(0, self.total - self._num_done)

    def print_line(self, text: str) -> None:
        """Prints a line above the bar, and writes it to the log."""
        with self._ignore_terminal_errors():
            if self._bar is not None:
                text_lines = terminal.wrapped(text, terminal.output_width(self._stream), indent=2)
                self._bar.write(terminal.escape_control_characters(text_lines), file=terminal.raw_stream(self._stream))
            elif self._show:
                terminal.print_wrapped(text, self._stream)
        self._write_log(text)

    def close(self) -> None:
        """Shows the final state once and restores the terminal."""
        if self._last_line is not None and self._last_line[1:] != (self._num_done, self._postfix_text):
            self._write_line(self._clock())
        if self._bar is not None:
            with self._ignore_terminal_errors():
                self._bar.set_postfix_str(self._status(), refresh=False)
                self._bar.close()
            self._bar = None

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _status(self) -> str:
        """The time left and the values."""
        seconds_left = self.seconds_left() if self._num_done < self.total else None
        left = "" if seconds_left is None else f"{format_duration(seconds_left)} left"
        return ", ".join(filter(None, (left, self._postfix_text)))

    def _write_line(self, now: float) -> None:
        self._last_line = (now, self._num_done, self._postfix_text)
        percent = f" ({100 * self._num_done // self.total} %)" if self.total else ""
        place = f"{self.label} {self._num_done}/{self.total}{self.unit}{percent}".strip()
        text = ", ".join(filter(None, (place, self._status())))
        if self._bar is None and self._show:
            with self._ignore_terminal_errors():
                print(f"{_timestamp()}  {text}", file=self._stream, flush=True)
        self._write_log(text)

    def _write_log(self, text: str) -> None:
        if self.log_path is None:
            return
        try:
            disk.append_text(self.log_path, f"{_timestamp()}  {text}\n")
        except (UserError, OperationalError) as error:
            self.log_path = None
            self.print_line(f"warning: the log is no longer written: {error}")

    @contextlib.contextmanager
    def _ignore_terminal_errors(self) -> Any:
        """A terminal that was closed (after SIGHUP, or behind `| head`) must not end the run."""
        try:
            yield
        except (OSError, ValueError):
            self._bar = None


class ProgressBars:
    """A progress bar for each of several things in turn, whose totals are known when they begin.

    The `unit` kB is for progress in bytes. Things with a smaller total than `min_total` have no bar.
    """

    def __init__(self, label: str = "", *, unit: str, min_total: int = 0) -> None:
        self._label, self._unit, self._min_total = label, unit, min_total
        self._divisor = 1000 if unit == "kB" else 1
        self._bar: ProgressBar | None = None
        self._current: tuple[str, int | None] | None = None
        self._done = 0

    def on_progress(self, done: int, total: int | None, name: str = "") -> None:
        """Updates the bar of the thing called `name`, of which `total` may be unknown."""
        if (name, total) != self._current or done < self._done:
            self.close()
            self._current = (name, total)
            if total is None or total >= self._min_total:
                self._bar = ProgressBar((total or 0) // self._divisor, label=f"{self._label}{name}", unit=self._unit)
        self._done = done
        if self._bar is not None:
            self._bar.step(done // self._divisor)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar = None

    def __enter__(self) -> "ProgressBars":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is KeyboardInterrupt and (bar := self._bar) is not None:
            place = f"{self._done // self._divisor} of {bar.total}{bar.unit}"
            bar.print_line(f"{bar.label}: stopped at {place}; the same command resumes from here")
        self.close()


def format_duration(seconds: float) -> str:
    """A duration in seconds as text.

    >>> format_duration(124), format_duration(3723)
    ('2:04', '1:02:03')
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def format_values(**values: float | str) -> str:
    """Values as shown next to the progress bar: `accuracy 15.6%, loss 4.166`."""
    return ", ".join(
        f"{name} {f'{value:.4g}' if isinstance(value, float) else value}" for name, value in values.items()
    )


def _timestamp() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _terminal_width(stream: TextIO) -> int | None:
    """Columns of a terminal, 0 if they are unknown; None for another stream, or none."""
    try:
        return os.get_terminal_size(stream.fileno()).columns if stream.isatty() else None
    except (OSError, ValueError, AttributeError):
        return None
