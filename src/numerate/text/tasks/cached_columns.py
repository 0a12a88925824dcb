"""Columns that are computed: in memory, or in files of a cache folder, made once by however many processes.

An entry is written atomically, resumed if that was interrupted, and made anew where it is damaged. The cache may be
deleted at any time.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from numerate.errors import OperationalError, UserError
from numerate.tasks.folders import cache_folder
from numerate.text.tasks.columns import ColumnWriter, open_column, read_verified_head
from numerate.training import disk

FORMAT = "numerate columns 1"

MAX_IN_MEMORY = 1 << 23
"""What is made of files of up to this many bytes is kept in memory only."""


def cached_folder(kind: str, key: str, files: Iterable[Path]) -> Path | None:
    """The cache folder of what is made of files, by the kind of it and a hash of all it depends on; None for small
    files."""
    is_small = sum(file.stat().st_size for file in files) <= MAX_IN_MEMORY
    return None if is_small else cache_folder() / kind / key


class MemoryColumns:
    """Columns in memory, written like those of a `ColumnWriter`."""

    num_done = 0

    def __init__(self) -> None:
        self._arrays: dict[str, list[NDArray[Any]]] = {}

    def append(self, name: str, content: NDArray[Any]) -> None:
        self._arrays.setdefault(name, []).append(content)

    def save_progress(self, num_done: int) -> None:
        """Nothing: what is in memory does not outlive its process."""

    def read(self, name: str, dtype: DTypeLike) -> NDArray[Any]:
        return np.concatenate([np.zeros(0, dtype), *self._arrays.get(name, [])])


class Columns(NamedTuple):
    """What the head of columns says, and the columns by name."""

    head: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


AnyColumns = MemoryColumns | ColumnWriter
"""What columns are written to."""

Build = Callable[[AnyColumns], dict[str, Any]]
"""Writes all columns, from row `num_done` on, and returns what their head says."""


def build_columns(build: Build, dtypes: Mapping[str, DTypeLike], folder: Path | None) -> Columns:
    """The columns with these types that `build` writes: in memory without a folder, else memory-mapped from it.

    One process builds the folder, and others wait for it. Raises `OperationalError` if it cannot be written.
    """
    if folder is None:
        memory = MemoryColumns()
        head = build(memory)
        return Columns(head, {name: memory.read(name, dtype) for name, dtype in dtypes.items()})
    if (columns := _open(folder, dtypes)) is not None:
        return columns
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _folder_lock(folder):
            columns = _open(folder, dtypes)  # another process may have made it meanwhile
            if columns is None:
                _write(folder, build)
                columns = _open(folder, dtypes)
    except OSError as error:
        raise OperationalError(
            f"{folder.parent}: cannot be written ({error}); NUMERATE_CACHE names another folder"
        ) from error
    if columns is None:
        raise OperationalError(f"{folder}: the cache entry cannot be read back; check the disk")
    return columns


def _write(folder: Path, build: Build) -> None:
    """Writes a folder that becomes `folder` when it is complete; resumes one that was interrupted."""
    partial = folder.with_name(f".{folder.name}.partial")
    partial.mkdir(exist_ok=True)
    try:
        with ColumnWriter(partial, resume=True) as writer:
            head = build(writer)
            writer.write_head({"format": FORMAT, **head})
    except UserError:  # a row that cannot be read; the file will be another
        shutil.rmtree(partial, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)  # a damaged one
    os.replace(partial, folder)
    disk.fsync(folder.parent)


def _open(folder: Path, dtypes: Mapping[str, DTypeLike]) -> Columns | None:
    """The columns of a folder; None if it is missing or damaged."""
    try:
        head = read_verified_head(folder, FORMAT, dtypes)
    except UserError:
        return None
    return Columns(head, {name: open_column(folder / name, dtype) for name, dtype in dtypes.items()})


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Locks the folder against other processes of this machine, if the file system supports locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(folder.parent / f".{folder.name}.lock", "w") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
