"""Optuna's samplers, which choose the next point of a search space, and pruners, which stop trials early."""

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from numerate.config.overrides import MAX_RUNS
from numerate.errors import import_extra
from numerate.searches.space import Choice, NumberRange, Space

Sampler = Literal["tpe", "random", "grid"]
Pruner = Literal["none", "median", "halving"]

_MAX_ATTEMPTS = 20
"""Maximum draws of a sampler to get a new point."""


@dataclass(frozen=True)
class SamplingPlan:
    """How points are chosen: the sampler, its seed, and the maximum number of trials."""

    sampler: Sampler = "tpe"
    seed: int = 0
    trials: int = 30


def next_point(sampling: SamplingPlan, space: Space, trials: Sequence[Any], direction: str) -> dict[str, Any] | None:
    """A point that was not tried yet, or None if there is none; it depends only on the seed and the trials so far.

    `trials` are Optuna's. The sampler gets a copy of them and is constructed again for each point, so that the result
    does not depend on which process calls it, nor on interruptions.
    """
    optuna = load_optuna()
    tried_keys = {_point_key(trial.params) for trial in trials}
    if sampling.sampler == "grid":
        return _first_untried(sampling, space, tried_keys)
    size = space.size()
    if size is not None and size <= len(tried_keys):
        return None
    study = optuna.create_study(direction=direction)
    study.add_trials(trials)
    for attempt in range(_MAX_ATTEMPTS):
        seed = _hash_to_int(sampling.seed, len(trials), attempt) % 2**32
        samplers = optuna.samplers
        study.sampler = (samplers.RandomSampler if sampling.sampler == "random" else samplers.TPESampler)(seed=seed)
        suggested = study.ask(distributions(space)).params
        point = {
            field.path: field.round_value(suggested[field.path])
            if isinstance(field, NumberRange)
            else suggested[field.path]
            for field in space.fields
        }
        if _point_key(point) not in tried_keys:
            return point
    return point if size is None or size > MAX_RUNS else _first_untried(sampling, space, tried_keys)


def _first_untried(sampling: SamplingPlan, space: Space, tried_keys: set[str]) -> dict[str, Any] | None:
    points = space.points()
    random.Random(_hash_to_int(sampling.seed, "grid")).shuffle(points)
    return next((point for point in points if _point_key(point) not in tried_keys), None)


def make_pruner(kind: Pruner, steps: int | None) -> Any:
    """`median` stops a trial below the median of the complete trials at that step, once there are five and a quarter of
    the `steps` has passed; `halving` is asynchronous successive halving (Li et al., 2018,
    https://arxiv.org/abs/1810.05934), where the better quarter continues at each fourfold number of steps."""
    pruners = load_optuna().pruners
    if kind == "median":
        return pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=(steps or 0) // 4)
    return pruners.SuccessiveHalvingPruner() if kind == "halving" else pruners.NopPruner()


def distributions(space: Space) -> dict[str, Any]:
    """The fields as Optuna distributions."""
    kinds = load_optuna().distributions
    by_path = {}
    for field in space.fields:
        if isinstance(field, Choice):
            by_path[field.path] = kinds.CategoricalDistribution(field.values)
        elif field.is_integer:
            by_path[field.path] = kinds.IntDistribution(field.low, field.max_value, log=field.log, step=field.step or 1)
        else:
            by_path[field.path] = kinds.FloatDistribution(field.low, field.max_value, log=field.log, step=field.step)
    return by_path


def _point_key(parameters: Mapping[str, Any]) -> str:
    return json.dumps(dict(parameters), sort_keys=True)


def _hash_to_int(*key: object) -> int:
    """A number determined by a key, the same in every process."""
    return int.from_bytes(hashlib.sha256(json.dumps(key).encode()).digest()[:8], "big")


def load_optuna() -> Any:
    """Imports Optuna. Raises `UserError` if it is not installed."""
    import_extra("optuna.storages.journal", "search", "search")
    return import_extra("optuna", "search", "search")
