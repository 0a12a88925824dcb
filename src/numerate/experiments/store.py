"""Evaluation records in the folder of a run."""

import contextlib
import json
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from numerate.errors import OperationalError, UserError
from numerate.evaluation.grid import Cell
from numerate.records.kinds import ANSWERS, EVALUATION
from numerate.records.reading import content_of, read, record_of, scan, sound
from numerate.reports.records import settings_key
from numerate.training import disk
from numerate.training.lock import Lock
from numerate.training.run_folder import RunFolder, folder_name

Key = tuple[str, int, tuple[tuple[str, float, str], ...], Cell, int, int, int, str]
"""What tells two records apart, in the order they are kept: checkpoint, step, settings, cell, placement, count, key of
the questions, method."""

EVERY = 0.5
"""Seconds between two writes of records: so many are lost at most when a process is killed."""

RECORDS, PREDICTIONS = "evaluation.jsonl", "said.jsonl"
"""The files of a piece: one line per scored cell, and per cell whose predictions were recorded."""

_WORKER = "worker-"


class Lines:
    """Appends records to a file that nobody else writes, in groups: on a shared disk each write takes milliseconds.

    >>> with Lines(path) as lines:
    ...     lines.add({"cell": {"first_digits": 3, "second_digits": 4}, "correct": 98})
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[Mapping[str, Any]] = []
        self._written = time.monotonic()

    def add(self, record: Mapping[str, Any]) -> None:
        self._waiting.append(record)
        if time.monotonic() - self._written >= EVERY:
            self.flush()

    def flush(self) -> None:
        """Writes what waits. Raises what `disk.explain` makes of a failure; what waits is then kept."""
        disk.append(self.path, self._waiting, safe="What was written before is safe.")
        self._waiting.clear()
        self._written = time.monotonic()

    def __enter__(self) -> "Lines":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.flush()


class Store:
    """The records of evaluations in a run's folder; a piece has a folder of its own below it.

    Records are appended as they come, so that a stopped evaluation resumes, and sorted at the end, so that the same
    evaluation leaves the same bytes. Workers of an executor write into folders of their own below `pieces/`, which are
    read and gathered with the rest.
    """

    def __init__(self, folder: RunFolder, piece: str | None) -> None:
        self.folder, self.piece = folder, piece
        self.directory = folder.path / "pieces" / piece if piece is not None else folder.path
        self.file = f"pieces/{piece}/{RECORDS}" if piece is not None else RECORDS
        self.known: dict[Key, dict[str, Any]] = {}
        self.predictions: dict[Key, tuple[Path, int]] = {}
        self._lines = Lines(self.directory / RECORDS)
        self._steps: Mapping[str, int] = {}

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Locks the folder for writing; records that were added are in the file at the end, however it ends."""
        with disk.explained(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
        with self.folder.lock("evaluation") if self.piece is None else Lock(self.directory / "lock").hold("evaluation"):
            with self._lines:
                yield

    def relabel(self, steps: Mapping[str, int]) -> None:
        """Reads what is known. Records of a `final` or `best` that is another step by now are kept under their step."""
        self._steps = steps
        others = [RECORDS] if self.piece is not None else [self._name(path) for path in self._pieces(RECORDS)]
        for name in dict.fromkeys([self.file, *others]):
            for record in self.folder.records(name):
                self.known.setdefault(self._labelled(record), record)
        self._find_predictions()

    def gather(self) -> None:
        """Reads what workers have written since."""
        for path in self._pieces(RECORDS, _WORKER):
            for record in read(path, EVALUATION):
                self.known.setdefault(self._labelled(record), record)
        self._find_predictions()

    def written(self) -> list[Path]:
        """The files that workers write."""
        return [*self._pieces(RECORDS, _WORKER), *self._pieces(PREDICTIONS, _WORKER)]

    def _find_predictions(self) -> None:
        for path in self._pieces(PREDICTIONS, _WORKER) if self.piece is None else []:
            for offset, record in _answers(path):
                self.predictions.setdefault(self._labelled(record), (path, offset))

    def _labelled(self, record: dict[str, Any]) -> Key:
        """The key of a record, which is given the name of its step where its label means another step by now."""
        label = str(record["checkpoint"])
        if label in self._steps and record.get("step") != self._steps[label]:
            record["checkpoint"] = f"step {record['step']}"
        return key_of(record)

    def _pieces(self, name: str, begin: str = "") -> list[Path]:
        return sorted((self.folder.path / "pieces").glob(f"{begin}*/{name}"))

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder.path).as_posix()

    def same_weights(self, key: Key) -> dict[str, Any] | None:
        """The record of the same measurement under another name of the same step: `best` may be `final` too."""
        return next((self.known[one] for one in _names(key) if one in self.known), None)

    def has_predictions(self, key: Key) -> bool:
        """Whether a worker has recorded the predictions of a cell."""
        return any(one in self.predictions for one in _names(key))

    def predictions_of(self, key: Key) -> list[dict[str, Any]] | None:
        """The predictions of a cell that a worker has recorded, a line per question; None if there are none."""
        found = next((self.predictions[one] for one in _names(key) if one in self.predictions), None)
        if found is None:
            return None
        path, offset = found
        with disk.explained(path), open(path, "rb") as file:
            file.seek(offset)
            record = record_of(file.readline())
        if record is None:
            raise OperationalError(f"{path}: was changed while it was read; the same command resumes")
        return [line | {"checkpoint": key[0]} for line in record["lines"]]

    def add(self, key: Key, record: dict[str, Any]) -> None:
        self.known[key] = record
        self._lines.add(record)

    def settle(self) -> None:
        """Writes all records in order."""
        self._lines.flush()
        if self.piece is None:
            self.folder.write(self.file, lines_of([self.known[key] for key in sorted(self.known)]))

    def clear(self, predictions: Collection[Key] = ()) -> None:
        """Removes the folders of workers whose records are all written and whose answers are all in `predictions`.

        A worker that still writes, since the command that started it was killed, keeps its folder.
        """
        gathered = {key[1:] for key in predictions}  # by whatever name of its step
        for directory in sorted((self.folder.path / "pieces").glob(f"{_WORKER}*")):
            with contextlib.suppress(UserError, OperationalError), Lock(directory / "lock").hold("gathering"):
                records = {self._labelled(record) for record in read(directory / RECORDS, EVALUATION)}
                answers = {self._labelled(record)[1:] for _, record in _answers(directory / PREDICTIONS)}
                if records <= self.known.keys() and answers <= gathered:
                    shutil.rmtree(directory, ignore_errors=True)
        with contextlib.suppress(OSError):
            (self.folder.path / "pieces").rmdir()

    def write(self, name: str, lines: Sequence[Mapping[str, Any]], same: Sequence[str]) -> None:
        """Writes lines into a file of records, replacing those that agree in `same`."""
        name = name if self.piece is None else f"pieces/{self.piece}/{name}"

        def shared_fields(line: Mapping[str, Any]) -> str:
            return json.dumps([line.get(field) for field in same], sort_keys=True)

        replaced = {shared_fields(line) for line in lines}
        kept, _ = self.folder.parted(name, lambda line: shared_fields(line) not in replaced)
        self.folder.write(name, kept + lines_of(lines).encode())


def directory_of(folder: RunFolder, worker: str) -> Path:
    """The folder of one worker of an executor; no name of a shard starts like this."""
    return folder.path / "pieces" / folder_name(_WORKER + worker)


def _names(key: Key) -> list[Key]:
    """A key, and those of the same measurement under the other names that its step may have."""
    return [(name, *key[1:]) for name in (key[0], "final", "best", f"step {key[1]}")]


def key_of(record: Mapping[str, Any]) -> Key:
    """The key of a record as it is written."""
    cell: Cell = tuple((str(axis), int(value)) for axis, value in record["cell"].items())
    return (
        str(record["checkpoint"]),
        int(record["step"]),
        settings_key(record.get("settings", {})),
        cell,
        int(record["position_offset"]),
        int(record["count"]),
        int(record.get("questions", 0)),
        str(record["method"]),
    )


def lines_of(records: Sequence[Mapping[str, Any]]) -> str:
    """Records as lines of JSON."""
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _answers(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The answers in a worker's file, each with the byte offset of its line."""
    return sound(scan(content_of(path), path, ANSWERS), path, ANSWERS)
