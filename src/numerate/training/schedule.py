"""The learning rate as a function of progress, and of evaluations: never of the clock, so that a run can be
repeated."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from numerate.config import setting
from numerate.errors import UserError

Rise = Literal["between", "from_zero", "to_one"]
"""The factor at step s (from 0) of a warm-up of w steps: (s + 1) / (w + 1); `from_zero` s / w, so that the first is
0, as in llama2.c and nanoGPT; `to_one` (s + 1) / w, so that the last is 1, as in build-nanogpt."""

_RISE = "factor at step s of a warm-up of w: (s + 1) / (w + 1), from_zero s / w, to_one (s + 1) / w"
_UNTIL = "where it ends: a share of the budget up to 1, above a step; null: with the budget"


class Schedule(ABC):
    """The factor on the learning rate at each step; the rate of step 0 is `multiplier(0, steps)`.

    A `warmup` below 1 is a share of the budget, from 1 on a number of steps: the factor rises linearly from
    `initial_lr_ratio` to 1 and reaches it at the step after the last of warm-up, or one earlier (see `Rise`).
    """

    initial_lr_ratio: float = 0.0
    rise: Rise = "between"
    decay_until: float | None = None

    @property
    @abstractmethod
    def warmup(self) -> float:
        """The length of the warm-up."""

    def multiplier(self, step: float, steps: float) -> float:
        """The factor at `step` (from 0) of a budget of `steps`. Between two steps where batches grow (see `Budget`)."""
        warm = self.warmup * steps if self.warmup < 1 else self.warmup
        if step < warm:
            first, last = step + (self.rise != "from_zero"), warm + (self.rise == "between")
            return self.initial_lr_ratio + (1 - self.initial_lr_ratio) * min(1.0, first / last)
        end = (
            steps
            if self.decay_until is None
            else self.decay_until * steps
            if self.decay_until <= 1
            else self.decay_until
        )
        return self.after(min(1.0, step / max(1, end)), min(1.0, warm / max(1, end)))

    @abstractmethod
    def after(self, progress: float, warm: float) -> float:
        """The factor at a progress from `warm` (the end of warm-up) to 1."""

    def watches(self) -> Literal["loss", "score"] | None:
        """The metric of the development split that it depends on; None for none."""
        return None

    def after_evaluation(self, memory: Mapping[str, float], measured: float) -> dict[str, float]:
        """Its state after one more evaluation, from the state `memory`: numbers by name, kept in checkpoints."""
        return dict(memory)

    def judged(self, memory: Mapping[str, float]) -> float:
        """What the factor is multiplied by, after these evaluations."""
        return 1.0

    def _refuse(self) -> None:
        if self.warmup < 0:
            raise UserError(f"warmup: {self.warmup} is negative; a share below 1 or a number of steps is right")
        if self.rise not in ("between", "from_zero", "to_one"):
            raise UserError(f"rise: {self.rise!r} is none; between, from_zero and to_one are")
        if self.decay_until is not None and not self.decay_until > 0:
            raise UserError(
                f"decay_until: {self.decay_until} is over before it began; a share up to 1, a step, or null"
            )


@dataclass(frozen=True)
class Constant(Schedule):
    """Warm-up, then the full rate to the end."""

    warmup: float = setting(100, "warm-up steps, or a share of the budget if below 1")
    rise: Rise = setting("between", _RISE, later=True)

    def __post_init__(self) -> None:
        self._refuse()

    def after(self, progress: float, warm: float) -> float:
        return 1.0


@dataclass(frozen=True)
class Linear(Schedule):
    """Warm-up, then straight down to `min_lr_ratio` at the end."""

    warmup: float = setting(100, "warm-up steps, or a share of the budget if below 1")
    min_lr_ratio: float = setting(0.0, "final learning rate over the peak")
    rise: Rise = setting("between", _RISE, later=True)
    decay_until: float | None = setting(None, _UNTIL, later=True)

    def __post_init__(self) -> None:
        self._refuse()
        _refuse_floor(self.min_lr_ratio)

    def after(self, progress: float, warm: float) -> float:
        return _down(progress, warm, self.min_lr_ratio)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Warm-up, then half a cosine down to `min_lr_ratio`, where it stays.

    Loshchilov and Hutter (2017), https://arxiv.org/abs/1608.03983. With `rise="from_zero", decay_until=100_000` and a
    budget of 100,001 steps it is that of the published Tiny Stories code, whose iterations count from 0 to 100,000:

    >>> schedule = Cosine(warmup=1000, rise="from_zero", decay_until=100_000)
    >>> [round(schedule.multiplier(step, 100_001), 3) for step in (0, 500, 1000, 50_500, 100_000)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    warmup: float = setting(100, "warm-up steps, or a share of the budget if below 1")
    min_lr_ratio: float = setting(0.0, "final learning rate over the peak")
    rise: Rise = setting("between", _RISE, later=True)
    decay_until: float | None = setting(None, _UNTIL, later=True)

    def __post_init__(self) -> None:
        self._refuse()
        _refuse_floor(self.min_lr_ratio)

    def after(self, progress: float, warm: float) -> float:
        done = 1 - _down(progress, warm, 0.0)
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True)
class Plateau(Schedule):
    """Warm-up, then the full rate, cut whenever evaluations stop getting better.

    After more than `patience` evaluations in a row that are not better than the best, the rate is multiplied by
    `factor`, and counting starts again: PyTorch's ReduceLROnPlateau. Better is lower by more than `threshold` of the
    best for the loss, higher by as much for the score; a loss that is not finite is not better. It is measured on the
    development split every `training.evaluate_every` steps, so that a rate is a function of the run's own evaluations,
    which a resumed run has kept.

    As in Zausinger et al. (2025), https://arxiv.org/abs/2411.02083, who have no warm-up:

    >>> Plateau(warmup=0, factor=0.5, patience=5)
    """

    warmup: float = setting(100, "warm-up steps, or a share of the budget if below 1")
    factor: float = setting(0.5, "factor on the learning rate at a plateau")
    patience: int = setting(5, "evaluations without improvement before the learning rate is reduced")
    monitor: Literal["loss", "score"] = setting("loss", "quantity to monitor: validation loss, or accuracy")
    threshold: float = setting(1e-4, "least relative improvement")
    min_lr_ratio: float = setting(0.0, "smallest learning rate over the peak")
    rise: Rise = setting("between", _RISE, later=True)

    def __post_init__(self) -> None:
        self._refuse()
        _refuse_floor(self.min_lr_ratio)
        if not 0 < self.factor < 1:
            raise UserError(f"factor: {self.factor} does not make a rate smaller; above 0 and below 1 is right")
        if self.patience < 0:
            raise UserError(f"patience: {self.patience} is negative; 0 cuts at the first that is no better")
        if not 0 <= self.threshold < 1:
            raise UserError(f"threshold: {self.threshold} is no share of the best; from 0 to below 1 is right")
        if self.monitor not in ("loss", "score"):
            raise UserError(f"monitor: {self.monitor!r} is neither 'loss' nor 'score'")

    def after(self, progress: float, warm: float) -> float:
        return 1.0

    def watches(self) -> Literal["loss", "score"]:
        return self.monitor

    def after_evaluation(self, memory: Mapping[str, float], measured: float) -> dict[str, float]:
        factor, worse = memory.get("factor", 1.0), memory.get("worse", 0)
        if math.isfinite(measured) and ("best" not in memory or self._is_better(measured, memory["best"])):
            return {"best": measured, "worse": 0, "factor": factor}
        worse += 1
        if worse > self.patience:
            factor, worse = max(self.min_lr_ratio, factor * self.factor), 0
        return {**memory, "worse": worse, "factor": factor}

    def judged(self, memory: Mapping[str, float]) -> float:
        return memory.get("factor", 1.0)

    def _is_better(self, measured: float, best: float) -> bool:
        if self.monitor == "loss":
            return measured < best * (1 - self.threshold)
        return measured > best * (1 + self.threshold)


@dataclass(frozen=True)
class WarmupStableDecay(Schedule):
    """Warm-up, full rate, then straight down from `decay_from` on: the shape of the published Abacus runs."""

    warmup: float = setting(100, "warm-up steps, or a share of the budget if below 1")
    decay_from: float = setting(0.9, "share of the budget at which the decay starts")
    min_lr_ratio: float = setting(0.0, "final learning rate over the peak")
    rise: Rise = setting("between", _RISE, later=True)

    def __post_init__(self) -> None:
        self._refuse()
        _refuse_floor(self.min_lr_ratio)
        if not 0 <= self.decay_from <= 1:
            raise UserError(f"decay_from: {self.decay_from} is not a share of the budget; 0 to 1 is right")

    def after(self, progress: float, warm: float) -> float:
        return _down(progress, max(warm, self.decay_from), self.min_lr_ratio)


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
            raise UserError(f"peak: {self.peak} is negative; a share below 1 or a number of steps is right")
        if not 0 <= self.initial_lr_ratio <= 1:
            raise UserError(f"initial_lr_ratio: {self.initial_lr_ratio} is not a share of the rate; 0 to 1 is right")
        _refuse_floor(self.min_lr_ratio)

    @property
    def warmup(self) -> float:
        return self.peak

    def after(self, progress: float, warm: float) -> float:
        return _down(progress, warm, self.min_lr_ratio)


def _refuse_floor(floor: float) -> None:
    if not 0 <= floor <= 1:
        raise UserError(f"min_lr_ratio: {floor} is not a share of the rate; 0 to 1 is right")


def _down(progress: float, start: float, floor: float) -> float:
    """1 up to `start`, then a straight line to `floor` at 1."""
    if progress <= start or start >= 1:
        return 1.0
    return 1.0 - (1.0 - floor) * (progress - start) / (1.0 - start)
