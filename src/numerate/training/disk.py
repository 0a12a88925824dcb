"""Writing so that a failure loses nothing: whole files by rename, whole lines by one write, clear errors.

A file that is replaced is written beside its place, flushed to the disk and renamed over it: whoever opens it finds
the old or the new one, never a half. A line is appended by one write; what a crash left behind a file's last line end
is cleared away before the next line is put there.
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
from typing import Any

from numerate.errors import OperationalError, UserError
from numerate.records.reading import record_of

BESIDE = ".tmp-"
"""Prefix of unfinished files and folders, which the next holder of the lock removes."""

_FULL = {errno.ENOSPC, errno.EDQUOT}
_WRAPPED = re.compile(r"\(os error (\d+)\)")  # an operating system error in a message of safetensors
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


def explain(error: OSError, path: Path, safe: str = "") -> UserError | OperationalError:
    """Our error for an `OSError`, with what it means for the user. `safe` names what is not harmed.

    A full disk, a quota and a size limit are Faults; a place that may not be written is a UserError (choose another).
    """
    where, end = f"{path}: ", f" {safe}" if safe else ""
    if error.errno in _FULL:
        try:
            there = os.statvfs(next(place for place in (path, *path.absolute().parents) if place.exists()))
            free = f" ({size(there.f_bavail * there.f_frsize)} free)"
        except OSError:
            free = ""
        what = "the disk is full" if error.errno == errno.ENOSPC else "the disk quota is used up"
        return OperationalError(f"{where}{what}{free}.{end} Make room and give the same command again.")
    if error.errno == errno.EFBIG:
        return OperationalError(f"{where}the file would be larger than this process may write (see `ulimit -f`).{end}")
    if error.errno in _REFUSED:
        return UserError(
            f"{where}cannot be written ({error.strerror}). Another place for runs is given by runs_dir= or "
            f"NUMERATE_RUNS.{end}"
        )
    if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG):
        return UserError(f"{where}is not a place for this ({error.strerror}).{end}")
    return OperationalError(f"{where}{error.strerror or error}.{end}")


def is_full(error: BaseException) -> bool:
    """Whether an error, or one of its causes, means a full disk or quota."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        wrapped = _WRAPPED.search(str(cause))
        code = cause.errno if isinstance(cause, OSError) else int(wrapped[1]) if wrapped else None
        if code in _FULL:
            return True
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return False


@contextlib.contextmanager
def explained(path: Path, safe: str = "") -> Iterator[None]:
    """Turns an `OSError` (also one that safetensors wraps in its own class) inside into what `explain` makes of it."""
    try:
        yield
    except OSError as error:
        raise explain(error, path, safe) from error
    except Exception as error:
        number = _WRAPPED.search(str(error))
        if number is None or isinstance(error, UserError | OperationalError):
            raise
        code = int(number[1])
        raise explain(OSError(code, os.strerror(code)), path, safe) from error


def size(count: float) -> str:
    """Bytes with a unit: `size(1_500_000)` is `"1.5 MB"`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def beside(path: Path) -> Path:
    """A fresh name in the same folder for the unfinished `path`."""
    return path.with_name(f"{BESIDE}{path.name}-{os.getpid()}-{uuid.uuid4().hex[:8]}")


def sync(path: Path) -> None:
    """Waits until a file's content, or a folder's list of names, is on the disk. Some file systems cannot do the
    latter (they answer "invalid argument") and are believed."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP, errno.EBADF)):
            raise
    finally:
        os.close(number)


def replace(path: Path, content: bytes, safe: str = "") -> None:
    """Puts `content` at `path`, as a whole or not at all. Raises what `explain` makes of a failure."""
    new = beside(path)
    with explained(path, safe):
        try:
            with open(new, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(new)
            raise
        sync(path.parent)


def line(record: Mapping[str, Any]) -> bytes:
    """One record as a line of JSON. Numbers that are not finite become null, so that any JSON reader can read it."""
    text = json.dumps(plain(record, finite=True), ensure_ascii=False, allow_nan=False)
    return text.encode(errors="backslashreplace") + b"\n"


def plain(value: Any, *, finite: bool = False) -> Any:
    """Numbers of numpy and torch as Python's, tuples as lists, paths as text; with `finite`, None for what is not."""
    if isinstance(value, float):  # numpy's float64 too
        return float(value) if math.isfinite(value) or not finite else None
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str | os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item, finite=finite) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, finite=finite) for item in value]
    return plain(value.tolist(), finite=finite)


def append(path: Path, records: Iterable[Mapping[str, Any]], *, durable: bool = False, safe: str = "") -> None:
    """Appends records as lines of JSON: all of them, or none when the disk is full.

    Half a line that a crash left at the end is cut away first; a last line that only lacks its line end gets one.
    `durable` waits until the lines are on the disk; without it they survive the process, but not a power cut.
    """
    content = b"".join(line(record) for record in records)
    if not content:
        return
    with explained(path, safe):
        number = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            end, lacking = _whole_end(number)
            if end < os.fstat(number).st_size:
                os.ftruncate(number, end)
            written, content = 0, b"\n" * lacking + content
            try:
                while written < len(content):
                    written += os.write(number, content[written:])
            except BaseException:
                os.ftruncate(number, end)
                raise
            if durable:
                os.fsync(number)
        finally:
            os.close(number)


def _whole_end(number: int) -> tuple[int, bool]:
    """Where the last whole record of an open file of lines ends, and whether its line end is lacking."""
    size = end = os.fstat(number).st_size
    tail = b""
    while end > 0 and b"\n" not in tail:
        step = min(end, 1 if not tail else 65536)
        end -= step
        tail = os.pread(number, step, end) + tail
    rest = tail[tail.rfind(b"\n") + 1 :]
    if not rest:
        return size, False
    return (size, True) if record_of(rest) is not None else (size - len(rest), False)


def append_text(path: Path, text: str) -> None:
    """Appends text to a log, by one write."""
    with explained(path):
        number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(number, text.encode(errors="backslashreplace"))
        finally:
            os.close(number)
