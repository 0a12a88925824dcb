"""Optuna's samplers, which choose the next point of a search, and pruners, which stop trials early. For each decision
a study in memory gets all trials, so that it depends on the folders of the runs alone."""

import hashlib
import json
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from numerate.config.overrides import MAX_RUNS
from numerate.errors import import_extra
from numerate.runs.space import Space
from numerate.runs.trials import Metric, Search, Trial, run_result

_MAX_ATTEMPTS = 20  # draws of a sampler to get a new point


def load_optuna() -> Any:
    """Imports Optuna. Raises `UserError` if it is not installed."""
    return import_extra("optuna", "search", "search")


def next_point(search: Search, trials: Sequence[Trial], number: int) -> dict[str, Any]:
    """A point that was not tried yet; a function of the seed, the trials so far and the number of the new one."""
    space, tried = search.space, {_key(trial.parameters) for trial in trials}
    if search.sampler != "grid":
        with _study(search, trials) as (study, _):
            samplers = load_optuna().samplers
            for attempt in range(_MAX_ATTEMPTS):
                seed = _hash(search.seeds[0], number, attempt) % 2**32
                study.sampler = (samplers.RandomSampler if search.sampler == "random" else samplers.TPESampler)(
                    seed=seed
                )
                drawn = study.ask(_distributions(space)).params
                point = {
                    one.path: drawn[one.path] if one.values else one.rounded(drawn[one.path]) for one in space.fields
                }
                if _key(point) not in tried:
                    return point
        if space.size is None or space.size > MAX_RUNS:
            return point
    points = space.points()
    random.Random(_hash(search.seeds[0], "grid")).shuffle(points)
    return next(point for point in points if _key(point) not in tried)


def is_pruned(search: Search, trial: Trial) -> bool:
    """Whether the pruner stops a running trial at its last evaluation.

    `median` stops one below the median of the complete trials at that step, once there are five and a quarter of the
    steps has passed. `hyperband` (Li et al., 2018, https://jmlr.org/papers/v18/16-558.html) asks trials after different
    numbers of steps, one evaluation or more; the better third continues to three times as many.
    """
    pruners, training = load_optuna().pruners, trial.runs[0].recipe.training
    steps = training.steps
    if search.pruner == "median":
        pruner = pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=(steps or 0) // 4)
    else:
        first = min(training.evaluate_every, steps or training.evaluate_every)
        pruner = pruners.HyperbandPruner(min_resource=first, max_resource=steps or "auto", reduction_factor=3)
    with _study(search, search.trials(), pruner, trial.number) as (_, asked):
        return bool(asked.should_prune())


def importances(search: Search, trials: Sequence[Trial]) -> dict[str, float]:
    """How much each field matters for the objective, summing to 1, the largest first, by PED-ANOVA (Watanabe et al.,
    2023, https://arxiv.org/abs/2304.10255); empty with fewer than ten complete trials."""
    if sum(trial.state == "complete" for trial in trials) < 10:
        return {}
    with _study(search, trials) as (study, _), suppress(ValueError, RuntimeError):
        return dict(load_optuna().importance.get_param_importances(study))
    return {}


@contextmanager
def _study(
    search: Search, trials: Sequence[Trial], pruner: Any = None, current: int | None = None
) -> Iterator[tuple[Any, Any]]:
    """A study in memory with these trials, and Optuna's trial of the `current` number, which is still to be asked
    whether it is pruned at its last step. Optuna prints nothing meanwhile."""
    optuna, asked = load_optuna(), None
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            direction, sampler = "minimize" if search.minimize else "maximize", optuna.samplers.RandomSampler(0)
            study = optuna.create_study(study_name="search", direction=direction, sampler=sampler, pruner=pruner)
            for trial in trials:
                study.enqueue_trial(dict(trial.parameters))
                one, values = study.ask(_distributions(search.space)), _values(trial, search.metric)
                for step, value in values.items():
                    one.report(value, step)
                    if pruner is not None and (trial.number, step) != (current, max(values)):
                        one.should_prune()  # for hyperband to note how far it came
                if trial.state == "complete":
                    study.tell(one, trial.objective)
                elif trial.state != "running":  # the sampler then searches elsewhere
                    study.tell(one, state=optuna.trial.TrialState.PRUNED)
                asked = one if trial.number == current else asked
            yield study, asked
    finally:
        optuna.logging.set_verbosity(level)


def _values(trial: Trial, metric: Metric) -> Mapping[int, float]:
    """The objective of a trial's first run at each evaluation so far, by step."""
    results = trial.results.get("runs") or [run_result(run, metric) for run in trial.runs[:1]]
    return results[0]["values"] if results else {}


def _distributions(space: Space) -> dict[str, Any]:
    kinds, found = load_optuna().distributions, {}
    for field in space.fields:
        if field.values:
            found[field.path] = kinds.CategoricalDistribution(field.values)
        else:
            kind = kinds.IntDistribution if field.is_integer else kinds.FloatDistribution
            step = field.step or (1 if field.is_integer else None)
            found[field.path] = kind(field.low, field.high, log=field.log, step=step)
    return found


def _key(parameters: Mapping[str, Any]) -> str:
    return json.dumps(dict(parameters), sort_keys=True)


def _hash(*key: object) -> int:
    """A number determined by a key, the same in every process."""
    return int.from_bytes(hashlib.sha256(json.dumps(key).encode()).digest()[:8], "big")
