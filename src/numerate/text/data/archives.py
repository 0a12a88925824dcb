"""Unpacking downloaded archives: each file atomically, only expected files, and within limits.

Only the files that the dataset lists are extracted: no links, no paths outside the folder, no names of numerate's
records. Sizes and members are counted while reading, regardless of what the archive declares, in constant memory.
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

from numerate.config import Spec, setting
from numerate.errors import OperationalError
from numerate.text.data.datasets import RemoteFile
from numerate.text.tasks.fetched_files import RECORD_FILE
from numerate.training import disk

PARTIAL_SUFFIX = ".part"
"""Suffix of an incomplete file."""

CHUNK_BYTES = 1 << 18

MAX_UNPACK_RATIO = 20
"""Largest ratio of unpacked size to archive size; texts have 3 to 10."""

MIN_SIZE_LIMIT = 100_000_000
"""Unpacked bytes that are always allowed, however small the archive is."""

MAX_MEMBERS = 10_000
"""Maximum number of members of an archive, including skipped ones."""

_MAX_HEADER_BYTES = 1 << 22
"""Maximum size of the headers between two members, or of the list of members."""


@dataclass(frozen=True)
class UnpackLimits(Spec):
    """How large an archive may be unpacked, and how many members it may have."""

    max_bytes: int | None = setting(
        None, "bytes; null: 100 MB, or 20 times the size of the archive if that is more", at_least=1
    )
    max_members: int = setting(MAX_MEMBERS, "number of members", at_least=1)

    def max_bytes_for(self, archive: Path) -> int:
        """The limit in bytes for an archive."""
        return (
            self.max_bytes
            if self.max_bytes is not None
            else max(MIN_SIZE_LIMIT, MAX_UNPACK_RATIO * archive.stat().st_size)
        )


ProgressCallback = Callable[[str, int, int | None], None]
"""Called with the file, the bytes done, and the total (None: unknown)."""


def has_size(path: Path, size: int) -> bool:
    """Whether a file exists with this size."""
    return path.is_file() and path.stat().st_size == size


def copy_stream(
    source: IO[bytes], target: IO[bytes], name: str, total: int | None, on_progress: ProgressCallback | None
) -> int:
    """Copies a stream to a file and syncs it. Returns the number of bytes."""
    bytes_copied = 0
    while chunk := source.read(CHUNK_BYTES):
        target.write(chunk)
        bytes_copied += len(chunk)
        if on_progress is not None:
            on_progress(name, bytes_copied, total)
    target.flush()
    os.fsync(target.fileno())
    return bytes_copied


def unpack(
    archive: Path,
    folder: Path,
    remote: RemoteFile,
    on_progress: ProgressCallback | None,
    limits: UnpackLimits = UnpackLimits(),
) -> dict[str, int]:
    """Unpacks the expected files of an archive, each atomically. Returns the size of each.

    Raises `OperationalError` for an archive that is damaged or not the expected one, and for one above the limits,
    which is kept so that it can be unpacked with higher limits.
    """
    files: dict[str, int] = {}
    counter = _ReadCounter(archive, limits)
    try:
        for name, size, content in _read_members(archive, remote, counter):
            path = folder / name
            if name in files:
                raise tarfile.ReadError(f"it has {name} twice")
            path.parent.mkdir(parents=True, exist_ok=True)
            partial_path = path.with_name(path.name + PARTIAL_SUFFIX)
            try:
                with open(partial_path, "wb") as target:
                    files[name] = copy_stream(content, target, name, size, on_progress)
                os.replace(partial_path, path)
            except BaseException:
                partial_path.unlink(missing_ok=True)
                raise
    except _UNPACK_ERRORS as error:
        archive.unlink()
        raise OperationalError(
            f"{archive}: cannot be unpacked ({error}) and was removed; run the same command to download it again"
        ) from error
    missing = [name for name in remote.members if not (folder / name).exists()]
    if missing:
        raise OperationalError(f"{archive}: has no {missing[0]}; it is not the expected archive")
    disk.fsync(folder)
    return files


_UNPACK_ERRORS = (
    *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError),
    *(RuntimeError, NotImplementedError, ValueError),  # zipfile: a password, a method that is not known, a bad number
)


class _ReadCounter:
    """Counts what is read of an archive. Raises `OperationalError` beyond the limits."""

    def __init__(self, archive: Path, limits: UnpackLimits) -> None:
        self._archive, self._max_bytes, self._limits = archive, limits.max_bytes_for(archive), limits
        self._num_bytes = self._num_members = 0

    def add_member(self) -> None:
        self._num_members += 1
        if self._num_members > self._limits.max_members:
            self._raise_limit_error(f"has more than {self._limits.max_members:,} members", "members")

    def add_bytes(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        if self._num_bytes > self._max_bytes:
            self._raise_limit_error(f"has more than {disk.format_bytes(self._max_bytes)} unpacked", "size")

    def _raise_limit_error(self, what: str, name: str) -> None:
        raise OperationalError(
            f"{self._archive}: {what}, more than expected for text; the archive is kept. Raise the limit with "
            f"unpacked_{name}= (`numerate data fetch`) or use another copy"
        )


class _CountingStream(io.RawIOBase):
    """A stream whose bytes are counted when they are read."""

    def __init__(self, stream: IO[bytes], count: _ReadCounter) -> None:
        self._stream, self._count = stream, count

    def read(self, size: int = -1) -> bytes:
        chunk = self._stream.read(CHUNK_BYTES if size < 0 else size)
        self._count.add_bytes(len(chunk))
        return chunk


class _TarStream(_CountingStream):
    """The counted stream of a tar. Its headers, read whole into memory, have at most `_MAX_HEADER_BYTES` bytes each."""

    is_content = False
    """Whether the content of a member is being read, in chunks."""
    _header_bytes = 0

    def read(self, size: int = -1) -> bytes:
        chunk = super().read(size)
        self._header_bytes = 0 if self.is_content else self._header_bytes + len(chunk)
        if self._header_bytes > _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header has more than {disk.format_bytes(_MAX_HEADER_BYTES)}")
        return chunk


class _ZipIndexFile(io.FileIO):
    """The file of a zip, of which the list of members is read at once: not more than `_MAX_HEADER_BYTES` of it."""

    def read(self, size: int | None = -1) -> bytes:
        max_bytes = _MAX_HEADER_BYTES + 1
        chunk = super().read(max_bytes if size is None or size < 0 else min(size, max_bytes))
        if len(chunk) == max_bytes:
            raise zipfile.BadZipFile(f"its list of members has more than {disk.format_bytes(_MAX_HEADER_BYTES)}")
        return chunk


def _read_members(
    archive: Path, remote: RemoteFile, counter: _ReadCounter
) -> Iterator[tuple[str, int | None, IO[bytes]]]:
    """Name, declared size (for progress alone) and content of each expected file of an archive.

    Names are without their common top folder. Other members, and those that are not regular files, are skipped."""
    if remote.archive_format == "gz":
        with gzip.open(archive, "rb") as content:
            yield remote.members[0], None, _CountingStream(content, counter)  # type: ignore[arg-type,misc]
    elif remote.archive_format == "zip":
        with _ZipIndexFile(archive) as file, zipfile.ZipFile(file) as zip_file:
            for info in zip_file.infolist():
                counter.add_member()
                name = _member_path(info.filename, remote.members)
                if name and not info.is_dir() and not stat.S_ISLNK(info.external_attr >> 16):
                    with zip_file.open(info) as content:
                        yield name, info.file_size, _CountingStream(content, counter)  # type: ignore[misc]
    else:
        with gzip.open(archive, "rb") as decompressed:
            stream = _TarStream(decompressed, counter)  # type: ignore[arg-type]
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                for member in tar:
                    counter.add_member()
                    extracted = tar.extractfile(member) if member.isfile() and not member.issparse() else None
                    name = _member_path(member.name, remote.members)
                    if extracted is not None:
                        stream.is_content = True
                        if name:
                            yield name, member.size, extracted
                        while extracted.read(CHUNK_BYTES):
                            pass
                        stream.is_content = False


def _member_path(name: str, expected: tuple[str, ...]) -> str | None:
    """A path without its first folder, where it is one of `expected` or below one; None for any other, and for records
    of what was fetched, which nobody else writes."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or any(part.startswith(".") or part == RECORD_FILE for part in parts):
        return None
    relative_path = "/".join(parts if len(parts) == 1 else parts[1:])
    return (
        relative_path
        if any(relative_path == held or relative_path.startswith(f"{held}/") for held in expected)
        else None
    )
