"""Promises of stopping and going on: whatever stops a run, the weights and the metrics come out the same, bit by bit.

Every start is a process of its own (or several, started by torchrun), as a person starts it. Runs are stopped once a
step is seen in `metrics.jsonl`, and started again by the same command.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from launched import ended, last_logged_step, launch

STEPS = 320
RECIPE = (
    "addition_abacus task.digits=1:3 model.hidden_size=16 model.backbone.num_layers=1 model.dropout=0.2 "
    "model.mixer.dropout=0.2 "
    f"training.batch_size=12 training.shuffle_window=8 training.steps={STEPS} training.log_every=3 "
    f"training.evaluate_every=80 "
    "training.checkpoint_every=40 training.keep_checkpoints=null evaluation.validation_examples=16"
).split()
LONGEST = 120.0


@dataclass
class Commands:
    """`numerate train` with so many processes, in a folder of its own."""

    runs: Path
    processes: int = 1
    output: list[str] = field(default_factory=list)

    def start(self) -> "subprocess.Popen[str]":
        words = ("-m", "numerate", "train", *RECIPE, f"runs_dir={self.runs}")
        return launch(*words, processes=self.processes, prepare=heed_hang_up)

    def to_the_end(self) -> int:
        return self.wait_for(self.start())

    def wait_for(self, process: "subprocess.Popen[str]") -> int:
        status, out = ended(process, LONGEST)
        self.output.append(out)
        return status

    def stopped_after(self, step: int, how: "Callable[[subprocess.Popen[str], Commands], None]") -> int:
        """Starts, waits until the step is logged, stops it, waits for its end."""
        process, end = self.start(), time.monotonic() + LONGEST
        while last_logged_step(self.runs) < step:
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < end
            time.sleep(0.005)
        how(process, self)
        status = self.wait_for(process)
        while self.holders():  # workers that outlive their launcher
            assert time.monotonic() < end
            time.sleep(0.05)
        assert self.steps()[-1] < STEPS, "the run was done before it could be stopped"
        return status

    @property
    def folder(self) -> Path:
        (head,) = self.runs.glob("*/*/recipe.yaml")
        return head.parent

    def metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def steps(self) -> list[int]:
        return sorted(int(path.name.removeprefix("step-")) for path in (self.folder / "checkpoints").glob("step-*"))

    def weights(self, step: int) -> dict[str, bytes]:
        folder = self.folder / "checkpoints" / f"step-{step:06d}"
        return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}

    def holders(self) -> list[int]:
        """The processes that train in this folder, by the command line that the system knows of them."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                words = (place / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"runs_dir={self.runs}".encode() in words and b"torch.distributed.run" not in words:
                found.append(int(place.name))
        return sorted(found)


def heed_hang_up() -> None:
    """Under `nohup` a process would get no signal."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def by(number: signal.Signals) -> "Callable[[subprocess.Popen[str], Commands], None]":
    return lambda process, commands: process.send_signal(number)


def one_worker_killed(process: "subprocess.Popen[str]", commands: Commands) -> None:
    os.kill(commands.holders()[-1], signal.SIGKILL)


CTRL_C, TERMINATED, HUNG_UP, KILLED = map(by, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("resume")


@pytest.fixture(scope="module")
def whole(place: Path) -> "Callable[[int], Commands]":
    """The run of so many processes that nothing stops."""

    @cache
    def run(processes: int) -> Commands:
        whole = Commands(place / f"whole-{processes}", processes)
        assert whole.to_the_end() == 0, whole.output
        return whole

    return run


def same_so_far(stopped: Commands, whole: Commands) -> None:
    """Weights, moments and metrics are those of the run that was never stopped, byte for byte."""
    common = sorted(set(stopped.steps()) & set(whole.steps()))
    for step in common:
        assert stopped.weights(step) == whole.weights(step), f"step {step} of {common}"
    last = stopped.steps()[-1]
    assert [line for line in stopped.metrics() if line["step"] <= last] == [
        line for line in whole.metrics() if line["step"] <= last
    ]


def same_to_the_end(stopped: Commands, whole: Commands) -> None:
    assert stopped.to_the_end() == 0, stopped.output
    assert stopped.steps()[-1] == whole.steps()[-1] == STEPS
    same_so_far(stopped, whole)
    assert (stopped.folder / "metrics.jsonl").read_bytes() == (whole.folder / "metrics.jsonl").read_bytes()
    assert len({whole.metrics()[0]["loss"], whole.metrics()[-3]["loss"]}) == 2


def test_one_process_resumes_bit_by_bit_after_every_kind_of_stop(
    place: Path, whole: "Callable[[int], Commands]"
) -> None:
    run = Commands(place / "one")
    for step, how, status in ((21, CTRL_C, 130), (63, TERMINATED, 143), (105, HUNG_UP, 129), (147, KILLED, -9)):
        assert run.stopped_after(step, how) == status, run.output
        same_so_far(run, whole(1))
    assert any("stopped at step" in text and "the same command resumes" in text for text in run.output)
    same_to_the_end(run, whole(1))
    assert "resuming from step" in run.output[-1]


@pytest.mark.slow
def test_two_processes_go_on_bit_by_bit_after_every_signal_to_their_launcher(
    place: Path, whole: "Callable[[int], Commands]"
) -> None:
    run = Commands(place / "two", 2)
    for step, how in ((21, CTRL_C), (63, TERMINATED), (105, HUNG_UP), (147, KILLED)):
        assert run.stopped_after(step, how) != 0
        same_so_far(run, whole(2))
    same_to_the_end(run, whole(2))


@pytest.mark.slow
def test_three_processes_go_on_bit_by_bit_and_the_death_of_one_ends_all(
    place: Path, whole: "Callable[[int], Commands]"
) -> None:
    run = Commands(place / "three", 3)
    assert run.stopped_after(45, one_worker_killed) != 0
    assert run.holders() == []
    same_to_the_end(run, whole(3))
