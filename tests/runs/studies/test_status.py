"""How a study stands: what is done, who is at what, what failed, what is left, and for how long still."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from numerate.cli import main
from numerate.config import identity, override, to_tree
from numerate.studies.board import MAX_VERBOSE_RUNS, StudyProgress
from numerate.studies.folder import PlannedRun, RequestedRun, StudyFolder, content_key
from numerate.studies.state import WorkerStateFile, has_ended, is_lost
from numerate.studies.status import mean_durations, status_text, study_status, time_left
from numerate.studies.study import Study
from numerate.tables.describing import describe_runs
from numerate.tables.results import results_of
from numerate.training.recipe import Recipe

Make = Callable[[int], tuple[StudyFolder, list[PlannedRun]]]


@pytest.fixture
def make(tiny: Recipe, tmp_path: Path) -> Make:
    """make(5): a study of five seeds that is planned and not begun."""

    def make(count: int) -> tuple[StudyFolder, list[PlannedRun]]:
        recipes = [override(tiny, [f"seed={seed}"]) for seed in range(count)]
        folder = StudyFolder(tmp_path / "runs" / "study")
        requested = [RequestedRun(f"rotary/{identity(one)}", content_key(one), to_tree(one)) for one in recipes]
        return folder, folder.update_plan(requested, question="Why?")

    return make


def end(folder: StudyFolder, planned: PlannedRun, status: str = "done", **more: Any) -> dict[str, Any]:
    """Writes that a run ended."""
    (folder.runs_dir / planned.run).mkdir(parents=True, exist_ok=True)
    timing = {"seconds": 10.0, "start_step": 0, "ended": time.time()}
    record = {
        "run": planned.run,
        "key": planned.key,
        "label": planned.label,
        "status": status,
        "timing": timing,
        **more,
    }
    folder.add_results("w", [record])
    return record


def state(folder: StudyFolder, worker: str, planned: PlannedRun | None, **more: Any) -> None:
    """Writes what a worker of this machine says, by default this very process."""
    (folder.path / "states").mkdir(exist_ok=True)
    facts = {"worker": worker, "host": socket.gethostname(), "pid": os.getpid(), "heartbeat": time.time()}
    if planned is not None:
        facts |= {"run": planned.run, "label": planned.label, "seed": planned.seed, "phase": "training"}
        facts |= {"step": 1, "steps": 4, "loss": 1.25, "cells": None, "started": time.time() - 5}
    (folder.path / "states" / f"{worker}.json").write_text(json.dumps({**facts, **more}))


# What there is --------------------------------------------------------------------------------------------------------


def test_a_new_plan_replaces_the_old_one_and_what_is_done_of_that_is_distinguished(make: Make) -> None:
    folder, plan = make(6)
    end(folder, plan[0])
    end(folder, plan[5])
    end(folder, plan[1], "failed", failure="user error", error="no")
    make(2)
    now = study_status(folder)
    assert (now.num_runs, now.num_done, now.num_remaining, len(now.failed), now.num_earlier) == (2, 1, 0, 1, 1)
    assert "1 done, from earlier plans" in status_text(now)
    table = results_of(folder.path)
    assert [tuple(row) for row in table[["seed", "status", "plan"]].to_numpy()] == [
        (0, "done", "current"),
        (1, "failed", "current"),
        (5, "done", "earlier"),
    ]
    assert "1 of earlier plans" in " ".join(describe_runs(table)[1])
    make(6)
    assert (study_status(folder).num_remaining, study_status(folder).num_earlier) == (3, 0)
    assert "plan" not in results_of(folder.path).columns


def test_every_run_is_done_running_failed_or_left(make: Make) -> None:
    folder, plan = make(7)
    end(folder, plan[0])
    end(folder, plan[1], "failed", failure="operational error", error="the loss is not finite")
    end(folder, plan[2], "failed", failure="died", error="its worker was killed")
    state(folder, "a", plan[3])
    state(folder, "b", plan[0])  # it is done, and the worker has not reported what it does next
    state(folder, "c", None)
    now = study_status(folder)
    assert (now.num_runs, now.num_done, len(now.running), len(now.failed), now.num_remaining) == (7, 1, 1, 1, 4)
    assert [state["worker"] for state in now.running] == ["a"]
    assert now.failed[0][0].run == plan[1].run
    assert [planned.run for planned, _ in now.died] == [plan[2].run]
    text = status_text(now)
    for part in ("study: Why?", "1 of 7", "rotary seed 3", "1/4", "1.25", "the loss is not finite", "retry=true"):
        assert part in text
    assert str(folder.path) in text


def test_a_failed_run_that_is_tried_again_is_running(make: Make) -> None:
    folder, plan = make(1)
    end(folder, plan[0], "failed", failure="operational error", error="no")
    state(folder, "a", plan[0])
    now = study_status(folder)
    assert (len(now.running), len(now.failed)) == (0, 1), "it failed since its worker wrote that"
    state(folder, "a", plan[0], started=time.time() + 1)
    now = study_status(folder)
    assert (len(now.running), len(now.failed)) == (1, 0)


def test_a_worker_whose_process_is_gone_is_dropped_and_one_that_is_silent_is_named(make: Make) -> None:
    folder, plan = make(4)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    state(folder, "gone", plan[0], pid=process.pid)
    state(folder, "far", plan[1], host="another", pid=process.pid)
    state(folder, "silent", plan[2], host="another", heartbeat=time.time() - 100)
    now = study_status(folder)
    assert [one["worker"] for one in now.running] == ["far"]
    assert [one["worker"] for one in now.lost] == ["silent"]
    assert now.num_remaining == 3, "what a silent worker was at may be left"
    assert "no heartbeat since" in status_text(now)
    assert "silent at rotary seed 2" in status_text(now)


def test_of_many_failures_ten_are_listed_and_the_others_counted(make: Make) -> None:
    folder, plan = make(15)
    for planned in plan:
        end(folder, planned, "failed", failure="error", error=f"no {planned.seed}")
    text = status_text(study_status(folder))
    assert text.count("failed: rotary") == 10
    assert "... and 5 more" in text


# The time left --------------------------------------------------------------------------------------------------------


def busy(label: str, step: int, began: float, **more: Any) -> dict[str, Any]:
    return {"label": label, "run": f"{label}/{step}", "step": step, "steps": 10, "started": began, **more}


@pytest.mark.parametrize(
    ("waiting", "running", "known", "now", "expected"),
    [
        # What waits lasts as long as its variant did, or as all did, and is shared by the workers.
        ("abc", [busy("a", 5, 0), busy("b", 0, 5)], {"a": 10, "b": 100, "": 55}, 5, (5 + 100 + 10 + 100 + 55) / 2),
        ("", [busy("a", 0, 0), busy("b", 9, 0)], {"a": 100, "b": 1}, 0, 100),  # at least the longest run
        ("a", [busy("a", 5, 0)], {}, 20, 20 + 40),  # judged from what runs
        ("", [busy("a", 9, 0)], {"a": 10}, 50, 0),  # it takes longer than others: expected at any moment
        ("a", [busy("a", 0, 0)], {}, 1, None),
        ("a", [], {"a": 1}, None, None),
        ("", [], {}, None, 0),
    ],
)
def test_the_time_left_is_that_of_what_runs_and_of_what_waits(
    waiting: str, running: list[dict[str, Any]], known: dict[str, float], now: float, expected: float | None
) -> None:
    left = time_left(list(waiting), running, known, now=now)
    assert left is None if expected is None else left == pytest.approx(expected)


def test_only_runs_that_were_done_in_one_go_tell_how_long_one_takes() -> None:
    done = [("a", {"timing": {"seconds": 8.0, "start_step": 0}}), ("a", {"timing": {"seconds": 1.0, "start_step": 5}})]
    assert mean_durations(done) == {"a": 8.0, "": 8.0}


# What a worker says of itself -----------------------------------------------------------------------------------------


def test_a_worker_says_what_it_is_at_and_nothing_once_it_has_ended(tmp_path: Path) -> None:
    one = WorkerStateFile(tmp_path, "me")
    with one.publish(run="rotary/1", label="rotary", step=0):
        read = json.loads((tmp_path / "me.json").read_text())
        assert (read["run"], read["pid"], read["host"]) == ("rotary/1", os.getpid(), socket.gethostname())
        assert not has_ended(read)
        assert not is_lost(read)
        one.update(step=3)
        one.add_message("hello")
        deadline = time.monotonic() + 20
        while read["step"] != 3 and time.monotonic() < deadline:
            time.sleep(0.05)
            read = json.loads((tmp_path / "me.json").read_text())
        assert (read["step"], read["messages"]) == (3, [[1, "hello"]])
    one.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_evaluated_has_done_all_of_its_steps(
    tiny: Recipe, quietly: Callable[[Study, Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, update = [], WorkerStateFile.update

    def tell(self: WorkerStateFile, **fields: Any) -> None:
        update(self, **fields)
        told.append({"step": 0, "phase": "", **self._fields})

    monkeypatch.setattr(WorkerStateFile, "update", tell)
    quietly(Study("s", "?", (tiny,)), tmp_path)
    assert {state["step"] for state in told if state["phase"].startswith("evaluating")} == {tiny.training.steps}


def test_a_state_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    one = WorkerStateFile(tmp_path / "missing", "me")
    with one.publish(run="rotary/1"):
        one.add_message("hello")
    assert one.messages() == [(1, "hello")]
    one.remove()


# The board ------------------------------------------------------------------------------------------------------------


def test_the_board_says_once_what_workers_say_and_keeps_a_log(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    folder, plan = make(2)
    messages: list[str] = []
    state(folder, "old", plan[1], messages=[[1, "before"]])
    with StudyProgress(folder, plan, messages.append) as board:
        state(folder, "a", plan[0], messages=[[1, "one"], [2, "two"]])
        board.update()
        board.print_worker_messages("a", [[2, "two"], [3, "three"]])
        board.print_end(plan[0], end(folder, plan[0]))
    assert messages == ["one", "two", "three", "rotary: done"]
    log = (folder.path / "log.txt").read_text()
    assert all(text in log for text in messages)
    assert "before" not in log
    assert "study 5/8" in log, "a run is done, the other at its first step"
    assert "1/2 runs" in capfd.readouterr().err


def test_a_warning_of_several_runs_is_shown_once(make: Make) -> None:
    folder, plan = make(2)
    messages: list[str] = []
    losses = [f"warning: objective.loss: the number term is {term} (means over the first 2 steps)" for term in (7, 8)]
    positions = [f"warning: model.positions.{index}: position 18 is untrained" for index in (0, 1)]
    with StudyProgress(folder, plan, messages.append) as board:
        for worker, loss in zip("ab", losses, strict=True):
            board.print_worker_messages(worker, [*enumerate([loss, *positions, "resuming from step 3"], start=1)])
    assert messages == [losses[0], *positions, "resuming from step 3", "resuming from step 3"]


def test_of_a_large_study_only_warnings_and_failures_are_reported(make: Make) -> None:
    folder, plan = make(MAX_VERBOSE_RUNS + 20)
    messages: list[str] = []
    with StudyProgress(folder, plan, messages.append) as board:
        board.print_worker_messages(
            "a", [[1, "warning: 3 cells are beyond training"], [2, "warning: 4 cells are beyond training"]]
        )
        board.print_end(plan[0], end(folder, plan[0]))
        for planned in plan[1:30]:
            board.print_end(planned, end(folder, planned, "failed", failure="error", error="no"))
    assert messages[0] == "warning: 3 cells are beyond training"
    assert [text for text in messages if "warning" in text] == messages[:1]
    assert messages.count("rotary seed 1: no") == 1
    assert len(messages) == 1 + 20 + 1
    assert "numerate status" in messages[-1]


# The command ----------------------------------------------------------------------------------------------------------


def test_the_command_shows_a_study_by_its_title_or_path(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    folder, plan = make(3)
    end(folder, plan[0])
    for words in (["study", f"runs_dir={folder.runs_dir}"], [str(folder.path)]):
        assert main(["status", *words]) == 0
        assert "1 of 3" in capsys.readouterr().out


def test_a_study_that_is_not_there_is_a_user_error_that_names_the_nearest(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = make(1)
    assert main(["status", "studdy", f"runs_dir={folder.runs_dir}"]) == 2
    assert "Did you mean 'study'?" in capsys.readouterr().err
    assert main(["status", f"runs_dir={folder.runs_dir}"]) == 2
    assert main(["status", "study", "wacth=true", f"runs_dir={folder.runs_dir}"]) == 2
    assert "Did you mean 'watch'?" in capsys.readouterr().err


def test_watching_ends_when_all_is_done(
    make: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, plan = make(3)
    left = list(plan)
    monkeypatch.setattr(time, "sleep", lambda seconds: end(folder, left.pop(0)))
    assert main(["status", "study", "watch=true", f"runs_dir={folder.runs_dir}"]) == 0
    shown = capsys.readouterr().out
    assert [f"{count} of 3" in shown for count in range(4)] == [True] * 4
    assert left == []


def test_ctrl_c_ends_watching(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = make(1)

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupted)
    assert main(["status", "study", "watch=true", f"runs_dir={folder.runs_dir}"]) == 0
