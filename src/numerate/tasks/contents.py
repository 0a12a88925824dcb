"""What is in the files that a task reads: a sha256 of each, by which a change is noticed."""

import contextlib
import hashlib
import json
import os
import time
import uuid
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from numerate.errors import UserError
from numerate.tasks.folders import numerate_cache

LARGE = 1 << 24
"""The sha256 of files of so many bytes is remembered in the user's cache, so that they are read once and not at every
start."""

_SETTLED = 2_000_000_000
"""Nanoseconds after which the time of a file's last change tells it from any later one, on every file system in use."""


class Stamp(NamedTuple):
    """What is another as soon as a file has changed: its place, size, and the times of its last changes."""

    path: str
    size: int
    modified: int
    changed: int


def sha256_of(path: Path) -> str:
    """The sha256 of a file's bytes, in hexadecimal. Raises `UserError` where it cannot be read.

    A file is not read again as long as its size and the times of its last changes stay the same.
    """
    try:
        stamp = _stamp(path)
        if time.time_ns() - max(stamp.modified, stamp.changed) < _SETTLED:
            return _digest(stamp.path)
        return _remembered(stamp)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error


def named(paths: Iterable[Path]) -> dict[str, Path]:
    """Files by the shortest ends of their paths that tell them apart, wherever the folder that they are in lies.

    >>> list(named([Path("/data/train-easy/sums.txt"), Path("/data/train-hard/sums.txt"), Path("/data/test.txt")]))
    ['train-easy/sums.txt', 'train-hard/sums.txt', 'test.txt']
    """
    every = list(dict.fromkeys(path.absolute() for path in paths))
    found: dict[str, Path] = {}
    parts, left = 1, every
    while left:
        ends = [Path(*path.parts[-parts:]).as_posix() for path in left]
        times = Counter(ends)
        alone = [times[end] == 1 for end in ends]
        found |= {end: path for end, path, one in zip(ends, left, alone, strict=True) if one}
        left = [path for path, one in zip(left, alone, strict=True) if not one]
        parts += 1
    of_path = {path: name for name, path in found.items()}
    return {of_path[path]: path for path in every}


def _stamp(path: Path) -> Stamp:
    found = path.stat()
    return Stamp(os.path.realpath(path), found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@lru_cache(maxsize=4096)
def _remembered(stamp: Stamp) -> str:
    if stamp.size < LARGE:
        return _digest(stamp.path)
    name = hashlib.sha256(os.fsencode(stamp.path)).hexdigest()
    place = numerate_cache() / "sums" / f"{name}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):
        record = json.loads(place.read_text(encoding="utf-8"))
        if record[:-1] == [*stamp]:
            return str(record[-1])
    digest = _digest(stamp.path)
    if _stamp(Path(stamp.path)) == stamp:
        _keep(place, json.dumps([*stamp, digest]))
    return digest


def _keep(place: Path, text: str) -> None:
    """Puts a note into the cache, as a whole or not at all; without it the file is read again the next time."""
    beside = place.with_name(f".{place.name}.{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            beside.write_text(text, encoding="utf-8")
            os.replace(beside, place)
        finally:
            beside.unlink(missing_ok=True)


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
