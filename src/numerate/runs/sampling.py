"""Optuna's samplers, which choose the next point of a search, and pruners, which stop trials early. For each decision
a study in memory gets all trials, so that it depends on the files of the search alone."""

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import isfinite
from typing import Any

from numerate.runs.space import load_optuna
from numerate.runs.trials import Score, Search, Trial

_MAX_ATTEMPTS = 20  # draws of a sampler to get a new point
_MIN_TRIALS = 10  # complete ones, for importances


def next_point(search: Search, trials: Sequence[Trial]) -> dict[str, Any]:
    """The point of the next trial, a function of the seed and the trials so far: one that was not tried yet, if the
    sampler draws one or if the points can be listed."""
    space, samplers, tried = search.space, load_optuna().samplers, [trial.parameters for trial in trials]
    with _study(search, trials) as (study, _):
        for attempt in range(_MAX_ATTEMPTS + 1):
            kind = samplers.RandomSampler if search.sampler == "random" else samplers.TPESampler
            if isfinite(space.size) and (search.sampler == "grid" or attempt == _MAX_ATTEMPTS):
                kind = samplers.BruteForceSampler
            key = json.dumps([search.seeds[0], len(trials), attempt]).encode()
            study.sampler = kind(seed=int.from_bytes(hashlib.sha256(key).digest()[4:8], "big"))
            drawn = study.ask(space.distributions).params
            point = {field.path: field.rounded(drawn[field.path]) for field in space.fields}
            if point not in tried:
                break
    return point


def is_pruned(search: Search, trial: Trial, lines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the pruner stops the first run of a trial at the last evaluation in these lines of its metrics.

    `median` stops one below the median of the complete trials at that step, once there are five and a quarter of the
    steps has passed. `hyperband` (Li et al., 2018, https://jmlr.org/papers/v18/16-558.html) asks trials after different
    numbers of steps, one evaluation or more; the better third continues to three times as many.
    """
    if search.pruner == "none" or trial.scores or (score := Score.of(lines, search.metric, None)) is None:
        return False
    pruners, training = load_optuna().pruners, search.recipe_of(trial.runs[0]).training
    steps, interval = training.steps, training.evaluate_every
    if search.pruner == "median":
        pruner = pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=(steps or 0) // 4)
    else:
        first = min(interval, steps or interval)
        pruner = pruners.HyperbandPruner(min_resource=first, max_resource=steps or "auto", reduction_factor=3)
    current = replace(trial, scores=(score,))
    trials = [current if one.number == trial.number else one for one in search.trials()]
    with _study(search, trials, pruner, current) as (_, asked):
        return bool(asked.should_prune())


def importances(search: Search, trials: Sequence[Trial]) -> dict[str, float]:
    """How much each field matters for the objective, summing to 1, the largest first, by PED-ANOVA (Watanabe et al.,
    2023, https://arxiv.org/abs/2304.10255); empty with fewer than ten complete trials."""
    if sum(trial.state == "complete" for trial in trials) >= _MIN_TRIALS:
        with _study(search, trials) as (study, _), suppress(ValueError, RuntimeError):
            return dict(load_optuna().importance.get_param_importances(study))
    return {}


@contextmanager
def _study(
    search: Search, trials: Sequence[Trial], pruner: Any = None, current: Trial | None = None
) -> Iterator[tuple[Any, Any]]:
    """A study in memory with these trials, and Optuna's trial of the `current` one, which is still to be asked whether
    it is pruned at its last step. Optuna prints nothing meanwhile."""
    optuna, asked = load_optuna(), None
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            direction = "minimize" if "loss" in search.metric else "maximize"
            sampler = optuna.samplers.RandomSampler(0)
            study = optuna.create_study(study_name="search", direction=direction, sampler=sampler, pruner=pruner)
            for trial in trials:
                study.enqueue_trial(dict(trial.parameters))
                one, values = study.ask(search.space.distributions), trial.scores[0].objectives if trial.scores else {}
                for step, value in values.items():
                    one.report(value, step)
                    if pruner is not None and (trial is not current or step < max(values)):
                        one.should_prune()  # for hyperband to note how far it came
                if trial.state == "complete":
                    study.tell(one, trial.objective)
                elif trial.state != "running":  # the sampler then searches elsewhere
                    study.tell(one, state=optuna.trial.TrialState.PRUNED)
                asked = one if trial is current else asked
            yield study, asked
    finally:
        optuna.logging.set_verbosity(level)
