"""Promises of the rate that is cut on a plateau: PyTorch's own rule, and the same rates after a stop."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import small_runs
from numerate.batch import StepContext
from numerate.runs.train import TrainedRun, train
from numerate.training.distributed import World
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder
from numerate.training.schedule import Constant, Plateau
from numerate.training.trainer import Trainer
from small_runs import metrics, same, weights

OWN = (
    "model.mixer.num_heads=4 model.dropout=0.2 training.log_every=1 training.evaluate_every=3 "
    "training.checkpoint_every=7 training.keep_checkpoints=null"
)


def small(*more: str) -> Recipe:
    return small_runs.small(OWN, *more)


def rates_of(schedule: Plateau, measured: list[float]) -> list[float]:
    memory: dict[str, float] = {}
    found = []
    for value in measured:
        memory = json.loads(json.dumps(schedule.update_state(memory, value)))  # as a checkpoint keeps it
        found.append(0.01 * schedule.plateau_factor(memory))
    return found


def rates_of_torch(schedule: Plateau, measured: list[float]) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.01)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer,
        mode="min" if schedule.monitor == "loss" else "max",
        factor=schedule.factor,
        patience=schedule.patience,
        threshold=schedule.threshold,
        min_lr=0.01 * schedule.min_lr_ratio,
        eps=0.0,
    )
    found = []
    for value in measured:
        theirs.step(value)
        found.append(optimizer.param_groups[0]["lr"])
    return found


@pytest.mark.parametrize("watch", ["loss", "score"])
@pytest.mark.parametrize("patience", [0, 2, 5])
def test_it_cuts_when_pytorch_would(watch: Any, patience: int) -> None:
    draws = random.Random(patience)
    schedule = Plateau(monitor=watch, patience=patience, threshold=0.05, min_lr_ratio=0.1)
    for start in range(20):
        trend = 1 if watch == "score" else -1
        measured = [max(0.01, 1 + trend * 0.02 * min(step, 20) + draws.gauss(0, 0.2)) for step in range(60)]
        found = rates_of(schedule, measured)
        assert found == pytest.approx(rates_of_torch(schedule, measured), rel=1e-12), start
        assert len(set(found)) > 1


def test_by_hand() -> None:
    schedule = Plateau(patience=1, warmup=0)
    losses = [1.0, 0.9, 0.9, 0.95, 0.8, math.nan, math.inf, 0.8]
    factors = [rate / 0.01 for rate in rates_of(schedule, losses)]
    assert factors == pytest.approx([1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25])


def rates(made: TrainedRun) -> dict[int, float]:
    return {line["step"]: line["learning_rate"] for line in metrics(made) if "learning_rate" in line}


PLATEAU = "schedule=Plateau(warmup=2,factor=0.5,patience=0,threshold=0.5)"


def test_a_run_that_was_stopped_resumes_with_the_same_rates_and_weights(tmp_path: Path) -> None:
    whole = train(small(PLATEAU, "training.steps=30"), runs_dir=tmp_path / "whole", quiet=True)
    train(small(PLATEAU, "training.steps=14"), runs_dir=tmp_path / "halves", quiet=True)
    halves = train(small(PLATEAU, "training.steps=30"), runs_dir=tmp_path / "halves", quiet=True)
    assert rates(whole) == rates(halves)
    assert rates(whole)[14] < rates(whole)[3], "it was cut before the stop"
    one, other = (run.run.checkpoints("final")[0] for run in (whole, halves))
    assert one.state["progress"]["schedule_state"] == other.state["progress"]["schedule_state"]
    assert same(weights(whole), weights(halves))


def test_the_validation_loss_is_that_of_the_objective_and_is_recorded(tmp_path: Path) -> None:
    made = train(small(PLATEAU, "training.steps=6"), runs_dir=tmp_path, quiet=True)
    losses = [line["validation_loss"] for line in metrics(made) if "validation_loss" in line]
    assert len(losses) == 2
    trainer = Trainer(small(PLATEAU, "training.steps=6"), World.join("cpu"), RunFolder.open(made.run.path))
    trainer.resume()
    trainer.model.eval()
    batch = trainer.validator._draw_shards(lambda: None)[0].batch
    with torch.no_grad():
        loss = trainer.objective(trainer.model, batch, StepContext.for_evaluation())
    counts = trainer.objective.counts(batch)
    assert losses[-1] == pytest.approx(float(loss["cross_entropy"]) / counts["cross_entropy"], rel=1e-5)


def test_other_schedules_measure_no_loss(tmp_path: Path) -> None:
    assert Constant().monitored_metric() is None
    made = train(small("schedule=Constant(warmup=2)", "training.steps=4"), runs_dir=tmp_path, quiet=True)
    assert "validation_loss" not in (made.run.path / "metrics.jsonl").read_text()
    assert made.run.checkpoints("final")[0].state["progress"]["schedule_state"] == {}
    assert [rate / rates(made)[4] for rate in rates(made).values()] == pytest.approx([1 / 3, 2 / 3, 1, 1], abs=1e-5)
