"""Work in the process that asks: no worker, the same outcomes, and scripts without a guard."""

import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from numerate.errors import UserError
from numerate.runs.engines.in_process import InProcess
from numerate.training.stopping import Stop

sys.path.append(str(Path(__file__).parent))

from engine_deeds import Deeds, done


def test_items_are_done_one_after_the_other_in_this_process() -> None:
    threads = torch.get_num_threads()
    items = [("square", 3), ("mistake",), ("error",), ("exit",), ("where",), ("square", 4)]
    found = list(InProcess(threads=2).map(Deeds(), items))
    assert [one.index for one in found] == [0, 1, 2, 3, 4, 5]
    results = done(found)
    assert [results[index] for index in (0, 1, 2, 3, 5)] == [9, "user error", "error", "user error", 16]
    pid, _, worker_threads = results[4]
    assert (pid, worker_threads, torch.get_num_threads()) == (os.getpid(), 2, threads)


def test_a_stop_leaves_the_further_items_for_the_next_command() -> None:
    stop, ticks = Stop(), []

    def ask() -> None:
        ticks.append(1)
        stop.request()

    found = list(InProcess().map(Deeds(), [("patient",), ("square", 1)], stop=stop, on_tick=ask))
    assert done(found) == {0: "stopped", 1: "not started"}
    assert ticks, "the item is watched while it runs"


def test_ctrl_c_ends_it_where_nobody_handles_it() -> None:
    def work(item: int) -> None:
        done.append(item)
        signal.raise_signal(signal.SIGINT)

    done: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        list(InProcess().map(work, [1, 2]))
    assert done == [1]


@pytest.mark.parametrize("limit", [{"workers": 2}, {"timeout": 5.0}])
def test_what_takes_a_worker_is_refused(limit: dict[str, float]) -> None:
    with pytest.raises(UserError, match=f"^{next(iter(limit))}: must be null for InProcess, .*; use Local$"):
        InProcess(**limit)  # type: ignore[arg-type]
