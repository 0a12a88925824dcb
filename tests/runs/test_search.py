"""Searches: a space of settings, trials that are ordinary runs, and nothing but the files of these runs."""

import contextlib
import importlib.util
import os
import shlex
import shutil
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

from numerate.config import override
from numerate.errors import OperationalError, UserError
from numerate.evaluation.evaluator import Evaluation
from numerate.results.runs import results_of
from numerate.runs import search as search_file
from numerate.runs.end import Ending, read_end
from numerate.runs.engines.engine import Engine, Failure, FailureKind, Outcome
from numerate.runs.search import Search, SearchResult, search
from numerate.runs.space import Space
from numerate.runs.study_folder import StudyFolder
from numerate.runs.train import train
from numerate.runs.trials import Trial, TrialSampling, curve
from numerate.tasks.task import Task
from numerate.text.tasks.example_file import ExampleFile
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder
from run_records import write_lines
from small_runs import TINY

pytestmark = pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="a search needs optuna")

WIDTHS = "model.hidden_size=16,32"
RATES = {"optimizer.learning_rate": "log(1e-4,1e-2)", "model.hidden_size": [16, 32]}
SPACE = Space.parse(TINY, RATES) if importlib.util.find_spec("optuna") else Space(())


def values(found: SearchResult) -> list[Any]:
    return [(trial.number, trial.state, trial.curves, trial.parameters) for trial in found.trials]


# The space ------------------------------------------------------------------------------------------------------------


def test_a_space_is_read_as_settings_are_with_ranges_beside() -> None:
    texts = [
        "lr=log(1e-4,1e-2)",
        "optimizer.weight_decay=between(0,0.1,0.025)",
        "training.batch_size=between(16,120,16)",
    ]
    space = Space.parse(
        TINY, [*texts, "model.mixer=Attention(num_heads=1),Attention(num_heads=2)", "training.steps=500"]
    )
    rate, decay, batch, _ = (field.distribution for field in space.fields)
    assert (rate.low, rate.high, rate.log, rate.step) == (1e-4, 1e-2, True, None)
    assert (type(decay.low), decay.high, decay.step) == (float, 0.1, 0.025)
    assert (type(batch.low), batch.high, batch.step) == (int, 112, 16)
    assert [field.size for field in space.fields] == [float("inf"), 5, 7, 2]
    assert str(space.items[4]) == "training.steps=500"
    assert [space.fields[0].rounded(value) for value in (0.00123456, 1e-9)] == [0.001235, 1e-4]
    assert override(TINY, Space(space.items[:1]).settings({"optimizer.lr": 0.003})).optimizer.learning_rate == 0.003
    assert Space.parse(TINY, RATES) == Space.parse(TINY, [texts[0].replace("lr", "optimizer.learning_rate"), WIDTHS])
    positions = ["model.positions=[Rotary],[Learned]", "model.mixer=Attention,LSTM"]
    assert Space.parse(TINY, positions).size == 4, "LSTM goes with Learned alone"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("optimizer.learning_rat=log(1e-4,1e-2)", "Did you mean 'learning_rate'"),
        ("optimizer.learning_rate=1e-4,fast", "optimizer.learning_rate: must be a number, not 'fast'"),
        ("training.batch_size=between(1.5,8)", "training.batch_size: must be an integer, not '1.5'"),
        ("training.batch_size=between(8,11,1.5)", "training.batch_size is an integer, so its step must be one"),
        ("optimizer.learning_rate=between(1e-2,1e-4)", r"rate=between\(1e-2,1e-4\): .*low <= high.* must hold"),
        ("optimizer.learning_rate=log(1,2,0.5)", r"log\(1,2,0.5\): .*`step` is not supported when `log`"),
        ("optimizer.learning_rate=between(1,2,3)", "give the same run"),
        ("optimizer.weight_decay=between(0,inf)", "must be a range of numbers"),
        ("task.operator=between(1,2)", "task.operator"),
        ("model.hidden_size=16,32 model.hidden_size=between(16,32)", "given twice"),
        ("seed=0,1", "seed= and seeds= of the search"),
        ("model.hidden_size=16", "nothing to search over"),
        ({"metric": "validation_loss"}, "metric: must be one of ood_validation, validation, loss"),
        ({"sampler": "tp"}, "sampler: must be one of .*not 'tp'.*Did you mean 'tpe'"),
        ({"pruner": "halving"}, "pruner: must be one of none, median, hyperband"),
        ({"trials": 0}, "trials: must be at least 1, not 0"),
        ({"sampler": "grid"}, "a grid has at most 100,000 points"),
    ],
)
def test_what_cannot_be_searched_is_reported_before_anything_runs(settings: Any, message: str, tmp_path: Path) -> None:
    space, options = (settings.split(), {}) if isinstance(settings, str) else (RATES, settings)
    with pytest.raises(UserError, match=message):
        search(TINY, space, runs_dir=tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_without_optuna_the_line_that_installs_it_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"the package optuna is not installed; pip install 'numerate\[search\]'"):
        search(TINY, RATES, runs_dir=tmp_path)


# A search -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> SearchResult:
    return search(TINY, RATES, trials=5, metric="loss", runs_dir=tmp_path_factory.mktemp("found") / "runs", quiet=True)


def test_another_seed_gives_other_trials(found: SearchResult, tmp_path: Path) -> None:
    other = search(TINY, RATES, trials=1, metric="loss", runs_dir=tmp_path, seed=1, quiet=True)
    assert other.trials[0].parameters != found.trials[0].parameters
    assert other.best_recipe.seed == 1


def test_a_trial_is_an_ordinary_run_of_the_search_and_shown_as_one(found: SearchResult) -> None:
    folder = RunFolder(found.best_trial.runs[0].path)
    trained = train(found.best_recipe, runs_dir=found.search.path.parent, quiet=True)
    assert (trained.run.path, trained.stop_reason) == (folder.path, "done")
    path = found.search.path
    assert (folder.path.parent, folder.metadata()["group"]) == (path, path.name)
    rows = results_of(path).set_index("run")
    row = rows.loc[f"{path.name}/{folder.id}"]
    assert (len(rows), row["status"], row["loss"]) == (5, "done", found.search.sampling.objective(found.best_trial))
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
    found = search(TINY, {"model.hidden_size": [16, 32]}, trials=9, seeds=2, seed=5, runs_dir=tmp_path, quiet=True)
    assert drawn == {"train", "validation", "ood_validation"}
    assert not list(tmp_path.glob("**/cells.jsonl"))
    assert (len(found.trials), found.num_left) == (2, 0), "there are no more points"
    assert [run.run.seed for run in found.best_trial.runs] == [5, 6]
    assert "(median of 2 seeds, 0.0% to 0.0%)" in str(found)


def test_the_best_is_shown_and_is_to_be_measured_on_new_seeds(found: SearchResult) -> None:
    best, sampling = found.best_trial, found.search.sampling
    assert sampling.objective(best) == min(map(sampling.objective, found.trials))
    assert f"best: trial {best.number}: loss {sampling.objective(best):.4g}, optimizer.learning_rate=" in str(found)
    settings = shlex.join(sampling.space.settings(best.parameters))
    assert f"numerate run rotary {settings} seed=1,2,3,4,5" in str(found)
    assert f"numerate results {found.search.path}" in str(found)
    called = ("my recipes/it.py:tiny", "--parts", "my.py")
    several = replace(found, search=replace(found.search, seeds=(0, 1, 2)), command_words=called)
    assert several.next_command() == f"numerate run 'my recipes/it.py:tiny' {settings} seed=3,4,5,6,7 --parts my.py"
    for rate, is_warned in ((0.0098, True), (0.001, False)):
        point = {"optimizer.learning_rate": rate, "model.hidden_size": "16"}
        text = str(replace(found, trials=(replace(best, parameters=point),)))
        assert ("the best optimizer.learning_rate=0.0098 is at the end of its range" in text) == is_warned


def test_the_same_search_again_trains_nothing_and_a_larger_one_continues(found: SearchResult, tmp_path: Path) -> None:
    shutil.copytree(found.search.path, tmp_path / found.search.path.name)
    before = {path: path.read_bytes() for path in tmp_path.glob("*/*/*.json*")}
    again = search(TINY, RATES, trials=5, metric="loss", runs_dir=tmp_path, quiet=True)
    assert values(again) == values(found)
    assert {path: path.read_bytes() for path in before} == before
    more = search(TINY, RATES, trials=6, metric="loss", runs_dir=tmp_path, quiet=True)
    assert values(more)[:5] == values(found)
    assert len(more.trials) == 6


def test_a_name_stands_for_one_search_of_the_same_files_and_weights(tmp_path: Path) -> None:
    file, runs = tmp_path / "sums.txt", tmp_path / "runs"
    file.write_text("1+2=3\n2+3=5\n3+4=7\n")
    recipe = replace(TINY, task=ExampleFile(path=str(file)), evaluation=Evaluation(validation_examples=2))
    source = train(recipe, runs_dir=runs, quiet=True).run
    recipe = replace(recipe, init_from=source.folder.id, title="further")

    def go(space: str = "lr=log(1e-4,1e-2)", trials: int = 1, metric: Any = "loss") -> SearchResult:
        return search(recipe, [space], trials=trials, metric=metric, name="mine", runs_dir=runs, quiet=True)

    for number in (1, 2):
        found = go(trials=number)
        heads = [RunFolder(trial.runs[0].path).metadata() for trial in found.trials]
        assert [head["recipe"]["init_from"] for head in heads] == [source.folder.id] * number
    with pytest.raises(UserError, match=r"mine: is that of: Which is best for loss: optimizer.lr=log.* Another name="):
        go("model.hidden_size=16,64")
    with pytest.raises(UserError, match="is that of: Which is best for loss"):
        go(metric="validation")
    file.write_text("1+2=3\n2+4=6\n3+4=7\n")
    with pytest.raises(UserError, match=r"the contents of .*sums\.txt have changed since .*mine was started"):
        go()
    with pytest.raises(UserError, match="init_from: must name a run"):
        search(replace(recipe, init_from="latest"), RATES, runs_dir=runs)
    StudyFolder(runs / "other").update([], question="Why?")
    with pytest.raises(UserError, match=r"other: is that of: Why\? Another name="):
        search(recipe, RATES, name="other", runs_dir=runs)


# Points, scores and pruning -------------------------------------------------------------------------------------------


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Search]:
    """A search in a folder of its own, of which no trial is trained."""

    def made(space: Space = SPACE, num_trials: int = 30, seeds: Any = (0,), **options: Any) -> Search:
        name = f"s{len(list(tmp_path.glob('s*')))}"
        sampling = TrialSampling(space, seed=seeds[0], **options)
        return Search(tmp_path / name, "?", replace(TINY, title=name), sampling, seeds, num_trials).open()

    return made


def lines(*evaluations: tuple[int, float, float | None], loss: float = 1.0) -> list[dict[str, Any]]:
    """Metrics of (step, right in distribution, right on OOD validation)."""
    found: list[dict[str, Any]] = []
    for step, *shares in evaluations:
        found.append({"step": step, "loss": loss / step})
        for split, exact in zip(("validation", "ood_validation"), shares, strict=True):
            if exact is not None:
                found.append({"step": step, "split": split, "exact_match": exact, "low": exact / 2, "high": exact})
    return found


def metrics(value: float) -> list[dict[str, Any]]:
    return lines((4, value, None), loss=4 * (1 - value))


def trial(number: int, parameters: Mapping[str, Any], value: float, state: Any = "complete") -> Trial:
    return Trial(number, parameters, state, curves=({4: value},))


def end(search: Search, number: int, value: float, **results: Any) -> Trial:
    """Begins a trial, and writes that its run ended."""
    run = search.begin(number).runs[-1]
    results = {"stop_reason": "budget", "step": 4} | results
    Ending(RunFolder(run.path), run.run.key).write("done", results=results)
    write_lines(run.path / "metrics.jsonl", metrics(value))
    (run.path / "recipe.yaml").touch()
    return search.trials()[number]


def test_a_run_is_worth_what_its_best_evaluation_got_right_on_the_next_lengths() -> None:
    found = lines((10, 0.2, 0.5), (20, 0.9, 0.5), (30, 1.0, 0.25), (40, 1.0, 1.0))
    values = curve(found, "ood_validation", 30)
    assert values == pytest.approx({10: 0.5, 20: 0.5, 30: 0.25}, abs=1e-5)
    assert values[10] < values[20], "ties are settled in distribution"

    def best(metric: Any, *lines: Mapping[str, Any]) -> float | None:
        values = curve(lines, metric, 30)
        return TrialSampling(SPACE, metric).objective(Trial(0, {}, curves=(values,))) if values else None

    assert [best(metric, *found) for metric in ("validation", "loss")] == [1.0, 1 / 30]
    assert best("ood_validation", *lines((10, 0.2, None), (20, 0.9, None))) == 0.9
    assert best("ood_validation") is None
    labels = {"step": 1, "split": "validation", "exact_match": 0.0, "accuracy": 0.5}
    assert best("validation", labels) == 0.5, "whole rows of labels are wrong long before their labels are"
    text = {"split": "validation", "low": 1.9, "high": 2.1, "perplexity": 7.0, "token_accuracy": 0.5}
    losses = [text | {"step": step, "loss": loss} for step, loss in ((10, 3.0), (20, 2.0), (30, 2.5), (40, 1.0))]
    assert best("validation_loss", *losses) == 2.0
    assert best("validation_loss", text | {"step": 1, "loss": float("nan")}) is None
    seeds = Trial(0, {}, "complete", curves=({4: 0.25}, {4: 0.0, 8: 1.0}, {4: 0.5}))
    assert TrialSampling(SPACE).objective(seeds) == 0.5


def test_a_grid_tries_each_point_once_and_no_point_is_tried_twice() -> None:
    space = Space.parse(TINY, {"model.hidden_size": [16, 32], "training.batch_size": "between(8,24,8)"})
    for sampler, seed in product(("grid", "tpe", "random"), (0, 1)):
        trials: list[Trial] = []
        for number in range(6):
            point = TrialSampling(space, sampler=sampler, seed=seed).next_point(trials)  # type: ignore[arg-type]
            trials.append(trial(number, point, 0.1 * number))
        points = sorted(tuple(one.parameters.values()) for one in trials)
        assert points == sorted((width, batch) for width in ("16", "32") for batch in (8, 16, 24))


@pytest.mark.parametrize("metric", ["validation", "loss"])
@pytest.mark.parametrize("pruner", ["median", "hyperband"])
def test_a_pruner_stops_what_is_worse_than_others(metric: Any, pruner: Any) -> None:
    sampling, trials, answers = TrialSampling(SPACE, metric, pruner=pruner), list[Trial](), []
    for number, share in enumerate((0.5, 0.51, 0.52, 0.53, 0.54, 0.1, 0.9)):
        value = share if metric == "validation" else 1 - share
        point = sampling.next_point(trials)
        current = [*trials, trial(number, point, value, "running")]
        answers.append(sampling.is_pruned(current, number, TINY.training))
        trials.append(trial(number, point, value, "complete" if number < 5 else "running"))
    assert answers == [False] * 5 + [True, False]


def test_a_trial_that_a_pruner_gives_up_ends_early_and_its_run_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrialSampling, "is_pruned", lambda self, trials, number, training: number == 0)
    found = search(TINY, RATES, trials=2, metric="loss", pruner="median", runs_dir=tmp_path, quiet=True)
    assert [trial.state for trial in found.trials] == ["pruned", "complete"]
    assert (found.best_trial.number, found.num_left) == (1, 0)
    assert "1 of 2 trials are complete, 1 stopped early" in str(found)
    (pruned,) = found.trials[0].runs
    assert RunFolder(pruned.path).records("metrics.jsonl")[-1]["step"] < 4
    going_on = train(found.search.recipe_of(pruned), runs_dir=tmp_path, quiet=True)
    assert (going_on.stop_reason, going_on.run.path) == ("budget", pruned.path)


# Files ----------------------------------------------------------------------------------------------------------------


def test_points_that_were_edited_are_refused_and_no_code_of_them_runs(
    make: Callable[..., Search], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited = make(Space.parse(TINY, ["model.positions=[]", "model.mixer=LSTM,GRU", "lr=log(1e-4,1e-2)"]))
    rate = edited.begin(0).parameters["optimizer.lr"]
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    monkeypatch.chdir(tmp_path)
    file, remedy = edited.path / "study.json", "move the file away"
    mixer, text = edited.trials()[0].parameters["model.mixer"], file.read_text()
    for old, new, message in (
        (f'"model.mixer":"{mixer}"', '"model.mixer":"evil.py:Bad"', r"trial 0: .*evil\.py:Bad"),
        (f'"optimizer.lr":{rate}', '"optimizer.lr":7.5', "trial 0: .*7.5"),
        (f'"model.mixer":"{mixer}",', "", "trial 0"),
        ('"optimizer.lr":', '"optimizer.eps":0.1,"optimizer.lr":', "trial 0"),
        ('"optimizer.lr":', '"optimizer.lr":0.1,"optimizer.lr":', "it was edited"),
        ('"parameters"', '"point"', "unknown field `point`"),
        ('"trial":0', '"trial":1', "trial 0"),
    ):
        assert old in text
        file.write_text(text.replace(old, new))
        with pytest.raises(UserError, match=rf"study\.json: damaged: .*({message}).*{remedy}"):
            edited.trials()
    assert not (tmp_path / "ran").exists()


def test_a_trial_is_worth_what_the_metrics_of_its_run_say(found: SearchResult, tmp_path: Path) -> None:
    shutil.copytree(found.search.path, tmp_path / found.search.path.name)
    first, second = (tmp_path / trial.runs[0].run.run for trial in found.trials[:2])
    shutil.copy(second / "metrics.jsonl", first)
    (second / "metrics.jsonl").unlink()
    trials = search(TINY, RATES, trials=5, metric="loss", runs_dir=tmp_path, quiet=True).trials
    assert trials[0].curves == found.trials[1].curves
    assert (trials[1].state, trials[2:]) == (
        "failed",
        tuple(replace(one, runs=trials[one.number].runs) for one in found.trials[2:]),
    )
    assert "ended before an evaluation with a finite loss" in str(trials[1].error)


def test_each_seed_of_a_trial_is_begun_when_the_one_before_has_ended_and_none_after_a_pruned_one(
    make: Callable[..., Search],
) -> None:
    searched = make(seeds=(3, 4), metric="validation")
    assert [len(searched.begin(0).runs) for _ in range(2)] == [1, 1]
    assert end(searched, 0, 0.5).state == "left"
    both = end(searched, 0, 0.75)
    assert (both.state, [run.run.seed for run in both.runs]) == ("complete", [3, 4])
    assert searched.sampling.objective(both) == 0.625
    pruned = end(searched, 1, 0.5, stop_reason="pruned")
    assert (pruned.state, len(searched.begin(1).runs)) == ("pruned", 1)
    assert len(StudyFolder(searched.path).read().plan()) == 3


# What goes wrong ------------------------------------------------------------------------------------------------------


def test_settings_that_are_refused_together_are_failed_trials(tmp_path: Path) -> None:
    space: dict[str, Any] = {"model.mixer": ["Attention(num_heads=2)", "Attention(num_heads=3)"]}
    found = search(TINY, space | {"model.hidden_size": [16, 32]}, sampler="grid", runs_dir=tmp_path, quiet=True)
    refused = [trial for trial in found.trials if trial.state == "failed"]
    assert len(refused) == [one.state for one in found.trials].count("complete") == 2
    assert all("heads" in str(trial.error) and "num_heads=3" in str(trial.parameters) for trial in refused)
    assert f"trial {refused[0].number}: failed, " in str(found)
    space = {"model.positions": ["[Rotary]", "[Learned]"], "model.mixer": ["Attention", "LSTM"]}
    found = search(TINY, space, sampler="grid", runs_dir=tmp_path, quiet=True)
    (refused,) = (trial for trial in found.trials if trial.state == "failed")
    assert "Rotary acts inside attention, which LSTM does not have" in str(refused.error)
    assert list(refused.parameters.values()) == ["[Rotary]", "LSTM"]
    assert results_of(found.search.path)["status"].tolist() == ["done"] * 3, "what was no recipe is no row"
    narrow = {"optimizer.learning_rate": "between(0.001,0.001001)"}
    found = search(TINY, narrow, trials=4, runs_dir=tmp_path, quiet=True)
    assert [trial.error for trial in found.trials] == [None, None, *["another trial has the same recipe"] * 2]


def test_a_trial_that_fails_is_shown_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(recipe: Recipe) -> str:
        return str(search(recipe, RATES, trials=2, runs_dir=tmp_path / str(time.monotonic()), quiet=True))

    assert "2 failed\ntrial 0: failed, optimizer.learning_rate=" in failed(replace(TINY, device="cuda:99"))
    assert "has no checkpoint yet" in failed(replace(TINY, training=replace(TINY.training, minutes=1e-9)))
    monkeypatch.setattr(search_file, "curve", lambda *_: {})
    text = ": training: ended before an evaluation with a finite ood_validation; a larger budget, or"
    assert text in failed(TINY)


@dataclass(frozen=True)
class Elsewhere(Engine):
    """Does nothing with its items but, at most, adding their trials, and says why."""

    why: FailureKind | None = None
    adds: bool = False

    def _map(self, function: Any, items: Sequence[Any], *more: Any) -> Iterator[Outcome]:
        for index, _ in enumerate(items):
            if self.adds:
                function.begin(len(function.trials()))
            status = 0 if self.why == "not started" else 1
            yield Outcome(index, failure=Failure(self.why, "some reason", status) if self.why else None)


@pytest.mark.parametrize(
    ("why", "error", "message"),
    [
        (
            None,
            OperationalError,
            "trial 0: its worker finished, but .* all workers must share this folder",
        ),
        ("user error", UserError, "some reason"),
        ("died", OperationalError, "some reason"),
    ],
)
def test_an_engine_that_gets_nothing_done_is_reported(
    why: Any, error: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(error, match=message):
        search(TINY, RATES, trials=2, engine=Elsewhere(why=why), runs_dir=tmp_path, quiet=True)
    for left, status in (("not started", 0), ("stopped", 1)):  # such as a lost task of Slurm
        found = search(TINY, RATES, trials=2, engine=Elsewhere(why=left), runs_dir=tmp_path)
        assert found.exit_status == status
        assert "trial 1: some reason" in capsys.readouterr().err
    assert "0 of 2 trials are complete, 2 not finished; the same command resumes" in str(found)
    with pytest.raises(UserError, match="no trial is complete"):
        _ = found.best_recipe


def test_trials_that_all_fail_alike_end_the_search(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"all 5 trials failed alike; .*: device: "):
        search(replace(TINY, device="cuda:99"), RATES, trials=20, name="s", runs_dir=tmp_path, quiet=True)
    assert len(StudyFolder(tmp_path / "s").read().plan()) == 5


def test_a_trial_that_its_worker_cannot_end_has_failed(tmp_path: Path) -> None:
    for why in ("timeout", "out of memory", "died"):
        engine = Elsewhere(why=why, adds=True)
        found = search(TINY, RATES, trials=2, engine=engine, name=why, runs_dir=tmp_path, quiet=True)
        assert [trial.error for trial in found.trials] == ["some reason"] * 2


def test_a_trial_of_another_process_is_waited_for_and_taken_up_when_that_dies(
    found: SearchResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(found.search.path, tmp_path / found.search.path.name)
    held = RunFolder(tmp_path / found.trials[1].runs[0].run.run)
    (held.path / "end.json").unlink()
    mine, sleep = replace(found.search, path=tmp_path / found.search.path.name), time.sleep
    with contextlib.ExitStack() as stack:
        stack.enter_context(held.lock())

        def dies(seconds: float) -> None:
            if seconds != search_file._RETRY_SECONDS:
                return sleep(seconds)
            states = [one.state for one in mine.trials()]
            assert states == ["complete", "running", *["complete"] * 4], "the others are trained meanwhile"
            stack.close()

        monkeypatch.setattr(time, "sleep", dies)
        ended = search(TINY, RATES, trials=6, metric="loss", runs_dir=tmp_path, quiet=True)
    assert [one.state for one in ended.trials] == ["complete"] * 6
    assert ended.trials[1].curves == found.trials[1].curves


def test_a_search_that_is_stopped_continues_and_ends_as_if_it_had_not_been(
    found: SearchResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_record = search_file._TrialStop.on_record

    def stopping(self: Any, kind: str, record: Mapping[str, Any]) -> None:
        if kind == "evaluation" and len(list(tmp_path.glob("*/*/recipe.yaml"))) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        on_record(self, kind, record)

    with monkeypatch.context() as patch:
        patch.setattr(search_file._TrialStop, "on_record", stopping)
        stopped = search(TINY, RATES, trials=3, metric="loss", runs_dir=tmp_path, quiet=True)
    assert stopped.exit_status == 143
    assert [trial.state for trial in stopped.trials] == ["complete", "left"]
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

    def points() -> list[Any]:
        return [run.parameters for run in StudyFolder(tmp_path / "runs" / "s").read().plan()]

    def ended() -> dict[Path, bytes]:
        ends = {file.parent: read_end(file.parent) for file in (tmp_path / "runs" / "s").glob("*/end.json")}
        return {folder: (folder / "starts.jsonl").read_bytes() for folder, end in ends.items() if end and end.results}

    killed, deadline = start(2), time.monotonic() + 180
    while time.monotonic() < deadline and killed.poll() is None and not 0 < len(ended()) < len(points()):
        time.sleep(0.02)
    killed.kill()
    killed.communicate(timeout=60)
    before, untouched = points(), ended()
    assert 0 < len(untouched) <= len(before) < 6
    both = [start(1) for _ in range(2)]
    outputs = [one.communicate(timeout=120) for one in both]
    assert [one.returncode for one in both] == [0, 0], outputs
    assert any("6 of 6 trials are complete" in message for message, _ in outputs)
    assert len(points()) == len(ended()) == 6
    assert points()[: len(before)] == before
    assert untouched.items() <= ended().items()
    for run in map(RunFolder, ended()):
        assert run.records("metrics.jsonl")[-1]["step"] == 30
