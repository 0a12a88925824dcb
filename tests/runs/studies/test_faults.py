"""What goes wrong in a study stays with the run it happens to: it is named, and tried again on request."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from numerate import catalogue
from numerate.commands.status import status_text
from numerate.config import load_user_parts, override, user_parts
from numerate.errors import UserError
from numerate.recipes.study import Study
from numerate.results.runs import results_of
from numerate.runs import study as study_file
from numerate.runs.engines import engine
from numerate.runs.engines.engine import Engine, Failure, Outcome
from numerate.runs.engines.in_process import InProcess
from numerate.runs.engines.local import Local
from numerate.runs.status import RunState, study_status
from numerate.runs.study import run_study
from numerate.runs.study_folder import StudyFolder
from numerate.training.recipe import Recipe

MINE = '''
import os, time
from dataclasses import dataclass
from numerate.config import setting
from numerate.training.schedule import Schedule

@dataclass(frozen=True)
class Endless(Schedule):
    """Never comes to its end."""
    warmup: float = setting(0, "none")
    def decay_factor(self, progress, warmup_end):
        while True:
            time.sleep(0.01)

@dataclass(frozen=True)
class Hungry(Schedule):
    """Takes more memory than there is."""
    warmup: float = setting(0, "none")
    def decay_factor(self, progress, warmup_end):
        return float(len(bytearray(10**11)))

@dataclass(frozen=True)
class Deadly(Schedule):
    """Ends its process."""
    warmup: float = setting(0, "none")
    def decay_factor(self, progress, warmup_end):
        os._exit(7)

@dataclass(frozen=True)
class Moody(Schedule):
    """Raises while a file is there."""
    warmup: float = setting(0, "none")
    file: str = setting("", "path of the file")
    def decay_factor(self, progress, warmup_end):
        if os.path.exists(self.file):
            raise ValueError("not today")
        return 1.0
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A user's own schedules, as of `--parts mine.py`."""
    monkeypatch.setattr(catalogue, "_user_classes", {})
    monkeypatch.setattr(user_parts, "_files", {})
    for name in [name for name in sys.modules if name.startswith("numerate_user_")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv("NUMERATE_CONFIG", str(tmp_path / "configuration"))
    (tmp_path / "mine.py").write_text(MINE)
    return load_user_parts(tmp_path / "mine.py")


def called(tiny: Recipe, title: str, **more: Any) -> Recipe:
    return replace(tiny, title=title, **more)


def states(title: str, runs: Path) -> list[RunState]:
    return list(study_status(StudyFolder.from_title(title, runs)).states)


def kinds(title: str, runs: Path) -> dict[str, str]:
    """How each run of a study stands, by its label: the kind of its failure, or else its status."""
    found = states(title, runs)
    return {one.run.label: (one.end and one.end.kind) or one.status for one in found}


# A run that raises ----------------------------------------------------------------------------------------------------


def test_a_run_that_cannot_be_trained_takes_no_other_with_it(tiny: Recipe, here: Engine, tmp_path: Path) -> None:
    wrong = called(tiny, "wrong", device="cuda:99")
    explodes = override(called(tiny, "explodes"), ["optimizer.learning_rate=1e30"])
    page, done = run_study(Study("s", "?", (wrong, explodes, tiny)), runs_dir=tmp_path, engine=here)
    assert page is not None
    assert [one.exit_status for one in done] == [2, 1, 0]
    assert "cuda:99" in str(done[0].error)
    assert "is not finite" in str(done[1].error)
    assert kinds("s", tmp_path) == {"wrong": "user error", "explodes": "operational error", "rotary": "done"}


def test_what_failed_is_listed_and_tried_again_only_on_request(
    mine: ModuleType, tiny: Recipe, here: Engine, tmp_path: Path
) -> None:
    (tmp_path / "mood").touch()
    moody = called(tiny, "moody", schedule=mine.Moody(file=str(tmp_path / "mood")))
    study = Study("s", "?", (moody, tiny))
    _, done = run_study(study, runs_dir=tmp_path / "runs", engine=here)
    assert "ValueError in mine.py, line 36: not today" in str(done[0].error)
    assert done[0].end is not None
    assert "line" in str(done[0].end.traceback)
    (tmp_path / "mood").unlink()
    started = (tmp_path / "runs" / ".starts").read_text()
    page, again = run_study(study, runs_dir=tmp_path / "runs", engine=here)
    assert [one.error for one in again] == [done[0].error, None]
    assert [one.exit_status for one in again] == [2, 0]
    assert page is not None
    assert (tmp_path / "runs" / ".starts").read_text() == started, "nothing is begun"
    assert "not today" in status_text(study_status(StudyFolder.from_title("s", tmp_path / "runs")))
    _, last = run_study(study, runs_dir=tmp_path / "runs", engine=here, retry=True)
    assert [one.error for one in last] == [None, None]
    assert kinds("s", tmp_path / "runs") == {"moody": "done", "rotary": "done"}
    assert len(list((tmp_path / "runs" / "rotary").glob("*/starts.jsonl"))) == 1, "what was done is not done again"


# A worker that dies, has no memory, or never ends ---------------------------------------------------------------------


def test_a_worker_that_dies_or_has_no_memory_or_never_ends_takes_one_run_down(
    mine: ModuleType, tiny: Recipe, begin: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STOP_TIMEOUT", 0.5)
    wrong = [
        called(tiny, "endless", schedule=mine.Endless()),
        called(tiny, "hungry", schedule=mine.Hungry()),
        called(tiny, "deadly", schedule=mine.Deadly()),
    ]
    study = Study("s", "?", (*wrong, tiny, override(tiny, ["seed=1"])))
    runs = tmp_path / "runs"
    command = begin(study, runs, engine=Local(workers=2, timeout=8.0))
    assert command.wait(120) == 1, command.output
    expected = {"endless": "timeout", "hungry": "out of memory", "deadly": "died", "rotary": "done"}
    assert kinds("s", runs) == expected
    output = command.output
    assert "endless: took longer than timeout=8 s" in output
    assert "hungry: the machine is out of memory" in output
    assert "deadly: its worker ended by itself with exit status 7" in output
    assert output.count("deadly") == 1, "it was tried three times, and is reported once"
    (deadly,) = (runs / "deadly").iterdir()
    assert len((deadly / "starts.jsonl").read_text().splitlines()) == 3
    second = begin(study, runs, engine=Local(workers=2, timeout=8.0))
    assert second.wait(60) == 1
    assert kinds("s", runs) == expected
    assert len((deadly / "starts.jsonl").read_text().splitlines()) == 3, "what failed is not tried again unasked"


# What stands in the way -----------------------------------------------------------------------------------------------


def test_a_damaged_end_is_that_of_its_run_alone(pair: Study, quietly: Any, here: Engine, tmp_path: Path) -> None:
    quietly(pair, tmp_path)
    (damaged,) = (tmp_path / "rotary").glob("*/end.json")
    damaged.write_text(damaged.read_text()[:-20])
    page, runs = run_study(pair.sweep(["seeds=2"]), runs_dir=tmp_path, engine=here)
    assert page is not None
    assert [one.status for one in runs] == ["failed", "done", "done", "done"]
    for said in (
        str(runs[0].error),
        status_text(study_status(StudyFolder.from_title("pair", tmp_path))),
        str(results_of("pair", tmp_path)["error"].iloc[0]),
    ):
        assert "damaged: Input data was truncated. The run is unharmed: remove the file" in said
        assert damaged.name in said
    _, again = run_study(pair, runs_dir=tmp_path, engine=here, retry=True)
    assert [one.status for one in again] == ["done", "done"]
    head = damaged.with_name("recipe.yaml").rename(tmp_path / "kept.yaml")
    _, without = run_study(pair, runs_dir=tmp_path, engine=here)
    assert "has no recipe.yaml; restore it" in str(without[0].error)
    assert without[0].exit_status == 2
    head.rename(damaged.with_name("recipe.yaml"))
    damaged.unlink()
    damaged.mkdir()
    _, unread = run_study(pair, runs_dir=tmp_path, engine=here)
    assert [one.status for one in unread] == ["failed", "done"], str(unread[0].error)
    assert len((damaged.parent / "starts.jsonl").read_text().splitlines()) == 1


class Scripted(InProcess):
    """Gives each item the next of these failures, and then does them."""

    def __init__(self, *failures: Failure) -> None:
        object.__setattr__(self, "failures", list(failures))
        super().__init__()

    def map(self, function: Any, items: Any, **more: Any) -> Any:
        if not self.failures:  # type: ignore[attr-defined]
            return super().map(function, items, **more)
        return iter([Outcome(0, failure=self.failures.pop(0))])  # type: ignore[attr-defined]


def test_what_another_process_is_at_without_holding_the_run_is_asked_for_now_and_then(
    tiny: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited, looks, real = list[float](), [], study_file.StudyStatus
    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setattr(study_file, "_MAX_TIME_FRACTION", 1e-9)
    monkeypatch.setattr(study_file, "StudyStatus", lambda *given: looks.append(given) or real(*given))
    busy = Failure("busy", "the cache is being written by process 7")
    _, runs = run_study(Study("s", "?", [tiny]), runs_dir=tmp_path, engine=Scripted(*[busy] * 3))
    assert [one.status for one in runs] == ["done"]
    assert waited.count(0.5) == 3
    assert len(looks) == 3, "at first, before any run and at the end: looking takes a part of the time alone"


@pytest.mark.parametrize("kind", ["stopped", "not started"])
def test_what_the_engine_lost_is_left_to_the_same_command(
    kind: Any, tiny: Recipe, here: Engine, tmp_path: Path
) -> None:
    lost = Failure(kind, "its Slurm task 7_0 ended before the item was finished (NODE_FAIL)")
    page, runs = run_study(Study("s", "?", [tiny]), runs_dir=tmp_path, engine=Scripted(lost))
    assert (page, runs[0].status, runs[0].error, runs[0].exit_status) == (None, "left", lost.text, 1)
    assert ("NODE_FAIL" in (tmp_path / "s" / "log.txt").read_text()) == (kind == "stopped")
    _, runs = run_study(Study("s", "?", [tiny]), runs_dir=tmp_path, engine=here)
    assert [one.status for one in runs] == ["done"]


def test_whatever_workers_say_a_study_that_was_stopped_has_the_exit_status_of_the_signal(
    pair: Study, tmp_path: Path
) -> None:
    class Ended(InProcess):
        def map(self, *given: Any, **more: Any) -> Any:
            signal.raise_signal(signal.SIGTERM)
            return iter([Outcome(0, failure=Failure("stopped", "by its worker", 130))])

    _, runs = run_study(pair, runs_dir=tmp_path, engine=Ended())
    assert [(one.status, one.exit_status) for one in runs] == [("left", 143), ("left", 143)]


def test_a_run_that_reached_its_minutes_is_left_to_the_same_command(
    tiny: Recipe, here: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count(0.0, 1000.0)
    monkeypatch.setattr("numerate.training.trainer.time", SimpleNamespace(monotonic=lambda: next(ticks)))
    study = Study("s", "?", [override(tiny, ["training.minutes=30"])])
    _, runs = run_study(study, runs_dir=tmp_path, engine=here)
    assert (runs[0].status, runs[0].error, runs[0].exit_status) == ("left", "not done yet; the same command resumes", 0)
    monkeypatch.undo()
    _, runs = run_study(study, runs_dir=tmp_path, engine=here)
    assert runs[0].status == "done"


def test_the_report_is_of_what_there_is_whatever_the_clock_says(
    pair: Study, quietly: Any, here: Engine, tmp_path: Path
) -> None:
    quietly(pair, tmp_path)
    page = tmp_path / "pair" / "report.html"
    os.utime(page, (2e9, 2e9))  # written before the clock was set back
    assert run_study(pair, runs_dir=tmp_path, engine=here)[0] == page
    assert page.read_text() != "drawn"


# Stopped by the user --------------------------------------------------------------------------------------------------


def done(study: Study, runs: Path) -> list[Path]:
    """The runs of a study that are done."""
    if not (runs / study.title).exists():
        return []
    return [runs / one.run.run for one in states(study.title, runs) if one.status == "done"]


def test_ctrl_c_ends_a_study_at_a_good_place(pair: Study, begin: Callable[..., Any], tmp_path: Path) -> None:
    study, runs = pair.sweep(["seeds=4"]), tmp_path / "runs"
    command = begin(study, runs)
    while len(done(study, runs)) < 2 and not command.over:
        time.sleep(0.01)
    os.kill(command.pid, signal.SIGINT)
    assert command.wait() == 130
    assert 2 <= len(done(study, runs)) < 8
    assert {one.status for one in states("pair", runs)} == {"done", "left"}, "what was stopped has not failed"
    assert begin(study, runs).wait() == 0
    assert len(done(study, runs)) == 8


# A full disk ----------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_reported_once_and_the_same_command_continues(
    pair: Study, begin: Callable[..., Any], quietly: Any, small_disk: Any, tmp_path: Path
) -> None:
    study = pair.sweep(["seeds=4"])
    quietly(study, tmp_path / "undisturbed")
    used = sum(path.stat().st_size for path in (tmp_path / "undisturbed").rglob("*") if path.is_file())
    place = small_disk(used * 2 // 3)
    runs = place / "runs"
    command = begin(study, runs)
    assert command.wait() == 1
    output = command.output
    assert output.count("the disk is full (") == 1, output
    before = done(study, runs)
    assert 0 < len(before) < 8
    assert {one.status for one in states("pair", runs)} == {"done", "left"}
    for path in runs.rglob("*.jsonl"):
        assert all(json.loads(line) for line in path.read_bytes().splitlines()), path
    subprocess.run(["mount", "-o", f"remount,size={4 * used}", str(place)], check=True)
    assert begin(study, runs).wait() == 0
    assert len(done(study, runs)) == 8
    for path in done(study, runs):
        for name in ("cells.jsonl", "metrics.jsonl"):
            assert (path / name).read_bytes() == (tmp_path / "undisturbed" / path.relative_to(runs) / name).read_bytes()
    assert all(len((path / "starts.jsonl").read_text().splitlines()) == 1 for path in before)


def test_a_place_that_may_not_be_written_is_a_user_error_before_anything_is_begun(
    pair: Study, here: Engine, small_disk: Any
) -> None:
    place = small_disk(1 << 20)
    small_disk.make_read_only(place)
    with pytest.raises(UserError, match="cannot be written"):
        run_study(pair, runs_dir=place / "runs", engine=here)
