"""Promises of the lock on a folder: one writer, who is named, until its process ends in whatever way."""

import errno
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from numerate.errors import OperationalError
from numerate.training.lock import Lock, LockedError

fcntl = pytest.importorskip("fcntl", reason="this system has no flock")

HOLDER = """
import sys
from pathlib import Path
from numerate.training.lock import Lock
with Lock(Path(sys.argv[1])).hold("evaluation"):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused_with_the_first_named_until_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    words = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "locked\n"
        message = rf"{tmp_path}: is being written by process {first.pid} on .*\(evaluation, since"
        with pytest.raises(LockedError, match=message), Lock(path).hold("testing"):
            pass
        assert Lock(path).is_held()
        first.kill()
        first.wait()
    assert not Lock(path).is_held()
    with Lock(path).hold("testing"):
        assert json.loads(path.read_text())["pid"] == os.getpid()


def test_what_a_killed_process_left_in_the_file_is_not_taken_for_a_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for left in (b'{"host": "elsewhere", "pid": 1}', b"\xff{", b"[]", b'{"pid": "x", "host": 3}'):
        path.write_bytes(left)
        message = f"process {os.getpid()} "
        with Lock(path).hold("testing"), pytest.raises(LockedError, match=message), Lock(path).hold("again"):
            pass


def test_it_may_be_nested_and_is_free_afterwards(tmp_path: Path) -> None:
    lock, other = Lock(tmp_path / "lock"), Lock(tmp_path / "lock")
    with lock.hold("training") as is_outermost:
        with lock.hold("report") as is_outermost_again:
            assert (is_outermost, is_outermost_again) == (True, False)
        assert other.is_held()
        with pytest.raises(LockedError), other.hold("testing"):
            pass
    assert not other.is_held()
    with other.hold("testing") as is_outermost:
        assert is_outermost


def test_who_may_wait_has_it_once_it_is_free(tmp_path: Path) -> None:
    lock, held, free = Lock(tmp_path / "lock"), threading.Event(), threading.Event()

    def hold() -> None:
        with Lock(tmp_path / "lock").hold("testing"):
            held.set()
            free.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    threading.Timer(0.3, free.set).start()
    start = time.monotonic()
    with lock.hold("testing", timeout=60):
        assert 0.2 < time.monotonic() - start < 30
    thread.join()


def test_checking_whether_it_is_held_refuses_no_writer_that_starts_at_that_moment(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        looked = threading.Timer(0.02, lambda: fcntl.flock(file, fcntl.LOCK_UN))
        looked.start()
        with Lock(path).hold("testing"):
            pass
        looked.join()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_named(tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(OperationalError, match="cannot lock files"), Lock(tmp_path / "lock").hold("testing"):
        pass
