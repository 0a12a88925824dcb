"""Promises of timings: speed and memory are those of what was done, and limits are those of the device's name."""

import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from numerate.api import recipe
from numerate.errors import UserError
from numerate.runs.train import train
from numerate.training.distributed import World
from numerate.training.optimizer import AdamW
from numerate.training.peak_flops import peak_flops
from numerate.training.recipe import Training
from numerate.training.timings import Timings
from small_runs import metrics, small

CPU = torch.device("cpu")
OWN = (
    "task.digits=1:2 model.backbone.num_layers=2 training.batch_size=8 training.log_every=2 training.evaluate_every=4 "
    "evaluation.validation_examples=8"
)


@dataclass
class Used:
    step: int
    tokens: int
    flops: int


def test_speeds_leave_out_what_is_not_training(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    timings = Timings(World(CPU, size=2), Training(precision="fp32"))
    timings.peak = 1e6
    assert timings.next_record(Used(1, 100, 1000)) is None, "the first steps compile and warm up"
    clock[0] = 4.0
    with timings.pause():
        clock[0] = 10.0
    line = timings.next_record(Used(5, 500, 4_001_000))
    assert line is not None
    assert (line["seconds"], line["training_seconds"], line["tokens_per_second"]) == (10.0, 4.0, 100)
    assert line["flops_per_second"] == 1e6
    assert line["flops_utilization"] == 0.5, "of two devices"
    assert line["peak_memory_bytes"] > 1e6


def test_limits_are_stated_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peak_flops("NVIDIA A100-SXM4-80GB", "bf16") == 312e12
    assert peak_flops("NVIDIA H100 PCIe", "bf16") == 756e12
    assert peak_flops("NVIDIA H200", "tf32") == 494e12
    assert peak_flops("NVIDIA A10", "fp32") == 31.2e12
    assert peak_flops("NVIDIA A10", "fp16") == 125e12
    assert peak_flops("Something else", "bf16") is None
    assert Timings(World(CPU), Training(precision="bf16", tf32=True)).matmul_precision == "bf16"
    assert Timings(World(CPU), Training(precision="fp32", tf32=True)).matmul_precision == "fp32"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A10")
    timings = Timings(World(torch.device("cuda")), Training(precision="fp32", tf32=True))
    assert (timings.matmul_precision, timings.peak) == ("tf32", 62.5e12)


def test_a_run_logs_speeds_and_the_norms_of_its_layers_and_evaluates_its_start(tmp_path: Path) -> None:
    more = (
        "training.steps=6",
        "training.log_layer_grad_norms=true",
        "training.evaluate_at_start=true",
        "training.micro_batch_size=4",
    )
    run = train(small(OWN, *more), runs_dir=tmp_path / "one", quiet=True)
    timings = run.run.folder.records("timings.jsonl")
    assert [line["step"] for line in timings] == [4, 6]
    assert all(line["flops_per_second"] > 0 and line["tokens_per_second"] > 0 for line in timings)
    logged = [line for line in metrics(run) if "learning_rate" in line]
    norms = logged[0]["layer_grad_norms"]
    assert {"embedding", "backbone.blocks.0", "backbone.blocks.1"} <= set(norms)
    assert [line["step"] for line in metrics(run) if line.get("split") == "validation"] == [0, 4, 6]
    plain = train(small(OWN, "training.steps=6"), runs_dir=tmp_path / "two", quiet=True)
    for mine, theirs in zip(logged, [line for line in metrics(plain) if "learning_rate" in line], strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)


def test_parts_are_as_many_as_it_takes() -> None:
    assert Training(batch_size=512, micro_batch_size=16).num_micro_batches(8) == 4
    assert Training(batch_size=512, gradient_accumulation_steps=4).num_micro_batches(2) == 4
    with pytest.raises(UserError, match="micro_batch_size: must divide the 512 examples of a batch, not 100"):
        Training(batch_size=512, micro_batch_size=100)
    with pytest.raises(UserError, match="must divide equally into micro-batches of 16 on 3 processes"):
        Training(batch_size=512, micro_batch_size=16).num_micro_batches(3)


def test_a_batch_may_be_given_in_tokens_of_text() -> None:
    text = ["task=LanguageModeling", "tokenizer=TokenIds", "layout=NextToken"]
    sizes = ("task.context_length=1024", "training.batch_tokens=524288", "training.micro_batch_size=64")
    training = recipe("addition_abacus", *text, *sizes).training
    assert (training.batch_size, training.batch_tokens, training.num_micro_batches(2)) == (512, None, 4)
    with pytest.raises(UserError, match=r"training.batch_tokens: must be a multiple of context_length=512, not 1000"):
        recipe("addition_abacus", *text, "training.batch_tokens=1000")
    with pytest.raises(
        UserError, match=r"training.batch_tokens: must be null for Arithmetic, whose examples differ in length"
    ):
        recipe("addition_abacus", "training.batch_tokens=1024")


def test_all_of_two_dimensions_decays_where_that_is_wanted() -> None:
    more = ("model.mixer=DualAttention(num_self_heads=1,num_relational_heads=1)", "model.positions=[Rotary]")
    found = small(OWN, *more)
    model = found.model.build(found.tokenizer.build_vocabulary(found.task), 0)
    settings = AdamW(decay_parameters="matrices").parameter_options(model)
    assert settings.keys() == dict(model.named_parameters()).keys()
    assert all(settings[name][1] == (own.dim() >= 2) for name, own in model.named_parameters())
    groups = AdamW(weight_decay=0.1, decay_parameters="matrices").build(model, settings).param_groups
    assert {group["weight_decay"] for group in groups} == {0.0, 0.1}
