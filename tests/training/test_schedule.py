"""Promises of the ends of a warm-up and of a decay."""

import pytest

from numerate.training.schedule import Constant, Cosine, Linear


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
