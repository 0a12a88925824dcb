"""Writing a folder atomically, never over another.

Until then it has a temporary name beside its target, and a lock held by the process that writes it. What a killed
process left is recognized by its free lock, and removed when a folder is next written there.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from numerate.errors import OperationalError, UserError
from numerate.text.tasks.input_errors import file_error
from numerate.training import disk
from numerate.training.lock import Lock

_LOCK_FILE = ".lock"

LineBlocks = Callable[[], Iterator[Sequence[bytes]]]
"""The lines of a file, block by block."""


def check_not_existing(out: Path) -> None:
    """Raises `UserError` for a folder that is there already."""
    if out.exists() or out.is_symlink():
        raise file_error(f"out: {out}", "already exists and is not overwritten; choose another folder")


def remove_unfinished_folders(parent: Path) -> None:
    """Removes the unfinished folders in `parent` whose processes have ended; those of living ones stay, and those that
    may not be removed."""
    for lock in parent.glob(f"{disk.TEMPORARY_PREFIX}*/{_LOCK_FILE}"):
        with contextlib.suppress(UserError, OperationalError), Lock(lock).hold("clear away"):
            shutil.rmtree(lock.parent, ignore_errors=True)


@contextlib.contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` to write into, which becomes `out` at the end, and is gone if anything failed.

    What processes that were killed have left beside it is removed first. Raises `UserError` where `out` is there or may
    not be written, `OperationalError` where the disk is full.
    """
    check_not_existing(out)
    disk.make_folder(out.parent, place="out")
    with disk.convert_os_errors(out, place="out"):
        remove_unfinished_folders(out.parent)
        temporary = disk.temporary_path(out)
        temporary.mkdir()
        try:
            with Lock(temporary / _LOCK_FILE).hold("write"):
                yield temporary
                check_not_existing(out)
                os.rename(temporary, out)
                (out / _LOCK_FILE).unlink()
            disk.fsync(out.parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def write_lines(
    files: Mapping[str, LineBlocks], out: str | Path, on_progress: Callable[[int, str], None] | None = None
) -> dict[str, int]:
    """Writes the files below a new folder, which appears under its name when all is written, and returns how many lines
    (or other entries of a block) each has.

    `on_progress` gets how many there are so far, and the file that is being written. Raises `UserError` for a folder
    that exists already.
    """
    num_lines: dict[str, int] = {}
    with atomic_folder(Path(out)) as temporary:
        for file, blocks in files.items():
            path = temporary / file
            path.parent.mkdir(parents=True, exist_ok=True)
            num_lines[file] = 0
            with open(path, "xb") as stream:
                for lines in blocks():
                    stream.write(b"".join(lines))
                    num_lines[file] += len(lines)
                    if on_progress is not None:
                        on_progress(sum(num_lines.values()), file)
                stream.flush()
                os.fsync(stream.fileno())
    return num_lines
