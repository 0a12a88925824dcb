"""Promises of folders that are written: whole or not at all, never over another, and reported in the user's words."""

import errno
import shutil
from pathlib import Path

import pytest

from numerate.errors import UserError
from numerate.text.data.new_folder import atomic_folder


def test_another_is_never_overwritten_be_it_there_before_or_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match="already exists and is not overwritten"), atomic_folder(tmp_path / "out"):
        raise AssertionError("nothing is begun")
    with pytest.raises(UserError, match="already exists and is not overwritten"), atomic_folder(tmp_path / "late"):
        (tmp_path / "late").mkdir()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["late", "out"]


def test_what_a_dead_process_left_is_removed_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "mine") as mine:
        left = tmp_path / ".tmp-left-1-0"
        shutil.copytree(mine, left)  # with its lock, which nobody holds
        other = tmp_path / ".tmp-of-another-program"
        other.mkdir()
        with atomic_folder(tmp_path / "out"):
            assert not left.exists()
            assert mine.is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == [other.name, "mine", "out"]
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_place_that_may_not_be_written_asks_for_another_folder(tmp_path: Path, number: int) -> None:
    with pytest.raises(UserError, match=r"^out: .*cannot be written .*Choose another path with out="):
        with atomic_folder(tmp_path / "out"):
            raise OSError(number, "not allowed")


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be created here"), atomic_folder(tmp_path / "file" / "out"):
        raise AssertionError("nothing is begun")
