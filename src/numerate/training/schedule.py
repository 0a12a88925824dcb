"""The learning rate as a function of progress, and of evaluations: never of the clock, so that a run can be
repeated."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from numerate.config import setting
from numerate.errors import UserError

WarmupEndpoints = Literal["between", "from_zero", "to_one"]
"""The factor at step s (from 0) of a warm-up of w steps: (s + 1) / (w + 1); `from_zero` s / w, so that the first is
0, as in llama2.c and nanoGPT; `to_one` (s + 1) / w, so that the last is 1, as in build-nanogpt."""

_WARMUP_ENDPOINTS_HELP = "factor at step s of a warm-up of w: (s + 1) / (w + 1), from_zero s / w, to_one (s + 1) / w"
_DECAY_END_HELP = "where it ends: a share of the budget up to 1, above a step; null: with the budget"


class Schedule(ABC):
    """The factor on the learning rate at each step; the rate of step 0 is `multiplier(0, steps)`.

    A `warmup` below 1 is a share of the budget, from 1 on a number of steps: the factor rises linearly from
    `initial_lr_ratio` to 1 and reaches it at the step after the last of warm-up, or one earlier (see
    `WarmupEndpoints`).
    """

    initial_lr_ratio: float = 0.0
    warmup_endpoints: WarmupEndpoints = "between"
    decay_end: float | None = None

    @property
    @abstractmethod
    def warmup(self) -> float:
        """The length of the warm-up."""

    def multiplier(self, step: float, total_steps: float) -> float:
        """The factor at `step` (from 0) of a budget of `total_steps`. Between two steps where batches grow (see
        `Budget`)."""
        warmup_steps = self.warmup * total_steps if self.warmup < 1 else self.warmup
        if step < warmup_steps:
            warmup_step, last_warmup_step = (
                step + (self.warmup_endpoints != "from_zero"),
                warmup_steps + (self.warmup_endpoints == "between"),
            )
            return self.initial_lr_ratio + (1 - self.initial_lr_ratio) * min(1.0, warmup_step / last_warmup_step)
        end_step = (
            total_steps
            if self.decay_end is None
            else self.decay_end * total_steps
            if self.decay_end <= 1
            else self.decay_end
        )
        return self.decay_factor(min(1.0, step / max(1, end_step)), min(1.0, warmup_steps / max(1, end_step)))

    @abstractmethod
    def decay_factor(self, progress: float, warmup_end: float) -> float:
        """The factor at a progress from `warmup_end` (the end of warm-up) to 1."""

    def monitored_metric(self) -> Literal["loss", "score"] | None:
        """The metric of the validation split that it depends on; None for none."""
        return None

    def update_state(self, state: Mapping[str, float], metric: float) -> dict[str, float]:
        """Its state after one more evaluation, from the state `state`: numbers by name, kept in checkpoints."""
        return dict(state)

    def plateau_factor(self, state: Mapping[str, float]) -> float:
        """What the factor is multiplied by, after these evaluations."""
        return 1.0

    def _check(self) -> None:
        if self.warmup < 0:
            raise UserError(
                "warmup: must be 0 or more: a fraction of the budget below 1, or a number of steps; it is "
                f"{self.warmup}"
            )
        if self.warmup_endpoints not in ("between", "from_zero", "to_one"):
            raise UserError(f"warmup_endpoints: must be between, from_zero or to_one; it is {self.warmup_endpoints!r}")
        if self.decay_end is not None and not self.decay_end > 0:
            raise UserError(f"decay_end: must be above 0: a fraction up to 1, a step, or null; it is {self.decay_end}")


@dataclass(frozen=True)
class Constant(Schedule):
    """Warm-up, then the full rate to the end."""

    warmup: float = setting(100, "warm-up steps, or a share of the budget if below 1")
    warmup_endpoints: WarmupEndpoints = setting("between", _WARMUP_ENDPOINTS_HELP)

    def __post_init__(self) -> None:
        self._check()

    def decay_factor(self, progress: float, warmup_end: float) -> float:
        return 1.0


@dataclass(frozen=True)
class Linear(Schedule):
    """Warm-up, then linear decay to `min_lr_ratio` at the end."""

    warmup: float = setting(100, "warm-up steps, or a share of the budget if below 1")
    min_lr_ratio: float = setting(0.0, "final learning rate over the peak")
    warmup_endpoints: WarmupEndpoints = setting("between", _WARMUP_ENDPOINTS_HELP)
    decay_end: float | None = setting(None, _DECAY_END_HELP)

    def __post_init__(self) -> None:
        self._check()
        _check_min_lr_ratio(self.min_lr_ratio)

    def decay_factor(self, progress: float, warmup_end: float) -> float:
        return _linear_decay(progress, warmup_end, self.min_lr_ratio)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Warm-up, then cosine decay to `min_lr_ratio`, constant afterwards.

    Loshchilov and Hutter (2017), https://arxiv.org/abs/1608.03983. With `warmup_endpoints="from_zero"`,
    `decay_end=100_000` and a budget of 100,001 steps it is that of the published Tiny Stories code, whose iterations
    count from 0 to 100,000:

    >>> schedule = Cosine(warmup=1000, warmup_endpoints="from_zero", decay_end=100_000)
    >>> [round(schedule.multiplier(step, 100_001), 3) for step in (0, 500, 1000, 50_500, 100_000)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    warmup: float = setting(100, "warm-up steps, or a share of the budget if below 1")
    min_lr_ratio: float = setting(0.0, "final learning rate over the peak")
    warmup_endpoints: WarmupEndpoints = setting("between", _WARMUP_ENDPOINTS_HELP)
    decay_end: float | None = setting(None, _DECAY_END_HELP)

    def __post_init__(self) -> None:
        self._check()
        _check_min_lr_ratio(self.min_lr_ratio)

    def decay_factor(self, progress: float, warmup_end: float) -> float:
        decay_progress = 1 - _linear_decay(progress, warmup_end, 0.0)
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * (1 + math.cos(math.pi * decay_progress)) / 2


@dataclass(frozen=True)
class Plateau(Schedule):
    """Warm-up, then the full rate, reduced whenever evaluations stop improving.

    After more than `patience` evaluations in a row that are not better than the best, the rate is multiplied by
    `factor`, and counting starts again: PyTorch's ReduceLROnPlateau. Better is lower by more than `threshold` of the
    best for the loss, higher by as much for the score; a loss that is not finite is not better. It is measured on the
    validation split every `training.evaluate_every` steps, so that a rate is a function of the run's own evaluations,
    which a resumed run has kept.

    As in Zausinger et al. (2025), https://arxiv.org/abs/2411.02083, who have no warm-up:

    >>> schedule = Plateau(warmup=0, factor=0.5, patience=5)
    """

    warmup: float = setting(100, "warm-up steps, or a share of the budget if below 1")
    factor: float = setting(0.5, "factor on the learning rate at a plateau")
    patience: int = setting(5, "evaluations without improvement before the learning rate is reduced")
    monitor: Literal["loss", "score"] = setting("loss", "quantity to monitor: validation loss, or accuracy")
    threshold: float = setting(1e-4, "least relative improvement")
    min_lr_ratio: float = setting(0.0, "smallest learning rate over the peak")
    warmup_endpoints: WarmupEndpoints = setting("between", _WARMUP_ENDPOINTS_HELP)

    def __post_init__(self) -> None:
        self._check()
        _check_min_lr_ratio(self.min_lr_ratio)
        if not 0 < self.factor < 1:
            raise UserError(f"factor: must be above 0 and below 1; it is {self.factor}")
        if self.patience < 0:
            raise UserError(f"patience: must be 0 or more; it is {self.patience}")
        if not 0 <= self.threshold < 1:
            raise UserError(f"threshold: must be at least 0 and below 1; it is {self.threshold}")
        if self.monitor not in ("loss", "score"):
            raise UserError(f"monitor: {self.monitor!r} must be 'loss' or 'score'")

    def decay_factor(self, progress: float, warmup_end: float) -> float:
        return 1.0

    def monitored_metric(self) -> Literal["loss", "score"]:
        return self.monitor

    def update_state(self, state: Mapping[str, float], metric: float) -> dict[str, float]:
        factor, worse = state.get("factor", 1.0), state.get("worse", 0)
        if math.isfinite(metric) and ("best" not in state or self._is_better(metric, state["best"])):
            return {"best": metric, "worse": 0, "factor": factor}
        worse += 1
        if worse > self.patience:
            factor, worse = max(self.min_lr_ratio, factor * self.factor), 0
        return {**state, "worse": worse, "factor": factor}

    def plateau_factor(self, state: Mapping[str, float]) -> float:
        return state.get("factor", 1.0)

    def _is_better(self, metric: float, best: float) -> bool:
        if self.monitor == "loss":
            return metric < best * (1 - self.threshold)
        return metric > best * (1 + self.threshold)


@dataclass(frozen=True)
class WarmupStableDecay(Schedule):
    """Warm-up, full rate, then straight down from `decay_start` on: the shape of the published Abacus runs."""

    warmup: float = setting(100, "warm-up steps, or a share of the budget if below 1")
    decay_start: float = setting(0.9, "share of the budget at which the decay starts")
    min_lr_ratio: float = setting(0.0, "final learning rate over the peak")
    warmup_endpoints: WarmupEndpoints = setting("between", _WARMUP_ENDPOINTS_HELP)

    def __post_init__(self) -> None:
        self._check()
        _check_min_lr_ratio(self.min_lr_ratio)
        if not 0 <= self.decay_start <= 1:
            raise UserError(f"decay_start: must be a fraction of the budget, 0 to 1; it is {self.decay_start}")

    def decay_factor(self, progress: float, warmup_end: float) -> float:
        return _linear_decay(progress, max(warmup_end, self.decay_start), self.min_lr_ratio)


@dataclass(frozen=True)
class OneCycle(Schedule):
    """Linear from `initial_lr_ratio` up to the full learning rate at `peak`, then down to `min_lr_ratio`: one cycle.

    Smith (2017), https://arxiv.org/abs/1506.01186. With `peak=0.75, initial_lr_ratio=0.25` it is the late triangle that
    the published Abacus code calls `triangle2`.

    >>> [round(OneCycle().multiplier(step, 8), 2) for step in range(9)]
    [0.2, 0.4, 0.6, 0.8, 1.0, 0.75, 0.5, 0.25, 0.0]
    """

    peak: float = setting(0.5, "share of the budget, below 1, at which the learning rate peaks; from 1 on, the step")
    initial_lr_ratio: float = setting(0.0, "initial learning rate over the peak")
    min_lr_ratio: float = setting(0.0, "final learning rate over the peak")

    def __post_init__(self) -> None:
        if self.peak < 0:
            raise UserError(f"peak: must be 0 or more: a fraction below 1, or a number of steps; it is {self.peak}")
        if not 0 <= self.initial_lr_ratio <= 1:
            raise UserError(f"initial_lr_ratio: must be from 0 to 1; it is {self.initial_lr_ratio}")
        _check_min_lr_ratio(self.min_lr_ratio)

    @property
    def warmup(self) -> float:
        return self.peak

    def decay_factor(self, progress: float, warmup_end: float) -> float:
        return _linear_decay(progress, warmup_end, self.min_lr_ratio)


def _check_min_lr_ratio(min_lr_ratio: float) -> None:
    if not 0 <= min_lr_ratio <= 1:
        raise UserError(f"min_lr_ratio: must be from 0 to 1; it is {min_lr_ratio}")


def _linear_decay(progress: float, start: float, min_lr_ratio: float) -> float:
    """1 up to `start`, then a straight line to `min_lr_ratio` at 1."""
    if progress <= start or start >= 1:
        return 1.0
    return 1.0 - (1.0 - min_lr_ratio) * (progress - start) / (1.0 - start)
