"""Columns of numbers in a folder: a file for each, appended to while it is written and memory-mapped when it is read,
and `head.json`, which says what they are and has the size and sha256 of each file and a checksum of itself.

Columns that are computed from files are in memory, or in a cache folder, made once by however many processes. An entry
is written atomically, resumed if that was interrupted, and made anew where it is damaged. The cache may be deleted at
any time.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from numerate.errors import OperationalError, UserError
from numerate.tasks.contents import file_sha256
from numerate.tasks.folders import cache_folder
from numerate.text.tasks.input_errors import file_error
from numerate.training import disk

HEAD_FILE = "head.json"

MAX_IN_MEMORY = 1 << 23
"""What is made of files of up to this many bytes is kept in memory only."""

_CACHE_FORMAT = "numerate columns 1"
_PROGRESS_FILE = "progress.json"
_SECONDS_BETWEEN_SAVES = 10.0
_CHUNK_BYTES = 1 << 20

_REMEDY = "use an intact copy, or run `numerate data write` again into another folder"


class ColumnWriter:
    """Writes columns to a folder, without keeping them in memory. A file is created when it is first appended to.

        with ColumnWriter(folder) as columns:
            columns.append("ids", np.arange(3, dtype="<i8"))
            columns.write_head({"format": "my columns 1"})

    With `resume`, what an interrupted writer of the same folder had when it last saved its progress is kept, if it is
    intact: `num_done` rows. All else in the folder is removed.
    """

    def __init__(self, folder: Path, *, resume: bool = False) -> None:
        self.folder, self.num_done, self._saved_at = folder, 0, time.monotonic()
        self._files: dict[str, _HashedFile] = {}
        if resume and not self._keep_progress():
            self.close()
            self._files = {}
            for path in folder.iterdir():
                path.unlink()

    def _keep_progress(self) -> bool:
        """Opens the columns as they were when progress was last saved. Returns whether they are intact."""
        try:
            progress = json.loads((self.folder / _PROGRESS_FILE).read_text(encoding="utf-8"))
            for name, entry in progress["files"].items():
                self._files[name] = _HashedFile(self.folder / name, entry["bytes"])
            self.num_done = progress["done"] if self._entries() == progress["files"] else 0
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return self.num_done > 0

    def append(self, name: str, content: NDArray[Any] | bytes) -> None:
        """Appends an array, or bytes as they are, to a column."""
        if name not in self._files:
            self._files[name] = _HashedFile(self.folder / name)
        self._files[name].write(content if isinstance(content, bytes) else content.tobytes())

    def read(self, name: str, dtype: DTypeLike) -> NDArray[Any]:
        """What a column has so far, memory-mapped."""
        return open_column(self.folder / name, dtype)

    def save_progress(self, num_done: int) -> None:
        """Records that the columns have so many rows, every few seconds, for a writer that resumes this one."""
        if time.monotonic() - self._saved_at >= _SECONDS_BETWEEN_SAVES:
            content = json.dumps({"done": num_done, "files": self._entries()}).encode()
            disk.write_atomically(self.folder / _PROGRESS_FILE, content)
            self._saved_at = time.monotonic()

    def write_head(self, head: Mapping[str, Any]) -> None:
        """Writes the head, after flushing all columns to the disk."""
        self.close()
        disk.write_atomically(self.folder / HEAD_FILE, encode_head({**head, "files": self._entries()}))
        (self.folder / _PROGRESS_FILE).unlink(missing_ok=True)

    def _entries(self) -> dict[str, dict[str, Any]]:
        return {
            name: {"bytes": file.size, "sha256": file.hasher.hexdigest()} for name, file in sorted(self._files.items())
        }

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def __enter__(self) -> "ColumnWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _HashedFile:
    """A file with its size and hash so far: a new one, or the first `size` bytes of one that is there.

    Raises `OSError` or `ValueError` for one that is shorter."""

    def __init__(self, path: Path, size: int = 0) -> None:
        self._file: BinaryIO = open(path, "r+b" if size else "wb", buffering=0)  # noqa: SIM115 (closed by its writer)
        self.hasher, self.size = hashlib.sha256(), size
        while size:
            chunk = self._file.read(min(size, _CHUNK_BYTES))
            if not chunk:
                raise ValueError(f"{path}: is shorter than it was")
            self.hasher.update(chunk)
            size -= len(chunk)
        self._file.truncate(self.size)

    def write(self, content: bytes) -> None:
        view = memoryview(content)
        self.hasher.update(view)
        self.size += len(view)
        while len(view):
            view = view[self._file.write(view) :]

    def close(self) -> None:
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()


def open_column(path: Path, dtype: DTypeLike) -> NDArray[Any]:
    """A column, memory-mapped; empty where there is no file, or nothing in it."""
    return np.memmap(path, dtype, "r") if path.is_file() and path.stat().st_size else np.zeros(0, dtype)


def encode_head(head: Mapping[str, Any]) -> bytes:
    """The content of a head's file: what it says, and a checksum of that."""
    return json.dumps({**head, "sum": _head_sha256(head)}, indent=1, ensure_ascii=False).encode() + b"\n"


def read_verified_head(folder: Path, format: str, names: Collection[str]) -> dict[str, Any]:
    """The head of a folder, where its files are as they were written: of the same size and sha256.

    Raises `UserError` that names the file where one is not, for a file that is none of `names`, and for another format.
    """
    path = folder / HEAD_FILE
    try:
        head = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise file_error(folder, f"has no {HEAD_FILE}, so `numerate data write` did not write it") from None
    except (OSError, ValueError, RecursionError) as error:
        raise file_error(path, f"cannot be read ({error}); {_REMEDY}") from error
    if not isinstance(head, dict) or head.get("format") != format:
        raise file_error(path, f"is not {format!r}; this version of `numerate data write` did not write it")
    if head.get("sum") != _head_sha256(head):
        raise file_error(path, f"is not as it was written (its checksum is another); {_REMEDY}")
    if not set(head["files"]) <= set(names):
        raise file_error(path, f"lists files that are not row files; {_REMEDY}")
    for name, expected in head["files"].items():
        file, problem = folder / name, ""
        if not file.is_file():
            problem = "is missing"
        elif (size := file.stat().st_size) != expected["bytes"]:
            problem = f"is not as it was written ({size:,} bytes instead of {expected['bytes']:,})"
        elif file_sha256(file) != expected["sha256"]:
            problem = f"is not as it was written (its sha256 is another than {HEAD_FILE} says)"
        if problem:
            raise file_error(file, f"{problem}; {_REMEDY}; edited text is read without {HEAD_FILE} beside it")
    return head


def _head_sha256(head: Mapping[str, Any]) -> str:
    content = {name: value for name, value in head.items() if name != "sum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# Computed once -----------------------------------------------------------------------------------------------------


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
            writer.write_head({"format": _CACHE_FORMAT, **head})
    except UserError:  # a row that cannot be read; the file will be another
        shutil.rmtree(partial, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)  # a damaged one
    os.replace(partial, folder)
    disk.fsync(folder.parent)


def _open(folder: Path, dtypes: Mapping[str, DTypeLike]) -> Columns | None:
    """The columns of a folder; None if it is missing or damaged."""
    try:
        head = read_verified_head(folder, _CACHE_FORMAT, dtypes)
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
