"""Promises of the folder of a run: nothing in it is ever lost, and it always opens."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from numerate.errors import UserError
from numerate.records.reading import read_records as read_records
from numerate.records.schema import Schema, record_type
from numerate.results.rows import cells
from numerate.training import disk
from numerate.training.finding import all_runs, find_run, latest_run
from numerate.training.run_folder import RunFolder, resolve_runs_dir

HEAD: dict[str, Any] = {"name": None, "recipe": {"kind": "Recipe", "steps": 100}, "times": {"started": "2026-01-01"}}


ANY = Schema(record_type({}), "")


def make(runs: Path, id: str = "3f2a9c01b7de", under: str = "addition", **head: Any) -> RunFolder:
    return RunFolder.create(runs, under, id, {**HEAD, **head})


def test_runs_are_in_the_given_place_then_where_the_environment_says_then_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMERATE_RUNS", "/from/environment")
    assert resolve_runs_dir("/given") == Path("/given")
    assert resolve_runs_dir() == Path("/from/environment")
    monkeypatch.setenv("NUMERATE_RUNS", "")
    assert resolve_runs_dir() == Path("runs")
    for empty in ("", " "):
        with pytest.raises(UserError, match=r"^runs_dir: must not be empty"):
            resolve_runs_dir(empty)


def test_a_run_stands_under_its_recipe_and_id_with_a_readable_head(tmp_path: Path) -> None:
    run = make(tmp_path, command="numerate train addition")
    assert run.path == tmp_path / "addition" / "3f2a9c01b7de"
    assert (run.id, run.recipe_name) == ("3f2a9c01b7de", "addition")
    assert run.metadata()["recipe"] == HEAD["recipe"]
    make(tmp_path, command="another")
    assert RunFolder.open(run.path).metadata()["command"] == "numerate train addition", "it is created once"


def test_a_folder_with_other_things_in_the_place_of_a_run_is_left_alone(tmp_path: Path) -> None:
    place = tmp_path / "addition" / "3f2a9c01b7de"
    place.mkdir(parents=True)
    (place / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match=r"exists but has no recipe\.yaml"):
        make(tmp_path)
    assert os.listdir(place) == ["thesis.txt"]
    assert os.listdir(place.parent) == [place.name]


@settings(deadline=None, max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.text("ab.:1", max_size=3), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_a_head_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    run = make(tmp_path_factory.mktemp("runs"), recipe={"value": value})
    run.update_metadata(notes=value)
    assert (run.metadata()["recipe"], run.metadata()["notes"]) == ({"value": value}, value)


def test_a_run_whose_failure_another_command_writes_at_that_moment_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.rename

    def rename(old: Any, new: Any) -> None:
        new.mkdir()
        (new / "end.json").write_text("{}")
        real(old, new)

    monkeypatch.setattr(os, "rename", rename)
    folder = RunFolder.create(tmp_path, "small", "0123", {"recipe": {}})
    assert {path.name for path in folder.path.iterdir()} == {"end.json", "recipe.yaml"}
    assert [path.name for path in folder.path.parent.iterdir()] == ["0123"]


def test_each_start_is_noted_and_the_first_time_and_label_stay(tmp_path: Path) -> None:
    run = make(tmp_path, name="mine", command="first", notes="by hand")
    with run.lock():
        run.record_start({**HEAD, "command": "first"})
        run.record_start({"recipe": {"steps": 200}, "command": "second", "times": {"started": "2026-01-02"}})
        run.update_metadata(times={"finished": "2026-01-03"})
    head = run.metadata()
    assert (head["name"], head["command"], head["recipe"], head["notes"]) == (
        "mine",
        "second",
        {"steps": 200},
        "by hand",
    )
    assert head["times"] == {"started": "2026-01-02", "created": "2026-01-01", "finished": "2026-01-03"}
    assert [start["command"] for start in run.records("starts.jsonl")] == ["first", "second"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "", "it must be a mapping"),
        (lambda text: text[: text.index("checksum")], "the checksum at the end is missing"),
        (lambda text: text[: len(text) // 2], "cannot be read as YAML"),
        (lambda text: "recipe: {steps: 1\nname: [", "cannot be read as YAML"),
        (lambda text: text.replace("steps: 100", "steps: 900"), "the checksum does not match"),
        (lambda text: text.replace("command: old", "command: new"), "the checksum does not match"),
        (lambda text: text.replace("command: old", "command: x\ncommand: old"), "'command' is given twice"),
    ],
)
def test_a_head_that_was_cut_or_changed_is_damaged(tmp_path: Path, change: Any, message: str) -> None:
    run = make(tmp_path, command="old")
    run.update_metadata(notes="x")
    text = run.file("recipe.yaml").read_text()
    assert change(text) != text
    run.file("recipe.yaml").write_text(change(text))
    for action in (
        run.metadata,
        lambda: run.record_start(HEAD),
        lambda: run.update_metadata(name="x"),
        lambda: cells(run.path),
    ):
        with pytest.raises(UserError, match=rf"recipe.yaml.*: damaged: .*{message}"):
            action()
    assert run.file("recipe.yaml").read_text() == change(text)
    assert not run.file("starts.jsonl").exists()


OLD = r"was written by an earlier version of numerate and can only be read by that version"


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ({"format": 3, "recipe": {}}, OLD),
        ({"recipe": {}}, OLD),
        ({"format": 99, "recipe": {}}, r"format 99.*update numerate"),
    ],
)
def test_a_run_of_another_version_is_refused_in_one_sentence_and_left_as_it_is(
    head: Any, message: str, tmp_path: Path
) -> None:
    run = make(tmp_path)
    run.file("recipe.yaml").write_text(yaml.safe_dump(head))
    for action in (run.metadata, lambda: run.record_start(HEAD), lambda: run.update_metadata(name="x")):
        with pytest.raises(UserError, match=message):
            action()
    assert yaml.safe_load(run.file("recipe.yaml").read_text()) == head


# Finding


def test_a_run_is_found_by_path_id_beginning_label_recipe_and_latest(tmp_path: Path) -> None:
    first = make(tmp_path, "aaa111aaa111", name="small")
    second = make(tmp_path, "bbb222bbb222", under="other")
    for address in (
        str(first.path),
        str(first.path / "recipe.yaml"),
        "aaa111aaa111",
        "aa",
        "small",
        "addition",
        "addition/aaa",
        "addition/aaa111aaa111",
    ):
        assert find_run(address, tmp_path).path == first.path, address
    assert find_run("latest", tmp_path).path == second.path
    assert [run.path for run in all_runs(tmp_path)] == [first.path, second.path]


def test_an_address_with_several_meanings_is_refused_that_lists_them(tmp_path: Path) -> None:
    make(tmp_path, "aaa111aaa111", name="both")
    make(tmp_path, "aaa222aaa222", name="both")
    for address in ("aaa", "both", "addition"):
        with pytest.raises(UserError, match=r"2 runs .*: addition/aaa111aaa111, addition/aaa222aaa222"):
            find_run(address, tmp_path)


def test_an_address_without_a_run_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    make(tmp_path, "aaa111aaa111", name="quicksort")
    with pytest.raises(UserError, match="Did you mean 'quicksort'"):
        find_run("quiksort", tmp_path)
    with pytest.raises(UserError, match="Did you mean 'aaa111aaa111'"):
        find_run(str(tmp_path / "addition" / "aaa111aaa11x"), tmp_path)
    with pytest.raises(UserError, match=r"no recipe.yaml"):
        find_run(str(tmp_path), tmp_path)
    with pytest.raises(UserError, match="is not a run"):
        RunFolder.open(tmp_path)
    with pytest.raises(UserError, match="no run here yet"):
        find_run("latest", tmp_path / "nowhere")


def test_a_checkpoint_or_a_folder_of_weights_instead_of_a_run_is_refused_with_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path).path
    (run / "checkpoints" / "step-000300").mkdir(parents=True)
    with pytest.raises(UserError, match=rf"is no run: .* Its run is {run}; checkpoint=300 is this checkpoint"):
        find_run(run / "checkpoints" / "step-000300", tmp_path)
    monkeypatch.chdir(run / "checkpoints")
    with pytest.raises(UserError, match=f"Its run is {run}\\."):
        find_run(".", tmp_path)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "config.json").touch()
    with pytest.raises(UserError, match=r"hf:.*/weights names them"):
        find_run(tmp_path / "weights", tmp_path)


def test_what_is_no_label_of_a_run_is_not_taken_for_one(tmp_path: Path) -> None:
    make(tmp_path, "bad").file("recipe.yaml").write_bytes(b"\xff\xfename: \x00")
    good = make(tmp_path, "aaa111", name="good", recipe={"name": "inner", "task": {"name": "deeper"}})
    assert find_run("good", tmp_path).path == good.path
    with pytest.raises(UserError):
        find_run("inner", tmp_path)


def test_latest_is_the_newest_run_that_has_a_checkpoint(tmp_path: Path) -> None:
    trained, begun, other = (make(tmp_path, id=id) for id in ("aaaa", "bbbb", "cccc"))
    assert find_run("latest", tmp_path).path == other.path, "none has one"
    (trained.checkpoints / "step-000004").mkdir(parents=True)
    with pytest.warns(UserWarning, match=r"latest: .*cccc has no checkpoint yet; taking .*aaaa, the newest run"):
        assert find_run("latest", tmp_path).path == trained.path
    (begun.checkpoints / "step-000004").mkdir(parents=True)
    (other.checkpoints / "step-000004").mkdir(parents=True)
    assert find_run("latest", tmp_path).path == other.path


def test_latest_goes_by_the_order_of_starts_and_not_by_any_clock(tmp_path: Path) -> None:
    first, second = make(tmp_path, "a", times={"started": "2099"}), make(tmp_path, "b", times={"started": "1999"})
    os.utime(first.path / "recipe.yaml", (4e9, 4e9))
    assert find_run("latest", tmp_path).path == second.path
    make(tmp_path, "a")
    assert find_run("latest", tmp_path).path == first.path
    shutil.rmtree(first.path)
    assert find_run("latest", tmp_path).path == second.path
    (tmp_path / ".starts").unlink()
    assert latest_run(tmp_path) is not None


def test_a_copied_folder_is_the_same_run_and_free(tmp_path: Path) -> None:
    run = make(tmp_path / "here")
    run.append("metrics.jsonl", {"step": 1, "loss": 2.0})
    with run.lock():
        shutil.copytree(tmp_path / "here", tmp_path / "there")
        copy = find_run("latest", tmp_path / "there")
        assert copy.path == tmp_path / "there" / "addition" / run.id
        with copy.lock():
            assert copy.metadata() == run.metadata()
            assert copy.records("metrics.jsonl") == [{"step": 1, "loss": 2.0}]


# Lines


def test_records_come_back_as_plain_numbers_and_what_is_not_finite_as_text(tmp_path: Path) -> None:
    import numpy as np
    import torch

    run = make(tmp_path)
    run.append(
        "a.jsonl", {"a": np.float32(0.5), "b": torch.tensor(2), "c": float("nan"), "d": (np.int64(1), Path("x"))}
    )
    assert read_records(run.file("a.jsonl"), ANY) == [{"a": 0.5, "b": 2, "c": "nan", "d": [1, "x"]}]
    run.append("a.jsonl", {"text": "\udc80 ü \n"})
    assert read_records(run.file("a.jsonl"), ANY)[1] == {"text": "\udc80 ü \n"}
    assert run.file("a.jsonl").read_bytes().count(b"\n") == 2


@pytest.mark.parametrize(
    ("tail", "left"),
    [
        (b'{"step": 2, "lo', []),
        (b"\0" * 5000, []),
        (b'{"a": "' + b"x" * 200_000, []),
        (b"3", []),
        (b'{"step": 2, "loss": 2.0}', [2]),
    ],
)
def test_half_a_line_is_cleared_away_before_the_next_is_written_and_a_whole_one_without_its_end_is_kept(
    tmp_path: Path, tail: bytes, left: list[int]
) -> None:
    run = make(tmp_path)
    run.append("metrics.jsonl", {"step": 1, "loss": 2.0})
    with open(run.file("metrics.jsonl"), "ab") as file:
        file.write(tail)
    assert [record["step"] for record in run.records("metrics.jsonl")] == [1, *left]
    run.append("metrics.jsonl", {"step": 3, "loss": 2.0})
    lines = [json.dumps({"step": step, "loss": 2.0}) + "\n" for step in (1, *left, 3)]
    assert run.file("metrics.jsonl").read_text() == "".join(lines)


def test_cutting_metrics_moves_later_steps_aside_and_loses_nothing_else(tmp_path: Path) -> None:
    run = make(tmp_path)
    assert run.truncate_metrics(0) == 0
    lines = [
        '{"step": 1, "loss": 2.0}',
        '{"note": "no step"}',
        "what a user wrote",
        '{"step": 2, "loss": 2.0}',
        '{"step": 3, "loss": 2.0}',
        '{"step": 4, "lo',
    ]
    run.file("metrics.jsonl").write_text("\n".join(lines))
    assert run.truncate_metrics(2) == 1
    assert run.file("metrics.jsonl").read_text() == "\n".join(lines[:4]) + "\n"
    assert run.records("metrics-undone.jsonl") == [{"step": 3, "loss": 2.0}]
    assert run.truncate_metrics(2) == 0


def test_an_evaluation_that_is_to_be_made_again_is_moved_aside_and_its_step_of_training_stays(tmp_path: Path) -> None:
    run, lines = make(tmp_path), [{"step": 2, "loss": 2.0}, {"step": 2, "split": "validation", "exact_match": 0.5}]
    run.append("metrics.jsonl", *lines)
    assert (run.truncate_metrics(2), run.truncate_metrics(2, is_evaluated=False)) == (0, 1)
    assert [run.records(f"metrics{part}.jsonl") for part in ("", "-undone")] == [lines[:1], lines[1:]]


# Interruptions


def test_a_file_is_on_the_disk_before_it_takes_the_place_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda number: (order.append("flushed"), fsync(number)))
    monkeypatch.setattr(os, "replace", lambda *paths: (order.append("renamed"), replace(*paths)))
    disk.write_atomically(tmp_path / "file", b"new")
    assert order == ["flushed", "renamed", "flushed"], "at last the name"


def test_killed_at_any_moment_of_its_creation_a_run_is_whole_or_not_there(
    tmp_path: Path, killed_at_every_moment: Any
) -> None:
    def check(place: Path, finished: bool) -> None:
        runs = all_runs(place)
        assert runs or not finished
        assert all(run.metadata()["recipe"] == HEAD["recipe"] for run in runs)
        run = make(place)
        with run.lock():
            assert run.metadata()["recipe"] == HEAD["recipe"]
        assert [path.name for path in run.path.parent.iterdir()] == [run.id]

    assert killed_at_every_moment(tmp_path, lambda place: None, make, check) > 5


def _logged(place: Path) -> None:
    make(place, command="old").append("metrics.jsonl", *({"step": step, "loss": 2.0} for step in range(1, 6)))


def _resume(place: Path) -> None:
    run = make(place)
    with run.lock():
        run.record_start({**HEAD, "command": "new"})
        run.truncate_metrics(3)
        run.append("metrics.jsonl", {"step": 4, "loss": 2.0})


def _check_resumed(place: Path, finished: bool) -> None:
    run = make(place)
    with run.lock():
        assert run.metadata()["command"] in (("new",) if finished else ("new", "old"))
    assert not list(run.path.glob(".*"))
    left = [record["step"] for record in run.records("metrics.jsonl")]
    assert left in ([1, 2, 3, 4, 5], [1, 2, 3], [1, 2, 3, 4])
    assert {4, 5} <= {*left, *(record["step"] for record in run.records("metrics-undone.jsonl"))}


def test_killed_at_any_moment_of_resuming_no_earlier_line_is_lost(tmp_path: Path, killed_at_every_moment: Any) -> None:
    assert killed_at_every_moment(tmp_path, _logged, _resume, _check_resumed) > 10


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_fails_at_any_moment_is_our_error_and_harms_no_line(
    tmp_path: Path, code: int, killed_at_every_moment: Any
) -> None:
    assert killed_at_every_moment(tmp_path, _logged, _resume, _check_resumed, code) > 10


def test_a_read_only_place_is_refused_with_another_way(small_disk: Any) -> None:
    place = small_disk(1 << 20)
    run = make(place)
    small_disk.make_read_only(place)
    for action in (lambda: make(place, "new"), lambda: run.append("metrics.jsonl", {}), lambda: run.lock().__enter__()):
        with pytest.raises(UserError, match=r"cannot be written .*NUMERATE_RUNS"):
            action()
    assert find_run("latest", place).metadata()["recipe"] == HEAD["recipe"]
    assert make(place).path == run.path


@pytest.mark.parametrize("address", ["x" * 5000, "~nobody-of-this-name/run", "\0", "", "["])
def test_an_odd_address_is_refused_and_nothing_worse(tmp_path: Path, address: str) -> None:
    make(tmp_path, "aaa111")
    make(tmp_path, "aaa222")
    with pytest.raises(UserError):
        find_run(address, tmp_path)


def test_what_another_process_clears_meanwhile_does_not_stop_who_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second process that begins the same run removes what it made, just when the first tidies it away."""
    folder = RunFolder.create(tmp_path, "sums", "0123456789ab", {"recipe": {}})
    left = disk.temporary_path(folder.path)
    left.mkdir()
    true = shutil.rmtree

    def late(path: Path, *given: Any, **more: Any) -> None:
        true(path)
        true(path, *given, **more)  # it is gone by now

    monkeypatch.setattr(shutil, "rmtree", late)
    with folder.lock():
        assert not left.exists()
