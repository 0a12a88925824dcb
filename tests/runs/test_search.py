"""Searches: a space of settings, trials that are ordinary runs, and nothing but the folders of these runs."""

import csv
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from numerate.config import override, to_tree
from numerate.errors import OperationalError, UserError
from numerate.evaluation.evaluator import Evaluation
from numerate.runs import search as search_file
from numerate.runs.end import End, read_end, write_end
from numerate.runs.engines.engine import Engine, Failure, FailureKind, Outcome
from numerate.runs.sampling import importances, is_pruned, next_point
from numerate.runs.search import search
from numerate.runs.searched import SearchResult
from numerate.runs.space import Field, Space
from numerate.runs.train import train
from numerate.runs.trials import Search, Trial, TrialRun, run_result, summarize_runs
from numerate.tables.results import results_of
from numerate.tasks.task import Task
from numerate.text.tasks.example_file import ExampleFile
from numerate.training.recipe import Recipe, Training
from numerate.training.run_folder import RunFolder
from small_runs import TINY

pytestmark = pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="a search needs optuna")

RATES = {"optimizer.learning_rate": "log(1e-4,1e-2)", "model.hidden_size": [16, 32]}
SPACE = Space.parse(TINY, RATES)


def values(found: SearchResult) -> list[Any]:
    return [(trial.number, trial.state, trial.objective, trial.parameters) for trial in found.trials]


# The space ------------------------------------------------------------------------------------------------------------


def test_a_space_is_read_as_settings_are_with_ranges_beside() -> None:
    settings = {
        "optimizer.learning_rate": "log(1e-4,1e-2)",
        "optimizer.weight_decay": "between(0,0.1)",
        "training.batch_size": "between(16,120,16)",
        "model.mixer": ["Attention(num_heads=1)", "Attention(num_heads=2)"],
        "training.steps": 500,
    }
    space = Space.parse(TINY, settings)
    assert space == Space.parse(TINY, [f"{k}={','.join(v) if isinstance(v, list) else v}" for k, v in settings.items()])
    assert space.items == (
        Field("optimizer.learning_rate", (), 1e-4, 1e-2, log=True),
        Field("optimizer.weight_decay", (), 0.0, 0.1),
        Field("training.batch_size", (), 16, 112, step=16),
        Field("model.mixer", ("Attention(num_heads=1)", "Attention(num_heads=2)")),
        "training.steps=500",
    )
    assert [field.is_integer for field in space.fields[:3]] == [False, False, True]
    assert [field.size for field in space.fields] == [None, None, 7, 2]
    assert list(space.fields[2]) == list(range(16, 113, 16))
    assert space.size is None
    assert [str(item) for item in space.items[1:3]] == [
        "optimizer.weight_decay=between(0.0,0.1)",
        "training.batch_size=between(16,112,16)",
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["optimizer.learning_rat=log(1e-4,1e-2)"], "Did you mean 'learning_rate'"),
        (["optimizer.learning_rate=1e-4,fast"], "optimizer.learning_rate: must be a number, not 'fast'"),
        (["training.batch_size=between(1.5,8)"], "training.batch_size: must be an integer, not '1.5'"),
        (["training.batch_size=between(8,16,1.5)"], "training.batch_size is an integer, so its step must be one"),
        (["optimizer.learning_rate=between(1e-2,1e-4)"], "low must be below high"),
        (["optimizer.learning_rate=log(0,1)"], "begins above 0"),
        (["optimizer.learning_rate=log(1,2,0.5)"], "has no step"),
        (["optimizer.learning_rate=between(1,2,3)"], "does not lead from 1 to 2"),
        (["optimizer.learning_rate=between(1)"], "must be a range of numbers"),
        (["task.operator=between(1,2)"], "task.operator"),
        (["training.steps=4,8"], "give the same run"),
        (["model.hidden_size=16,16"], "give the same run"),
        (["model.hidden_size=16,32", "model.hidden_size=between(16,32)"], "given twice"),
        (["seed=0,1"], "seed= of the search"),
        (["model.hidden_size=16"], "nothing to search over"),
        (["trial"], "'trial' must be path=value.*Did you mean 'trials'"),
    ],
)
def test_what_cannot_be_searched_is_reported_before_anything_runs(
    settings: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        search(TINY, settings, runs_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_setting_is_searched_under_any_of_its_names_and_with_values_that_go_with_some_of_another() -> None:
    for path in ("lr", "optimizer.lr", "optimizer.learning_rate"):
        (field,) = Space.parse(TINY, [f"{path}=log(1e-4,1e-2)"]).fields
        assert override(TINY, Space((field,)).settings({field.path: 0.003})).optimizer.learning_rate == 0.003
    assert Space.parse(TINY, ["task.digits=1:2,1:3", "task.operator=+,x", "model.mixer.logit_scale=log,1.5"]).size == 8
    positions = ["model.positions=[Rotary],[Learned]", "model.mixer=Attention,LSTM"]
    assert Space.parse(TINY, positions).size == 4, "LSTM goes with Learned alone"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metric": "test"}, "metric: must be one of ood_validation, validation, loss"),
        ({"sampler": "tp"}, "sampler: must be one of .*not 'tp'.*Did you mean 'tpe'"),
        ({"pruner": "halving"}, "pruner: must be one of none, median, hyperband"),
        ({"trials": 0}, "trials: must be at least 1, not 0"),
        ({"sampler": "grid"}, "a grid needs a finite number of values"),
        ({"metric": "validation_loss"}, "metric: validation_loss needs a language modeling task, not Arithmetic"),
    ],
)
def test_options_that_there_are_not_are_reported(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        search(TINY, RATES, runs_dir=tmp_path, **settings)


def test_without_optuna_the_line_that_installs_it_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"the package optuna is not installed; pip install 'numerate\[search\]'"):
        search(TINY, RATES, runs_dir=tmp_path)


# A search -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> SearchResult:
    return search(TINY, RATES, trials=5, metric="loss", runs_dir=tmp_path_factory.mktemp("found") / "runs", quiet=True)


def test_the_same_seed_gives_the_same_trials_and_another_seed_others(found: SearchResult, tmp_path: Path) -> None:
    again = search(TINY, RATES, trials=3, metric="loss", runs_dir=tmp_path / "a", quiet=True)
    assert values(again) == values(found)[:3]
    other = search(TINY, RATES, trials=1, metric="loss", runs_dir=tmp_path / "b", seed=1, quiet=True)
    assert other.trials[0].parameters != found.trials[0].parameters
    assert other.best_recipe.seed == 1
    rates = [trial.parameters["optimizer.learning_rate"] for trial in found.trials]
    assert all(1e-4 <= rate <= 1e-2 and float(f"{rate:.4g}") == rate for rate in rates)


def test_a_trial_is_an_ordinary_run_of_the_search_and_shown_as_one(found: SearchResult) -> None:
    folder = found.best_trial.runs[0].folder
    trained = train(found.best_recipe, runs_dir=found.path.parent, quiet=True)
    assert (trained.run.path, trained.stop_reason) == (folder.path, "done")
    assert folder.path.parent == found.path
    assert folder.metadata()["group"] == found.path.name
    rows = results_of(found.path).set_index("run")
    row = rows.loc[f"{found.path.name}/{folder.id}"]
    assert (len(rows), row["status"], row["loss"]) == (5, "done", found.best_trial.objective)
    assert row["optimizer.learning_rate"] == found.best_trial.parameters["optimizer.learning_rate"]


def test_a_search_asks_no_question_of_the_test_split_and_evaluates_no_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: set[str] = set()
    examples = Task.examples

    def noted(self: Task, split: str, *key: Any) -> Any:
        drawn.add(split)
        return examples(self, split, *key)  # type: ignore[arg-type]

    monkeypatch.setattr(Task, "examples", noted)
    search(TINY, {"model.hidden_size": [16, 32]}, trials=2, seeds=2, runs_dir=tmp_path, quiet=True)
    assert drawn == {"train", "validation", "ood_validation"}
    assert not list(tmp_path.glob("**/cells.jsonl"))


def test_the_best_is_what_the_metric_says_shown_first_and_to_be_measured_on_new_seeds(found: SearchResult) -> None:
    losses = {trial.number: trial.objective or 0.0 for trial in found.trials}
    best = found.best_trial
    assert best.number == min(losses, key=losses.__getitem__)
    table = str(found).splitlines()
    assert table[0].split()[:2] == ["trial", "loss"]
    assert table[2].split()[0] == str(best.number)
    assert "selected by the last training loss, not on test questions" in str(found)
    rows = list(csv.DictReader((found.path / "results.csv").read_text().splitlines()))
    assert [int(row["trial"]) for row in rows] == [trial.number for trial in found.ranked_trials]
    assert float(rows[0]["optimizer.learning_rate"]) == best.parameters["optimizer.learning_rate"]
    command = f"numerate run rotary {shlex.join(found.settings(best))} seed=1,2,3,4,5"
    assert found.next_command() == command
    assert command in str(found)
    called = ("my recipes/it.py:tiny", "--parts", "my.py")
    several = replace(found, search=replace(found.search, seeds=(0, 1, 2)), command_words=called)
    assert several.next_command().startswith("numerate run 'my recipes/it.py:tiny' ")
    assert several.next_command().endswith("seed=3,4,5,6,7 --parts my.py")
    for rate, is_warned in ((0.0098, True), (0.001, False)):
        point = {"optimizer.learning_rate": rate, "model.hidden_size": "16"}
        text = str(replace(found, trials=(replace(best, parameters=point),)))
        assert ("the best optimizer.learning_rate=0.0098 is at the upper bound of its range, 0.01" in text) == is_warned


def test_the_same_search_again_trains_nothing_and_a_larger_one_continues(found: SearchResult) -> None:
    runs = found.path.parent
    before = {path: path.read_bytes() for path in runs.glob("*/*/*.jsonl")}
    again = search(TINY, RATES, trials=5, metric="loss", runs_dir=runs, quiet=True)
    assert values(again) == values(found)
    assert {path: path.read_bytes() for path in before} == before
    more = search(TINY, RATES, trials=6, metric="loss", runs_dir=runs, quiet=True)
    assert values(more)[:5] == values(found)
    assert len(more.trials) == 6


def test_a_name_stands_for_one_search_of_the_same_files(tmp_path: Path) -> None:
    file = tmp_path / "sums.txt"
    file.write_text("1+2=3\n2+3=5\n3+4=7\n")
    evaluation = Evaluation(examples_per_cell=2, validation_examples=2)
    recipe = replace(TINY, task=ExampleFile(path=str(file)), evaluation=evaluation)

    def go(**options: Any) -> SearchResult:
        space = options.pop("space", {"model.hidden_size": [16, 32]})
        return search(recipe, space, **{"trials": 1, "metric": "loss", "name": "mine", "quiet": True} | options)

    runs = tmp_path / "runs"
    assert go(runs_dir=runs).path == runs / "mine"
    with pytest.raises(UserError, match=r"mine: is a search with another settings: .*another name="):
        go(runs_dir=runs, space={"model.hidden_size": [16, 64]})
    with pytest.raises(UserError, match="is a search with another metric"):
        go(runs_dir=runs, metric="validation")
    file.write_text("1+2=3\n2+4=6\n3+4=7\n")
    with pytest.raises(UserError, match=r"the contents of .*sums\.txt have changed since .*mine was started"):
        go(runs_dir=runs, trials=2)
    for name, content, message in (
        ("study.json", "", "name: other is a study"),
        ("journal.log", "", r"other: was written by numerate 0\.2 or earlier and can only be read by that version"),
        ("search.json", '{"format":1}', r"search\.json: damaged: .*Restore it from a copy"),
    ):
        (tmp_path / name / "other").mkdir(parents=True)
        (tmp_path / name / "other" / name).write_text(content)
        with pytest.raises(UserError, match=message):
            go(runs_dir=tmp_path / name, name="other")
        assert (tmp_path / name / "other" / name).read_text() == content


def test_trials_begin_with_the_weights_of_the_run_that_was_the_latest_before_them(tmp_path: Path) -> None:
    source = train(TINY, runs_dir=tmp_path, quiet=True).run
    base = replace(TINY, init_from="latest", title="further")
    for number in (1, 2):
        found = search(base, RATES | {"model.hidden_size": 16}, trials=number, runs_dir=tmp_path, quiet=True)
        heads = [trial.runs[0].folder.metadata() for trial in found.trials]
        assert [head["recipe"]["init_from"] for head in heads] == [source.folder.id] * number


# Points, values and pruning -------------------------------------------------------------------------------------------


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Search]:
    """A search in a folder of its own, of which no trial is trained."""

    def made(space: Space = SPACE, **options: Any) -> Search:
        name = f"s{len(list(tmp_path.glob('s*')))}"
        (tmp_path / name).mkdir()
        return Search(tmp_path / name, to_tree(replace(TINY, title=name)), "0123", space, **options)

    return made


def add(
    search: Search, *evaluations: tuple[int, float, float | None], end: str | None = "budget", loss: float = 1.0
) -> Trial:
    """Adds the next trial, with records of (step, right in distribution, right on OOD validation)."""
    trials = search.trials()
    search.add_trial(len(trials), next_point(search, trials, len(trials)))
    (run,) = search.trials()[-1].runs
    for step, validation, beyond in evaluations:
        run.folder.append("metrics.jsonl", {"step": step, "loss": loss / step})
        for split, exact in (("validation", validation), ("ood_validation", beyond)):
            if exact is not None:
                line = {"step": step, "split": split, "exact_match": exact, "low": exact / 2, "high": exact}
                run.folder.append("metrics.jsonl", line)
    if end is not None:
        write_end(run.folder, End.now("done", key=run.key, seconds=1.0, results={"stop_reason": end}))
    return search.trials()[-1]


def test_a_run_is_worth_what_its_best_checkpoint_got_right_on_the_next_lengths(make: Callable[..., Search]) -> None:
    space = Space.parse(TINY, RATES | {"training.steps": 30})
    (run,) = add(make(space), (10, 0.2, 0.5), (20, 0.9, 0.5), (30, 1.0, 0.25), (40, 1.0, 1.0)).runs
    best = run_result(run, "ood_validation")
    assert (best["value"], best["low"], best["best_step"], best["steps"]) == (0.5, 0.25, 20, 30)
    assert (best["metric"], best["validation"]) == ("ood_validation", 0.9)
    assert best["values"] == pytest.approx({10: 0.5, 20: 0.5, 30: 0.25}, abs=1e-5)
    assert run_result(run, "validation")["value"] == 1.0
    assert run_result(run, "loss")["objective"] == 1 / 30
    (short,) = add(make(space), (10, 0.2, None), (20, 0.9, None)).runs
    fallen_back = run_result(short, "ood_validation")
    assert (fallen_back["metric"], fallen_back["value"]) == ("validation", 0.9)
    assert add(make()).state == "running", "nothing was evaluated"
    worse, better, more_beyond = (
        add(make(), (4, right, beyond)).objective or 0.0 for right, beyond in ((0.9, 0.5), (1.0, 0.5), (0.0, 0.504))
    )
    assert worse < better < more_beyond, "ties on OOD validation are settled in distribution"


def test_a_trial_of_language_modeling_is_worth_its_lowest_validation_loss(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "a", "1", {"recipe": {}})
    for step, loss in ((10, 3.0), (20, 2.0), (30, 2.5), (40, 1.0)):
        folder.append("metrics.jsonl", {"step": step, "loss": 9.0})
        line = {"loss": loss, "low": loss - 0.1, "high": loss + 0.1, "perplexity": 7.0, "token_accuracy": 0.5}
        folder.append("metrics.jsonl", {"step": step, "split": "validation", **line})
    found = run_result(TrialRun(Recipe(training=Training(steps=30)), folder, ""), "validation_loss")
    assert (found["value"], found["low"], found["best_step"]) == (2.0, 1.9, 20)


def test_each_trial_is_trained_on_every_seed_and_is_worth_their_median(tmp_path: Path) -> None:
    found = search(TINY, {"model.hidden_size": [16, 32]}, trials=1, seeds=2, seed=5, runs_dir=tmp_path, quiet=True)
    assert [run.folder.metadata()["recipe"]["seed"] for run in found.best_trial.runs] == [5, 6]
    assert "of 2 seeds" in str(found)
    runs = [{"value": v, "low": 0, "high": 1, "metric": "m", "objective": v / 2} for v in (0.25, 1.0, 0.5)]
    objective, summary = summarize_runs(runs)
    assert (objective, summary["value"], summary["low"], summary["high"]) == (0.25, 0.5, 0.25, 1.0)


def test_a_grid_tries_each_point_once_and_no_point_is_tried_twice(make: Callable[..., Search], tmp_path: Path) -> None:
    space = Space.parse(TINY, {"model.hidden_size": [16, 32], "training.batch_size": "between(8,24,8)"})
    for sampler, seed in product(("grid", "tpe", "random"), (0, 1)):
        of_sampler = make(space, sampler=sampler, seeds=(seed,))
        points = [tuple(add(of_sampler, (4, 0.5, 0.1 * number)).parameters.values()) for number in range(6)]
        assert sorted(points) == sorted((width, batch) for width in ("16", "32") for batch in (8, 16, 24))
    found = search(TINY, {"model.hidden_size": [16, 32]}, trials=9, runs_dir=tmp_path, quiet=True)
    assert (len(found.trials), found.num_left) == (2, 0)


@pytest.mark.parametrize("metric", ["validation", "loss"])
def test_the_median_pruner_stops_what_is_worse_than_half_of_the_others(
    make: Callable[..., Search], metric: Any
) -> None:
    of_median = make(metric=metric, pruner="median")

    def ask(value: float, end: str | None = None) -> bool:
        return is_pruned(of_median, add(of_median, (4, value, None), loss=4 * (1 - value), end=end))

    assert [ask(0.5 + number / 100, "budget") for number in range(5)] == [False] * 5
    assert [ask(0.1), ask(0.9)] == [True, False]


def test_a_fields_importance_is_reported_from_ten_trials_on(make: Callable[..., Search]) -> None:
    searched = make(metric="validation")
    for number in range(11):
        shares = importances(searched, trials := searched.trials())
        assert bool(shares) == (number >= 10)
        add(searched, (4, next_point(searched, trials, number)["optimizer.learning_rate"], None))
    assert next(iter(shares)) == "optimizer.learning_rate"
    assert sum(shares.values()) == pytest.approx(1.0)


def test_a_trial_that_a_pruner_gives_up_ends_early_and_its_run_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first(search: Search, trial: Trial) -> bool:
        return trial.number == 0 and bool(run_result(trial.runs[0], "loss")["values"])

    monkeypatch.setattr(search_file, "is_pruned", first)
    found = search(TINY, RATES, trials=2, metric="loss", pruner="median", runs_dir=tmp_path, quiet=True)
    assert [trial.state for trial in found.trials] == ["pruned", "complete"]
    assert (found.best_trial.number, found.num_left) == (1, 0)
    assert "1 of 2 trials are complete, 1 stopped early" in str(found)
    (pruned,) = found.trials[0].runs
    assert pruned.folder.records("metrics.jsonl")[-1]["step"] < 4
    going_on = train(pruned.recipe, runs_dir=tmp_path, quiet=True)
    assert (going_on.stop_reason, going_on.run.path) == ("budget", pruned.folder.path)


# Files ----------------------------------------------------------------------------------------------------------------


def test_what_a_trials_file_says_is_checked_and_no_code_of_it_runs(
    make: Callable[..., Search], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = Space.parse(TINY, ["model.positions=[]", "model.mixer=LSTM,GRU", "optimizer.learning_rate=log(1e-4,1e-2)"])
    edited = make(space)
    file = add(edited).runs[0].folder.file("trial.json")
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    monkeypatch.chdir(tmp_path)
    mixer, text = edited.trials()[0].parameters["model.mixer"], file.read_text()
    for old, new, message in (
        (f'"{mixer}"', '"evil.py:Bad"', r"model\.mixer=LSTM,GRU: 'evil\.py:Bad' is not in this search space"),
        (f'"{mixer}"', '"LSTM"' if mixer == "GRU" else '"GRU"', "its parameters are those of run"),
        (f'"model.mixer":"{mixer}",', "", "None is not in this search space"),
        ('"search":"0123"', '"search":"4567"', "it is of a search with another definition"),
        ('"number":0', '"number":0,"number":0', "it was edited"),
        ('"number":0', '"number":-1', "Expected `int` >= 0"),
        ('"number":0', '"count":0', "unknown field `count`|missing required field `number`"),
        ("}", "", "truncated"),
    ):
        file.write_text(text.replace(old, new))
        with pytest.raises(UserError, match=rf"trial\.json: damaged: .*({message}).*Restore it from a copy"):
            replace(edited).trials()
    file.write_text(text)
    (edited.path / "copy").mkdir()
    (edited.path / "copy" / "trial.json").write_text(text)
    with pytest.raises(UserError, match="its parameters are those of run"):
        edited.trials()
    assert not (tmp_path / "ran").exists()


# What goes wrong ------------------------------------------------------------------------------------------------------


def test_settings_that_are_refused_together_or_give_the_same_run_are_failed_trials(tmp_path: Path) -> None:
    space: dict[str, Any] = {"model.mixer": ["Attention(num_heads=2)", "Attention(num_heads=3)"]}
    found = search(TINY, space | {"model.hidden_size": [16, 32]}, sampler="grid", runs_dir=tmp_path, quiet=True)
    refused = [trial for trial in found.trials if trial.state == "failed"]
    assert len(refused) == len(found.ranked_trials) == 2
    assert all("heads" in str(trial.error) and "num_heads=3" in str(trial.parameters) for trial in refused)
    assert f"trial {refused[0].number} failed: " in str(found)
    narrow = {"optimizer.learning_rate": "between(0.001,0.001001)"}
    found = search(TINY, narrow, trials=3, runs_dir=tmp_path, quiet=True)
    assert [trial.state for trial in found.trials] == ["complete", "complete", "failed"]
    assert "of an earlier trial" in str(found.trials[2].error)


def test_a_search_whose_trials_all_fail_alike_ends_with_their_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"all 3 trials failed with the same error.*cuda:99"):
        search(replace(TINY, device="cuda:99"), RATES, trials=9, runs_dir=tmp_path, quiet=True)
    without_evaluation = replace(TINY, training=replace(TINY.training, minutes=1e-9))
    with pytest.raises(UserError, match="ended before any evaluation; a larger budget or a smaller"):
        search(without_evaluation, RATES, trials=3, runs_dir=tmp_path, quiet=True)


@dataclass(frozen=True)
class Elsewhere(Engine):
    """Does nothing with its items but, at most, adding their trials, and says why."""

    why: FailureKind | None = None
    adds: bool = False

    def map(self, function: Any, items: Sequence[Any], **more: Any) -> Iterator[Outcome]:
        for index, item in enumerate(items):
            if self.adds:
                function._get_or_add(item)
            yield Outcome(index, failure=Failure(self.why, "some reason", 0) if self.why else None)


def test_a_search_that_is_only_submitted_ends_at_once_and_continues_elsewhere(tmp_path: Path) -> None:
    found = search(TINY, RATES, trials=2, engine=Elsewhere(why="not started"), runs_dir=tmp_path, quiet=True)
    assert (found.num_left, found.exit_status) == (2, 0)
    assert "0 of 2 trials are complete, 2 not finished; the same command resumes" in str(found)
    with pytest.raises(UserError, match="no trial is complete"):
        _ = found.best_recipe


@pytest.mark.parametrize(
    ("why", "error", "message"),
    [
        (None, OperationalError, "2 trials remain, and no worker starts one"),
        ("user error", UserError, "some reason"),
        ("died", OperationalError, "some reason"),
    ],
)
def test_an_engine_that_gets_nothing_done_is_reported(why: Any, error: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        search(TINY, RATES, trials=2, engine=Elsewhere(why=why), runs_dir=tmp_path, quiet=True)


@pytest.mark.parametrize("why", ["timeout", "out of memory", "died"])
def test_a_trial_that_its_worker_cannot_end_has_failed(why: Any, tmp_path: Path) -> None:
    found = search(TINY, RATES, trials=2, engine=Elsewhere(why=why, adds=True), runs_dir=tmp_path, quiet=True)
    assert [trial.error for trial in found.trials] == ["some reason"] * 2


def test_a_trial_that_another_process_trains_is_left_to_it(make: Callable[..., Search]) -> None:
    here = make(num_trials=2)
    first, second = add(here, end=None), add(here, end=None)
    with first.runs[0].folder.lock():
        assert search_file._numbers_left(here) == [1]
        with second.runs[0].folder.lock():
            assert search_file._numbers_left(here) == []
    assert search_file._numbers_left(here) == [0, 1]


def test_a_search_that_is_stopped_continues_and_ends_as_if_it_had_not_been(
    found: SearchResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_record = search_file._TrialStop.on_record

    def stopping(self: Any, kind: str, record: Mapping[str, Any]) -> None:
        if kind == "evaluation" and self._trial.number == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        on_record(self, kind, record)

    with monkeypatch.context() as patch:
        patch.setattr(search_file._TrialStop, "on_record", stopping)
        stopped = search(TINY, RATES, trials=3, metric="loss", runs_dir=tmp_path, quiet=True)
    assert stopped.exit_status == 143
    assert [trial.state for trial in stopped.trials] == ["complete", "running"]
    assert stopped.num_left == 2
    again = search(TINY, RATES, trials=3, metric="loss", runs_dir=tmp_path, quiet=True)
    assert values(again) == values(found)[:3]


@pytest.mark.slow
def test_a_killed_search_is_finished_by_two_commands_that_share_what_is_left(tmp_path: Path) -> None:
    """kill -9 of the command while both of its workers train; then the same command again, twice at once."""
    script = tmp_path / "mine.py"
    script.write_text(
        "from numerate import recipe\n"
        "def tiny():\n"
        "    return recipe('addition_rotary', 'preset=debug', 'training.steps=30', 'training.checkpoint_every=10',\n"
        "                  'training.evaluate_every=10', 'title=tiny')\n"
    )

    def start(workers: int) -> "subprocess.Popen[str]":
        words = f"search {script}:tiny optimizer.learning_rate=log(1e-4,1e-2) name=s trials=6 workers={workers}"
        words = f"{words} runs_dir={tmp_path / 'runs'}"
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([sys.executable, "-m", "numerate", *words.split()], **pipes)

    def parameters() -> dict[Path, Any]:
        files = (tmp_path / "runs" / "s").glob("*/trial.json")
        return {file.parent: json.loads(file.read_text())["parameters"] for file in files}

    def ended() -> dict[Path, bytes]:
        ends = {folder: read_end(folder) for folder in parameters()}
        return {folder: (folder / "starts.jsonl").read_bytes() for folder, end in ends.items() if end and end.results}

    killed, deadline = start(2), time.monotonic() + 180
    while time.monotonic() < deadline and killed.poll() is None and not 0 < len(ended()) < len(parameters()):
        time.sleep(0.02)
    killed.kill()
    killed.communicate(timeout=60)
    before, untouched = parameters(), ended()
    assert 0 < len(untouched) <= len(before) < 6
    both = [start(1) for _ in range(2)]
    outputs = [one.communicate(timeout=120) for one in both]
    assert [one.returncode for one in both] == [0, 0], outputs
    assert any("6 of 6 trials are complete" in message for message, _ in outputs)
    after = parameters()
    assert len(after) == len(ended()) == 6
    assert before.items() <= after.items()
    assert untouched.items() <= ended().items()
    for run in map(RunFolder, after):
        assert run.path in before or len(run.records("starts.jsonl")) == 1, "nothing is trained twice"
        assert run.records("metrics.jsonl")[-1]["step"] == 30
