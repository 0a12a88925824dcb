"""How the last command on a run ended: `end.json` in its folder.

It is written atomically at the end and removed when the next session of training starts. A run is running if and only
if its lock is held, so no file says that.
"""

import os
import socket
import time
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

import msgspec

from numerate.errors import UserError
from numerate.records.reading import check_format, damage_message, parse_record, read_bytes
from numerate.records.schema import Count, Fraction, Loss, NonNegative, NonNegativeLoss
from numerate.runs.engines.engine import Failure, FailureKind
from numerate.runs.engines.failures import failure_to_record
from numerate.training import checkpoint, disk
from numerate.training.run_folder import RunFolder

END_FILE = "end.json"

T = TypeVar("T")

_REMEDY = "The run is unharmed: remove the file, and the same command reads its run again without training it."


class RunResults(TypedDict, total=False):
    """The end of the training of a run that is done and evaluated; numbers that are not finite are texts."""

    extended_from: Count
    stop_reason: Literal["budget", "target", "pruned"]
    step: Count
    examples: Count
    tokens: Count
    flops: NonNegative | None
    loss: Loss | None
    validation_exact_match: Fraction | None
    ood_validation_exact_match: Fraction | None
    validation_loss: Loss | None
    validation_perplexity: NonNegativeLoss | None
    validation_bits_per_byte: NonNegativeLoss | None
    best_step: Count | None


class End(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a run ended: done, failed with the `kind` of failure and its `error`, or stopped, so that it resumes.

    `key` is the `content_key` of the recipe of which this is the end; `ended` is in Unix time, `seconds` those of all
    sessions; a run that was only trained has no `results`.

    >>> end = End.now("failed", key="0123", seconds=2.5, kind="user error", error="device: there is no cuda:99")
    >>> end.is_failed("0123"), end.is_done("0123")
    (True, False)
    """

    status: Literal["done", "failed", "stopped"]
    key: str
    ended: NonNegative
    seconds: NonNegative
    host: str
    pid: Count
    kind: FailureKind | None = None
    error: str | None = None
    traceback: str | None = None
    results: RunResults | None = None

    @classmethod
    def now(cls, status: Any, *, key: str, seconds: float, **entries: Any) -> "End":
        """The end of a run in this process at this moment."""
        ended, seconds = (round(max(0.0, value), 3) for value in (time.time(), seconds))
        host, pid = socket.gethostname(), os.getpid()
        return cls(status=status, key=key, ended=ended, seconds=seconds, host=host, pid=pid, **entries)

    def is_done(self, key: str) -> bool:
        """Whether the run is trained and evaluated as a recipe with this content key asks for."""
        return self.status == "done" and self.key == key and self.results is not None

    def is_failed(self, key: str) -> bool:
        """Whether the run of a recipe with this content key failed and is only repeated with `retry`."""
        return self.status == "failed" and self.key == key


def read_end(run_path: Path) -> End | None:
    """How the run in a folder ended; None if it has not, or runs again. Raises `UserError` for a damaged file."""
    return read_json(run_path / END_FILE, End, _REMEDY)


def write_end(folder: RunFolder, end: End) -> None:
    """Writes how a run ended. A run that failed before it was started gets a folder without a recipe."""
    disk.make_folder(folder.path)
    folder.write(END_FILE, msgspec.json.encode(disk.to_plain_data(msgspec.to_builtins(end), finite=True)))


class Ending:
    """The work on a run, up to how it ended: measures the seconds of all its sessions, and writes its `end.json`.

        with Ending(folder, key) as ending:
            ending.write("done", results=results)

    An exception in the block is written as the failure of the run, and goes no further, unless it is not the run's own:
    see `failure_to_record`. A stop is raised. `end` is what was written.
    """

    def __init__(self, folder: RunFolder, key: str) -> None:
        self.folder, self.key = folder, key
        self.end: End | None = None
        self._start_time = time.monotonic() - checkpoint.last_state(folder.checkpoints).get("seconds", 0.0)

    def __enter__(self) -> "Ending":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Exception):
            self.fail(error)
        return isinstance(error, Exception)

    def fail(self, error: Exception | Failure) -> End:
        """Writes how the run failed, unless it is done by now. Raises the errors of `write`, and an error that is not
        the run's own again."""
        failure = error if isinstance(error, Failure) else failure_to_record(error)
        texts = failure.text.removesuffix("; the same command resumes"), failure.traceback
        text, trace = (one and one.encode(errors="backslashreplace").decode() for one in texts)  # with names of files
        return self.write("failed", kind=failure.kind, error=text, traceback=trace)

    def write(self, status: str, **entries: Any) -> End:
        """Writes how the run ended, under its lock; a failure not if it is done by now. Returns how it ended. Raises
        `LockedError` if another process is at it."""
        disk.make_folder(self.folder.path)
        with self.folder.lock("ending"):
            self.end = read_end(self.folder.path) if status == "failed" else None
            if self.end is None or not self.end.is_done(self.key):
                self.end = End.now(status, key=self.key, seconds=time.monotonic() - self._start_time, **entries)
                write_end(self.folder, self.end)
            return self.end


def clear_end(folder: RunFolder) -> None:
    """Removes how a run ended, under its lock. Raises `LockedError` if another process is at the run."""
    with folder.lock("starting"), disk.convert_os_errors(folder.path):
        folder.file(END_FILE).unlink(missing_ok=True)


def read_json(path: Path, content_type: type[T], remedy: str) -> T | None:
    """The content of a JSON file that was written from this type; None if there is no such file.

    Raises `UserError` for another content, also for one with a key twice or with other spaces: it was edited.
    """
    text = read_bytes(path)
    if not text and not path.exists():
        return None
    try:
        content = msgspec.json.decode(text, type=content_type)
        problem = "it was edited" if msgspec.json.encode(content) != text else None
    except (msgspec.MsgspecError, RecursionError) as error:
        problem = str(error)
        if (found := parse_record(text)) is not None and isinstance(found.get("format"), int):
            check_format(path, found["format"])
    if problem is not None:
        raise UserError(damage_message(path, problem, remedy))
    return content
