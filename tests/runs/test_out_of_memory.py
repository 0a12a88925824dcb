"""A GPU that is out of memory ends a run or an evaluation with what needs less."""

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from numerate.cli import main
from numerate.config import identity, override
from numerate.errors import OperationalError
from numerate.models.decoder import DecoderModel
from numerate.runs.engines.memory import explained_out_of_memory
from numerate.runs.train import train
from numerate.training.trainer import Trainer
from small_runs import metrics, small

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
        with explained_out_of_memory("use less"):
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


def test_other_errors_are_left_as_they_are() -> None:
    error = RuntimeError("CUDA error: device-side assert triggered")
    with pytest.raises(RuntimeError) as caught, explained_out_of_memory("less"):
        raise error
    assert caught.value is error
