"""How a study stands: what is done, who is at what, what failed, what is left, and for how long still."""

import json
import os
import socket
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from numerate.cli import main
from numerate.commands.status import status_text
from numerate.config import identity, override, to_tree
from numerate.recipes.study import Study, content_key
from numerate.results.runs import results_of
from numerate.results.tables import table_of_runs
from numerate.runs import study as study_file
from numerate.runs.end import End, write_end
from numerate.runs.engines.engine import Outcome
from numerate.runs.engines.in_process import InProcess
from numerate.runs.status import RunningRun, RunState, study_status, time_left
from numerate.runs.study import run_study
from numerate.runs.study_folder import StudyFolder, StudyRun
from numerate.training.progress import ProgressBar
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder

Make = Callable[[int], tuple[StudyFolder, list[StudyRun]]]


def seeds(tiny: Recipe, count: int) -> list[Recipe]:
    return [override(tiny, [f"seed={seed}"]) for seed in range(count)]


@pytest.fixture
def make(tiny: Recipe, tmp_path: Path) -> Make:
    """make(5): a study of five seeds that is planned and not begun."""

    def make(count: int) -> tuple[StudyFolder, list[StudyRun]]:
        recipes = seeds(tiny, count)
        folder = StudyFolder(tmp_path / "runs" / "study")
        requested = [StudyRun.of(f"rotary/{identity(one)}", content_key(one), to_tree(one)) for one in recipes]
        return folder, folder.update(requested, question="Why?")

    return make


def end(folder: StudyFolder, run: StudyRun, status: Any = "done", **more: Any) -> End:
    """Writes that a run ended."""
    place = RunFolder(folder.runs_dir / run.run)
    written = End.now(
        status, key=run.key, seconds=10.0, **({"results": {"stop_reason": "budget"}} if status == "done" else more)
    )
    write_end(place, written)
    (place.path / "recipe.yaml").write_text("total_steps: 4\n")
    return written


def metrics(folder: StudyFolder, run: StudyRun, *lines: Any) -> RunFolder:
    """Writes what a run logged, and returns its folder."""
    place = RunFolder(folder.runs_dir / run.run)
    place.path.mkdir(parents=True, exist_ok=True)
    (place.path / "recipe.yaml").write_text("total_steps: 4\n")
    (place.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3, "lo')
    return place


# What there is --------------------------------------------------------------------------------------------------------


def test_a_new_plan_replaces_the_old_one_and_what_is_done_of_that_is_distinguished(make: Make) -> None:
    folder, plan = make(6)
    end(folder, plan[0])
    end(folder, plan[5])
    end(folder, plan[1], "failed", kind="user error", error="no")
    make(2)
    now = study_status(folder)
    assert [now.count(status) for status in ("done", "failed", "left")] == [1, 1, 0]
    assert "1 done, from earlier plans" in status_text(now)
    table = results_of(folder.path)
    assert [tuple(row) for row in table[["seed", "status", "plan"]].to_numpy()] == [
        (0, "done", "current"),
        (1, "failed", "current"),
        (5, "done", "earlier"),
    ]
    assert "1 of earlier plans" in " ".join(table_of_runs(table).notes)
    make(6)
    now = study_status(folder)
    assert (now.count("left"), now.num_earlier) == (3, 0)
    assert "plan" not in results_of(folder.path).columns


def test_every_run_is_done_running_failed_or_left(make: Make) -> None:
    folder, plan = make(8)
    end(folder, plan[0])
    end(folder, plan[1], "failed", kind="operational error", error="the loss is not finite")
    end(folder, plan[2], "stopped")
    write_end(RunFolder(folder.runs_dir / plan[3].run), End.now("failed", key="of another budget", seconds=1.0))
    end(folder, plan[4], "failed", kind="error", error="retried")
    running = metrics(folder, plan[5], {"step": 1, "loss": 1.25}, {"step": 2, "split": "validation", "loss": 9.0})
    retried = RunFolder(folder.runs_dir / plan[4].run)
    with running.lock(), retried.lock("evaluation"):
        now = study_status(folder)
        text = status_text(now)
    statuses = [state.status for state in now.states]
    assert statuses == ["done", "failed", "left", "left", "running", "running", "left", "left"]
    for part in ("study: Why?", "1 of 8", "rotary seed 5", "2/4", "1.25", "the loss is not finite", "retry=true"):
        assert part in text
    assert f"evaluation        0:00  {socket.gethostname()}-{os.getpid()}" in text
    assert str(folder.path) in text
    assert [state.status for state in study_status(folder).states][4:6] == ["failed", "left"], "their process is gone"


# The time left --------------------------------------------------------------------------------------------------------


def run(label: str) -> StudyRun:
    return StudyRun(run=f"{label}/0", key="k", name=label, seed=0, tree=Raw(b"{}"))


def busy(label: str, step: int, began: float) -> RunningRun:
    return RunningRun(run(label), step, 10, None, "training", began, "w")


def known(**seconds: float) -> list[RunState]:
    """Runs that are done, and how long they took."""
    ends = {label: End.now("done", key="k", seconds=took) for label, took in seconds.items()}
    return [RunState(run(label), Path(label), "done", end) for label, end in ends.items()]


@pytest.mark.parametrize(
    ("waiting", "running", "done", "now", "expected"),
    [
        # What waits lasts as long as its variant did, or as all did, and is shared by the workers.
        ("abc", [busy("a", 5, 0), busy("b", 0, 5)], known(a=10, b=100), 5, (5 + 100 + 10 + 100 + 55) / 2),
        ("", [busy("a", 0, 0), busy("b", 9, 0)], known(a=100, b=1), 0, 100),  # at least the longest run
        ("a", [busy("a", 5, 0)], [], 20, 20 + 40),  # judged from what runs
        ("", [busy("a", 9, 0)], known(a=10), 50, 1),  # it takes longer than others
        ("a", [busy("a", 0, 0)], [RunState(run("a"), Path("a"), "failed")], 1, None),
        ("a", [], known(a=1), 1, None),
        ("", [], [], 1, 0),
    ],
)
def test_the_time_left_is_that_of_what_runs_and_of_what_waits(
    waiting: str, running: list[RunningRun], done: list[RunState], now: float, expected: float | None
) -> None:
    left = time_left([*done, *(RunState(run(label), Path(label), "left") for label in waiting)], running, now)
    assert left is None if expected is None else left == pytest.approx(expected)


# The progress of a command --------------------------------------------------------------------------------------------


class Telling(InProcess):
    """Ends the first run with warnings, and looks while the second one is at work; the others are left."""

    def map(self, function: Any, items: Any, *, folder: Any = None, stop: Any, on_tick: Any = None) -> Any:
        study = StudyFolder(folder)
        end(study, items[0])
        losses = [f"warning: objective.loss: the number term is {term} (over the first 2 steps)" for term in (7, 8)]
        yield Outcome(0, result=[*losses, *(f"warning: model.positions.{i}: 18 is untrained" for i in (0, 1))])
        with metrics(study, items[1], {"step": 1, "loss": 1.5}).lock():
            on_tick()
        stop.request()


def test_progress_counts_runs_and_shows_a_warning_of_several_runs_once_and_keeps_a_log(
    make: Make, tiny: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[int, str]] = []
    monkeypatch.setattr(ProgressBar, "update", lambda self, *values: shown.append(values))
    monkeypatch.setattr(study_file, "_MAX_TIME_FRACTION", inf)
    folder, _ = make(3)
    _, states = run_study(Study("study", "Why?", seeds(tiny, 3)), runs_dir=folder.runs_dir, engine=Telling())
    assert [state.status for state in states] == ["done", "left", "left"]
    log = [line.partition("  ")[2] for line in (folder.path / "log.txt").read_text().splitlines()]
    assert [line for line in log if "runs (" not in line] == [
        "warning: objective.loss: the number term is 7 (over the first 2 steps)",
        "warning: model.positions.0: 18 is untrained",
        "warning: model.positions.1: 18 is untrained",
        "rotary: done",
    ]
    assert shown == [(0, ""), (1, "rotary 1.5"), (1, "")]


# The command ----------------------------------------------------------------------------------------------------------


def test_the_command_shows_a_study_by_its_title_or_path_and_names_the_nearest(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, plan = make(3)
    end(folder, plan[0])
    place = f"runs_dir={folder.runs_dir}"
    for words in (["study", place], [str(folder.path)]):
        assert main(["status", *words]) == 0
        assert "1 of 3" in capsys.readouterr().out
    for words, suggestion in ((["studdy"], "'study'"), (["study", "wacth=true"], "'watch'")):
        assert main(["status", *words, place]) == 2
        assert f"Did you mean {suggestion}?" in capsys.readouterr().err


def test_watching_ends_when_all_is_done_or_by_ctrl_c(
    make: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, plan = make(3)
    left = list(plan)
    words = ["status", "study", "watch=true", f"runs_dir={folder.runs_dir}"]

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupted)
    assert main(words) == 0
    assert capsys.readouterr().out.count("of 3") == 1
    monkeypatch.setattr(time, "sleep", lambda seconds: end(folder, left.pop(0)))
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert [f"{count} of 3" in shown for count in range(4)] == [True] * 4
    assert left == []
