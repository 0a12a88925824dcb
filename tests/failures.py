"""Failures on purpose: kills and disk errors at every moment, and a small disk that can be full or read-only."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from numerate.errors import OperationalError, UserError
from numerate.training.stopping import Stop

TOUCHES = {
    "open",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.mkdir",
    "os.truncate",
    "os.chmod",
    "os.listdir",
    "os.scandir",
}
"""Python's audit events for files. An `open` comes before each write and each flush to the disk."""

BY_NUMBER = {"os.truncate", "os.remove", "os.rmdir", "os.scandir"}
"""Those that may be given an open file or folder, or a name inside one, for which no path is known."""

UNTOUCHED, REPORTED, OTHER, IN_SPITE = 0, 3, 4, 5
"""How a failing work ended: never reached, with an error of ours, with another error, well in spite of it."""

Work = Callable[[Path], Any]
Check = Callable[[Path, bool], None]


@pytest.fixture
def killed_at_every_moment(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The function below. Nothing is flushed: a kill takes nothing from the system, and waiting is for power cuts."""
    monkeypatch.setattr(os, "fsync", lambda number: None)
    return interrupt_at_every_moment


def interrupt_at_every_moment(folder: Path, prepare: Work, work: Work, check: Check, code: int | None = None) -> int:
    """Interrupts `work` (in a forked process) at its first touch of a file, its second, ... until it comes to its end.

    It is killed by SIGKILL; or with an error number `code` the touch fails with that, and only errors of ours may be
    raised. `check` is given the folder and whether the work came to its end. Returns the number of interruptions.
    """
    allowed = (UNTOUCHED, -signal.SIGKILL) if code is None else (UNTOUCHED, REPORTED, IN_SPITE)
    for moment in range(1000):
        place = folder / f"moment-{moment}"
        place.mkdir()
        prepare(place)
        child = os.fork()
        if child == 0:
            _work(place, work, moment, code)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert ended in allowed, f"ended with {ended}"
        check(place, ended in (UNTOUCHED, IN_SPITE))
        if ended == UNTOUCHED:
            return moment
        shutil.rmtree(place)
    raise AssertionError("the work does not come to an end")


def _work(place: Path, work: Work, moment: int, code: int | None) -> None:
    left, inside = [moment], str(place)

    def hook(event: str, details: tuple[Any, ...]) -> None:
        by_number = event in BY_NUMBER and not os.path.isabs(str(details[0]))
        if by_number or (event in TOUCHES and any(str(item).startswith(inside) for item in details[:2])):
            left[0] -= 1
            if left[0] == -1:
                if code is not None:
                    raise OSError(code, os.strerror(code))
                os.kill(os.getpid(), signal.SIGKILL)

    status = OTHER
    try:
        sys.addaudithook(hook)
        work(place)
        status = UNTOUCHED if left[0] >= 0 else IN_SPITE
    except (UserError, OperationalError):
        status = REPORTED
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(status)


class SmallDisks:
    """File systems in memory of so many bytes; skips where mounting is not allowed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mounted: list[Path] = []

    def __call__(self, size: int) -> Path:
        place = self.folder / f"disk-{len(self.mounted)}"
        place.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
        if shutil.which("mount") is None or subprocess.run(words, capture_output=True).returncode != 0:
            pytest.skip("mounting a file system needs rights that this user does not have")
        self.mounted.append(place)
        return place

    def make_read_only(self, place: Path) -> None:
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisks]:
    disks = SmallDisks(tmp_path)
    yield disks
    for place in disks.mounted:
        subprocess.run(["umount", str(place)], check=True)


class StopAt(Stop):
    """Requested at the `nth` time that the run looks."""

    def __init__(self, nth: int) -> None:
        super().__init__()
        self.left = nth

    @property
    def requested(self) -> bool:
        self.left -= 1
        return self.left <= 0


@pytest.fixture(scope="session")
def stop_at() -> type[StopAt]:
    """stop_at(7): a `Stop` that is requested at the seventh time that the run looks."""
    return StopAt


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return (self.file.touch, ())
