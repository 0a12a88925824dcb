"""Promises of checkpoints: whole or not there, recognised when corrupted, and the last good one never lost."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from numerate.errors import OperationalError, UserError
from numerate.training import checkpoint
from numerate.training.checkpoint import clean_up, find_corruption, latest_valid, list_steps, resume, write
from numerate.training.finding import select_checkpoints

torch.set_num_threads(1)


def tensors(step: int) -> dict[str, dict[str, Tensor]]:
    return {"weights": {"w": torch.full((8, 8), float(step))}, "optimizer": {"m": torch.arange(4) + step}}


def put(folder: Path, step: int, **settings: Any) -> checkpoint.Checkpoint:
    return write(folder, step, tensors(step), {"place": step}, **settings)


def is_sound(found: checkpoint.Checkpoint) -> bool:
    groups = found.read()
    wanted = tensors(found.step)
    return found.state == {"place": found.step} and all(
        torch.equal(groups[group][name], value) for group in wanted for name, value in wanted[group].items()
    )


def garble(path: Path) -> None:
    """Changes one bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_tensors_and_state_come_back_bit_by_bit_and_in_order(tmp_path: Path) -> None:
    shared = torch.randn(3, 4)
    groups = {
        "weights": {
            "z": shared,
            "tied": shared,
            "column": shared[:, 1],
            "turned": shared.t(),
            "half": torch.tensor([1.5, float("nan"), float("-inf")], dtype=torch.bfloat16),
            "empty": torch.zeros(0, 3),
            "empty too": torch.zeros(0, 3),
            "number": torch.tensor(2**62),
            "learned": torch.nn.Parameter(torch.randn(2)),
        },
        "random": {"torch": torch.get_rng_state()},
    }
    state = {"rate": 0.1 + 0.2, "key": 2**127 + 1, "best": float("inf"), "list": [1, None, True], "text": "ü"}
    write(tmp_path, 7, groups, state)
    found, warnings = latest_valid(tmp_path)
    assert found is not None
    assert not warnings
    assert found.state == state
    back = found.read()
    for group, named in groups.items():
        assert list(back[group]) == list(named)
        for name, value in named.items():
            assert back[group][name].dtype == value.dtype
            assert back[group][name].shape == value.shape
            assert torch.equal(back[group][name].nan_to_num(5), value.detach().nan_to_num(5))
    assert back["weights"]["tied"].data_ptr() == back["weights"]["z"].data_ptr()


def test_the_last_ones_and_the_best_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        put(tmp_path, step, keep_last=2, best=2 if step >= 2 else None)
    assert list_steps(tmp_path) == [2, 4, 5]
    put(tmp_path, 6, keep_last=None)
    assert list_steps(tmp_path) == [2, 4, 5, 6]
    put(tmp_path, 7, keep_last=1, best=7)
    assert list_steps(tmp_path) == [7]
    for step in (999_999, 1_000_000, 5):  # ordered as numbers; later ones than that written are never removed
        put(tmp_path, step, keep_last=1)
    assert list_steps(tmp_path) == [5, 1_000_000]
    assert list_steps(tmp_path / "nowhere") == []


def test_what_a_kept_checkpoint_knew_as_best_is_kept_with_it(tmp_path: Path) -> None:
    put(tmp_path, 1, best=1)
    put(tmp_path, 2, best=1)
    put(tmp_path, 3, best=3)
    garble(tmp_path / "step-000003" / "weights.safetensors")
    [best], warnings = select_checkpoints(tmp_path, "best")
    assert best.step == 1
    assert is_sound(best)
    assert len(warnings) == 1


# Corrupted checkpoints


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def removed(path: Path) -> None:
    path.unlink()


def no_folder(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.write_text("")


@pytest.mark.parametrize("harm", [cut_short, garble, emptied, zeroed, removed, no_folder])
@pytest.mark.parametrize("name", ["weights.safetensors", "state.json"])
def test_a_torn_checkpoint_is_recognised_and_the_one_before_is_taken_with_a_warning(
    tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    put(tmp_path, 100)
    put(tmp_path, 200)
    harm(tmp_path / "step-000200" / name)
    found, warnings = latest_valid(tmp_path)
    assert found is not None
    assert found.step == 100
    assert is_sound(found)
    (warning,) = warnings
    assert "step-000200: this checkpoint is " in warning
    assert name in warning or harm is no_folder
    assert warning.endswith(" That of step 100 is used.")
    with pytest.raises(OperationalError, match=r"step-000200: this checkpoint is (incomplete|corrupt): "):
        checkpoint.Checkpoint(tmp_path / "step-000200", 200, None, {}).read()


def test_every_changed_byte_of_the_state_is_noticed(tmp_path: Path) -> None:
    path = put(tmp_path, 100).path / "state.json"
    content = path.read_bytes()
    for at in range(0, len(content), 7):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        if find_corruption(path.parent) is None:  # white space only
            assert json.loads(path.read_bytes()) == json.loads(content)


@pytest.mark.parametrize("content", ["[]", "[" * 100_000, '{"sha256": 1}', '{"sha256": null, "files": 3}'])
def test_a_state_that_is_something_else_is_corrupted(tmp_path: Path, content: str) -> None:
    (put(tmp_path, 200).path / "state.json").write_text(content)
    found, warnings = latest_valid(tmp_path)
    assert found is None
    assert "state.json" in warnings[0]


def test_resuming_sets_torn_checkpoints_aside_and_loses_none(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        put(tmp_path, step, keep_last=None)
    garble(tmp_path / "step-000300" / "optimizer.safetensors")
    cut_short(tmp_path / "step-000100" / "state.json")
    found, warnings = resume(tmp_path)
    assert found is not None
    assert found.step == 200
    assert [warning.partition("renamed to ")[2] for warning in warnings] == ["torn-000100.", "torn-000300."]
    assert (tmp_path / "torn-000300" / "weights.safetensors").exists()
    put(tmp_path, 300, keep_last=1)
    assert sorted(os.listdir(tmp_path)) == ["step-000300", "torn-000100", "torn-000300"]


def test_without_a_sound_checkpoint_there_is_none_and_a_warning(tmp_path: Path) -> None:
    assert latest_valid(tmp_path / "nowhere") == (None, [])
    emptied(put(tmp_path, 100).path / "weights.safetensors")
    found, (_,) = resume(tmp_path)
    assert found is None
    with pytest.raises(UserError, match="has no checkpoint yet; torn-000100 cannot be used; train the run first"):
        select_checkpoints(tmp_path, "final")


@pytest.mark.parametrize("name", ["final", "best", "all", "100"])
def test_where_no_checkpoint_can_be_used_the_file_and_the_cause_are_named(name: str, tmp_path: Path) -> None:
    garble(put(tmp_path, 100, best=100).path / "weights.safetensors")
    message = r"step-000100: .*checksum of weights.safetensors does not match\. No other checkpoint of the run"
    with pytest.raises(OperationalError, match=message):
        select_checkpoints(tmp_path, name)


@pytest.mark.parametrize(("name", "steps"), [("final", [200]), ("best", [100]), ("all", [100, 200]), ("100", [100])])
def test_weights_can_be_selected_without_the_state_of_the_optimizer(
    name: str, steps: list[int], tmp_path: Path
) -> None:
    """It may have been deleted to save space."""
    for step in (100, 200):
        removed(put(tmp_path, step, best=100).path / "optimizer.safetensors")
    found, warnings = select_checkpoints(tmp_path, name)
    assert [at.step for at in found] == steps
    assert not warnings
    assert torch.equal(found[0].read(only=["weights"])["weights"]["w"], tensors(found[0].step)["weights"]["w"])


@pytest.mark.parametrize("name", ["best", "200"])
def test_a_damaged_checkpoint_that_was_asked_for_is_an_error_with_those_that_can_be_used(
    name: str, tmp_path: Path
) -> None:
    for step in (100, 200, 300, 400):
        put(tmp_path, step, keep_last=None, best=200)
    removed(tmp_path / "step-000200" / "weights.safetensors")
    garble(tmp_path / "step-000300" / "weights.safetensors")
    with pytest.raises(OperationalError, match=r"step-000200.* is missing.* Checkpoints that can be used: 100, 400\."):
        select_checkpoints(tmp_path, name)


@pytest.mark.parametrize(
    ("written", "message"), [(99, r"format 99.*update numerate"), (3, r"was written by an earlier version of numerate")]
)
def test_another_format_is_refused_and_not_set_aside(
    written: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "FORMAT", written)
        put(tmp_path, 100)
    with pytest.raises(UserError, match=message):
        resume(tmp_path)
    assert list_steps(tmp_path) == [100]


def test_a_disk_that_cannot_be_read_is_not_taken_for_a_torn_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, 100)

    def fail(path: Path) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(checkpoint, "_file_digest", fail)
    with pytest.raises(OperationalError, match="Input/output error"):
        resume(tmp_path)
    assert list_steps(tmp_path) == [100]


# Names


def test_checkpoints_are_named_final_best_all_or_by_their_step(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        put(tmp_path, step, keep_last=None, best=200)
    named = {
        name: [at.step for at in select_checkpoints(tmp_path, name)[0]]
        for name in ("final", "best", "all", "100", "step-000200")
    }
    assert named == {"final": [300], "best": [200], "all": [100, 200, 300], "100": [100], "step-000200": [200]}
    garble(tmp_path / "step-000300" / "weights.safetensors")
    good, warnings = select_checkpoints(tmp_path, "all")
    assert [at.step for at in good] == [100, 200]
    assert len(warnings) == 1
    assert [at.step for at in select_checkpoints(tmp_path, "final")[0]] == [200]


@pytest.mark.parametrize(
    ("name", "says"),
    [("400", "no checkpoint of step 400; there are: 100"), ("last", "'last' must be final, best, all or a step")],
)
def test_a_name_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path, name: str, says: str) -> None:
    put(tmp_path, 100)
    with pytest.raises(UserError, match=says):
        select_checkpoints(tmp_path, name)
    with pytest.raises(UserError, match="no best checkpoint was chosen"):
        select_checkpoints(tmp_path, "best")


# Interruptions


def three(place: Path) -> None:
    for step in (100, 200):
        put(place, step, best=100)


def leftovers(place: Path) -> None:
    three(place)
    put(place, 300, keep_last=None, best=100)
    os.rename(place / "step-000200", place / ".old-step-000200")
    shutil.copytree(place / "step-000300", place / ".old-step-000300")
    shutil.copytree(place / "step-000300", place / ".tmp-step-000400-1-x")


def write_next(place: Path) -> None:
    put(place, 300, keep_last=1, best=100)


def write_again(place: Path) -> None:
    put(place, 200, best=100)


def put_right(place: Path) -> None:
    clean_up(place)
    resume(place)


def check_folder(place: Path, at_least: int) -> None:
    clean_up(place)
    found, warnings = resume(place)
    assert found is not None
    assert found.step >= at_least
    assert is_sound(found)
    assert not warnings
    assert not list(place.glob(".*")), "something unfinished was left"
    assert 100 in list_steps(place), "the best was lost"


@pytest.mark.parametrize(
    ("prepare", "act", "last", "finished_last"),
    [(three, write_next, 200, 300), (three, write_again, 200, 200), (leftovers, put_right, 300, 300)],
)
def test_killed_at_any_moment_the_folder_opens_with_a_good_checkpoint(
    prepare: Any, act: Any, last: int, finished_last: int, tmp_path: Path, killed_at_every_moment: Any
) -> None:
    def check(place: Path, finished: bool) -> None:
        check_folder(place, finished_last if finished else last)
        assert act is not put_right or list_steps(place) == [100, 200, 300]

    assert killed_at_every_moment(tmp_path, prepare, act, check) > 5


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_a_disk_that_fails_at_any_moment_harms_no_earlier_checkpoint(
    tmp_path: Path, code: int, killed_at_every_moment: Any
) -> None:
    def check(place: Path, finished: bool) -> None:
        assert [at.step for at in select_checkpoints(place, "best")[0]] == [100]
        check_folder(place, 300 if finished else 200)

    assert killed_at_every_moment(tmp_path, three, write_next, check, code) > 15


def test_files_may_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        modes = {oct(path.stat().st_mode & 0o777) for path in put(tmp_path, 1).path.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"0o644"}
    assert sorted(os.listdir(tmp_path / "step-000001")) == [
        "optimizer.safetensors",
        "state.json",
        "weights.safetensors",
    ]
