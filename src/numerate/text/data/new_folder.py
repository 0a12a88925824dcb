"""Writing a folder atomically, never over another.

Until then it has a temporary name beside its target, and a lock held by the process that writes it. What a killed
process left is recognised by its free lock, and removed when a folder is next written there.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from numerate.errors import OperationalError, UserError
from numerate.training import disk
from numerate.training.lock import Lock

_LOCK = ".lock"


def refuse_taken(out: Path) -> None:
    """Raises `UserError` for a folder that is there already."""
    if out.exists() or out.is_symlink():
        raise UserError(f"out: {out} is there already and is not overwritten; another folder is right")


def clear_left(parent: Path) -> None:
    """Removes the unfinished folders in `parent` whose processes have ended; those of living ones stay, and those that
    may not be removed."""
    for lock in parent.glob(f"{disk.BESIDE}*/{_LOCK}"):
        with contextlib.suppress(UserError, OperationalError), Lock(lock).hold("clear away"):
            shutil.rmtree(lock.parent, ignore_errors=True)


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` to write into, which becomes `out` at the end, and is gone if anything failed.

    What processes that were killed have left beside it is removed first. Raises `UserError` where `out` is there or may
    not be written, `OperationalError` where the disk is full.
    """
    refuse_taken(out)
    try:
        with disk.explained(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            clear_left(out.parent)
            beside = disk.beside(out)
            beside.mkdir()
            try:
                with Lock(beside / _LOCK).hold("write"):
                    yield beside
                    if out.exists():
                        raise UserError(
                            f"out: {out} has appeared meanwhile and is not overwritten; another folder is right"
                        )
                    os.rename(beside, out)
                    (out / _LOCK).unlink()
                disk.sync(out.parent)
            except BaseException:
                shutil.rmtree(beside, ignore_errors=True)
                raise
    except UserError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise UserError(f"out: {out} cannot be written ({cause.strerror}); another folder is right") from cause
        raise
