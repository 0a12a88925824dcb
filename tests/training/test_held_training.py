"""Promises of training pretrained models: they learn, and two processes train what one does.

This file is also the work of each of two processes, which torchrun starts: `test_held_training.py FOLDER`.
"""

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parent.parent))


from launched import ended, launch
from numerate.api import load, recipe
from numerate.runs.train import train
from numerate.training.recipe import Recipe

pytest.importorskip("transformers", reason="the extra huggingface is not installed")

torch.set_num_threads(1)

MODELS = {
    "t5": "T5(hidden_size=32,num_layers=2,num_heads=2,head_dim=16,intermediate_size=64,dropout=0.1,"
    "gradient_checkpointing=true)",
    "llama": 'PretrainedDecoder(config=\'{"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, '
    '"num_attention_heads": 2, "intermediate_size": 64}\')',
}
LAYOUTS = {"t5": "Seq2Seq", "llama": "Continuation"}
SMALL = (
    "task.digits=1 training.batch_size=32 training.shuffle_window=4 training.log_every=1 "
    "training.evaluate_every=10 training.checkpoint_every=10 training.keep_checkpoints=null "
    "evaluation.validation_examples=16 evaluation.grid=1:1x1:1 evaluation.examples_per_cell=40 "
    "schedule=Plateau(warmup=3,patience=1) optimizer.learning_rate=0.003 device=cpu"
)


def small(model: str, *more: str) -> Recipe:
    return recipe("addition_rotary", *SMALL.split(), f"model={MODELS[model]}", f"layout={LAYOUTS[model]}", *more)


def losses(runs: Path) -> list[float]:
    (file,) = runs.glob("*/*/metrics.jsonl")
    return [record["loss"] for record in map(json.loads, file.read_text().splitlines()) if "loss" in record]


def work(folder: Path) -> None:
    """What each process does: a T5 without dropout, its layers spread."""
    for way in ("fsdp", "all_reduce"):
        train(small("t5", "training.steps=12", "model.dropout=0", f"training.parallel={way}"), runs_dir=folder / way)


@pytest.mark.parametrize("model", [pytest.param("t5", marks=pytest.mark.slow), "llama"])
def test_a_pretrained_model_learns_and_is_evaluated_in_every_way(model: str, tmp_path: Path) -> None:
    whole = train(small(model, "training.steps=40"), runs_dir=tmp_path, quiet=True)
    found = losses(tmp_path)
    assert sum(found[-5:]) < 0.8 * sum(found[:5]), "it learns"
    run = load(str(whole.run.path), runs_dir=tmp_path)
    for method in ("one pass", "decoding", "beams"):
        run.evaluate("1:1x1:1", method=method)  # type: ignore[arg-type]
    lines = (whole.run.path / "cells.jsonl").read_text().splitlines()
    records = {record["method"]: record for record in map(json.loads, lines)}
    assert records["one pass"]["correct"] == records["decoding"]["correct"]
    assert set(records) == {"one pass", "decoding", "beams"}
    assert run.ask("3+4=").correct_answer == "7"


@pytest.mark.slow
def test_two_processes_with_spread_layers_train_what_one_does(tmp_path: Path) -> None:
    status, output = ended(launch(__file__, str(tmp_path), processes=2), 240)
    assert status == 0, output[-3000:]
    train(small("t5", "training.steps=12", "model.dropout=0"), runs_dir=tmp_path / "alone", quiet=True)
    alone = losses(tmp_path / "alone")
    for way in ("fsdp", "all_reduce"):
        found = losses(tmp_path / way)
        assert len(found) == 12
        assert max(abs(a - b) for a, b in zip(alone, found, strict=True)) < 1e-4, way
    assert max(alone) - min(alone) > 0.1


if __name__ == "__main__":
    work(Path(sys.argv[1]))
