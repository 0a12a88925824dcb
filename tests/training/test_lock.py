"""Promises of the lock on a folder."""

import threading
from pathlib import Path

import pytest

from numerate.training.lock import Lock, LockedError

fcntl = pytest.importorskip("fcntl", reason="this system has no flock")


def test_checking_whether_it_is_locked_refuses_no_writer_that_starts_at_that_moment(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        looked = threading.Timer(0.02, lambda: fcntl.flock(file, fcntl.LOCK_UN))
        looked.start()
        with Lock(path).hold("testing"):
            pass
        looked.join()


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        Lock(path).hold("testing"),
        pytest.raises(LockedError, match=r"is being written by process .* \(testing"),
        Lock(path).hold("again"),
    ):
        pass
    assert not Lock(path).is_held()
