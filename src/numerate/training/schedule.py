"""Learning rate schedules: functions of progress and of evaluations, never of the clock, so that runs are
reproducible."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from numerate.config import Spec, setting

WarmupEndpoints = Literal["between", "from_zero", "to_one"]
"""The factor at step s (from 0) of a warm-up of w steps: `between` is (s + 1) / (w + 1); `from_zero` is s / w, so that
the first is 0, as in llama2.c and nanoGPT; `to_one` is (s + 1) / w, so that the last is 1, as in build-nanogpt."""

_WARMUP_ENDPOINTS_HELP = (
    "factor at step s of a warm-up of w steps: (s + 1) / (w + 1) (between), s / w (from_zero), (s + 1) / w (to_one)"
)
_DECAY_END_HELP = (
    "end of the decay: a fraction of the budget if at most 1, otherwise a step; null: the end of the budget"
)


class Schedule(Spec, ABC):
    """The factor on the learning rate at each step; that of step 0 is `multiplier(0, steps)`.

    A `warmup` below 1 is a fraction of the budget; otherwise it is a number of steps. The factor rises linearly from
    `initial_lr_ratio` to 1 (see `WarmupEndpoints`)."""

    initial_lr_ratio: float = 0.0
    warmup_endpoints: WarmupEndpoints = "between"
    decay_end: float | None = None

    @property
    @abstractmethod
    def warmup(self) -> float:
        """The length of the warm-up."""

    def multiplier(self, step: float, total_steps: float) -> float:
        """The factor at `step` (from 0) of a budget of `total_steps`; `step` is fractional if batches grow (see
        `Budget`)."""
        warmup_steps = self.warmup * total_steps if self.warmup < 1 else self.warmup
        if step < warmup_steps:
            warmup_step = step + (self.warmup_endpoints != "from_zero")
            last_warmup_step = warmup_steps + (self.warmup_endpoints == "between")
            return self.initial_lr_ratio + (1 - self.initial_lr_ratio) * min(1.0, warmup_step / last_warmup_step)
        end = total_steps if self.decay_end is None else self.decay_end
        end_step = max(1, end * total_steps if self.decay_end is not None and end <= 1 else end)
        return self.decay_factor(min(1.0, step / end_step), min(1.0, warmup_steps / end_step))

    def is_same_until(self, step: int, total_steps: float, other_total_steps: float) -> bool:
        """Whether the factors before `step` are the same with two budgets; of many steps some are compared.

        >>> [Linear(warmup=0).is_same_until(4, 4, 8), Constant(warmup=2).is_same_until(4, 4, 8)]
        [False, True]
        """
        steps = {*range(0, step, max(1, step // 1000)), *range(max(0, step - 1), step)}
        return all(self.multiplier(one, total_steps) == self.multiplier(one, other_total_steps) for one in steps)

    @abstractmethod
    def decay_factor(self, progress: float, warmup_end: float) -> float:
        """The factor after the warm-up, for a progress from `warmup_end` to 1."""

    def monitored_metric(self) -> Literal["loss", "score"] | None:
        """The validation metric that the schedule depends on, if any."""
        return None

    def update_state(self, state: Mapping[str, float], metric: float) -> dict[str, float]:
        """The state after one more evaluation: numbers by name, stored in checkpoints."""
        return dict(state)

    def plateau_factor(self, state: Mapping[str, float]) -> float:
        """An additional factor, for reductions after plateaus; 1 for all other schedules."""
        return 1.0


@dataclass(frozen=True)
class Constant(Schedule):
    """Warm-up, then the full learning rate."""

    warmup: float = setting(100, "warm-up steps, or a fraction of the budget if below 1", at_least=0)
    warmup_endpoints: WarmupEndpoints = setting("between", _WARMUP_ENDPOINTS_HELP)

    def decay_factor(self, progress: float, warmup_end: float) -> float:
        return 1.0


@dataclass(frozen=True)
class Linear(Schedule):
    """Warm-up, then linear decay to `min_lr_ratio` at the end."""

    warmup: float = setting(100, "warm-up steps, or a fraction of the budget if below 1", at_least=0)
    min_lr_ratio: float = setting(0.0, "final learning rate, relative to the peak", at_least=0, at_most=1)
    warmup_endpoints: WarmupEndpoints = setting("between", _WARMUP_ENDPOINTS_HELP)
    decay_end: float | None = setting(None, _DECAY_END_HELP, above=0)

    def decay_factor(self, progress: float, warmup_end: float) -> float:
        return _linear_decay(progress, warmup_end, self.min_lr_ratio)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Warm-up, then cosine decay to `min_lr_ratio`, constant afterwards.

    Loshchilov and Hutter (2017), https://arxiv.org/abs/1608.03983. With `warmup_endpoints="from_zero"`,
    `decay_end=100_000` and a budget of 100,001 steps it is the schedule of the published Tiny Stories code, whose
    iterations run from 0 to 100,000:

    >>> schedule = Cosine(warmup=1000, warmup_endpoints="from_zero", decay_end=100_000)
    >>> [round(schedule.multiplier(step, 100_001), 3) for step in (0, 500, 1000, 50_500, 100_000)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    warmup: float = setting(100, "warm-up steps, or a fraction of the budget if below 1", at_least=0)
    min_lr_ratio: float = setting(0.0, "final learning rate, relative to the peak", at_least=0, at_most=1)
    warmup_endpoints: WarmupEndpoints = setting("between", _WARMUP_ENDPOINTS_HELP)
    decay_end: float | None = setting(None, _DECAY_END_HELP, above=0)

    def decay_factor(self, progress: float, warmup_end: float) -> float:
        decay_progress = 1 - _linear_decay(progress, warmup_end, 0.0)
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * (1 + math.cos(math.pi * decay_progress)) / 2


@dataclass(frozen=True)
class Plateau(Schedule):
    """Warm-up, then the full learning rate, reduced whenever evaluations stop improving.

    As PyTorch's ReduceLROnPlateau, and as in Zausinger et al. (2025), https://arxiv.org/abs/2411.02083, with
    `warmup=0`: after more than `patience` evaluations (every `training.evaluate_every` steps) that are not better than
    the best by `threshold`, relative to it, the learning rate is multiplied by `factor`. A loss that is not finite is
    not better. Resumed runs keep the history.
    """

    warmup: float = setting(100, "warm-up steps, or a fraction of the budget if below 1", at_least=0)
    factor: float = setting(0.5, "factor on the learning rate at a plateau", above=0, below=1)
    patience: int = setting(5, "evaluations without improvement before the learning rate is reduced", at_least=0)
    monitor: Literal["loss", "score"] = setting("loss", "quantity to monitor: validation loss, or accuracy")
    threshold: float = setting(1e-4, "smallest relative improvement that counts", at_least=0, below=1)
    min_lr_ratio: float = setting(0.0, "smallest learning rate, relative to the peak", at_least=0, at_most=1)
    warmup_endpoints: WarmupEndpoints = setting("between", _WARMUP_ENDPOINTS_HELP)

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
        is_loss = self.monitor == "loss"
        return metric < best * (1 - self.threshold) if is_loss else metric > best * (1 + self.threshold)


@dataclass(frozen=True)
class WarmupStableDecay(Schedule):
    """Warm-up, full learning rate, then linear decay from `decay_start` on, as in the published Abacus runs."""

    warmup: float = setting(100, "warm-up steps, or a fraction of the budget if below 1", at_least=0)
    decay_start: float = setting(0.9, "fraction of the budget at which the decay starts", at_least=0, at_most=1)
    min_lr_ratio: float = setting(0.0, "final learning rate, relative to the peak", at_least=0, at_most=1)
    warmup_endpoints: WarmupEndpoints = setting("between", _WARMUP_ENDPOINTS_HELP)

    def decay_factor(self, progress: float, warmup_end: float) -> float:
        return _linear_decay(progress, max(warmup_end, self.decay_start), self.min_lr_ratio)


@dataclass(frozen=True)
class OneCycle(Schedule):
    """Linear from `initial_lr_ratio` up to the full learning rate at `peak`, then down to `min_lr_ratio`: one cycle.

    Smith (2017), https://arxiv.org/abs/1506.01186. With `peak=0.75, initial_lr_ratio=0.25` it is the schedule
    `triangle2` of the published Abacus code.

    >>> [round(OneCycle().multiplier(step, 8), 2) for step in range(9)]
    [0.2, 0.4, 0.6, 0.8, 1.0, 0.75, 0.5, 0.25, 0.0]
    """

    peak: float = setting(
        0.5, "fraction of the budget (if below 1) or step at which the learning rate peaks", at_least=0
    )
    initial_lr_ratio: float = setting(0.0, "initial learning rate, relative to the peak", at_least=0, at_most=1)
    min_lr_ratio: float = setting(0.0, "final learning rate, relative to the peak", at_least=0, at_most=1)

    @property
    def warmup(self) -> float:
        return self.peak

    def decay_factor(self, progress: float, warmup_end: float) -> float:
        return _linear_decay(progress, warmup_end, self.min_lr_ratio)


def _linear_decay(progress: float, start: float, min_lr_ratio: float) -> float:
    """1 up to `start`, then linear to `min_lr_ratio` at 1."""
    if progress <= start or start >= 1:
        return 1.0
    return 1.0 - (1.0 - min_lr_ratio) * (progress - start) / (1.0 - start)
