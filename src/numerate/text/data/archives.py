"""Unpacking downloaded archives: each file atomically, only expected files, and not more than a text can have.

Only the files that the dataset lists are extracted: no links, no paths outside the folder, no names of numerate's
records. Sizes are counted while reading, regardless of what the archive declares, in constant memory.
"""

import gzip
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

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

ProgressCallback = Callable[[str, int, int | None], None]
"""Called with the file, the bytes done, and the total (None: unknown)."""


def copy_stream(
    source: IO[bytes],
    target: IO[bytes],
    name: str,
    total: int | None,
    on_progress: ProgressCallback | None,
    max_bytes: int | None = None,
) -> int:
    """Copies a stream to a file and syncs it. Returns the number of bytes; stops where there are more than
    `max_bytes`."""
    bytes_copied = 0
    while (max_bytes is None or bytes_copied <= max_bytes) and (chunk := source.read(CHUNK_BYTES)):
        target.write(chunk)
        bytes_copied += len(chunk)
        if on_progress is not None:
            on_progress(name, bytes_copied, total)
    target.flush()
    os.fsync(target.fileno())
    return bytes_copied


def unpack(archive: Path, folder: Path, remote: RemoteFile, on_progress: ProgressCallback | None) -> dict[str, int]:
    """Unpacks the expected files of an archive, each atomically. Returns the size of each.

    Raises `OperationalError` for an archive that is damaged or not the expected one, and for one with more than 100 MB
    and 20 times its own size, which is kept.
    """
    files: dict[str, int] = {}
    max_bytes = max(MIN_SIZE_LIMIT, MAX_UNPACK_RATIO * archive.stat().st_size)
    try:
        for name, size, content in _read_members(archive, remote):
            path = folder / name
            if name in files:
                raise tarfile.ReadError(f"it has {name} twice")
            path.parent.mkdir(parents=True, exist_ok=True)
            partial_path = path.with_name(path.name + PARTIAL_SUFFIX)
            try:
                with open(partial_path, "wb") as target:
                    bytes_left = max_bytes - sum(files.values())
                    files[name] = copy_stream(content, target, name, size, on_progress, bytes_left)
                if files[name] > bytes_left:
                    raise OperationalError(
                        f"{archive}: has more than {disk.format_bytes(max_bytes)} unpacked, more than expected for "
                        "text; the archive is kept. Unpack it with another program, and copy its files with --from"
                    )
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


def _read_members(archive: Path, remote: RemoteFile) -> Iterator[tuple[str, int | None, IO[bytes]]]:
    """Name, declared size (for progress alone) and content of each expected file of an archive.

    Names are without their common top folder. Other members, and those that are not regular files, are skipped."""
    if remote.archive_format == "gz":
        with gzip.open(archive, "rb") as content:
            yield remote.members[0], None, content  # type: ignore[misc]
    elif remote.archive_format == "zip":
        with zipfile.ZipFile(archive) as zip_file:
            for info in zip_file.infolist():
                name = _member_path(info.filename, remote.members)
                if name and not info.is_dir() and not stat.S_ISLNK(info.external_attr >> 16):
                    with zip_file.open(info) as content:
                        yield name, info.file_size, content
    else:
        with tarfile.open(archive, mode="r|gz") as tar:
            for member in tar:
                name = _member_path(member.name, remote.members)
                extracted = tar.extractfile(member) if member.isfile() and not member.issparse() else None
                if name and extracted is not None:
                    yield name, member.size, extracted


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
