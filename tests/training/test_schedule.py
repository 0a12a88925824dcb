"""Promises of schedules: the published rates to the step, and what cannot be is refused."""

from pathlib import Path

import pytest

from cases import published_case
from numerate.errors import UserError
from numerate.training.schedule import Constant, Cosine, Linear, Schedule, WarmupStableDecay


def test_the_published_tiny_stories_rates_are_met(shared: Path) -> None:
    case = published_case(shared, "dual_attention.json", "lr_schedule_tiny_stories")
    given = case["config"]
    schedule = Cosine(warmup=given["warmup_iters"], warmup_endpoints="from_zero", decay_end=given["lr_decay_iters"])
    for iteration, rate in case["expected"].items():
        found = given["learning_rate"] * schedule.multiplier(int(iteration), given["lr_decay_iters"] + 1)
        assert found == pytest.approx(rate, rel=1e-6, abs=1e-12)
    assert schedule.multiplier(0, 100_001) == 0.0


def test_a_warm_up_begins_and_ends_as_its_rise_says() -> None:
    def rises(rise: str) -> list[float]:
        schedule = Constant(warmup=4, warmup_endpoints=rise)  # type: ignore[arg-type]
        return [schedule.multiplier(step, 10) for step in range(6)]

    assert rises("between") == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert rises("from_zero") == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0, 1.0])
    assert rises("to_one") == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])


@pytest.mark.parametrize("kind", [Linear, Cosine])
def test_a_decay_that_ends_early_stays_at_its_floor(kind: "type[Linear | Cosine]") -> None:
    by_step, by_share = (kind(warmup=0, min_lr_ratio=0.1, decay_end=until) for until in (50, 0.5))
    whole = kind(warmup=0, min_lr_ratio=0.1)
    for step in range(100):
        assert by_step.multiplier(step, 100) == by_share.multiplier(step, 100) == whole.multiplier(min(step, 50), 50)
    assert by_step.multiplier(75, 100) == pytest.approx(0.1)


def test_a_constant_rate_has_no_warm_up_where_none_is_wanted() -> None:
    assert [Constant(warmup=0).multiplier(step, 3) for step in range(3)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("schedule", [Constant(), Linear(), Cosine(), WarmupStableDecay()])
def test_what_was_added_leaves_rates_as_they_were(schedule: Schedule) -> None:
    assert [schedule.multiplier(step, 1000) for step in (0, 49, 99)] == [1 / 101, 50 / 101, 100 / 101]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="warmup_endpoints: must be between, from_zero or to_one, not 'up'"):
        Cosine(warmup_endpoints="up")  # type: ignore[arg-type]
