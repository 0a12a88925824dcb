"""A GPU that is out of memory ends a run or an evaluation with what needs less."""

import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from numerate.cli import main
from numerate.config import identity, override
from numerate.errors import OperationalError
from numerate.models.decoder import DecoderModel
from numerate.runs import out_of_memory
from numerate.runs.engines.failures import failure_from_exception
from numerate.runs.out_of_memory import available_memory, explained_out_of_memory
from numerate.runs.train import train
from numerate.training.trainer import Trainer
from small_runs import metrics, small

CPU = torch.device("cpu")
GPU_ERRORS = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("MPS backend out of memory (MPS allocated: 5.00 GiB, max allowed: 9.07 GiB)"),
)


def fails_at(monkeypatch: pytest.MonkeyPatch, method: str, step: int, error: Exception) -> None:
    """Lets a method of the trainer fail at a step."""
    original = getattr(Trainer, method)

    def failing(self: Trainer, *given: Any) -> Any:
        if self.state.step == step:
            raise error
        return original(self, *given)

    monkeypatch.setattr(Trainer, method, failing)


@pytest.mark.parametrize("method", ["compute_gradients", "_validate"])
def test_a_run_out_of_memory_goes_on_with_smaller_micro_batches(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = small("training.steps=8 training.evaluate_every=4 training.checkpoint_every=2 training.log_every=2")
    whole = train(recipe, runs_dir=tmp_path / "whole", quiet=True)
    with monkeypatch.context() as patch:
        fails_at(patch, method, 4, GPU_ERRORS[0])
        with pytest.raises(OperationalError, match=r"GPU is out of memory: a smaller training.* \(now 16\) needs less"):
            train(recipe, runs_dir=tmp_path, quiet=True)
    smaller = override(recipe, ["training.micro_batch_size=4"])
    assert identity(smaller) == identity(recipe)
    resumed = train(smaller, runs_dir=tmp_path, quiet=True)
    assert resumed.run.path.relative_to(tmp_path) == whole.run.path.relative_to(tmp_path / "whole")
    losses, expected = ([line["loss"] for line in metrics(one) if "loss" in line] for one in (resumed, whole))
    assert losses == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("error", GPU_ERRORS, ids=str)
def test_every_way_in_which_a_gpu_says_that_it_is_full_is_explained(error: Exception) -> None:
    with pytest.raises(OperationalError, match=r"^the GPU is out of memory: use less$") as caught:
        with explained_out_of_memory(CPU, "use less"):
            raise error
    assert caught.value.__cause__ is error


def test_an_evaluation_out_of_memory_says_what_needs_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(small("training.steps=1"), runs_dir=tmp_path, quiet=True).run
    with monkeypatch.context() as patch:
        patch.setattr(DecoderModel, "forward", mock.Mock(side_effect=GPU_ERRORS[0]))
        assert main(["evaluate", str(run.path), "grid=1x1", "count=4"]) == 1
    said = capsys.readouterr().err
    assert "numerate: the GPU is out of memory: up to 32,768 tokens are evaluated at a time; a smaller count=" in said
    assert main(["evaluate", str(run.path), "grid=1x1", "count=4"]) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the system grants more memory than there is")
def test_a_row_that_needs_more_memory_than_there_is_is_an_error_and_not_the_end_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = small("training.steps=1 model.positions=[ALiBi]")
    run = train(recipe, runs_dir=tmp_path, quiet=True).run
    words, before = ["evaluate", str(run.path), "grid=diagonal:2:602:600"], resource.getrlimit(resource.RLIMIT_DATA)
    with monkeypatch.context() as patch:
        patch.setattr(out_of_memory, "MAX_TOKENS_PER_BATCH", 1000)
        patch.setattr(out_of_memory, "available_memory", lambda: 20_000_000)
        assert main(words) == 1
        said = " ".join(capsys.readouterr().err.split())
        assert (
            "first_digits=602, second_digits=602: a row of about 1,810 tokens needs more than the 18.0 MB of memory"
            in said
        )
        assert "that this process may take; shorter ones need less" in said
        assert [one["cell"]["first_digits"] for one in run.folder.records("cells.jsonl")] == [2], "what fits is kept"
        patch.setattr(out_of_memory, "MAX_TOKENS_PER_BATCH", 2000)
        assert main(words) == 0, "rows that are evaluated together need no limit"
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.skipif(sys.platform != "linux", reason="the system grants more memory than there is")
def test_rows_of_several_threads_are_limited_one_after_the_other_and_the_limit_ends() -> None:
    before, during = resource.getrlimit(resource.RLIMIT_DATA), []

    def evaluate(number: int) -> None:
        with explained_out_of_memory(CPU, "", 40_000, "cell"):
            during.append(number)
            time.sleep(0.02)
            during.append(number)
            assert resource.getrlimit(resource.RLIMIT_DATA) != before

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(evaluate, range(4)))
    assert during[::2] == during[1::2]
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    message = "cell: a row of about 40,000 tokens needs more"
    with pytest.raises(OperationalError, match=message) as caught, explained_out_of_memory(CPU, "", 40_000, "cell"):
        torch.empty(2**50)
    failure = failure_from_exception(caught.value)
    assert (failure.kind, failure.text) == ("operational error", str(caught.value)), "as workers say it"


@pytest.mark.parametrize("version", [1, 2])
def test_memory_is_that_within_the_limit_of_a_container(version: int, tmp_path: Path) -> None:
    folder = tmp_path / "sys/fs/cgroup" / ("memory/job" if version == 1 else "job")
    (tmp_path / "proc/self").mkdir(parents=True)
    (folder / "step").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemAvailable:   9000 kB\nSwapFree:   1000 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/job/step\n0::/\n" if version == 1 else "0::/job/step\n")
    assert available_memory(tmp_path) == 10_240_000
    limit, used = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes") if version == 1 else ("memory.max", "memory.current")
    )
    for place, most in ((folder / "step", "max"), (folder, "5000000")):
        (place / limit).write_text(most + "\n")
        (place / used).write_text("3000000\n")
        total = "total_inactive_file 900000\n" if version == 1 else ""
        (place / "memory.stat").write_text(f"anon 7\ninactive_file 900000\nactive_file 100000\n{total}")
    assert available_memory(tmp_path) == 3_000_000


def test_other_errors_are_left_as_they_are() -> None:
    error = RuntimeError("CUDA error: device-side assert triggered")
    with pytest.raises(RuntimeError) as caught, explained_out_of_memory(CPU, "less"):
        raise error
    assert caught.value is error
