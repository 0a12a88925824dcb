"""Promises of the budget: what ends a run, what a step costs, and how batches grow."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import small_runs
from cases import published_case
from numerate.batch import Batch
from numerate.errors import UserError
from numerate.runs.train import TrainedRun, train
from numerate.runs.trial import dry_run
from numerate.training.budget import Budget, format_flops
from numerate.training.distributed import World
from numerate.training.recipe import Recipe, Training
from numerate.training.trainer import Trainer
from small_runs import metrics, same, stop_after, tensors

torch.set_num_threads(1)

OWN = (
    "training.steps=30 training.evaluate_every=1000 training.checkpoint_every=null "
    "schedule=WarmupStableDecay(warmup=0.1)"
)
GROWING = ("training.batch_size_warmup=0.6", "training.initial_batch_size=4")


def small(*more: str) -> Recipe:
    return small_runs.small(OWN, *more)


def trainer_of(*more: str) -> Trainer:
    trainer = Trainer(small(*more), World.join("cpu"))
    trainer.model.train()
    return trainer


def trained(runs: Path, *more: str, stop_at: int | None = None) -> TrainedRun:
    return train(small(*more), runs_dir=runs, quiet=True, **stop_after(stop_at))


@dataclass
class At:
    """A place in a run."""

    step: int = 0
    examples: int = 0
    tokens: int = 0
    flops: int = 0


@pytest.fixture(scope="module")
def parts() -> Trainer:
    return trainer_of()


def budget_of(parts: Trainer, **settings: Any) -> Budget:
    """A budget over the task, data and model of a small recipe."""
    settings = {"steps": None, "shuffle_window": 4, **settings}
    return Budget(Training(**settings), parts.recipe.task, parts.stream, parts.model, parts.objective)


def places(budget: Budget) -> Iterator[At]:
    """The places before each step, until the budget is spent."""
    at = At()
    while not budget.is_spent(at):
        yield at
        at = At(
            at.step + 1,
            at.examples + budget.training.base_batch_size * budget.batch_size_multiple(budget.fraction_used(at)),
        )


def batches_of(trainer: Trainer, steps: int) -> list[list[Batch]]:
    """The parts of each of the first steps, as they are trained on."""
    found = []
    for _ in range(steps):
        found.append(list(trainer.next_batch().micro_batches))
        trainer.training_step(trainer.total_steps)
    return found


# Operations ----------------------------------------------------------------------------------------------------------


def test_a_step_costs_three_forwards_of_its_padded_batch() -> None:
    trainer = trainer_of("training.gradient_accumulation_steps=2")
    shapes = [tuple(batch.tokens.ids.shape) for parts in batches_of(trainer, 5) for batch in parts]
    assert len(set(shapes)) > 1
    assert trainer.state.flops == sum(3 * trainer.model.flops(*shape) for shape in shapes) > 0


def test_operations_are_logged_and_what_a_run_ended_with_is_kept(tmp_path: Path) -> None:
    run = trained(tmp_path)
    counted = [line["flops"] for line in metrics(run) if "loss" in line]
    assert len(counted) == 6
    assert all(0 < earlier < later for earlier, later in pairwise(counted))
    assert run.run.folder.metadata()["ended"]["flops"] == counted[-1]
    assert run.run.checkpoints()[0].state["progress"]["flops"] == counted[-1]
    log = (run.run.path / "log.txt").read_text()
    assert f"30 steps, 480 examples, {metrics(run)[5]['tokens']:,} tokens, {format_flops(counted[-1])}" in log


def test_a_budget_in_operations_ends_the_run_near_its_estimate(tmp_path: Path) -> None:
    run = trained(tmp_path, "training.steps=null", "training.flops=2e8")
    lines = [line for line in metrics(run) if "loss" in line]
    used = run.run.checkpoints()[0].state["progress"]
    assert 2e8 <= used["flops"] < 2e8 + 2e8 / used["step"] * 2
    trainer = trainer_of("training.steps=null", "training.flops=2e8")
    assert trainer.total_steps == pytest.approx(used["step"], rel=0.1)
    assert lines[-1]["learning_rate"] < 0.4 * max(line["learning_rate"] for line in lines)


def test_the_first_budget_that_is_reached_ends_the_run(parts: Trainer) -> None:
    both = budget_of(parts, steps=5, flops=1e15)
    assert both.total_steps == 5
    assert not both.is_spent(At(step=4, flops=10**14))
    assert both.is_spent(At(step=5))
    assert both.is_spent(At(flops=10**15))
    one = budget_of(parts, flops=1e9)
    assert not one.is_spent(At(step=10**6, examples=10**9))
    assert budget_of(parts, examples=100, batch_size=16).total_steps == 7
    assert budget_of(parts, examples=100, batch_size=16).is_spent(At(step=7, examples=112))


@pytest.mark.parametrize(
    ("flops", "text"),
    [(8e18, "8.0 exaFLOP"), (6.4e19, "64.0 exaFLOP"), (0, "0.0 FLOP"), (999.96, "1.0 kiloFLOP"), (3e24, "3,000.0")],
)
def test_operations_are_shown_in_their_unit(flops: float, text: str) -> None:
    assert format_flops(flops).startswith(text)


def test_a_dry_run_says_the_operations_of_a_step_and_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate = dry_run(small("training.steps=null", "training.flops=8e15", *GROWING), num_timed_steps=2)
    assert estimate.total_flops == pytest.approx(8e15, rel=1e-6)
    assert "8.0 petaFLOP in all" in str(estimate)
    assert estimate.first_batch_shape[0] == 4
    assert estimate.flops_per_step * estimate.num_examples / 16 == pytest.approx(8e15, rel=1e-3)


# Growing batches -----------------------------------------------------------------------------------------------------


def test_batches_grow_as_published(shared: Path, parts: Trainer) -> None:
    case = published_case(shared, "abacus.json", "batch_size_ramp")
    budget = budget_of(parts, flops=8e18, batch_size=8192, batch_size_warmup=0.6, initial_batch_size=512)
    assert len(case["input"]["hours"]) == 12
    for hours in case["input"]["hours"]:
        assert 512 * budget.batch_size_multiple(float(hours) / 24) == case["expected"][hours], hours


@pytest.mark.parametrize("limit", [{"steps": 500}, {"examples": 7777}, {"epochs": 0.011}])
@pytest.mark.parametrize("ramp", [0.3, 0.6, 1.0])
def test_a_ramp_climbs_once_over_its_share_of_the_budget(parts: Trainer, limit: dict[str, Any], ramp: float) -> None:
    budget = budget_of(parts, **limit, batch_size=48, batch_size_warmup=ramp, initial_batch_size=4)
    every = list(places(budget))
    multiples = [budget.batch_size_multiple(budget.fraction_used(at)) for at in every]
    assert multiples == sorted(multiples)
    assert set(multiples) == set(range(1, 13))
    full = next(at for at, multiple in zip(every, multiples, strict=True) if multiple == 12)
    assert 11 / 12 * ramp < budget.fraction_used(full) < 11 / 12 * ramp + 0.01
    assert len(every) == pytest.approx(budget.total_steps, abs=1)
    assert every[-1].examples + 48 == pytest.approx(budget.total_examples, abs=48)
    positions = [budget.schedule_step(at) for at in every]
    assert positions[0] == 0
    assert positions == sorted(positions)
    assert positions[-1] == pytest.approx(budget.total_steps - 1, abs=budget.total_steps / 50)


def test_a_ramp_over_a_budget_in_examples_goes_by_examples_and_by_steps_over_one_in_steps(parts: Trainer) -> None:
    growing = {"batch_size": 48, "batch_size_warmup": 0.6, "initial_batch_size": 4}
    half = At(step=10, examples=5000)
    assert budget_of(parts, examples=10000, **growing).fraction_used(half) == 0.5
    assert budget_of(parts, steps=40, **growing).fraction_used(half) == 0.25
    assert budget_of(parts, steps=40, examples=10**6, **growing).fraction_used(half) == 0.25
    assert budget_of(parts, steps=10**6, examples=10000, **growing).fraction_used(half) == 0.5


@pytest.mark.parametrize("accumulate", [1, 2])
def test_growing_batches_lose_and_double_no_example(accumulate: int) -> None:
    trainer = trainer_of(*GROWING, f"training.gradient_accumulation_steps={accumulate}")
    steps = batches_of(trainer, 30)
    taken = [sum(len(batch.tokens.ids) for batch in parts) for parts in steps]
    assert taken == sorted(taken)
    assert set(taken) == {4, 8, 12, 16}
    assert {len(batch.tokens.ids) for parts in steps for batch in parts} == {4 // accumulate}
    seen = [row for parts in steps for batch in parts for row in batch.tokens.example_indices.tolist()]
    assert sum(taken) == len(seen) == len(set(seen)) == trainer.state.examples
    window = 4 * 16
    for number in range(len(seen) // window):
        assert sorted(seen[number * window : (number + 1) * window]) == list(
            range(number * window, (number + 1) * window)
        )
    places = [row for n in range(len(seen) // 4) for row in trainer.stream.batch(n * 4).tokens.example_indices.tolist()]
    assert seen == places, "the order is that of the stream, however it is cut into steps"


@pytest.mark.parametrize("budget", ["steps=30", "examples=300", "flops=1e8"])
def test_a_run_with_growing_batches_that_was_stopped_is_the_run_that_was_not(tmp_path: Path, budget: str) -> None:
    chosen = ("training.steps=null", f"training.{budget}", *GROWING)
    whole = trained(tmp_path / "whole", *chosen)
    for step in (7, 19):
        assert trained(tmp_path / "halves", *chosen, stop_at=step).stop_reason == "stopped"
    halves = trained(tmp_path / "halves", *chosen)
    assert whole.stop_reason == halves.stop_reason == "budget"
    assert metrics(whole) == metrics(halves)
    assert all(same(tensors(whole)[group], tensors(halves)[group]) for group in ("weights", "optimizer"))


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"batch_size_warmup": 0.6}, "batch_size_warmup: 0.6 requires initial_batch_size"),
        ({"initial_batch_size": 4}, "initial_batch_size: must be null without batch_size_warmup"),
        ({"batch_size_warmup": 0.6, "initial_batch_size": 5}, "initial_batch_size: must divide batch_size=64, not 5"),
    ],
)
def test_a_ramp_that_cannot_be_climbed_is_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(UserError, match=f"^{match}"):
        Training(**settings)
