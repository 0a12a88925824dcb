"""Atomic writes: files by rename, lines by one write, clear errors.

A new version of a file is written to a temporary file, flushed to disk and renamed, so that readers see either the old
or the new version. A line is appended by one write; an incomplete last line, left by a crash, is removed before the
next append.
"""

import contextlib
import errno
import json
import math
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from numerate.errors import OperationalError, UserError, chain_of_causes
from numerate.records.reading import parse_record

TEMPORARY_PREFIX = ".tmp-"
"""Prefix of unfinished files and folders, which the next holder of the lock removes."""

Place = Literal["runs", "data", "out"]
"""What a path is in, which decides how another one is set."""

_ADVICE: Mapping[Place, str] = {
    "runs": "Set another folder with runs_dir= or NUMERATE_RUNS.",
    "data": "Set another folder for datasets with NUMERATE_DATA.",
    "out": "Choose another path with out=.",
}
_DISK_FULL_ERRNOS = {errno.ENOSPC, errno.EDQUOT}
_PERMISSION_ERRNOS = {errno.EACCES, errno.EPERM, errno.EROFS}
_PATH_ERRNOS = {errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG}


@contextlib.contextmanager
def convert_os_errors(path: Path, unharmed_note: str = "", *, place: Place = "runs") -> Iterator[None]:
    """Converts an `OSError` (also one that safetensors wraps in its own class) to an error of ours, with advice.

    `unharmed_note` says what is still intact. A full disk, a quota and a size limit are OperationalErrors; a read-only
    folder is a UserError.
    """
    try:
        yield
    except (UserError, OperationalError):
        raise
    except Exception as error:
        if (code := _os_error_code(error)) is None:
            raise
        raise _converted(code, error, path, unharmed_note, place) from error


def is_full(error: BaseException) -> bool:
    """Whether an error, or one of its causes, means a full disk or quota."""
    return any(_os_error_code(cause) in _DISK_FULL_ERRNOS for cause in chain_of_causes(error))


def _os_error_code(error: BaseException) -> int | None:
    """The number of an operating system error; 0 if it has none, None for any other error."""
    if isinstance(error, OSError):
        return error.errno or 0
    wrapped = re.search(r"\(os error (\d+)\)", str(error))  # in a message of safetensors
    return int(wrapped[1]) if wrapped else None


def _converted(
    code: int, error: Exception, path: Path, unharmed_note: str, place: Place
) -> UserError | OperationalError:
    prefix, suffix = f"{'out: ' * (place == 'out')}{path}: ", f" {unharmed_note}" if unharmed_note else ""
    reason = getattr(error, "strerror", None) or (os.strerror(code) if code else str(error))
    if code in _DISK_FULL_ERRNOS:
        what = "the disk is full" if code == errno.ENOSPC else "the disk quota is used up"
        with contextlib.suppress(OSError):
            file_system = os.statvfs(next(one for one in (path, *path.absolute().parents) if one.exists()))
            what += f" ({format_bytes(file_system.f_bavail * file_system.f_frsize)} free)"
        return OperationalError(f"{prefix}{what}.{suffix} Free disk space and run the same command again.")
    if code in _PERMISSION_ERRNOS:
        return UserError(f"{prefix}cannot be written ({reason}). {_ADVICE[place]}{suffix}")
    # without a folder: a file system without new files, such as /proc
    if code in _PATH_ERRNOS or (place == "out" and code == errno.ENOENT):
        return UserError(f"{prefix}cannot be created here ({reason}). {_ADVICE[place]}{suffix}")
    return OperationalError(f"{prefix}{reason}.{suffix}")


def make_folder(path: Path, unharmed_note: str = "", *, place: Place = "runs") -> None:
    """Creates a folder with its parents, unless it exists. Raises the error of `convert_os_errors` on failure."""
    with convert_os_errors(path, unharmed_note, place=place):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:  # a file system that has no new folders, such as /proc
            raise NotADirectoryError(errno.ENOTDIR, error.strerror) from error


def format_bytes(count: float) -> str:
    """Bytes with a unit.

    >>> format_bytes(1_500_000)
    '1.5 MB'
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def temporary_path(path: Path) -> Path:
    """A fresh name in the same folder for the unfinished `path`."""
    return path.with_name(f"{TEMPORARY_PREFIX}{path.name}-{os.getpid()}-{uuid.uuid4().hex[:8]}")


def fsync(path: Path) -> None:
    """Flushes a file's content, or a folder's list of names, to disk. The error of file systems without the latter
    ("invalid argument") is ignored."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP, errno.EBADF)):
            raise
    finally:
        os.close(fd)


def write_atomically(path: Path, content: bytes, unharmed_note: str = "", *, place: Place = "runs") -> None:
    """Writes `content` to `path` atomically. Raises the error of `convert_os_errors` on failure."""
    new_path = temporary_path(path)
    with convert_os_errors(path, unharmed_note, place=place):
        try:
            with open(new_path, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new_path, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(new_path)
            raise
        fsync(path.parent)


def json_line(record: Mapping[str, Any]) -> bytes:
    """One record as a line of JSON, which has no numbers that are not finite: they are "nan", "inf" or "-inf"."""
    text = json.dumps(to_plain_data(record, finite=True), ensure_ascii=False, allow_nan=False)
    return text.encode(errors="backslashreplace") + b"\n"


def to_plain_data(value: Any, *, finite: bool = False) -> Any:
    """Converts numpy and torch numbers to Python's, tuples to lists, paths to text; with `finite`, non-finite numbers
    to the texts "nan", "inf" and "-inf"."""
    if isinstance(value, float):  # numpy's float64 too
        return float(value) if math.isfinite(value) or not finite else str(float(value))
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str | os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, Mapping):
        return {str(key): to_plain_data(item, finite=finite) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_data(item, finite=finite) for item in value]
    return to_plain_data(value.tolist(), finite=finite)


def append_records(
    path: Path, records: Iterable[Mapping[str, Any]], *, durable: bool = False, unharmed_note: str = ""
) -> None:
    """Appends records as lines of JSON: all of them, or none when the disk is full.

    An incomplete last line, left by a crash, is removed first; a complete one without its newline gets one. `durable`
    flushes to disk; without it the lines survive the process, but not a power failure.
    """
    content = b"".join(json_line(record) for record in records)
    if not content:
        return
    with convert_os_errors(path, unharmed_note):
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            end = os.fstat(fd).st_size
            if end and os.pread(fd, 1, end - 1) != b"\n":
                last_line = path.read_bytes().rpartition(b"\n")[2]
                if parse_record(last_line) is None:
                    end -= len(last_line)
                    os.ftruncate(fd, end)
                else:
                    content = b"\n" + content
            try:
                while content:
                    content = content[os.write(fd, content) :]
            except BaseException:
                os.ftruncate(fd, end)
                raise
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)


def append_text(path: Path, text: str) -> None:
    """Appends text to a log, by one write."""
    with convert_os_errors(path), open(path, "ab", buffering=0) as file:
        file.write(text.encode(errors="backslashreplace"))
