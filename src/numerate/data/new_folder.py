"""A folder that appears under its name when all of it is written, and never over another."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from numerate.errors import Mistake
from numerate.training import disk


def refuse_taken(out: Path) -> None:
    """Raises `Mistake` for a folder that is there already."""
    if out.exists() or out.is_symlink():
        raise Mistake(f"out: {out} is there already and is not overwritten; another folder is right")


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` to write into, which becomes `out` at the end, and is gone if anything failed.

    Raises `Mistake` where `out` is there or may not be written, `Fault` where the disk is full.
    """
    refuse_taken(out)
    try:
        with disk.explained(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            beside = disk.beside(out)
            beside.mkdir()
            try:
                yield beside
                if out.exists():
                    raise Mistake(f"out: {out} has appeared meanwhile and is not overwritten; another folder is right")
                os.rename(beside, out)
                disk.sync(out.parent)
            except BaseException:
                shutil.rmtree(beside, ignore_errors=True)
                raise
    except Mistake as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise Mistake(f"out: {out} cannot be written ({cause.strerror}); another folder is right") from cause
        raise
