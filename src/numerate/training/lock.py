"""A lock on a folder, for one writer at a time; it ends with its process."""

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakSet

from numerate.errors import OperationalError, UserError
from numerate.records.reading import parse_record
from numerate.training import disk

_open_locks: "WeakSet[Lock]" = WeakSet()
_LOCKED_ERRNOS = {errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK}
_UNSUPPORTED_ERRNOS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
_WAIT_INTERVAL = 0.05  # seconds between two attempts to acquire a lock that another process holds


class LockedError(UserError):
    """Another process is writing the folder; trying again later may work."""


class Lock:
    """An exclusive `flock` on a file, which names its holder: `{"host", "pid", "started", "doing"}`.

    The kernel releases it when the process ends in any way, so there are no stale locks; the existence of the file
    means nothing. A forked child does not inherit it. The folder is locked as well, if the file system supports it, so
    that deleting the lock file does not admit a second writer; not with `with_folder=False`, for folders of many locks.
    """

    def __init__(self, path: Path, *, with_folder: bool = True) -> None:
        self.path, self._with_folder = path, with_folder
        self._fds: list[int] = []
        self._depth = 0
        _open_locks.add(self)

    @contextlib.contextmanager
    def hold(
        self, activity: str, *, timeout: float = 0.0, sleep: Callable[[float], object] = time.sleep
    ) -> Iterator[bool]:
        """Holds the lock; yields True for the outermost use. Raises `LockedError`, which names the holder, if another
        process still holds it after `timeout` seconds, between which `sleep` is called."""
        end = time.monotonic() + timeout
        while self._depth == 0 and not self._fds:
            try:
                with disk.convert_os_errors(self.path):
                    self._acquire(activity)
            except LockedError:
                if time.monotonic() >= end:
                    raise
                sleep(_WAIT_INTERVAL)
        self._depth += 1
        try:
            yield self._depth == 1
        finally:
            if self._depth:  # 0 in a forked child, which holds nothing
                self._depth -= 1
                if self._depth == 0:
                    self._release()

    def _acquire(self, activity: str) -> None:
        try:
            if self._with_folder:
                self._lock_folder()
            file_fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            self._fds.append(file_fd)
            try:
                _flock_with_retries(file_fd)
            except OSError as error:
                if error.errno in _UNSUPPORTED_ERRNOS:
                    raise OperationalError(
                        f"{self.path}: this file system cannot lock files, so two processes could write one run; "
                        "set runs_dir= to a folder on another one."
                    ) from error
                if error.errno in _LOCKED_ERRNOS:
                    raise self._locked_error() from error
                raise
        except BaseException:
            self._close()
            raise
        holder = {"host": socket.gethostname(), "pid": os.getpid(), "started": _now(), "doing": activity}
        with contextlib.suppress(OSError):  # a full disk: then a second process is refused without a name
            os.ftruncate(file_fd, 0)
            os.pwrite(file_fd, json.dumps(holder).encode() + b"\n", 0)

    def _lock_folder(self) -> None:
        self._fds.append(os.open(self.path.parent, os.O_RDONLY))
        try:
            _flock_with_retries(self._fds[-1])
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK):
                raise self._locked_error() from error  # other errors: this file system locks files only

    def _release(self) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self._fds[-1], 0)
        self._close()

    def _close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())

    def release_after_fork(self) -> None:
        """Drops the parent's lock in a forked child. Closing the copy does not release the lock of the parent."""
        self._close()
        self._depth = 0

    def is_held(self) -> bool:
        """Whether any process holds it now. No other process can acquire it during the check."""
        import fcntl

        try:
            fd = os.open(self.path, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in _LOCKED_ERRNOS
        finally:
            os.close(fd)
        return False

    def holder(self) -> dict[str, Any] | None:
        """The holder by the file, `{"host", "pid", ...}`: None where there is none, or where that process is gone."""
        try:
            record = parse_record(self.path.read_bytes())
        except OSError:
            return None
        return record if record is not None and {"host", "pid"} <= set(record) and not has_ended(record) else None

    def _locked_error(self) -> LockedError:
        holder = self._wait_for_holder()
        if holder is None:
            who = "another process"
        else:
            who = f"process {holder['pid']} on {holder['host']} ({holder.get('doing')}, since {holder.get('started')})"
        return LockedError(f"{self.path.parent}: is being written by {who}. Wait until it has ended, or stop it.")

    def _wait_for_holder(self) -> dict[str, Any] | None:
        """The last holder according to the file; waits briefly for a process that has just acquired the lock and not
        yet written."""
        for _ in range(10):
            if (found := self.holder()) is not None:
                return found
            time.sleep(0.02)
        return None


def _flock_with_retries(fd: int) -> None:
    """Locks an open file or folder, trying for about 50 ms: `is_held` takes it for a moment."""
    import fcntl

    for wait in (0.005, 0.015, 0.03, None):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if wait is None or error.errno not in _LOCKED_ERRNOS:
                raise
            time.sleep(wait)


def has_ended(process: Mapping[str, Any]) -> bool:
    """Whether a process, known by its `host` and `pid`, has certainly ended: it ran on this machine and no longer
    exists."""
    if process["host"] != socket.gethostname():
        return False
    try:
        os.kill(int(process["pid"]), 0)
        state = Path(f"/proc/{int(process['pid'])}/stat").read_text().rpartition(")")[2].split()
    except ProcessLookupError:
        return True
    except (OSError, ValueError, TypeError, OverflowError):
        return False
    return state[:1] == ["Z"]  # a zombie: ended, not yet reaped


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _after_fork() -> None:
    for lock in list(_open_locks):
        lock.release_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
