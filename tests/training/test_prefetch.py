"""Promises of batches made ahead: the same run as without, errors where they belong, and a thread that ends with it."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import small_runs
from numerate.runs.train import TrainedRun, train
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.task import Questions
from numerate.training.distributed import World
from numerate.training.prefetch import Prefetcher
from numerate.training.trainer import Trainer
from small_runs import metrics, same, stop_after, weights

torch.set_num_threads(1)

OWN = "training.steps=12 training.evaluate_every=4 training.checkpoint_every=4 training.log_every=1"
GROWING = ("training.batch_size_warmup=0.6", "training.initial_batch_size=4")


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Makes batches ahead, or not, whatever the device."""
    running = Prefetcher.running

    def switch(on: bool) -> None:
        monkeypatch.setattr(Prefetcher, "running", lambda self, *, enabled: running(self, enabled=on))

    return switch


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "prefetch"]


# One class -----------------------------------------------------------------------------------------------------------


def test_the_next_result_is_made_while_the_current_one_is_used_by_one_thread_at_a_time() -> None:
    made: list[tuple[int, int]] = []
    at_once: list[int] = []

    def make(key: int) -> int:
        at_once.append(key)
        assert len(at_once) == 1, "two threads make results"
        time.sleep(0.002)
        made.append((key, threading.get_ident()))
        at_once.remove(key)
        return key * key

    prefetcher = Prefetcher(make, lambda key: key + 1 if key < 5 else None)
    assert prefetcher.get(0) == 0
    prefetcher.wait()
    assert made == [(0, threading.get_ident())], "outside of its context nothing is made ahead"
    with prefetcher.running(enabled=True):
        assert prefetcher.get(1) == 1
        prefetcher.wait()
        assert made[-1][0] == 2, "before it is asked for"
        assert [prefetcher.get(key) for key in (2, 3, 9, 4, 5)] == [4, 9, 81, 16, 25], "a key that is not the next one"
    assert len({ident for _, ident in made}) == 2
    assert [key for key, _ in made] == [0, 1, 2, 3, 4, 9, 4, 5], "nothing after the last key"
    assert threads() == []


def test_an_error_is_raised_where_its_result_is_asked_for_with_the_lines_that_raised_it() -> None:
    def make(key: int) -> int:
        return 1 // (key - 2)

    prefetcher = Prefetcher(make, lambda key: key + 1)
    with prefetcher.running(enabled=True):
        prefetcher.get(1)
        prefetcher.wait()  # raises nothing
        with pytest.raises(ZeroDivisionError) as raised:
            prefetcher.get(2)
        assert "return 1 // (key - 2)" in "".join(traceback.format_tb(raised.value.__traceback__))
        assert prefetcher.get(3) == 1, "it goes on"
    assert threads() == []


def test_a_task_that_does_not_return_does_not_hold_back_ctrl_c() -> None:
    program = (
        "import time\n"
        "from numerate.training.prefetch import Prefetcher\n"
        "prefetcher = Prefetcher(lambda key: time.sleep(1000 * key), lambda key: key + 1)\n"
        "with prefetcher.running(enabled=True):\n"
        "    prefetcher.get(0)\n"
        "    print('made', flush=True)\n"
        "    time.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        status = process.poll()
        process.kill()
    assert status in (130, -signal.SIGINT)


# Runs ----------------------------------------------------------------------------------------------------------------


def trained(runs: Path, *more: str, **options: Any) -> TrainedRun:
    return train(small_runs.small(OWN, *more), runs_dir=runs, quiet=True, **options)


@pytest.mark.parametrize(
    "more", [("training.gradient_accumulation_steps=2", "model.dropout=0.1"), GROWING], ids=["parts", "growing"]
)
def test_a_run_is_the_same_to_the_last_bit_stopped_and_resumed_too(
    ahead: Callable[[bool], None], tmp_path: Path, more: tuple[str, ...]
) -> None:
    ahead(False)
    plain = trained(tmp_path / "plain", *more)
    ahead(True)
    trained(tmp_path / "ahead", *more, **stop_after(7))
    assert threads() == []
    resumed = trained(tmp_path / "ahead", *more)
    assert same(weights(plain), weights(resumed))
    assert metrics(plain) == metrics(resumed)


def test_nothing_is_drawn_in_the_background_during_an_evaluation(
    ahead: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawing: list[int] = []
    examples = Arithmetic.examples

    def slowly(self: Arithmetic, *arguments: Any) -> Questions:
        drawing.append(threading.get_ident())
        assert len(set(drawing)) == 1, "two threads use the task at once"
        time.sleep(0.001)
        found = examples(self, *arguments)
        drawing.clear()
        return found

    monkeypatch.setattr(Arithmetic, "examples", slowly)
    ahead(True)
    trainer = Trainer(small_runs.small(OWN, "training.evaluate_every=1"), World.join("cpu"))
    monkeypatch.setattr(trainer.stream, "window", 1)
    trainer.train()
