"""Searches: a space of settings, trials that are ordinary runs, one journal for many processes."""

import contextlib
import csv
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from numerate.cli import parse
from numerate.commands.table import COMMANDS
from numerate.config import override, to_tree
from numerate.errors import OperationalError, UserError
from numerate.evaluation.evaluator import Evaluation
from numerate.executors.executor import MAX_DEATHS, Executor, Failure, ItemOutcome, Work, WorkerContext
from numerate.runs.train import train
from numerate.searches import trials as trials_file
from numerate.searches.journal import Journal, Trial
from numerate.searches.sampling import SamplingPlan, make_pruner
from numerate.searches.search import search
from numerate.searches.searched import SearchResult
from numerate.searches.space import Choice, NumberRange, Space
from numerate.searches.trials import SearchPlan, Trials, run_result, summarize_runs
from numerate.recipes.naming import load_recipe
from numerate.tasks.task import Task
from numerate.text.tasks.example_file import ExampleFile
from numerate.training.recipe import Recipe, Training
from numerate.training.run_folder import RunFolder
from numerate.training.stopping import Stop
from small_runs import TINY

pytestmark = pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="a search needs optuna")

RATES = {"optimizer.learning_rate": "log(1e-4,1e-2)", "model.hidden_size": [16, 32]}
SPACE = Space.parse(TINY, RATES)


def points(found: SearchResult) -> list[Mapping[str, Any]]:
    return [trial.parameters for trial in found.trials]


def values(found: SearchResult) -> list[Any]:
    return [(trial.number, trial.state, trial.objective, trial.parameters) for trial in found.trials]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "s", SPACE, minimize=False)


def complete(journal: Journal, objective: float, trials: int = 3) -> None:
    """Takes the next trial and records its value."""
    with journal.take_trial(SamplingPlan(trials=trials), "me") as trial:
        assert trial is not None
        journal.tell(trial.number, objective, {})


# The space ------------------------------------------------------------------------------------------------------------


def test_a_space_is_read_as_settings_are_with_spans_beside() -> None:
    space = Space.parse(
        TINY,
        [
            "optimizer.learning_rate=log(1e-4,1e-2)",
            "optimizer.weight_decay=between(0,0.1)",
            "training.batch_size=between(16,120,16)",
            "model.mixer=Attention(num_heads=1),Attention(num_heads=2)",
            "training.steps=500",
        ],
    )
    assert space.items == (
        NumberRange("optimizer.learning_rate", 1e-4, 1e-2, log=True),
        NumberRange("optimizer.weight_decay", 0.0, 0.1),
        NumberRange("training.batch_size", 16, 120, step=16),
        Choice("model.mixer", ("Attention(num_heads=1)", "Attention(num_heads=2)")),
        "training.steps=500",
    )
    whole, share = space.fields[2], space.fields[1]
    assert isinstance(whole, NumberRange)
    assert isinstance(share, NumberRange)
    assert (whole.is_integer, whole.max_value, whole.size(), list(whole.iter_values())) == (
        True,
        112,
        7,
        list(range(16, 113, 16)),
    )
    assert (share.is_integer, share.size()) == (False, None)
    assert space.size() is None


def test_a_space_from_python_takes_a_list_as_the_values_to_choose_from() -> None:
    from_python = Space.parse(
        TINY, {"model.hidden_size": [16, 32], "training.steps": 8, "optimizer.learning_rate": "log(1e-4,1e-2)"}
    )
    from_text = Space.parse(
        TINY, ["model.hidden_size=16,32", "training.steps=8", "optimizer.learning_rate=log(1e-4,1e-2)"]
    )
    assert from_python == from_text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["optimizer.learning_rat=log(1e-4,1e-2)"], "Did you mean 'learning_rate'"),
        (["optimizer.learning_rate=1e-4,fast"], "optimizer.learning_rate: must be a number, not 'fast'"),
        (["training.batch_size=between(1.5,8)"], "training.batch_size: must be an integer, not '1.5'"),
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


@pytest.mark.parametrize("path", ["lr", "optimizer.lr", "optimizer.learning_rate"])
def test_a_setting_is_searched_under_any_of_its_names(path: str) -> None:
    (field,) = Space.parse(TINY, [f"{path}=log(1e-4,1e-2)"]).fields
    assert override(TINY, Space((field,)).settings({field.path: 0.003})).optimizer.learning_rate == 0.003  # type: ignore[attr-defined]


def test_a_value_that_goes_with_some_values_of_another_field_may_be_searched() -> None:
    space = Space.parse(TINY, ["task.digits=1:2,1:3", "task.operator=+,x", "model.mixer.logit_scale=log,1.5"])
    assert space.size() == 8
    positions = ["model.positions=[Rotary],[Learned]", "model.mixer=Attention,LSTM"]
    assert Space.parse(TINY, positions).size() == 4, "LSTM goes with Learned alone"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metric": "test"}, "metric: must be one of ood_validation, validation, loss"),
        ({"sampler": "tp"}, "sampler: must be one of .*not 'tp'.*Did you mean 'tpe'"),
        ({"trials": 0}, "trials: must be at least 1, not 0"),
        ({"sampler": "grid"}, "a grid needs a finite number of values"),
        ({"metric": "validation_loss"}, "metric: validation_loss needs a language modeling task, not Arithmetic"),
    ],
)
def test_options_that_there_are_not_are_reported(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        search(TINY, RATES, runs_dir=tmp_path, **settings)


@pytest.mark.parametrize("line", COMMANDS["search"].examples.splitlines())
def test_the_examples_of_the_help_can_be_searched(line: str) -> None:
    call = parse(shlex.split(line)[1:])
    assert Space.parse(load_recipe(call.arguments[0]), call.values["settings"]).fields
    executor = call.values["executor"]
    assert executor.workers == 2 if "workers=2" in line else executor is None


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
    assert points(other)[0] != points(found)[0]
    rates = [point["optimizer.learning_rate"] for point in points(found)]
    assert all(1e-4 <= rate <= 1e-2 and float(f"{rate:.4g}") == rate for rate in rates)
    assert other.trials[0].results["runs"][0]["seed"] == 1


def test_a_trial_is_an_ordinary_run(found: SearchResult) -> None:
    trial = found.best_trial
    folder = found.path.parent / trial.results["runs"][0]["run"]
    trained = train(found.best_recipe, runs_dir=found.path.parent, quiet=True)
    assert trained.run.path == folder
    assert trained.stop_reason == "done"
    assert RunFolder(folder).metadata()["group"] == found.path.name
    assert len(trained.run.evaluate("1:2x1:2", count=4)) == 4
    (folder / "evaluation.jsonl").unlink()


def test_a_search_asks_no_question_of_the_test_split_and_evaluates_no_grid(found: SearchResult, tmp_path: Path) -> None:
    drawn: set[str] = set()
    examples = Task.examples

    def noted(self: Task, split: str, *key: Any) -> Any:
        drawn.add(split)
        return examples(self, split, *key)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Task, "examples", noted)
        search(TINY, {"model.hidden_size": [16, 32]}, trials=2, seeds=2, runs_dir=tmp_path, quiet=True)
    assert drawn == {"train", "validation", "ood_validation"}
    assert not list(tmp_path.glob("**/evaluation.jsonl"))
    assert not list(found.path.parent.glob("**/evaluation.jsonl"))


def test_the_best_is_what_the_metric_says_and_shown_first(found: SearchResult) -> None:
    losses = {trial.number: trial.objective for trial in found.trials}
    assert None not in losses.values()
    assert found.best_trial.number == min(losses, key=lambda number: losses[number] or 0.0)
    assert found.best_recipe == replace(override(TINY, found.settings(found.best_trial)), group=found.best_recipe.group)
    table = str(found).splitlines()
    assert table[0].split()[:2] == ["trial", "loss"]
    assert table[2].split()[0] == str(found.best_trial.number)
    assert "selected by the last training loss, not on test questions" in str(found)


def test_the_files_beside_the_journal_hold_every_trial_the_best_first(found: SearchResult) -> None:
    lines = [json.loads(line) for line in (found.path / "trials.jsonl").read_text().splitlines()]
    assert [line["trial"] for line in lines] == [0, 1, 2, 3, 4]
    assert lines == json.loads(json.dumps(found.records()))
    rows = list(csv.DictReader((found.path / "results.csv").read_text().splitlines()))
    assert [int(row["trial"]) for row in rows] == [trial.number for trial in found.ranked_trials]
    assert [float(row["optimizer.learning_rate"]) for row in rows] == [
        t.parameters["optimizer.learning_rate"] for t in found.ranked_trials
    ]


def test_the_winner_is_to_be_measured_on_seeds_it_was_not_chosen_by(found: SearchResult) -> None:
    rate, width = (found.best_trial.parameters[path] for path in ("optimizer.learning_rate", "model.hidden_size"))
    command = f"numerate run rotary optimizer.learning_rate={rate} model.hidden_size={width} seed=1,2,3,4,5"
    assert found.next_command() == command
    assert command in str(found)
    called = ("my recipes/it.py:tiny", "--parts", "my.py")
    several = replace(found, plan=replace(found.plan, seeds=(0, 1, 2)), command_words=called)
    assert several.next_command().startswith("numerate run 'my recipes/it.py:tiny' ")
    assert several.next_command().endswith("seed=3,4,5,6,7 --parts my.py")


def test_a_best_at_the_end_of_a_span_is_reported(found: SearchResult) -> None:
    at_the_end = replace(found.best_trial, parameters={"optimizer.learning_rate": 0.0098, "model.hidden_size": "16"})
    inside = replace(found.best_trial, parameters={"optimizer.learning_rate": 0.001, "model.hidden_size": "16"})
    assert "optimizer.learning_rate=0.0098 is at the upper bound of its range, 0.01" in str(
        replace(found, trials=(at_the_end,))
    )
    assert "bound of its range" not in str(replace(found, trials=(inside,)))


def test_the_same_search_again_trains_nothing_and_a_larger_one_continues(found: SearchResult) -> None:
    before = {path: path.read_bytes() for path in found.path.parent.glob("rotary/*/starts.jsonl")}
    again = search(TINY, RATES, trials=5, metric="loss", runs_dir=found.path.parent, quiet=True)
    assert values(again) == values(found)
    assert {path: path.read_bytes() for path in before} == before
    more = search(TINY, RATES, trials=6, metric="loss", runs_dir=found.path.parent, quiet=True)
    assert values(more)[:5] == values(found)
    assert len(more.trials) == 6


def test_a_name_stands_for_one_search(tmp_path: Path) -> None:
    search(TINY, {"model.hidden_size": [16, 32]}, trials=1, name="mine", runs_dir=tmp_path, quiet=True)
    assert (tmp_path / "mine" / "journal.log").is_file()
    with pytest.raises(UserError, match=r"mine: is a search with another settings: .*another name="):
        search(TINY, {"model.hidden_size": [16, 64]}, trials=1, name="mine", runs_dir=tmp_path, quiet=True)
    with pytest.raises(UserError, match="is a search with another metric"):
        search(TINY, {"model.hidden_size": [16, 32]}, metric="loss", name="mine", runs_dir=tmp_path, quiet=True)


def test_a_search_does_not_go_on_where_its_files_have_changed(tmp_path: Path) -> None:
    file = tmp_path / "sums.txt"
    file.write_text("1+2=3\n2+3=5\n3+4=7\n")
    recipe = replace(
        TINY, task=ExampleFile(path=str(file)), evaluation=Evaluation(examples_per_cell=2, validation_examples=2)
    )
    space = {"model.hidden_size": [16, 32]}
    search(recipe, space, metric="loss", trials=1, runs_dir=tmp_path, quiet=True)
    file.write_text("1+2=3\n2+4=6\n3+4=7\n")
    with pytest.raises(
        UserError, match=r"the contents of .*sums\.txt have changed since .*rotary-search-\w+ was started"
    ):
        search(recipe, space, metric="loss", trials=2, runs_dir=tmp_path, quiet=True)


def test_a_grid_tries_each_point_once_and_no_point_is_tried_twice(tmp_path: Path) -> None:
    space = Space.parse(TINY, {"model.hidden_size": [16, 32], "training.batch_size": "between(8,24,8)"})
    for sampler, seed in product(("grid", "tpe", "random"), (0, 1)):
        journal = Journal(tmp_path / f"{sampler}{seed}", space, minimize=False)
        way = SamplingPlan(sampler, seed, trials=space.size() or 0)  # type: ignore[arg-type]
        for _ in range(6):
            with journal.take_trial(way, "me") as trial:
                assert trial is not None
                journal.tell(trial.number, float(trial.parameters["training.batch_size"]), {})
        tried = [tuple(trial.parameters.values()) for trial in journal.trials()]
        assert sorted(tried) == sorted((width, batch) for width in ("16", "32") for batch in (8, 16, 24))
    found = search(TINY, {"model.hidden_size": [16, 32]}, trials=9, runs_dir=tmp_path, quiet=True)
    assert len(found.trials) == 2
    assert found.num_left == 0


# What is best ---------------------------------------------------------------------------------------------------------


def recorded(folder: Path, *evaluations: tuple[int, float, float | None], loss: float = 1.0) -> RunFolder:
    """A run with records of (step, right in distribution, right on OOD validation)."""
    run = RunFolder.create(folder, "made", f"run{len(list(folder.glob('made/*')))}", {"recipe": to_tree(TINY)})
    for step, validation, beyond in evaluations:
        run.append("metrics.jsonl", {"step": step, "loss": loss / step})
        for split, exact in (("validation", validation), ("ood_validation", beyond)):
            if exact is not None:
                run.append(
                    "metrics.jsonl",
                    {"step": step, "split": split, "exact_match": exact, "low": exact / 2, "high": exact},
                )
    return run


def test_a_run_is_worth_what_its_best_checkpoint_got_right_on_the_next_lengths(tmp_path: Path) -> None:
    long = replace(TINY, training=replace(TINY.training, steps=30))
    run = recorded(tmp_path, (10, 0.2, 0.5), (20, 0.9, 0.5), (30, 1.0, 0.25), (40, 1.0, 1.0))
    best = run_result(run, long, "ood_validation")
    assert (best["value"], best["low"], best["best_step"], best["steps"]) == (0.5, 0.25, 20, 30)
    assert best["metric"] == "ood_validation"
    assert (best["validation"], best["loss"]) == (0.9, 1 / 30)
    assert run_result(run, long, "validation")["value"] == 1.0
    assert run_result(run, long, "loss")["objective"] == 1 / 30
    short = recorded(tmp_path, (10, 0.2, None), (20, 0.9, None))
    fallen_back = run_result(short, long, "ood_validation")
    assert (fallen_back["metric"], fallen_back["value"]) == ("validation", 0.9)
    with pytest.raises(UserError, match="ended before any evaluation"):
        run_result(recorded(tmp_path), long, "ood_validation")
    worse, better, more_beyond = (
        run_result(recorded(tmp_path, (4, right, beyond)), TINY, "ood_validation")["objective"]
        for right, beyond in ((0.9, 0.5), (1.0, 0.5), (0.0, 0.5 + 1 / 256))
    )
    assert worse < better < more_beyond, "ties on OOD validation are settled in distribution"


def test_a_trial_of_language_modeling_is_worth_its_lowest_validation_loss(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "a", "1", {"recipe": {}})
    for step, loss in ((10, 3.0), (20, 2.0), (30, 2.5), (40, 1.0)):
        folder.append("metrics.jsonl", {"step": step, "loss": 9.0})
        line = {"loss": loss, "low": loss - 0.1, "high": loss + 0.1, "perplexity": 7.0, "token_accuracy": 0.5}
        folder.append("metrics.jsonl", {"step": step, "split": "validation", **line})
    found = run_result(folder, Recipe(training=Training(steps=30)), "validation_loss")
    assert (found["value"], found["low"], found["best_step"], found["loss"]) == (2.0, 1.9, 20, 9.0)


def test_each_trial_is_trained_on_every_seed_and_is_worth_their_median(tmp_path: Path) -> None:
    found = search(TINY, {"model.hidden_size": [16, 32]}, trials=1, seeds=2, seed=5, runs_dir=tmp_path, quiet=True)
    assert [run["seed"] for run in found.best_trial.results["runs"]] == [5, 6]
    assert "of 2 seeds" in str(found)
    assert len(list(tmp_path.glob("rotary/*"))) == 2
    runs = [run_result(recorded(tmp_path, (4, 1.0, right)), TINY, "ood_validation") for right in (0.25, 1.0, 0.5)]
    objective, what = summarize_runs(runs, "ood_validation")
    assert objective == pytest.approx(0.5, abs=1e-5)
    assert (what["value"], what["low"], what["high"]) == (0.5, 0.25, 1.0)


# What goes wrong ------------------------------------------------------------------------------------------------------


def test_a_combination_that_is_refused_is_a_failed_trial_and_not_the_end(tmp_path: Path) -> None:
    space = {"model.mixer": ["Attention(num_heads=2)", "Attention(num_heads=3)"], "model.hidden_size": [16, 32]}
    found = search(TINY, space, sampler="grid", runs_dir=tmp_path, quiet=True)
    refused = [trial for trial in found.trials if trial.state == "failed"]
    assert len(refused) == 2
    assert all("heads" in str(trial.error) and "num_heads=3" in str(trial.parameters) for trial in refused)
    assert len(found.ranked_trials) == 2
    assert f"trial {refused[0].number} failed: " in str(found)


def test_a_search_whose_trials_all_fail_alike_ends_with_their_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"all 3 trials failed with the same error.*cuda:99"):
        search(replace(TINY, device="cuda:99"), RATES, trials=9, runs_dir=tmp_path, quiet=True)


def test_a_full_disk_ends_the_search_and_its_trial_is_taken_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any, **more: Any) -> Any:
        raise OperationalError("the disk is full") from OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("numerate.runs.train.train", full)
        with pytest.raises(OperationalError, match="the disk is full"):
            search(TINY, RATES, trials=2, runs_dir=tmp_path, quiet=True)
    found = search(TINY, RATES, trials=2, runs_dir=tmp_path, quiet=True)
    assert [trial.state for trial in found.trials] == ["complete", "complete"]


def test_a_worker_that_is_killed_for_its_memory_takes_its_trial_along(journal: Journal) -> None:
    with journal.take_trial(SamplingPlan(trials=2), "greedy"):
        assert journal.fail_trial_of("greedy", "out of memory") is None, "it is alive"
    assert journal.fail_trial_of("another", "out of memory") is None
    assert journal.fail_trial_of("greedy", "out of memory") == 0
    assert journal.trials()[0].error == "out of memory"


def test_trials_begin_with_the_weights_of_the_run_that_was_the_latest_before_them(tmp_path: Path) -> None:
    source = train(TINY, runs_dir=tmp_path, quiet=True).run
    base = replace(TINY, init_from="latest", title="further")
    found = search(base, RATES | {"model.hidden_size": 16}, trials=2, runs_dir=tmp_path, quiet=True)
    heads = [RunFolder(tmp_path / trial.results["runs"][0]["run"]).metadata() for trial in found.trials]
    assert [head["recipe"]["init_from"] for head in heads] == [source.folder.id] * 2


@dataclass(frozen=True)
class Elsewhere(Executor):
    """Does nothing with its items, and says why."""

    why: str = ""

    def run(self, work: Work, items: Sequence[Any], **more: Any) -> Iterator[ItemOutcome]:
        failure = Failure(self.why, "some reason", 0) if self.why else None  # type: ignore[arg-type]
        yield from (ItemOutcome(index, failure=failure) for index in range(len(items)))


def test_a_search_that_is_only_submitted_ends_at_once_and_continues_elsewhere(tmp_path: Path) -> None:
    found = search(TINY, RATES, trials=2, executor=Elsewhere(why="not started"), runs_dir=tmp_path, quiet=True)
    assert (found.num_left, found.exit_status) == (2, 0)
    assert "0 of 2 trials are complete, 2 not finished; the same command resumes" in str(found)
    with pytest.raises(UserError, match="no trial is complete"):
        _ = found.best_recipe


@pytest.mark.parametrize(
    ("why", "error", "message"),
    [
        ("", OperationalError, "no worker starts one"),
        ("user error", UserError, "some reason"),
        ("operational error", OperationalError, "some reason"),
    ],
)
def test_an_executor_that_gets_nothing_done_is_reported(why: str, error: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        search(TINY, RATES, trials=2, executor=Elsewhere(why=why), runs_dir=tmp_path, quiet=True)


@pytest.mark.parametrize("why", ["timeout", "out of memory"])
def test_a_trial_that_takes_too_long_or_too_much_memory_is_a_failed_one(why: str, tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Greedy(Executor):
        def run(self, work: Work, items: Sequence[Any], **more: Any) -> Iterator[ItemOutcome]:
            assert isinstance(work, Trials)
            with Journal(work.folder, SPACE, minimize=False).take_trial(work.plan.sampling, "greedy"):
                pass
            yield ItemOutcome(0, failure=Failure(why, f"too {why}"), worker="greedy")  # type: ignore[arg-type]

    found = search(TINY, RATES, trials=2, executor=Greedy(), runs_dir=tmp_path, quiet=True)
    assert [trial.error for trial in found.trials] == [f"too {why}"] * 2


def test_a_search_that_is_stopped_continues_and_ends_as_if_it_had_not_been(
    found: SearchResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = Journal.report

    def stopping(self: Journal, number: int, *more: Any) -> bool:
        if number == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return report(self, number, *more)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "report", stopping)
        stopped = search(TINY, RATES, trials=3, metric="loss", runs_dir=tmp_path, quiet=True)
    assert stopped.exit_status == 143
    assert [trial.state for trial in stopped.trials] == ["complete", "running"]
    assert stopped.num_left == 2
    again = search(TINY, RATES, trials=3, metric="loss", runs_dir=tmp_path, quiet=True)
    assert values(again) == values(found)[:3]


def test_a_trial_that_a_pruner_gives_up_ends_early_and_its_run_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class First:
        def prune(self, study: Any, trial: Any) -> bool:
            return bool(trial.number == 0)

    monkeypatch.setattr(trials_file, "make_pruner", lambda kind, steps: First())
    found = search(TINY, RATES, trials=2, metric="loss", pruner="median", runs_dir=tmp_path, quiet=True)
    assert [trial.state for trial in found.trials] == ["pruned", "complete"]
    assert found.trials[0].results["runs"][0]["steps"] < 4
    assert found.best_trial.number == 1
    going_on = train(override(TINY, found.settings(found.trials[0])), runs_dir=tmp_path, quiet=True)
    assert going_on.stop_reason == "budget"
    assert going_on.run.folder.metadata()["ended"]["step"] == 4


@pytest.mark.parametrize("minimise", [False, True])
def test_the_median_pruner_stops_what_is_worse_than_half_of_the_others(tmp_path: Path, minimise: bool) -> None:
    journal = Journal(tmp_path / "s", SPACE, minimize=minimise)
    pruner, sign = make_pruner("median", 8), -1 if minimise else 1

    def trial(value: float) -> bool:
        with journal.take_trial(SamplingPlan(trials=20), "me") as taken:
            assert taken is not None
            pruned = journal.report(taken.number, 4, sign * value, pruner)
            journal.tell(taken.number, sign * value, {})
        return pruned

    assert [trial(0.5 + number / 100) for number in range(5)] == [False] * 5
    assert trial(0.1)
    assert not trial(0.9)


# The journal ----------------------------------------------------------------------------------------------------------


def test_values_that_are_none_of_the_space_are_not_taken_from_a_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = Space.parse(TINY, ["model.positions=[]", "model.mixer=LSTM,GRU", "optimizer.learning_rate=log(1e-4,1e-2)"])
    journal = Journal(tmp_path / "s", space, minimize=False)
    with journal.take_trial(SamplingPlan(trials=1), "me"):
        pass
    assert space.settings(journal.trials()[0].parameters)[1] in ("model.mixer=LSTM", "model.mixer=GRU")
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    text = journal.path.read_text()
    journal.path.write_text(text.replace("LSTM", "evil.py:Bad").replace("GRU", "evil.py:Worse"))
    monkeypatch.chdir(tmp_path)
    (trial,) = Journal(tmp_path / "s", space, minimize=False).trials()
    with pytest.raises(
        UserError, match=r"model\.mixer=LSTM,GRU: 'evil\.py:\w+', in the journal, is not in this search space"
    ):
        override(TINY, space.settings(trial.parameters))
    for wrong in ({"model.mixer": "GRU", "optimizer.learning_rate": "evil.py:Bad"}, {"model.mixer": "GRU"}):
        with pytest.raises(UserError, match="in the journal, is not in this search space"):
            space.settings(wrong)
    assert not (tmp_path / "ran").exists()


def test_a_trial_whose_process_is_gone_is_taken_up_and_one_at_work_is_not(journal: Journal, tmp_path: Path) -> None:
    here, there, way = journal, Journal(tmp_path / "s", SPACE, minimize=False), SamplingPlan(trials=2)
    with here.take_trial(way, "here") as first:
        assert first is not None
        with there.take_trial(way, "there") as second:
            assert second is not None
            assert (first.number, second.number) == (0, 1)
            assert there.num_available(way) == 0
            with here.take_trial(way, "third") as third:
                assert third is None
    assert here.num_available(way) == 2
    with there.take_trial(way, "there") as again:
        assert again is not None
        assert (again.number, again.parameters) == (0, first.parameters)


def test_a_trial_that_kills_its_process_again_and_again_without_getting_further_is_a_failed_one(
    journal: Journal, tmp_path: Path
) -> None:
    plan = SearchPlan(SPACE, sampling=SamplingPlan(trials=1))
    with journal.take_trial(plan.sampling, "me"):
        assert all(journal.record_start(0, step=step) for step in range(3 * MAX_DEATHS))
        for _ in range(3 * MAX_DEATHS):
            journal.reset_starts(0)
            assert journal.record_start(0, step=0), "it was stopped in good order"
        journal.reset_starts(0)
    for _ in range(MAX_DEATHS):
        with journal.take_trial(plan.sampling, "me"):
            assert journal.record_start(0, step=0)
    Trials(tmp_path / "s", tmp_path, to_tree(TINY), plan, "command").open(WorkerContext("me", 1, Stop()))(0)
    assert journal.trials()[0].error == "its process died 3 times without progress"


def test_a_process_that_is_killed_at_any_moment_loses_no_trial(killed_at_every_moment: Any, tmp_path: Path) -> None:
    way, pruner = SamplingPlan(trials=2), make_pruner("none", None)

    def one(place: Path) -> None:
        journal = Journal(place / "s", SPACE, minimize=False)
        with journal.take_trial(way, "me") as trial:
            if trial is not None:
                journal.report(trial.number, 2, 0.25, pruner)
                journal.tell(trial.number, 0.5, {"runs": []})

    def check(place: Path, ended: bool) -> None:
        there = Journal(place / "s", SPACE, minimize=False)
        current = there.trials()
        assert [trial.state for trial in current[:1]] == ["complete"]
        assert not ended or [trial.state for trial in current] == ["complete"] * 2
        while there.num_available(way):
            one(place)
        points = [trial.parameters for trial in there.trials()]
        assert [trial.state for trial in there.trials()] == ["complete"] * 2
        assert points[: len(current)] == [trial.parameters for trial in current]
        assert all(json.loads(line) for line in there.path.read_text().splitlines())

    assert killed_at_every_moment(tmp_path, one, one, check) > 10


def test_a_full_disk_leaves_the_journal_whole(small_disk: Any) -> None:
    place = small_disk(64 * 1024)
    journal = Journal(place / "s", SPACE, minimize=False)
    complete(journal, 0.5)
    _fill(place / "other")

    def write_on() -> None:
        for _ in range(200):
            with journal.take_trial(SamplingPlan(trials=2), "me"):
                journal.record_start(1, step=0)

    with pytest.raises(OperationalError, match="the disk is full"):
        write_on()
    (place / "other").unlink()
    again = Journal(place / "s", SPACE, minimize=False)
    complete(again, 0.75)
    assert [trial.objective for trial in again.trials()] == [0.5, 0.75]
    assert all(json.loads(line) for line in journal.path.read_text().splitlines())


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while True:
            file.write(b" " * 512)


def test_half_a_line_that_a_killed_process_left_is_cut_away_and_a_damaged_one_is_reported_by_its_number(
    journal: Journal, tmp_path: Path
) -> None:
    complete(journal, 0.5)
    with open(journal.path, "a") as file:
        file.write('{"op_code":4,"worker_id":"half a li')
    other = Journal(tmp_path / "s", SPACE, minimize=False)
    assert [trial.state for trial in other.trials()] == ["complete"]
    complete(other, 0.75)
    assert [trial.objective for trial in journal.trials()] == [0.5, 0.75]
    assert all(json.loads(line) for line in journal.path.read_text().splitlines())
    damaged = journal.path.read_text().replace("\n", "\nwhat is this\n", 1)
    journal.path.write_text(damaged)
    with pytest.raises(UserError, match=r"journal\.log, line 2: damaged: "):
        Journal(tmp_path / "s", SPACE, minimize=False)
    assert journal.path.read_text() == damaged


@pytest.mark.parametrize("edit", [("+00:00", " o'clock"), ("attributes", "x")])
def test_an_edited_journal_is_refused_in_one_sentence(edit: tuple[str, str], journal: Journal) -> None:
    complete(journal, 0.5)
    journal.path.write_text(journal.path.read_text().replace(*edit))
    with pytest.raises(UserError, match=r"journal\.log: damaged: Optuna cannot read it \(\w+Error: .*restore the file"):
        Journal(journal.folder, SPACE, minimize=False)


def test_a_search_of_an_earlier_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "journal.log").write_text(
        '{"op_code": 0, "worker_id": "a", "study_name": "search", "directions": [2]}\n'
        '{"op_code": 2, "worker_id": "a", "study_id": 0, "user_attr": {"question": {"metric": "beyond-development"}}}\n'
    )
    before = (tmp_path / "journal.log").read_bytes()
    with pytest.raises(UserError, match=r"written by numerate 0\.2 or earlier and can only be read by that version"):
        Journal(tmp_path, SPACE, minimize=False)
    assert (tmp_path / "journal.log").read_bytes() == before


def test_a_fields_importance_is_reported_from_ten_trials_on(journal: Journal) -> None:
    for number in range(12):
        assert bool(journal.importances()) == (number >= 10)
        with journal.take_trial(SamplingPlan(trials=12), "me") as trial:
            assert trial is not None
            journal.tell(number, float(trial.parameters["optimizer.learning_rate"]), {})
    shares = journal.importances()
    assert next(iter(shares)) == "optimizer.learning_rate"
    assert sum(shares.values()) == pytest.approx(1.0)


# Many processes -------------------------------------------------------------------------------------------------------

SCRIPT = """
from dataclasses import replace
from numerate.recipes import addition_rotary
def tiny():
    one = addition_rotary()
    training = replace(one.training, steps=30, batch_size=8, shuffle_window=4, checkpoint_every=10, evaluate_every=10)
    evaluation = replace(one.evaluation, grid='1:2x1:2', examples_per_cell=4, validation_examples=8)
    model = replace(one.model, hidden_size=16)
    return replace(one, model=model, training=training, evaluation=evaluation, title='tiny')
"""


def searching(place: Path, *words: str) -> "subprocess.Popen[str]":
    script = place / "mine.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "numerate", "search", f"{script}:tiny", "optimizer.learning_rate=log(1e-4,1e-2)"]
    return subprocess.Popen(
        [*command, f"runs_dir={place / 'runs'}", "name=s", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def trials_in(place: Path) -> list[Trial]:
    space = Space.parse(TINY, ["optimizer.learning_rate=log(1e-4,1e-2)"])
    return Journal(place / "runs" / "s", space, minimize=False).trials()


@pytest.mark.slow
def test_a_killed_search_is_finished_by_two_commands_that_share_what_is_left(tmp_path: Path) -> None:
    """kill -9 of the command while both of its workers train; then the same command again, twice at once."""
    killed = searching(tmp_path, "trials=6", "workers=2")
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and killed.poll() is None:
        there = trials_in(tmp_path) if (tmp_path / "runs" / "s" / "journal.log").exists() else []
        if any(t.state == "complete" for t in there) and any(t.state == "running" for t in there):
            break
        time.sleep(0.02)
    killed.kill()
    killed.communicate(timeout=60)
    before = trials_in(tmp_path)
    assert any(trial.state == "complete" for trial in before)
    assert len(before) < 6
    both = [searching(tmp_path, "trials=6", "workers=1") for _ in range(2)]
    ended = [one.communicate(timeout=120) for one in both]
    assert [one.returncode for one in both] == [0, 0], ended
    after = trials_in(tmp_path)
    assert [trial.state for trial in after] == ["complete"] * 6
    assert [trial.parameters for trial in after[: len(before)]] == [trial.parameters for trial in before]
    assert any("6 of 6 trials are complete" in message for message, _ in ended)
    runs = {trial.number: RunFolder(tmp_path / "runs" / trial.results["runs"][0]["run"]) for trial in after}
    assert {run.path for run in runs.values()} == set((tmp_path / "runs" / "tiny").iterdir())
    for trial in after:
        cut_short = trial.number < len(before) and before[trial.number].state == "running"
        assert cut_short or len(runs[trial.number].records("starts.jsonl")) == 1, "nothing is trained twice"
        assert trial.number >= len(before) or cut_short or trial == before[trial.number]
        assert [line["step"] for line in runs[trial.number].records("metrics.jsonl") if "split" not in line][-1] == 30
    assert all(json.loads(line) for line in (tmp_path / "runs" / "s" / "journal.log").read_text().splitlines())
