"""The trials of a search: its `search.json` has the points that were chosen, `end.json` of each run has its `Score`."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from math import isfinite, nan
from pathlib import Path
from statistics import median
from typing import Any, Literal

import msgspec

from numerate.config import from_tree, identity, override, to_tree
from numerate.errors import UserError
from numerate.recipes.study import content_key
from numerate.records.reading import FORMAT, check_format, damage_message
from numerate.records.schema import Number
from numerate.runs.end import read_json
from numerate.runs.initial_weights import initial_run
from numerate.runs.space import Space, load_optuna, value_text
from numerate.runs.status import RunState, read_states
from numerate.runs.study_folder import STUDY_FILE, StudyFolder, StudyRun
from numerate.training import disk
from numerate.training.lock import Lock
from numerate.training.preflight import check_unchanged_files
from numerate.training.recipe import Recipe
from numerate.training.run_folder import folder_name

Metric = Literal["ood_validation", "validation", "loss", "validation_loss"]
Sampler = Literal["tpe", "random", "grid"]
Pruner = Literal["none", "median", "hyperband"]

SEARCH_FILE = "search.json"

_REMEDY = "Restore it from a copy, or start another search (name=); the runs are unharmed."
_LOCK_TIMEOUT = 60.0  # seconds until the process is named that chooses a trial
_TIE_BREAK_WEIGHT = 1e-6  # of questions in distribution, less than that of one on OOD validation


class Score(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run is worth, the entry `search` of `End.results`: the `value` of its best checkpoint with its interval,
    the `objective` to optimize, and the objective at each evaluation by step."""

    metric: Metric
    value: Number
    interval: tuple[Number, Number] | None
    objective: Number
    objectives: dict[int, Number]

    def __post_init__(self) -> None:
        values = (self.value, self.objective, *(self.interval or ()), *self.objectives.values())
        if not ("loss" in self.metric or all(0 <= value <= 1 + _TIE_BREAK_WEIGHT for value in values)):
            raise ValueError("accuracies are from 0 to 1")
        if self.interval is not None and not self.interval[0] <= self.value <= self.interval[1]:
            raise ValueError("the value must be in its interval")

    @classmethod
    def of(cls, lines: Sequence[Mapping[str, Any]], metric: Metric, budget: int | None) -> "Score | None":
        """The score of a run with these lines of `metrics.jsonl`, at its best checkpoint: the one of the highest
        accuracy or of the lowest validation loss, or the last one for the training `loss`; None if there is none.

        Steps beyond the budget (somebody trained the run further) do not count.
        """
        evaluations: dict[int, dict[str, Any]] = {}
        found, loss = dict[int, tuple[float, float]](), nan
        for line in (line for line in lines if budget is None or line["step"] <= budget):
            loss = loss if "split" in line else line["loss"]
            if "split" in line:
                evaluations.setdefault(line["step"], {"train": loss})[line["split"]] = line
        split = metric if any(metric in at for at in evaluations.values()) else "validation"
        for step, at in evaluations.items():
            if not {split, "validation"} <= at.keys():  # a process was killed between the two
                continue
            if "loss" in metric:
                value = objective = at["train"] if metric == "loss" else at[split].get("loss", nan)
            else:  # whole rows of labels are all wrong long before their labels are: these tell good settings early
                value, objective = _accuracy(at[split]), _accuracy(at[split], "accuracy")
                if split == "ood_validation":
                    objective += _TIE_BREAK_WEIGHT * _accuracy(at["validation"], "accuracy")
            if isfinite(value) and isfinite(objective):
                found[step] = value, objective
        if not found:
            return None
        sign = {"loss": 0, "validation_loss": -1}.get(metric, 1)
        best = max(found, key=lambda step: (sign * found[step][0], step))
        low, high = (evaluations[best][split].get(name) for name in ("low", "high"))
        interval = None if metric == "loss" or low is None or high is None else (low, high)
        objectives = {step: objective for step, (_, objective) in found.items()}
        name, (value, objective) = metric if "loss" in metric else split, found[best]
        return cls(metric=name, value=value, interval=interval, objective=objective, objectives=objectives)


def _accuracy(line: Mapping[str, Any], name: str = "exact_match") -> float:
    """The accuracy on a split; for language modeling the top-1 accuracy over tokens; NaN if it was not measured."""
    found = (line[one] for one in (name, "exact_match", "token_accuracy") if one in line)
    return float(next(found, nan))


@dataclass(frozen=True)
class Trial:
    """One point of the search space: its `number` from 0, its `parameters`, and why it failed, if it did.

    `runs` has one for each seed, none if no recipe has these parameters; `scores` are those of the runs that ended.
    """

    number: int
    state: Literal["complete", "pruned", "failed", "running"]
    parameters: Mapping[str, Any]
    scores: tuple[Score, ...] = ()
    error: str | None = None
    runs: tuple[RunState, ...] = field(default=(), compare=False, repr=False)

    @property
    def has_ended(self) -> bool:
        return self.state != "running"

    @property
    def unfinished(self) -> RunState | None:
        """The first run that has not ended."""
        return self.runs[len(self.scores)] if self.state == "running" else None

    @property
    def objective(self) -> float:
        """The value to optimize, the median over the seeds."""
        return median(score.objective for score in self.scores)

    def texts(self) -> list[str]:
        """The value, the median over the seeds, and the ends of its interval, if known: Wilson's, or with several seeds
        the lowest and the highest. Fractions are in per cent."""
        values = [score.value for score in self.scores]
        ends = self.scores[0].interval or () if len(values) == 1 else (min(values), max(values))
        form = ".4g" if "loss" in self.scores[0].metric else ".1%"
        return [f"{value:{form}}" for value in (median(values), *ends)]

    def __str__(self) -> str:
        point = ", ".join(f"{path}={value_text(value)}" for path, value in self.parameters.items())
        how = self.texts()[0] if self.state == "complete" else self.state
        return f"trial {self.number}: {how}, {point}" + (f": {self.error}" if self.error else "")


class SearchFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`search.json`: what must not change during a search; the id of the run whose weights all trials start from
    (`latest` would soon be a trial); a sha256 of each file that the questions come from; the points of the trials."""

    format: int = FORMAT
    definition: dict[str, Any]
    init_from: str | None
    contents: dict[str, Any] | None
    points: list[dict[str, str | int | float]] = []


@dataclass(frozen=True)
class Search:
    """A search in a folder. All trials have the `recipe`, whose title is that of the search; the first of the `seeds`
    of each trial's runs is also that of the sampler. Reading needs no lock."""

    path: Path
    recipe: Recipe
    space: Space
    num_trials: int = 30
    metric: Metric = "ood_validation"
    sampler: Sampler = "tpe"
    pruner: Pruner = "none"
    seeds: tuple[int, ...] = (0,)
    _ended: dict[int, Trial] = field(default_factory=dict, init=False, compare=False, repr=False)

    def open(self, runs: Path, name: str | None) -> "Search":
        """This search in its folder, which is created if necessary, with the weights that its recipe starts from.

        Raises `UserError` for the folder of something else, and of another search: how points are chosen, and how many,
        may change, and nothing else.
        """
        recipe = self.recipe
        definition: dict[str, Any] = {
            "recipe": [recipe.title, content_key(replace(recipe, seed=0)), recipe.training.minutes],
            "settings": list(map(str, self.space.items)),
            "metric": self.metric,
            "seeds": list(self.seeds),
        }
        digest = hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()[:6]
        title = folder_name(name or f"{recipe.title}-search-{digest}")
        search = replace(self, path=runs / title)
        others = [(search.path / name).exists() for name in (STUDY_FILE, "journal.log")]
        if any(others) and not (search.path / SEARCH_FILE).exists():
            problem = f"is a study, or a search that has lost its {SEARCH_FILE} or is of numerate 0.2"
            raise UserError(f"{search.path}: {problem}. {_REMEDY}")
        disk.make_folder(search.path)
        with search.lock():
            if (stored := search.read()) is None:
                source, contents = initial_run(recipe, runs), recipe.task.file_hashes() or None
                init_from = None if source is None else source.id
                stored = SearchFile(definition=definition, init_from=init_from, contents=contents)
                search.write(stored)
        for part in (part for part, value in definition.items() if stored.definition.get(part) != value):
            problem = f"is a search with another {part}: {json.dumps(stored.definition.get(part))}"
            raise UserError(f"{search.path}: {problem}; another name=, or none, starts a new search")
        check_unchanged_files(recipe.task, {"contents": stored.contents}, search.path)
        group = recipe.group or title
        return replace(search, recipe=replace(recipe, title=title, group=group, init_from=stored.init_from))

    def lock(self) -> AbstractContextManager[bool]:
        """The lock of the search, held as long as the next trial is chosen."""
        return Lock(self.path / "search.lock").hold("choosing a trial", timeout=_LOCK_TIMEOUT)

    def read(self) -> SearchFile | None:
        """Its file, if there is one. Raises `UserError` for one that was damaged or edited."""
        stored = read_json(self.path / SEARCH_FILE, SearchFile, _REMEDY)
        if stored is not None:
            check_format(self.path / SEARCH_FILE, stored.format)
        return stored

    def write(self, stored: SearchFile) -> None:
        disk.write_atomically(self.path / SEARCH_FILE, msgspec.json.encode(stored))

    def trials(self) -> list[Trial]:
        """All trials by number. Raises `UserError` for files that were edited."""
        stored = self.read()
        trials = [self._trial(number, point) for number, point in enumerate(stored.points if stored else ())]
        self._ended.update((trial.number, trial) for trial in trials if trial.has_ended)
        return trials

    def add_trial(self, parameters: Mapping[str, Any]) -> None:
        """Adds a trial, under the lock of the search; its runs are listed in `study.json`, for `numerate results` and
        `status`."""
        stored, trials = self.read(), self.trials()
        assert stored is not None, "open() wrote it"
        self.list_runs([*trials, self._trial(len(trials), parameters)])
        self.write(msgspec.structs.replace(stored, points=[*stored.points, dict(parameters)]))

    def list_runs(self, trials: Sequence[Trial]) -> None:
        """Lists the runs of these trials in `study.json`, under the lock of the search."""
        runs = {run.path: run.run for trial in trials for run in trial.runs}
        StudyFolder(self.path).update(list(runs.values()), question="A hyperparameter search.")

    def recipe_of(self, run: RunState) -> Recipe:
        recipe: Recipe = from_tree(run.run.recipe_tree(), "search", expected_class=Recipe)
        return recipe

    def _trial(self, number: int, parameters: Mapping[str, Any]) -> Trial:
        if number in self._ended and self._ended[number].parameters == parameters:
            return self._ended[number]
        try:
            load_optuna().trial.create_trial(params=dict(parameters), distributions=self.space.distributions, value=0)
            recipe = replace(override(self.recipe, self.space.settings(parameters)), title=self.recipe.title)
        except ValueError as error:
            raise UserError(damage_message(self.path / SEARCH_FILE, f"trial {number}: {error}", _REMEDY)) from error
        except UserError as error:  # these settings are refused together
            return Trial(number, "failed", parameters, error=str(error))
        recipes, title = [replace(recipe, seed=seed) for seed in self.seeds], self.path.name
        runs = [StudyRun.of(f"{title}/{identity(one)}", content_key(one), to_tree(one)) for one in recipes]
        trial = Trial(number, "complete", parameters, runs=tuple(read_states(self.path.parent, runs)))
        for i, run in enumerate(trial.runs, 1):  # no run follows a failed or pruned one
            if run.status == "failed":
                return replace(trial, state="failed", error=run.error, runs=trial.runs[:i])
            results = (run.end and run.end.results) or {}
            try:
                score = msgspec.convert(results.get("search") if run.status == "done" else None, Score, str_keys=True)
            except msgspec.ValidationError:  # none, or an edited one: it is read from the metrics again
                return replace(trial, state="running")
            if score.metric not in (self.metric, "validation" if "loss" not in self.metric else self.metric):
                return replace(trial, state="running")
            trial = replace(trial, scores=(*trial.scores, score))
            if results.get("stop_reason") == "pruned":
                return replace(trial, state="pruned", runs=trial.runs[:i])
        return trial
