"""Promises of schedules and optimisers, on every one of them; then the numbers by hand, and those published."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cases import published_case
from numerate.mixers.mixer import TokenMixer
from numerate.training.optimizer import AdamW
from numerate.training.schedule import Constant, Cosine, Linear, OneCycle, Schedule, WarmupStableDecay

STEPS = 400


def warm(schedule: Schedule) -> int:
    """The step at which a schedule is highest."""
    return round(schedule.warmup * STEPS if schedule.warmup < 1 else schedule.warmup)


def test_a_schedule_warms_up_from_above_nothing_to_one(any_schedule: Any) -> None:
    factors = [any_schedule.multiplier(step, STEPS) for step in range(STEPS)]
    assert all(0 <= factor <= 1 for factor in factors)
    assert 0 < factors[0] < 0.02
    assert warm(any_schedule) in (100, 200)
    rising = factors[: warm(any_schedule) + 1]
    assert rising == sorted(rising)
    assert rising[-1] == 1.0
    steps = [after - before for before, after in pairwise(rising)]
    assert max(steps) == pytest.approx(min(steps))


def test_a_schedule_never_rises_after_its_warm_up(any_schedule: Any) -> None:
    factors = [any_schedule.multiplier(step, STEPS) for step in range(warm(any_schedule), STEPS + 1)]
    assert factors == sorted(factors, reverse=True)


def test_a_schedule_is_defined_between_two_steps(any_schedule: Any) -> None:
    """A step of a growing batch is a share of the budget, which need not be a whole number of steps."""
    for step in (0, 50, 150, 300):
        one, other = (any_schedule.multiplier(at, STEPS) for at in (step, step + 1))
        assert min(one, other) <= any_schedule.multiplier(step + 0.5, STEPS) <= max(one, other)


def test_a_schedule_stays_defined_beyond_and_without_a_budget(any_schedule: Any) -> None:
    assert any_schedule.multiplier(10 * STEPS, STEPS) == any_schedule.multiplier(STEPS, STEPS)
    for steps in (0, 1, 50, 100):
        assert all(0 <= any_schedule.multiplier(step, steps) <= 1 for step in range(steps + 1))


PUBLISHED = {
    "budget-linear": Linear(warmup=0.1),
    "budget-cosine-decay": Cosine(warmup=0.1),
    "budget-one-cycle": OneCycle(),
    "budget-triangle2": OneCycle(peak=0.75, initial_lr_ratio=0.25),
}
"""The published schedules of the clock, as schedules of progress: hours of 24 are the share of the budget."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_schedules_of_the_clock_are_ours_of_progress(shared: Path, name: str) -> None:
    case = published_case(shared, "abacus.json", "lr_other_budget")
    assert len(case["input"]["hours"]) == len(case["expected"][name]) == 7
    for hours, factor in zip(case["input"]["hours"], case["expected"][name], strict=True):
        steps = 10**8
        assert PUBLISHED[name].multiplier(round(hours / 24 * steps), steps) == pytest.approx(factor, abs=1e-6), hours


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Constant(warmup=3), {0: 0.25, 1: 0.5, 2: 0.75, 3: 1.0, 50: 1.0, 100: 1.0}),
        (Constant(warmup=0), {0: 1.0, 99: 1.0}),
        (Constant(warmup=0.1), {0: 1 / 11, 9: 10 / 11, 10: 1.0}),
        (Linear(warmup=20), {20: 1.0, 60: 0.5, 80: 0.25, 100: 0.0}),
        (Linear(warmup=0, min_lr_ratio=0.2), {0: 1.0, 50: 0.6, 100: 0.2}),
        (Cosine(warmup=20), {20: 1.0, 40: (1 + math.cos(math.pi / 4)) / 2, 60: 0.5, 100: 0.0}),
        (Cosine(warmup=0, min_lr_ratio=0.1), {0: 1.0, 50: 0.55, 100: 0.1}),
        (WarmupStableDecay(warmup=10, decay_start=0.6, min_lr_ratio=0.02), {10: 1.0, 60: 1.0, 80: 0.51, 100: 0.02}),
        (WarmupStableDecay(warmup=80, decay_start=0.6), {79: 80 / 81, 80: 1.0, 90: 0.5, 100: 0.0}),
        (WarmupStableDecay(warmup=0, decay_start=1.0), {0: 1.0, 100: 1.0}),
        (WarmupStableDecay(warmup=0.1), {0: 1 / 11, 10: 1.0, 90: 1.0, 95: 0.5, 100: 0.0}),
        (OneCycle(), {0: 1 / 51, 50: 1.0, 75: 0.5, 100: 0.0}),
        (
            OneCycle(peak=0.75, initial_lr_ratio=0.25, min_lr_ratio=0.1),
            {0: 0.25 + 0.75 / 76, 75: 1.0, 80: 0.82, 100: 0.1},
        ),
        (OneCycle(peak=20), {10: 11 / 21, 20: 1.0, 60: 0.5}),
    ],
)
def test_a_schedule_by_hand(schedule: Any, expected: dict[int, float]) -> None:
    for step, factor in expected.items():
        assert schedule.multiplier(step, 100) == pytest.approx(factor, abs=1e-12), step


def groups(spec: AdamW, model: Any) -> dict[str, dict[str, Any]]:
    named = {id(parameter): name for name, parameter in model.named_parameters()}
    optimizer = spec.build(model, model.optimizer_options_by_parameter())
    return {named[id(p)]: group for group in optimizer.param_groups for p in group["params"]}


def test_only_matrices_and_tables_decay_or_what_a_part_says(
    any_model: Any, any_optimizer: Any, vocabulary: Any
) -> None:
    model = any_model.build(vocabulary, 0)
    found, named = groups(any_optimizer, model), dict(model.named_parameters())
    assert set(found) == set(named), "every parameter is in exactly one group"
    wishes: dict[str, bool] = {}
    for prefix, module in model.named_modules():
        if isinstance(module, TokenMixer):
            wishes |= {
                f"{prefix}.{own}": decays for own, (_, decays) in module.optimizer_options_by_parameter().items()
            }
    for name, group in found.items():
        assert (group["weight_decay"] > 0) == wishes.get(name, named[name].dim() >= 2), name


def test_a_part_may_wish_for_another_rate_and_no_decay() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    optimizer = AdamW(learning_rate=0.1, weight_decay=0.5).build(
        model, {"0.weight": (0.25, False), "1.weight": (1.0, True)}
    )
    found = {(group["factor"], group["weight_decay"], len(group["params"])) for group in optimizer.param_groups}
    assert found == {(0.25, 0.0, 1), (1.0, 0.5, 1)}


def test_one_step_by_hand() -> None:
    """The first step of Adam is the rate times the sign of the gradient; decay takes rate x decay of the weight."""
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[2.0], [-4.0]]))
        model.bias.copy_(torch.tensor([1.0, 1.0]))
    settings = {"weight": (1.0, True), "bias": (1.0, False)}
    optimizer = AdamW(learning_rate=0.1, weight_decay=0.5, eps=1e-12).build(model, settings)
    (3.0 * model.weight.sum() - 7.0 * model.bias.sum()).backward()
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), torch.tensor([[2.0 * 0.95 - 0.1], [-4.0 * 0.95 - 0.1]]))
    torch.testing.assert_close(model.bias.detach(), torch.tensor([1.1, 1.1]))
