"""Unpacking downloaded archives: each file atomically, only expected files, and within limits.

Only the files that the dataset lists are extracted: no links, no paths outside the folder, no names of our own records.
Sizes and members are counted while reading, whatever the archive declares, in constant memory.
"""

import gzip
import io
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from numerate.errors import OperationalError, UserError
from numerate.text.data.datasets import Remote
from numerate.text.tasks.fetched_files import RECORD
from numerate.training import disk

PART = ".part"
"""Suffix of an incomplete file."""

PORTION = 1 << 18

RATIO = 20
"""Largest ratio of unpacked size to archive size; texts have 3 to 10."""

ROOM = 100_000_000
"""Unpacked bytes that any archive may have, however small it is."""

MEMBERS = 10_000
"""Most members of an archive, including skipped ones."""

_HEADERS = 1 << 22
"""Most bytes of the headers between two members, or of the list of members."""


@dataclass(frozen=True)
class Limits:
    """How large an archive may be unpacked, and how many members it may have.

    `size` in bytes; None: 100 MB, or 20 times the archive where that is more. Raises `UserError` for limits below 1.
    """

    size: int | None = None
    members: int = MEMBERS

    def __post_init__(self) -> None:
        for name, value in (("size", self.size), ("members", self.members)):
            if value is not None and value < 1:
                raise UserError(f"unpacking: a limit of {value} ({name}) leaves nothing; 1 or more is right")

    def of(self, archive: Path) -> int:
        """The limit in bytes for an archive."""
        return self.size if self.size is not None else max(ROOM, RATIO * archive.stat().st_size)


ProgressCallback = Callable[[str, int, int | None], None]
"""Called with the file, the bytes done, and the total (None: unknown)."""


def has_size(path: Path, size: int) -> bool:
    """Whether a file exists with this size."""
    return path.is_file() and path.stat().st_size == size


def pour(
    read: IO[bytes], written: IO[bytes], name: str, total: int | None, on_progress: ProgressCallback | None
) -> int:
    """Copies a stream to a file and syncs it. Returns the number of bytes."""
    done = 0
    while portion := read.read(PORTION):
        written.write(portion)
        done += len(portion)
        if on_progress is not None:
            on_progress(name, done, total)
    written.flush()
    os.fsync(written.fileno())
    return done


def unpack(
    archive: Path, folder: Path, remote: Remote, on_progress: ProgressCallback | None, limits: Limits = Limits()
) -> dict[str, int]:
    """Unpacks the expected files of an archive, each atomically. Returns the size of each.

    Raises `OperationalError` for an archive that is damaged or not the one that is meant, and for one beyond the
    limits; that one stays, so that it can be unpacked with larger ones.
    """
    files: dict[str, int] = {}
    count = _Count(archive, limits)
    try:
        for name, size, content in _members(archive, remote, count):
            path = folder / name
            if name in files:
                raise tarfile.ReadError(f"{name} is in it twice")
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(path.name + PART)
            try:
                with open(part, "wb") as written:
                    files[name] = pour(content, written, name, size, on_progress)
                os.replace(part, path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
    except _BROKEN as error:
        archive.unlink()
        raise OperationalError(
            f"{archive}: cannot be unpacked ({error}) and is removed; the same command fetches it anew"
        ) from error
    lacking = [name for name in remote.holds if not (folder / name).exists()]
    if lacking:
        raise OperationalError(f"{archive}: has no {lacking[0]}; it is not the archive that is meant")
    disk.sync(folder)
    return files


_BROKEN = (
    *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError),
    *(RuntimeError, NotImplementedError, ValueError),  # zipfile: a password, a method that is not known, a bad number
)


class _Count:
    """Counts what is read of an archive. Raises `OperationalError` beyond the limits."""

    def __init__(self, archive: Path, limits: Limits) -> None:
        self._archive, self._most, self._limits = archive, limits.of(archive), limits
        self._size = self._members = 0

    def member(self) -> None:
        self._members += 1
        if self._members > self._limits.members:
            self._refuse(f"has more than {self._limits.members:,} members", "members")

    def bytes(self, more: int) -> None:
        self._size += more
        if self._size > self._most:
            self._refuse(f"has more than {disk.size(self._most)} unpacked", "size")

    def _refuse(self, what: str, name: str) -> None:
        raise OperationalError(
            f"{self._archive}: {what}, where texts have less; it is kept. A larger unpacked_{name}= takes it all the "
            "same (`numerate data fetch`), or another copy is right"
        )


class _Counted(io.RawIOBase):
    """A stream whose bytes are counted when they are read."""

    def __init__(self, stream: IO[bytes], count: _Count) -> None:
        self._stream, self._count = stream, count

    def read(self, size: int = -1) -> bytes:
        found = self._stream.read(PORTION if size < 0 else size)
        self._count.bytes(len(found))
        return found


class _Headers(io.RawIOBase):
    """The stream of a tar, counted, of which no more than `_HEADERS` bytes may be read at a time beside contents."""

    def __init__(self, stream: IO[bytes], count: _Count) -> None:
        self._stream, self._left = _Counted(stream, count), _HEADERS

    def content(self) -> None:
        """Contents are being read, which are held no longer than a portion of them."""
        self._left = _HEADERS

    def read(self, size: int = -1) -> bytes:
        found = self._stream.read(size)
        self._left -= len(found)
        if self._left < 0:
            raise tarfile.ReadError(f"a header has more than {disk.size(_HEADERS)}")
        return found


class _Listed(io.FileIO):
    """The file of a zip, of which the list of members is read at once: not more than `_HEADERS` of it."""

    def read(self, size: int | None = -1) -> bytes:
        most = _HEADERS + 1
        found = super().read(most if size is None or size < 0 else min(size, most))
        if len(found) == most:
            raise zipfile.BadZipFile(f"its list of members has more than {disk.size(_HEADERS)}")
        return found


def _members(archive: Path, remote: Remote, count: _Count) -> Iterator[tuple[str, int | None, IO[bytes]]]:
    """Name, declared size (for progress alone) and content of each expected file of an archive.

    Names are without the folder that they are all in. Left out are all others, and what is no plain file."""
    if remote.unpack == "gz":
        with gzip.open(archive, "rb") as content:
            yield remote.holds[0], None, _Counted(content, count)  # type: ignore[arg-type,misc]
    elif remote.unpack == "zip":
        with _Listed(archive) as file, zipfile.ZipFile(file) as opened:
            for info in opened.infolist():
                count.member()
                name = _inside(info.filename, remote.holds)
                if name and not info.is_dir() and not stat.S_ISLNK(info.external_attr >> 16):
                    with opened.open(info) as content:
                        yield name, info.file_size, _Counted(content, count)  # type: ignore[misc]
    else:
        with gzip.open(archive, "rb") as whole:
            stream = _Headers(whole, count)  # type: ignore[arg-type]
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                for member in tar:
                    count.member()
                    found = tar.extractfile(member) if member.isfile() and not member.issparse() else None
                    name = _inside(member.name, remote.holds)
                    if found is not None:
                        watched = _Watched(found, stream.content)
                        if name:
                            yield name, member.size, watched  # type: ignore[misc]
                        while watched.read(PORTION):
                            pass


class _Watched(io.RawIOBase):
    """A stream that calls `on_read` before and after each read."""

    def __init__(self, stream: IO[bytes], on_read: Callable[[], None]) -> None:
        self._stream, self._on_read = stream, on_read

    def read(self, size: int = -1) -> bytes:
        self._on_read()
        found = self._stream.read(size)
        self._on_read()
        return found


def _inside(name: str, holds: tuple[str, ...]) -> str | None:
    """A path without its first folder, where it is one of `holds` or below one; None for any other, and for records of
    what was fetched, which nobody else writes."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or any(part.startswith(".") or part == RECORD for part in parts):
        return None
    inner = "/".join(parts if len(parts) == 1 else parts[1:])
    return inner if any(inner == held or inner.startswith(f"{held}/") for held in holds) else None
