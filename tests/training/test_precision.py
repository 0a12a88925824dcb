"""Promises of `training.precision=auto`: bf16 where a device has it, one id everywhere, no change within a run."""

from pathlib import Path

import pytest
import torch

from numerate.config import identity
from numerate.errors import UserError
from numerate.runs import train as training_session
from numerate.training import preflight, trainer
from numerate.training.precision import resolve_precision
from small_runs import small

RUN = "task.digits=1:2 training.evaluate_every=100 evaluation.grid=1x1"


@pytest.mark.parametrize(("has_bf16", "expected"), [(True, "bf16"), (False, "fp32")])
def test_auto_is_bf16_on_a_cuda_device_that_computes_in_it(
    monkeypatch: pytest.MonkeyPatch, has_bf16: bool, expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bf16 or including_emulation)
    assert resolve_precision("auto", torch.device("cuda")) == expected
    assert resolve_precision("fp16", torch.device("cuda")) == "fp16"
    assert resolve_precision("auto", torch.device("cpu")) == "fp32"


def test_bf16_is_refused_on_a_gpu_that_only_emulates_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    parts = type("Parts", (), {"recipe": small("training.precision=bf16"), "device": torch.device("cuda")})()
    with pytest.raises(UserError, match=r"training.precision: must be fp16 or fp32; this GPU does not support bf16"):
        preflight.check_precision(parts)


def test_auto_has_one_id_on_every_device_and_a_stated_precision_another() -> None:
    assert identity(small(RUN)) == identity(small(RUN, "training.precision=auto"))
    assert len({identity(small(RUN, f"training.precision={one}")) for one in ("auto", "fp32", "bf16")}) == 3


def test_a_run_keeps_the_precision_that_it_started_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(*settings: str) -> tuple[str, str]:
        run = training_session.train(small(RUN, *settings), runs_dir=tmp_path, quiet=True).run
        return run.checkpoints("final")[0].state["precision"], run.folder.metadata()["precision"]

    with monkeypatch.context() as on_a_gpu:
        on_a_gpu.setattr(trainer, "resolve_precision", lambda stated, _: "bf16" if stated == "auto" else stated)
        assert trained("training.steps=1") == ("bf16", "bf16")
    assert trained("training.steps=2") == ("bf16", "bf16"), "resumed on a device that would choose another"
    assert trained("training.steps=1", "training.precision=fp32") == ("fp32", "fp32")
    assert trained("training.steps=1", "seed=1") == ("fp32", "fp32")
