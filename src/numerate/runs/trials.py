"""The trials of a search, read from the folders of their runs, which are the only state of a search.

runs/<search>/search.json         what the search is about
runs/<search>/<id>/trial.json     number and parameters of a trial, in the folder of its first run
runs/<search>/<id>/end.json       how a run of a trial ended; what it is worth is computed from `metrics.jsonl`
runs/<search>/trial-3/trial.json  a trial without a run: its settings are refused, or an earlier trial has its run
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import msgspec

from numerate.config import from_tree, identity, identity_of_values, override, to_tree
from numerate.errors import UserError
from numerate.recipes.study import content_key
from numerate.records.reading import FORMAT, check_format, damage_message
from numerate.runs.end import End, read_end, read_json
from numerate.runs.initial_weights import initial_run
from numerate.runs.space import Space
from numerate.training import disk
from numerate.training.lock import Lock
from numerate.training.preflight import check_unchanged_files
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder, folder_name

Metric = Literal["ood_validation", "validation", "loss", "validation_loss"]
Sampler = Literal["tpe", "random", "grid"]
Pruner = Literal["none", "median", "hyperband"]

_REMEDY = "Restore it from a copy, or move its folder away; nothing was changed."

_TIE_BREAK_WEIGHT = 1e-6
"""What a share in distribution weighs beside one on OOD validation: less than one question, so it settles ties."""


class _TrialFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`trial.json`; `search` is the hash of the search's definition."""

    format: int = FORMAT
    number: Annotated[int, msgspec.Meta(ge=0)]
    parameters: dict[str, str | int | float]
    search: str


@dataclass(frozen=True)
class TrialRun:
    """A run of a trial: its recipe, its folder, which may not exist yet, and the key of its end."""

    recipe: Recipe
    folder: RunFolder
    key: str

    def end(self) -> End | None:
        """How it ended; None if it is unfinished, such as trained and not yet recorded by the search."""
        end = read_end(self.folder.path)
        if end is None or end.key != self.key or end.status == "stopped":
            return None
        return None if end.status == "done" and end.results is None else end


@dataclass(frozen=True)
class Trial:
    """One point of the search space: its `number` from 0, its `parameters`, and its result.

    `objective` is the value to optimize, `results` are the metrics, `error` is why it failed. `runs` has one for each
    seed, none if no recipe has these parameters.
    """

    number: int
    state: Literal["complete", "pruned", "failed", "running"]
    parameters: Mapping[str, Any]
    objective: float | None = None
    results: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    runs: tuple[TrialRun, ...] = field(default=(), compare=False, repr=False)

    @property
    def is_locked(self) -> bool:
        """Whether a process trains it now."""
        return any(Lock(run.folder.path / "lock").is_held() for run in self.runs)


@dataclass(frozen=True)
class Search:
    """A search in a folder: its space, what is to be best, and how points are chosen and given up.

    `tree` is the recipe of all trials, with the title of the search, as plain data; `num_trials` their total number;
    `seeds` those of each trial's runs, of which the first is also that of the sampler. `definition_hash` stands for
    what must not change during a search. Reading trials needs no lock.
    """

    path: Path
    tree: Mapping[str, Any]
    definition_hash: str
    space: Space
    num_trials: int = 30
    metric: Metric = "ood_validation"
    sampler: Sampler = "tpe"
    pruner: Pruner = "none"
    seeds: tuple[int, ...] = (0,)

    def __getstate__(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @cached_property
    def recipe(self) -> Recipe:
        recipe: Recipe = from_tree(self.tree, "search", expected_class=Recipe)
        return recipe

    @cached_property
    def _finished(self) -> dict[Path, Trial]:
        return {}

    @property
    def minimize(self) -> bool:
        return self.metric in ("loss", "validation_loss")

    def rank(self, trials: Sequence[Trial]) -> list[Trial]:
        """The complete trials, best first; ties in the order of the trials."""
        complete = [trial for trial in trials if trial.state == "complete"]
        return sorted(complete, key=lambda trial: trial.objective or 0.0, reverse=not self.minimize)

    def value_text(self, value: float) -> str:
        """An objective as text: a fraction in per cent, a loss as a number."""
        return f"{value:.4g}" if self.minimize else f"{value:.1%}"

    def choosing(self) -> AbstractContextManager[bool]:
        """Holds the lock of the search, as long as the next trial is chosen."""
        return Lock(self.path / "search.lock").hold("choosing a trial", timeout=math.inf)

    def trials(self) -> list[Trial]:
        """All trials by number. Raises `UserError` for files that this search did not write."""
        found: dict[int, Trial] = {}
        for file in sorted(self.path.glob("*/trial.json")):
            trial = self._finished.get(file) or self._read(file)
            if trial.state != "running":
                self._finished[file] = trial
            if found.setdefault(trial.number, trial) is not trial:
                raise UserError(damage_message(file, f"there are two trials {trial.number}", _REMEDY))
        return [found[number] for number in sorted(found)]

    def add_trial(self, number: int, parameters: Mapping[str, Any]) -> None:
        """Adds a trial, under the lock of the search. A killed process leaves all of it, or a folder that the next one
        uses."""
        folder = self.path / f"trial-{number}"
        with suppress(UserError):
            run = self._runs(parameters)[0]
            RunFolder.create(self.path.parent, self.path.name, run.folder.id, {"recipe": to_tree(run.recipe)})
            folder = folder if (run.folder.path / "trial.json").exists() else run.folder.path
        disk.make_folder(folder)
        content = _TrialFile(number=number, parameters=dict(parameters), search=self.definition_hash)
        disk.write_atomically(folder / "trial.json", msgspec.json.encode(content))

    def _runs(self, parameters: Mapping[str, Any]) -> tuple[TrialRun, ...]:
        """The runs of a point, one per seed. Raises `UserError` for settings that are refused together."""
        recipe = replace(override(self.recipe, self.space.settings(parameters)), title=self.recipe.title)
        recipes = [replace(recipe, seed=seed) for seed in self.seeds]
        return tuple(TrialRun(one, RunFolder(self.path / identity(one)), content_key(one)) for one in recipes)

    def _read(self, file: Path) -> Trial:
        content = read_json(file, _TrialFile, _REMEDY)
        assert content is not None
        check_format(file, content.format)
        number, parameters = content.number, content.parameters
        if content.search != self.definition_hash:
            raise UserError(damage_message(file, "it is of a search with another definition", _REMEDY))
        if problem := self.space.find_problem(parameters):
            raise UserError(damage_message(file, problem, _REMEDY))
        try:
            runs = self._runs(parameters)
        except UserError as error:
            return Trial(number, "failed", parameters, error=str(error))
        run_id = runs[0].folder.id
        if file.parent.name == f"trial-{number}":
            return Trial(number, "failed", parameters, error=f"these settings give run {run_id} of an earlier trial")
        if file.parent.name != run_id:
            raise UserError(damage_message(file, f"its parameters are those of run {run_id}", _REMEDY))
        results = []
        for run in runs:
            end = run.end()
            if end is not None and end.status == "failed":
                trace = {} if end.traceback is None else {"traceback": end.traceback}
                return Trial(number, "failed", parameters, None, trace, end.error, runs)
            if end is None or end.results is None or "value" not in (result := run_result(run, self.metric)):
                return Trial(number, "running", parameters, runs=runs)
            results.append(result)
            if end.results.get("stop_reason") == "pruned":
                return Trial(number, "pruned", parameters, None, {"runs": results}, runs=runs)
        objective, summary = summarize_runs(results)
        return Trial(number, "complete", parameters, objective, summary, runs=runs)


class _SearchFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`search.json`: its `definition`, the id of the run whose weights all trials start from (`latest` would soon be a
    trial), and a sha256 of each file that the questions come from."""

    format: int = FORMAT
    definition: dict[str, Any]
    init_from: str | None = None
    contents: dict[str, Any] | None = None


def open_search(recipe: Recipe, search: Search, runs: Path, name: str | None) -> Search:
    """The search with its folder, which is created if necessary. Raises `UserError` for the folder of another one: how
    points are chosen, and how many, may change, and nothing else."""
    names = ("steps", "examples", "tokens", "flops", "epochs", "minutes", "target_accuracy", "evaluate_every")
    definition: dict[str, Any] = {
        "recipe": [recipe.title, identity_of_values(replace(recipe, seed=0))],
        "training": {name: getattr(recipe.training, name) for name in names},
        "settings": [str(item) for item in search.space.items],
        "metric": search.metric,
        "seeds": list(search.seeds),
    }
    definition_hash = hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()[:12]
    title = folder_name(name or f"{recipe.title}-search-{definition_hash[:6]}")
    path, file = runs / title, runs / title / "search.json"
    if (path / "study.json").exists() and not file.exists():
        raise UserError(f"name: {title} is a study; name= must be new")
    if (path / "journal.log").exists():
        check_format(path, 1)
    disk.make_folder(path)
    search = replace(search, path=path)
    with search.choosing():
        stored = read_json(file, _SearchFile, _REMEDY)
        if stored is None:
            source, contents = initial_run(recipe, runs), recipe.task.file_hashes() or None
            init_from = None if source is None else source.id
            stored = _SearchFile(definition=definition, init_from=init_from, contents=contents)
            disk.write_atomically(file, msgspec.json.encode(stored))
    check_format(path, stored.format)
    for part, new in definition.items():
        if (old := stored.definition.get(part)) != new:
            old_text, new_text = (json.dumps(value, ensure_ascii=False) for value in (old, new))
            raise UserError(
                f"{path}: is a search with another {part}: {old_text}, and here {new_text}; another name=, or none, "
                "starts a new search"
            )
    check_unchanged_files(recipe.task, {"contents": stored.contents}, path)
    tree = to_tree(replace(recipe, title=title, group=recipe.group or title, init_from=stored.init_from))
    return replace(search, tree=tree, definition_hash=definition_hash)


def run_result(run: TrialRun, metric: Metric) -> dict[str, Any]:
    """What a run is worth, from its metrics and from nothing else: its value at its best checkpoint, the one of the
    highest accuracy or of the lowest validation loss, or its last training loss; `values` has the objective at each
    evaluation, by step.

    Steps beyond the budget (somebody trained the run further) do not count. Before its first evaluation a run has
    `values` alone, and none.
    """
    budget, loss, evaluations = run.recipe.training.steps, None, dict[int, dict[str, Any]]()
    records = [line for line in run.folder.records("metrics.jsonl") if budget is None or line["step"] <= budget]
    for line in records:
        if "split" in line:
            evaluations.setdefault(line["step"], {"loss": loss})[line["split"]] = line
        else:
            loss = line["loss"]
    has_ood_validation = any("ood_validation" in lines for lines in evaluations.values())
    split = "ood_validation" if metric == "ood_validation" and has_ood_validation else "validation"

    def objective(step: int, name: str = "exact_match") -> float:
        lines = evaluations[step]
        if metric in ("loss", "validation_loss"):
            found = lines["loss"] if metric == "loss" else lines["validation"]["loss"]
            return math.nan if found is None else float(found)
        tie_break = _TIE_BREAK_WEIGHT * _accuracy(lines["validation"], name)
        return _accuracy(lines[split], name) + (0.0 if split == "validation" else tie_break)

    def score(step: int) -> float:
        return {"loss": 0.0, "validation_loss": -objective(step)}.get(metric, _accuracy(evaluations[step][split]))

    # Whole rows of labels are all wrong long before their labels are: those tell good settings from bad ones early.
    whole = (step for step, lines in evaluations.items() if {"validation", split} <= lines.keys())
    values = {step: value for step in whole if math.isfinite(value := objective(step, "accuracy"))}
    if not values:
        return {"values": {}}
    best = max(values, key=lambda step: (score(step), step))
    line, is_loss = evaluations[best][split], metric in ("loss", "validation_loss")
    return {
        "steps": records[-1]["step"],
        "best_step": best,
        "metric": metric if is_loss else split,
        "value": objective(best) if is_loss else _accuracy(line),
        "low": None if metric == "loss" else line.get("low"),
        "high": None if metric == "loss" else line.get("high"),
        "objective": objective(best),
        "validation": _accuracy(evaluations[best]["validation"]),
        "values": values,
    }


def _accuracy(line: Mapping[str, Any], name: str = "exact_match") -> float:
    """The accuracy on a split; for language modeling the top-1 accuracy over tokens."""
    return float(line["token_accuracy"] if "perplexity" in line else line.get(name, line["exact_match"]))


def summarize_runs(runs: Sequence[Mapping[str, Any]]) -> tuple[float, dict[str, Any]]:
    """The objective of a trial, and what was found: the median over its seeds, with the extremes of several seeds or
    Wilson's interval of one."""
    values, is_single = [run["value"] for run in runs], len(runs) == 1
    low, high = (runs[0]["low"], runs[0]["high"]) if is_single else (min(values), max(values))
    summary = {"value": median(values), "low": low, "high": high, "metric": runs[0]["metric"], "runs": list(runs)}
    return median([run["objective"] for run in runs]), summary
