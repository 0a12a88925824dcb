"""Promises of what a run would take on a GPU that is not there, and of batches too large for one that is."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from numerate.cli import main
from numerate.config import identity, override
from numerate.errors import OperationalError, UserError
from numerate.experiments.device_estimate import (
    DeviceEstimate,
    batch_advice,
    estimate_on_device,
    explained_out_of_memory,
)
from numerate.experiments.train import train
from numerate.models.decoder import DecoderModel
from numerate.training import peak_flops, preflight
from numerate.training.distributed import World
from numerate.training.peak_flops import GPU
from numerate.training.trainer import Trainer
from small_runs import SMALL, metrics, small

CPU = torch.device("cpu")
GPU_ERRORS = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("MPS backend out of memory (MPS allocated: 5.00 GiB, max allowed: 9.07 GiB)"),
)


@pytest.fixture
def tiny_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU `tiny` of 1.0004 GB, of which 1 GB is CUDA's."""
    monkeypatch.setitem(peak_flops.GPUS, "tiny", GPU(1.0004, 1, 1, 1))


def test_a_dry_run_for_a_gpu_says_memory_operations_and_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "addition_abacus", *SMALL.replace("device=cpu", "").split(), f"runs_dir={tmp_path}", "--dry-run"]
    assert main([*words, "device=h100,rtx4090", "training.steps=2e9", "training.precision=bf16"]) == 0
    text = capsys.readouterr().out
    h100, rtx = text.split("addition_abacus seed=0\n")[1:]
    assert [line[:18].strip() for line in h100.splitlines() if line[0] != " "] == [
        "parameters",
        "budget",
        "compute",
        "largest batch",
        "weights, moments",
        "gradients",
        "activations",
        "memory",
        "peak",
        "time",
    ]
    assert "fits the 80 GB of one H100" in h100
    assert "989 TFLOP/s in bf16" in h100
    assert "fits the 24 GB of one RTX 4090" in rtx
    assert max(map(len, text.splitlines())) <= 80
    assert list(tmp_path.iterdir()) == []


def test_time_is_operations_by_peak_and_launches_by_kernels() -> None:
    estimate = estimate_on_device(small("device=a100 training.precision=bf16 training.gradient_accumulation_steps=4"))
    assert estimate.seconds(0.5) == pytest.approx(estimate.total_flops / 156e12)
    assert estimate.num_micro_batches == 4
    assert estimate.launch_seconds == pytest.approx(4500 * 4 * 5e-6 * estimate.memory.num_kernels)
    assert estimate.flops_per_step == pytest.approx(estimate.total_flops / 4500)


def test_the_largest_micro_batch_that_fits_is_proposed(tiny_gpu: None) -> None:
    def estimated(*settings: str) -> DeviceEstimate:
        return estimate_on_device(small("device=tiny", *settings))

    large = estimated("training.batch_size=48")
    assert not large.fits
    assert large.smaller is not None
    rows = large.smaller.batch_shape[0]
    assert f"training.micro_batch_size={rows} needs 1.0 GB" in str(large)
    assert estimated("training.batch_size=48", f"training.micro_batch_size={rows}").fits
    more = min(size for size in range(rows + 1, 49) if 48 % size == 0)
    assert not estimated("training.batch_size=48", f"training.micro_batch_size={more}").fits
    huge = estimated("model.hidden_size=128")
    assert (huge.fits, huge.smaller) == (False, None)
    assert "nor does one row at a time" in str(huge)


def test_a_gpu_must_be_known_and_have_the_precision() -> None:
    with pytest.raises(UserError, match=r"device: must be one of b200, .*h100, a100,.* not 'cpu'"):
        estimate_on_device(small(""))
    with pytest.raises(UserError, match="precision: must be fp16 or fp32 for device=v100, which has no bf16"):
        estimate_on_device(small("device=v100 training.precision=bf16"))


def test_a_gpu_that_is_not_known_is_answered_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "addition_abacus", "--dry-run", "device=h800"]) == 2
    assert re.search(r"not 'h800'; --dry-run also estimates for b200, .*, h100, ", capsys.readouterr().err)


def test_the_name_of_a_gpu_is_for_a_dry_run_alone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="device: h100 is a name for --dry-run"):
        train(small("device=h100"), runs_dir=tmp_path, quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_bf16_is_refused_on_a_gpu_that_only_emulates_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    parts = type("Parts", (), {"recipe": small("training.precision=bf16"), "device": torch.device("cuda")})()
    with pytest.raises(UserError, match=r"training.precision: must be fp16 or fp32; this GPU does not support bf16"):
        preflight.check_precision(parts)


# Out of memory --------------------------------------------------------------------------------------------------------


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
        with pytest.raises(
            OperationalError, match=r"the GPU is out of memory: about .* are needed for 16 rows"
        ) as caught:
            train(recipe, runs_dir=tmp_path, quiet=True)
    [setting] = [word for word in str(caught.value).split() if word.startswith("training.micro_batch_size=")]
    assert int(setting.split("=")[1]) < 16
    smaller = override(recipe, [setting])
    assert identity(smaller) == identity(recipe)
    resumed = train(smaller, runs_dir=tmp_path, quiet=True)
    assert resumed.run.path.relative_to(tmp_path) == whole.run.path.relative_to(tmp_path / "whole")
    losses, expected = ([line["loss"] for line in metrics(one) if "loss" in line] for one in (resumed, whole))
    assert losses == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("error", GPU_ERRORS, ids=str)
def test_every_way_in_which_a_gpu_says_that_it_is_full_is_explained(error: Exception) -> None:
    with pytest.raises(OperationalError, match=r"training.micro_batch_size=\d+ would need about 1.0 GB") as caught:
        with explained_out_of_memory(CPU, lambda: batch_advice(small(""), World(CPU))):
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
    with pytest.raises(RuntimeError) as caught, explained_out_of_memory(CPU, lambda: "less"):
        raise error
    assert caught.value is error


def test_micro_batches_win_over_accumulation_and_are_no_part_of_an_id() -> None:
    recipe = small("training.gradient_accumulation_steps=2")
    smaller = replace(recipe, training=replace(recipe.training, micro_batch_size=2))
    assert smaller.training.num_micro_batches(1) == 8
    assert identity(smaller) == identity(recipe) != identity(small(""))
