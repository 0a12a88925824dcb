"""How a run ended is written in its folder, believed only as it was written, and gone while it runs again."""

import errno
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from unittest import mock

import pytest

from numerate.config import override
from numerate.errors import OperationalError, UserError
from numerate.integrations.trackers import Trackers
from numerate.recipes.study import content_key
from numerate.runs.end import End, Ending, clear_end, read_end, write_end
from numerate.runs.engines.engine import Failure
from numerate.runs.train import train
from numerate.training.distributed import World
from numerate.training.lock import LockedError
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder
from numerate.training.trainer import Trainer
from small_runs import small, stop_after

DONE = {"stop_reason": "budget", "step": 4, "loss": 1.5, "validation_exact_match": 0.5}


def test_an_end_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert read_end(folder.path) is None
    for end in (
        End.now("done", key="k", seconds=2.5, results=DONE),
        End.now("failed", key="k", seconds=0.0, kind="error", error="a\nb", traceback="c"),
        End.now("stopped", key="k", seconds=1.0),
    ):
        write_end(folder, end)
        assert read_end(folder.path) == end
    write_end(folder, End.now("done", key="k", seconds=2.5, results=DONE | {"loss": -inf}))
    diverged = read_end(folder.path)
    assert diverged is not None
    assert diverged.results == DONE | {"loss": "-inf"}, "JSON has no such number"


def test_a_failure_is_recorded_under_the_lock_of_the_run_and_replaces_nothing_that_is_done(tmp_path: Path) -> None:
    folder, other = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    with Ending(folder, "k"):
        raise UserError("no")
    failed = read_end(folder.path)
    assert failed is not None
    assert (failed.status, failed.kind, failed.error) == ("failed", "user error", "no")
    with other.lock(), pytest.raises(LockedError, match="is being written by process"):
        Ending(folder, "k").fail(Failure("died", "its worker died"))
    done = Ending(folder, "k").write("done", results=DONE)
    assert Ending(folder, "k").fail(UserError("no")) == done == read_end(folder.path), "another command was quicker"


@pytest.mark.parametrize("trained", [True, False])
def test_ctrl_c_while_trackers_finish_leaves_a_run_done(
    trained: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trackers, "finish", mock.Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr(Trainer, "train", Trainer.train if trained else mock.Mock(side_effect=ValueError))
    with pytest.raises(KeyboardInterrupt):
        train(small("training.steps=1"), runs_dir=tmp_path, quiet=True)
    end = read_end(next(tmp_path.glob("*/*/end.json")).parent)
    assert end is not None
    assert end.status == ("done" if trained else "stopped")


def test_a_process_that_does_not_see_the_folder_of_the_others_says_what_they_must_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "barrier", lambda self: shutil.rmtree(tmp_path))
    with pytest.raises(UserError, match=r"process 0 cannot find it; all must share one runs_dir$"):
        train(small("training.steps=1"), runs_dir=tmp_path, quiet=True)


@pytest.mark.parametrize(
    "error", [LockedError("no"), MemoryError(), OSError(errno.ENOSPC, "full"), KeyboardInterrupt()]
)
def test_an_error_that_is_not_of_the_run_is_raised_and_not_written(error: BaseException, tmp_path: Path) -> None:
    with pytest.raises(type(error)), Ending(RunFolder(tmp_path / "run"), "k"):
        raise error
    assert read_end(tmp_path / "run") is None


def test_only_what_was_evaluated_for_this_key_is_done() -> None:
    end = End.now("done", key="k", seconds=2.5, results=DONE)
    assert end.is_done("k")
    assert not end.is_done("another")
    assert not End.now("done", key="k", seconds=2.5).is_done("k"), "it was only trained"
    failed = End.now("failed", key="k", seconds=2.5, kind="died")
    assert (failed.is_failed("k"), failed.is_failed("another"), failed.is_done("k")) == (True, False, False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-20], "truncated"),
        (lambda text: text.replace('{"status"', '{"status":"failed","status"'), "it was edited"),
        (lambda text: text.replace(":", ": "), "it was edited"),
        (lambda text: text.replace('{"status"', '{"state":1,"status"'), "unknown field `state`"),
        (lambda text: text.replace('"done"', '"finished"'), "Invalid enum value 'finished'"),
        (lambda text: text.replace('"pid":', '"pid":-'), "`int` >= 0"),
        (lambda text: text.replace('"validation_exact_match":0.5', '"validation_exact_match":1.5'), r"`float` <= 1\.0"),
        (lambda text: text.replace('"step":4', '"step":"4"'), r"Expected `int`.*results\.step"),
        (lambda text: text.replace('"step":4', '"step":4,"steps":4'), "it was edited"),
        (lambda text: text.replace('"budget"', '"minutes"'), "Invalid enum value 'minutes'"),
        (lambda text: text.replace('"step":4', '"step":' + "[" * 100_000), "got `array`"),
    ],
)
def test_a_damaged_or_edited_end_is_refused(change: Callable[[str], str], message: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    write_end(folder, End.now("done", key="k", seconds=2.5, results=DONE))
    (folder.path / "end.json").write_text(change((folder.path / "end.json").read_text()))
    with pytest.raises(UserError, match=rf"(?s)end\.json: damaged: .*{message}.*remove the file"):
        read_end(folder.path)


# Training -------------------------------------------------------------------------------------------------------------


def test_training_says_how_it_ended_and_a_new_session_removes_that(tiny: Recipe, tmp_path: Path) -> None:
    stopped = train(tiny, runs_dir=tmp_path, quiet=True, **stop_after(2))
    end = read_end(stopped.run.path)
    assert end is not None
    assert (end.status, end.key, end.kind) == ("stopped", content_key(tiny), None)
    seen: list[End | None] = []
    done = train(tiny, runs_dir=tmp_path, quiet=True, on_record=lambda *_: seen.append(read_end(stopped.run.path)))
    assert set(seen) == {None}
    end = read_end(done.run.path)
    assert end is not None
    assert (end.status, end.results, end.seconds > 0) == ("done", None, True)
    train(tiny, runs_dir=tmp_path, quiet=True)
    assert read_end(done.run.path) == end, "nothing was left to train, so nothing ended"


def test_training_that_fails_says_why(tiny: Recipe, tmp_path: Path) -> None:
    explodes = override(tiny, ["optimizer.learning_rate=1e30"])
    with pytest.raises(OperationalError, match="is not finite"):
        train(explodes, runs_dir=tmp_path, quiet=True)
    (path,) = (tmp_path / "rotary").iterdir()
    end = read_end(path)
    assert end is not None
    assert (end.status, end.kind, "is not finite" in str(end.error)) == ("failed", "operational error", True)


def test_training_that_is_refused_leaves_nothing(tiny: Recipe, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cuda:99"):
        train(replace(tiny, device="cuda:99"), runs_dir=tmp_path, quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_failed_before_it_was_started_can_be_started(tiny: Recipe, tmp_path: Path) -> None:
    path = train(tiny, runs_dir=tmp_path / "once", quiet=True).run.path
    folder = RunFolder(tmp_path / "runs" / path.parent.name / path.name)
    write_end(folder, End.now("failed", key="k", seconds=0.0, kind="user error", error="no"))
    with folder.lock():
        pass
    assert train(tiny, runs_dir=tmp_path / "runs", quiet=True).run.path == folder.path
    clear_end(folder)
    assert (folder.path / "recipe.yaml").exists(), "of a run that was started only the end is removed"
    assert json.loads((folder.path / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 4
