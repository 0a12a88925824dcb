"""The trials of a search: what they are worth, and Optuna's samplers and pruners, which choose the next point and stop
trials early. For each decision a study in memory gets all trials, so that it depends on them and the seed alone."""

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite, nan
from statistics import median
from typing import Any, Literal

from numerate.runs.space import Space, load_optuna, value_text
from numerate.runs.status import RunState
from numerate.runs.study_folder import Parameters
from numerate.training.recipe import Training

Metric = Literal["ood_validation", "validation", "loss", "validation_loss"]
Sampler = Literal["tpe", "random", "grid"]
Pruner = Literal["none", "median", "hyperband"]

_TIE_BREAK_WEIGHT = 1e-6  # of questions in distribution, less than that of one on OOD validation
_MAX_ATTEMPTS = 20  # draws of a sampler to get a new point


@dataclass(frozen=True)
class Trial:
    """One point of the search space: its `number` from 0, its `parameters`, and why it failed, if it did.

    `runs` are those that were begun, one after the other for each seed; `curves` are of those that are done.
    """

    number: int
    parameters: Parameters
    state: Literal["complete", "pruned", "failed", "running", "left"] = "left"
    runs: tuple[RunState, ...] = ()
    curves: tuple[Mapping[int, float], ...] = ()
    error: str | None = None

    @property
    def has_ended(self) -> bool:
        return self.state in ("complete", "pruned", "failed")


def curve(lines: Sequence[Mapping[str, Any]], metric: Metric, budget: int | None = None) -> dict[int, float]:
    """What a run with these lines of `metrics.jsonl` was worth at each evaluation, by step: a loss, or an accuracy (of
    labels, which tell good settings early, or of answers). On OOD validation, ties are broken in distribution.

    Steps beyond the budget (somebody trained the run further) do not count.
    """
    names = ("loss",) if "loss" in metric else ("accuracy", "exact_match", "token_accuracy")
    evaluations, loss = dict[int, dict[str, float]](), nan
    for line in (line for line in lines if budget is None or line["step"] <= budget):
        loss = loss if "split" in line else line["loss"]
        if "split" in line:
            value = next((line[name] for name in names if name in line), nan)
            evaluations.setdefault(line["step"], {"loss": loss})[line["split"]] = value
    split = "validation" if metric == "validation_loss" else metric
    split = split if any(split in at for at in evaluations.values()) else "validation"
    found = {}
    for step, at in evaluations.items():
        if {split, "validation"} <= at.keys():  # otherwise a process was killed between the two
            found[step] = at[split] + (_TIE_BREAK_WEIGHT * at["validation"] if split == "ood_validation" else 0.0)
    return {step: value for step, value in found.items() if isfinite(value)}


@dataclass(frozen=True)
class TrialSampling:
    """How trials are judged, and how points are chosen; `seed` is that of the first run of each trial."""

    space: Space
    metric: Metric = "ood_validation"
    sampler: Sampler = "tpe"
    pruner: Pruner = "none"
    seed: int = 0

    def check_point(self, parameters: Parameters) -> None:
        """Raises `ValueError` for parameters that are not of the space."""
        load_optuna().trial.create_trial(params=dict(parameters), distributions=self.space.distributions, value=0)

    @property
    def is_minimized(self) -> bool:
        return "loss" in self.metric

    def objective(self, trial: Trial) -> float:
        """The median over the seeds of the value at the best evaluation."""
        return median(map(self._best, trial.curves))

    def _best(self, values: Mapping[int, float]) -> float:
        return values[max(values)] if self.metric == "loss" else (min if self.is_minimized else max)(values.values())

    def describe(self, trial: Trial) -> str:
        """A trial in a line: what it is worth, of several seeds with the lowest and the highest, and its point."""
        form, how = ".4g" if self.is_minimized else ".1%", str(trial.state)
        if trial.state == "complete":
            best = sorted(map(self._best, trial.curves))
            of = f" (median of {len(best)} seeds, {best[0]:{form}} to {best[-1]:{form}})" if len(best) > 1 else ""
            how = f"{self.metric} {median(best):{form}}{of}"
        point = ", ".join(f"{path}={value_text(value)}" for path, value in trial.parameters.items())
        return f"trial {trial.number}: {how}, {point}" + (f": {trial.error}" if trial.error else "")

    def next_point(self, trials: Sequence[Trial]) -> Parameters:
        """The point of the next trial: a new one, if the sampler draws one or if all can be listed."""
        space, samplers, tried = self.space, load_optuna().samplers, [trial.parameters for trial in trials]
        with self._study(trials) as (study, _):
            for attempt in range(_MAX_ATTEMPTS + 1):
                kind = samplers.RandomSampler if self.sampler == "random" else samplers.TPESampler
                if isfinite(space.size) and (self.sampler == "grid" or attempt == _MAX_ATTEMPTS):
                    kind = samplers.BruteForceSampler
                key = hashlib.sha256(f"[{self.seed}, {len(trials)}, {attempt}]".encode()).digest()
                study.sampler = kind(seed=int.from_bytes(key[4:8], "big"))
                drawn = study.ask(space.distributions).params
                point = {field.path: field.rounded(drawn[field.path]) for field in space.fields}
                if point not in tried:
                    break
        return point

    def is_pruned(self, trials: Sequence[Trial], number: int, training: Training) -> bool:
        """Whether the pruner stops a trial in its first run, at the last evaluation of its curve.

        `median` stops one below the median of the complete trials at that step, once there are five and a quarter of
        the steps has passed. `hyperband` (Li et al., 2018, https://jmlr.org/papers/v18/16-558.html) asks trials after
        different numbers of steps, one evaluation or more; the better third continues to three times as many.
        """
        pruners, steps, interval = load_optuna().pruners, training.steps, training.evaluate_every
        pruner = pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=(steps or 0) // 4)
        if self.pruner == "hyperband":
            first = min(interval, steps or interval)
            pruner = pruners.HyperbandPruner(min_resource=first, max_resource=steps or "auto", reduction_factor=3)
        with self._study(trials, pruner, number) as (_, asked):
            return bool(asked.should_prune())

    @contextmanager
    def _study(
        self, trials: Sequence[Trial], pruner: Any = None, current: int | None = None
    ) -> Iterator[tuple[Any, Any]]:
        """A study in memory with these trials, and Optuna's trial of the `current` one, which is still to be asked
        whether it is pruned at its last step. Optuna prints nothing meanwhile."""
        optuna, asked = load_optuna(), None
        level, state = optuna.logging.get_verbosity(), optuna.trial.TrialState.PRUNED
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                sampler, direction = optuna.samplers.RandomSampler(0), "minimize" if self.is_minimized else "maximize"
                study = optuna.create_study(study_name="search", direction=direction, sampler=sampler, pruner=pruner)
                for trial in trials:
                    study.enqueue_trial(dict(trial.parameters))
                    one, values = study.ask(self.space.distributions), trial.curves[0] if trial.curves else {}
                    for step, value in values.items():
                        one.report(value, step)
                        if pruner is not None and (trial.number != current or step < max(values)):
                            one.should_prune()  # for hyperband to note how far it came
                    if trial.state == "complete":
                        study.tell(one, self.objective(trial))
                    elif trial.has_ended:  # the sampler then searches elsewhere
                        study.tell(one, state=state)
                    asked = one if trial.number == current else asked
                yield study, asked
        finally:
            optuna.logging.set_verbosity(level)
