"""The sha256 of the files of a task, to detect changes."""

import contextlib
import hashlib
import json
import os
import time
import uuid
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from numerate.errors import UserError
from numerate.tasks.folders import cache_folder

MIN_CACHED_SIZE = 1 << 24
"""The sha256 of files of at least this many bytes is cached in the user's cache folder."""

_TIMESTAMP_SAFETY_NS = 2_000_000_000
"""Nanoseconds after which the time of a file's last change tells it from any later one, on every file system in use."""


class FileStamp(NamedTuple):
    """What changes when a file changes: its path, size, and modification times."""

    path: str
    size: int
    modified: int
    changed: int


def file_sha256(path: Path) -> str:
    """The sha256 of a file's bytes, in hexadecimal. Raises `UserError` if it cannot be read.

    A file is not read again as long as its size and modification times stay the same.
    """
    try:
        stamp = _file_stamp(path)
        if time.time_ns() - max(stamp.modified, stamp.changed) < _TIMESTAMP_SAFETY_NS:
            return _digest(stamp.path)
        return _cached_digest(stamp)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error


def _file_stamp(path: Path) -> FileStamp:
    stat = path.stat()
    return FileStamp(os.path.realpath(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@lru_cache(maxsize=4096)
def _cached_digest(stamp: FileStamp) -> str:
    if stamp.size < MIN_CACHED_SIZE:
        return _digest(stamp.path)
    name = hashlib.sha256(os.fsencode(stamp.path)).hexdigest()
    cache_path = cache_folder() / "sums" / f"{name}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):
        record = json.loads(cache_path.read_text(encoding="utf-8"))
        if record[:-1] == [*stamp]:
            return str(record[-1])
    digest = _digest(stamp.path)
    if _file_stamp(Path(stamp.path)) == stamp:
        _write_cache(cache_path, json.dumps([*stamp, digest]))
    return digest


def _write_cache(cache_path: Path, text: str) -> None:
    """Writes a cache entry atomically; without it the file is read again the next time."""
    temporary_path = cache_path.with_name(f".{cache_path.name}.{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):
        cache_path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary_path.write_text(text, encoding="utf-8")
            os.replace(temporary_path, cache_path)
        finally:
            temporary_path.unlink(missing_ok=True)


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
