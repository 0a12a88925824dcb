"""Killed at any moment and begun again, a study ends with exactly the results of one that nobody disturbed."""

import itertools
import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from numerate.config import override
from numerate.recipes.study import Study
from numerate.results.runs import results_of
from numerate.runs.end import read_end, write_end
from numerate.runs.engines.engine import Engine
from numerate.runs.status import study_status
from numerate.runs.study import run_study
from numerate.runs.study_folder import StudyFolder
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder

Begin = Callable[..., Any]


@pytest.fixture(scope="module")
def study(pair: Study) -> Study:
    """Eight runs."""
    return pair.sweep(["seeds=4"])


@pytest.fixture(scope="module")
def undisturbed(study: Study, quietly: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the study leaves when nothing happens to it."""
    runs = tmp_path_factory.mktemp("undisturbed")
    quietly(study, runs)
    return left_by(study, runs)


def left_by(study: Study, runs: Path) -> dict[str, Any]:
    """All that a study leaves that does not depend on the machine: how runs ended, the evaluations, the weights."""
    found: dict[str, Any] = {}
    for one in StudyFolder.from_title(study.title, runs).read().plan():
        place = runs / one.run
        end = read_end(place)
        found[one.run] = None if end is None else (end.status, end.key, end.results)
        for path in [place / "cells.jsonl", place / "metrics.jsonl", *place.glob("checkpoints/*/weights.*")]:
            found[str(path.relative_to(runs))] = path.read_bytes()
    return found


def finished(study: Study, runs: Path) -> dict[str, int]:
    """The runs that are done by now, each with how often it was begun."""
    if not (runs / study.title / "study.json").exists():
        return {}
    states = study_status(StudyFolder.from_title(study.title, runs)).states
    runs_done = [one.run.run for one in states if one.status == "done"]
    return {run: len((runs / run / "starts.jsonl").read_text().splitlines()) for run in runs_done}


def assert_no_line_is_corrupted(runs: Path) -> None:
    for path in runs.rglob("*.jsonl"):
        content = path.read_bytes()
        assert content.endswith(b"\n") or not content, path
        for line in content.splitlines():
            json.loads(line)


def goes_on(study: Study, runs: Path, begin: Begin, undisturbed: Mapping[str, Any]) -> None:
    """Begins a study again until it comes to its end, and looks at what it leaves."""
    before = finished(study, runs)
    statuses = []
    while not statuses or statuses[-1] != 0:
        assert len(statuses) < 4, statuses
        statuses.append(begin(study, runs).wait())
    assert left_by(study, runs) == undisturbed
    assert finished(study, runs).items() >= before.items(), "nothing that was done is begun again"
    assert_no_line_is_corrupted(runs)


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    """Waits until something is true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


# Killed ---------------------------------------------------------------------------------------------------------------


def wait_until(study: Study, runs: Path, command: Any, share: float, seed: int) -> None:
    """Waits until so many runs are done, and then a moment of chance, up to the time that a run takes."""
    began = time.monotonic()
    while not command.over and len(finished(study, runs)) < share * len(study.recipes):
        time.sleep(0.005)
    each = (time.monotonic() - began) / max(1, len(finished(study, runs)))
    time.sleep(each * random.Random(seed).random())


def test_a_worker_is_killed(study: Study, begin: Begin, undisturbed: Mapping[str, Any], tmp_path: Path) -> None:
    """Its run is taken up by another one, in the same command."""
    command = begin(study, tmp_path / "runs")
    wait_until(study, tmp_path / "runs", command, 0.5, seed=2)
    command.kill_a_worker()
    assert command.wait() == 0, command.output
    assert len(finished(study, tmp_path / "runs")) == len(study.recipes)
    goes_on(study, tmp_path / "runs", begin, undisturbed)


def test_all_are_killed_again_and_again(
    study: Study, begin: Begin, undisturbed: Mapping[str, Any], tmp_path: Path
) -> None:
    chance = random.Random(4)
    for share in (0.0, 0.2, 0.4, 0.6, 0.8):
        before = finished(study, tmp_path / "runs")
        command = begin(study, tmp_path / "runs")
        wait_until(study, tmp_path / "runs", command, share, seed=chance.randrange(1000))
        command.kill_all()
        command.wait()
        assert finished(study, tmp_path / "runs").items() >= before.items()
    goes_on(study, tmp_path / "runs", begin, undisturbed)


# Two at the same time -------------------------------------------------------------------------------------------------


def test_two_commands_on_one_study_share_its_runs(
    study: Study, begin: Begin, undisturbed: Mapping[str, Any], tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    commands = [begin(study, runs) for _ in range(2)]
    assert [command.wait() for command in commands] == [0, 0], "\n".join(one.output for one in commands)
    assert left_by(study, runs) == undisturbed
    assert set(finished(study, runs).values()) == {1}, "each run is begun once, by one of them"
    assert_no_line_is_corrupted(runs)


def test_a_run_that_another_process_is_at_is_waited_for_and_taken_over(
    pair: Study, begin: Begin, quietly: Any, tmp_path: Path
) -> None:
    """The lock of one run is held; the others are done meanwhile; it reports what it waits for."""
    runs = tmp_path / "runs"
    quietly(replace(pair, recipes=pair.recipes[:1]), runs)
    held = RunFolder(next((runs / "rotary").iterdir()))
    end = read_end(held.path)
    assert end is not None
    with held.lock():
        (held.path / "end.json").unlink()  # as while another command is at it
        command = begin(pair, runs)
        until(lambda: command.over or "waiting for 1 run" in command.output)
        assert not command.over, command.output
        assert [run.partition("/")[0] for run in finished(pair, runs)] == ["learned"]
        write_end(held, end)
    assert command.wait() == 0
    assert {run.partition("/")[0]: count for run, count in finished(pair, runs).items()} == {"rotary": 1, "learned": 1}


# What is half done ----------------------------------------------------------------------------------------------------


def test_a_run_that_was_only_trained_is_evaluated_and_not_trained_again(
    tiny: Recipe, here: Engine, tmp_path: Path
) -> None:
    from numerate.runs.train import train

    trained = train(tiny, runs_dir=tmp_path, quiet=True)
    _, done = run_study(Study("s", "?", [tiny]), runs_dir=tmp_path, engine=here)
    assert done[0].path == trained.run.path
    assert len((trained.run.path / "starts.jsonl").read_text().splitlines()) == 1
    end = read_end(trained.run.path)
    assert end is not None
    assert end.results is not None
    assert (end.status, end.results["stop_reason"], end.results["step"]) == ("done", "budget", 4)


def test_the_seconds_of_a_run_are_those_of_all_its_starts(
    tiny: Recipe, here: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numerate.runs.train import train

    with monkeypatch.context() as patched:
        ticks = itertools.count(0.0, 1000.0)
        patched.setattr("numerate.training.trainer.time", SimpleNamespace(monotonic=lambda: next(ticks)))
        train(override(tiny, ["training.steps=2"]), runs_dir=tmp_path, quiet=True)
    run_study(Study("s", "?", [tiny]), runs_dir=tmp_path, engine=here)
    (seconds,) = results_of(tmp_path / "s")["seconds"].tolist()
    assert seconds > 1000
