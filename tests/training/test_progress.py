"""Promises of progress: the time left is shown, the log is written, and no terminal ever stops a run."""

import io
import os
import pty
import re
import select
from pathlib import Path
from typing import Any

import pytest

from numerate.training.progress import ProgressBar


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def run(progress: ProgressBar, clock: Clock, steps: range, **shown: Any) -> None:
    for step in steps:
        clock.now += 1.0
        progress.step(step, **shown)


def test_without_a_terminal_plain_lines_tell_how_far_and_how_long(tmp_path: Path) -> None:
    stream, clock = io.StringIO(), Clock()
    with ProgressBar(
        100, label="add", log_path=tmp_path / "log.txt", log_interval=30, stream=stream, clock=clock
    ) as progress:
        run(progress, clock, range(1, 76), loss=0.012345)
        progress.print_line("validation: 98 %")
    lines = [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", "", line) for line in stream.getvalue().splitlines()]
    assert lines == [
        "add 1/100 (1 %), loss 0.01235",
        "add 31/100 (31 %), 1:09 left, loss 0.01235",
        "add 61/100 (61 %), 0:39 left, loss 0.01235",
        "validation: 98 %",
        "add 75/100 (75 %), 0:25 left, loss 0.01235",
    ]
    assert [line[21:] for line in (tmp_path / "log.txt").read_text().splitlines()] == lines


def test_what_is_measured_after_the_last_step_stands_in_the_last_line() -> None:
    stream, clock = io.StringIO(), Clock()
    with ProgressBar(2, log_interval=0, stream=stream, clock=clock) as progress:
        run(progress, clock, range(1, 3), loss=0.5)
        progress.set_postfix("loss 0.25")
    assert [line[21:] for line in stream.getvalue().splitlines()][-2:] == [
        "2/2 (100 %), loss 0.5",
        "2/2 (100 %), loss 0.25",
    ]


def test_the_first_step_does_not_count_for_the_time_left() -> None:
    clock = Clock()
    progress = ProgressBar(911, num_done=900, stream=io.StringIO(), clock=clock)  # one that is resumed
    assert progress.seconds_left() is None
    clock.now += 1000
    progress.step(901)
    assert progress.seconds_left() is None
    clock.now += 2
    progress.step(902)
    assert progress.seconds_left() == pytest.approx(18.0)


def test_on_a_terminal_there_is_a_bar_and_the_log_has_plain_lines(tmp_path: Path) -> None:
    reader, writer = pty.openpty()
    with os.fdopen(writer, "w") as terminal:
        with ProgressBar(10, label="add", log_path=tmp_path / "log.txt", stream=terminal) as progress:
            for step in range(1, 11):
                progress.step(step, loss=0.5)
            progress.print_line("a word")
        shown = ""
        # A terminal gives what was written in pieces.
        while not ("add: 100%" in shown and "a word" in shown) and select.select([reader], [], [], 5.0)[0]:
            shown += os.read(reader, 100_000).decode()
    os.close(reader)
    assert "add: 100%" in shown
    assert "a word" in shown
    assert "\n2" not in shown
    assert "add 10/10 (100 %), loss 0.5" in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_that_goes_away_does_not_stop_the_run(tmp_path: Path, terminal: bool) -> None:
    reader, writer = pty.openpty() if terminal else os.pipe()
    stream = os.fdopen(writer, "w", buffering=1)
    progress = ProgressBar(10, log_path=tmp_path / "log.txt", log_interval=0, stream=stream)
    progress.step(1)
    os.close(reader)
    for step in range(2, 11):
        progress.step(step)
        progress.print_line("still there")
    progress.close()
    assert (tmp_path / "log.txt").read_text().count("still there") == 9
    try:
        stream.close()
    except OSError:
        assert stream.closed


def test_a_log_that_cannot_be_written_warns_once_and_does_not_stop_the_run(tmp_path: Path) -> None:
    stream = io.StringIO()
    with ProgressBar(3, log_path=tmp_path / "missing" / "log.txt", log_interval=0, stream=stream) as progress:
        for step in (1, 2, 3):
            progress.step(step)
    assert stream.getvalue().count("warning: the log is no longer written") == 1
    assert "3/3" in stream.getvalue()
