"""Unpacking what was fetched, each file of it whole or not at all."""

import gzip
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from numerate.data.datasets import Remote
from numerate.errors import Fault
from numerate.training import disk

PART = ".part"
"""How the name of a file ends until all of it is there."""

PORTION = 1 << 18

Heard = Callable[[str, int, int | None], None]
"""Told of progress: the file, how many bytes of it there are, and of how many (None: nobody knows)."""


def has_size(path: Path, size: int) -> bool:
    """Whether a file is there with so many bytes."""
    return path.is_file() and path.stat().st_size == size


def pour(read: IO[bytes], written: IO[bytes], name: str, total: int | None, heard: Heard | None) -> int:
    """Copies what is read to a file, down to the disk. Returns how many bytes that were."""
    done = 0
    while portion := read.read(PORTION):
        written.write(portion)
        done += len(portion)
        if heard is not None:
            heard(name, done, total)
    written.flush()
    os.fsync(written.fileno())
    return done


def unpack(archive: Path, folder: Path, remote: Remote, heard: Heard | None) -> dict[str, int]:
    """Unpacks an archive file by file, each whole or not at all. Returns the size of each."""
    files: dict[str, int] = {}
    try:
        for name, size, content in _members(archive, remote):
            path = folder / name
            if size is None or not has_size(path, size):
                path.parent.mkdir(parents=True, exist_ok=True)
                part = path.with_name(path.name + PART)
                with open(part, "wb") as written:
                    done = pour(content, written, name, size, heard)
                if size is not None and done != size:
                    raise EOFError(f"{name} has {done} bytes instead of {size}")
                os.replace(part, path)
            files[name] = path.stat().st_size
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError) as error:
        archive.unlink()
        raise Fault(
            f"{archive}: cannot be unpacked ({error}) and is removed; the same command fetches it anew"
        ) from error
    lacking = [name for name in remote.holds if not (folder / name).exists()]
    if lacking:
        raise Fault(f"{archive}: has no {lacking[0]}; it is not the archive that is meant")
    disk.sync(folder)
    return files


def _members(archive: Path, remote: Remote) -> Iterator[tuple[str, int | None, IO[bytes]]]:
    """Name, size and content of each file of an archive, without the folder that they are all in. Names that lead
    elsewhere are left out, and so is what is no plain file."""
    if remote.unpack == "gz":
        with gzip.open(archive, "rb") as content:
            yield remote.holds[0], None, content  # type: ignore[misc]
    elif remote.unpack == "zip":
        with zipfile.ZipFile(archive) as opened:
            for info in opened.infolist():
                name = _inside(info.filename, remote.holds)
                if name and not info.is_dir():
                    with opened.open(info) as content:
                        yield name, info.file_size, content
    else:
        with tarfile.open(archive, "r|gz") as tar:
            for member in tar:
                name = _inside(member.name, remote.holds)
                found = tar.extractfile(member) if member.isfile() and name else None
                if found is not None and name:
                    yield name, member.size, found


def _inside(name: str, holds: tuple[str, ...]) -> str | None:
    """A path without its first folder; None for one that has none and is not expected so, is hidden, or leads out."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if len(parts) == 1 and parts[0] in holds:
        return parts[0]
    if len(parts) < 2 or ".." in parts or name.startswith("/") or "__MACOSX" in parts:
        return None
    return None if any(part.startswith(".") for part in parts) else "/".join(parts[1:])
