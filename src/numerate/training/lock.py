"""A lock on a folder, for one writer at a time; it ends with its process."""

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from numerate.errors import OperationalError, UserError
from numerate.records.reading import parse_record
from numerate.training import disk

_UNSUPPORTED_ERRNOS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
_MIN_TIMEOUT = 0.1  # seconds: `is_held` takes a lock for a moment


class LockedError(UserError):
    """Another process is writing the folder; trying again later may work."""


class Lock:
    """An exclusive lock on a file, by filelock: `flock`, so also between machines where the file system has it.

    The kernel releases it when the process ends in any way, so there are no stale locks; the existence of the file
    means nothing. A forked child does not inherit it. The file names the holder, for messages:

        {"host": "node7", "pid": 4711, "started": "2026-03-01 12:00:30", "doing": "training"}
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._activity = ""
        self._renew()

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._lock = FileLock(
            self.path, thread_local=False, fallback_to_soft=False, on_acquired=self._write_holder, poll_interval=0.01
        )

    @contextlib.contextmanager
    def hold(self, activity: str, *, timeout: float = 0.0) -> Iterator[bool]:
        """Holds the lock, also nested; yields True for the outermost use.

        Raises `LockedError`, which names the holder, if another process still holds it after `timeout` seconds;
        `OperationalError` on a file system without locks.
        """
        if self._pid != os.getpid():
            self._renew()  # a forked child holds nothing
        is_outermost = not self._lock.is_locked
        self._activity = activity
        with disk.convert_os_errors(self.path):
            try:
                self._lock.acquire(timeout=max(timeout, _MIN_TIMEOUT))
            except Timeout as error:
                raise self._locked_error() from error
            except OSError as error:
                if error.errno not in _UNSUPPORTED_ERRNOS:
                    raise
                raise OperationalError(
                    f"{self.path}: this file system cannot lock files, so two processes could write one run; "
                    "set runs_dir= to a folder on another one."
                ) from error
        pid = os.getpid()
        try:
            yield is_outermost
        finally:
            if pid == os.getpid():
                self._lock.release()

    def is_held(self) -> bool:
        """Whether any process holds it now. Needs no permission to write."""
        import fcntl

        with contextlib.suppress(OSError), open(self.path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError as error:
                return error.errno in (errno.EAGAIN, errno.EACCES)
        return False

    def _write_holder(self, fd: int) -> None:
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        holder = {"host": socket.gethostname(), "pid": os.getpid(), "started": started, "doing": self._activity}
        with contextlib.suppress(OSError):  # a full disk: then a second process is refused without a name
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(holder).encode() + b"\n", 0)

    def _locked_error(self) -> LockedError:
        holder, who = None, "another process"
        with contextlib.suppress(OSError):
            holder = parse_record(self.path.read_bytes())
        if holder is not None and {"host", "pid"} <= holder.keys():
            who = f"process {holder['pid']} on {holder['host']} ({holder.get('doing')}, since {holder.get('started')})"
        return LockedError(f"{self.path.parent}: is being written by {who}. Wait until it has ended, or stop it.")
