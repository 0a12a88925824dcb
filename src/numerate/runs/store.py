"""Evaluation records in the folder of a run."""

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from numerate.errors import OperationalError, UserError
from numerate.evaluation.grid import STRATUM, Cell
from numerate.records.kinds import EVALUATION, WORKER_PREDICTIONS, prediction_checksum
from numerate.records.reading import parse_lines, parse_record, read_bytes, read_records
from numerate.records.schema import CHECKSUM_KEY
from numerate.reports.records import settings_key
from numerate.training import disk
from numerate.training.lock import Lock
from numerate.training.run_folder import RunFolder, folder_name

RecordKey = tuple[str, int, tuple[tuple[str, float, str], ...], Cell, int, int, int, str]
"""The identity of a record, which also defines the order of records: checkpoint, step, settings, cell, position offset,
count, evaluation seed, method."""

WRITE_INTERVAL = 0.5
"""Seconds between two writes of records; a killed process loses at most this much work."""

RECORDS_FILE, PREDICTIONS_FILE = "cells.jsonl", "predictions.jsonl"
"""The files of a worker: one line per scored cell, and one per cell with predictions."""

_WORKER_PREFIX = "worker-"


class RecordWriter:
    """Appends records in groups to a file with no other writer: on a shared disk each write takes milliseconds.

    For example:

        with RecordWriter(path) as records:
            records.add({"cell": {"first_digits": 3, "second_digits": 4}, "correct": 98})
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._buffer: list[Mapping[str, Any]] = []
        self._last_write = time.monotonic()

    def add(self, record: Mapping[str, Any]) -> None:
        self._buffer.append(record)
        if time.monotonic() - self._last_write >= WRITE_INTERVAL:
            self.flush()

    def flush(self) -> None:
        """Writes buffered records. Raises the error of `disk.convert_os_error` on failure; they then stay buffered."""
        disk.append_records(self.path, self._buffer, unharmed_note="What was written before is safe.")
        self._buffer.clear()
        self._last_write = time.monotonic()

    def __enter__(self) -> "RecordWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.flush()


class EvaluationStore:
    """The records of evaluations in a run's folder; each shard has a subfolder.

    Records are appended immediately, so that a stopped evaluation resumes, and sorted at the end, so that the same
    evaluation writes identical files. Workers of an engine write to their own folders below `pieces/`, which are read
    and collected with the rest.
    """

    def __init__(self, folder: RunFolder, shard: str | None) -> None:
        self.folder, self.shard = folder, shard
        self.directory = folder.path / "pieces" / shard if shard is not None else folder.path
        self.file = self.name_of(RECORDS_FILE)
        self.records: dict[RecordKey, dict[str, Any]] = {}
        self.predictions: dict[RecordKey, tuple[Path, int]] = {}
        self._kept_predictions: dict[RecordKey, dict[int, Mapping[str, Any]]] | None = None
        self._lines = RecordWriter(self.directory / RECORDS_FILE)
        self._steps: Mapping[str, int] = {}

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Locks the folder for writing; added records are written when the context exits, also on an error."""
        disk.make_folder(self.directory)
        with self.folder.lock("evaluation") if self.shard is None else Lock(self.directory / "lock").hold("evaluation"):
            with self._lines:
                yield

    def load(self, steps: Mapping[str, int]) -> None:
        """Reads existing records. Records of a `final` or `best` that is now another step are kept under their step."""
        self._steps = steps
        shards = [path.relative_to(self.folder.path).as_posix() for path in self._shard_files(RECORDS_FILE)]
        for name in [self.file, *(shards if self.shard is None else [RECORDS_FILE])]:
            for record in self.folder.records(name):
                self.records.setdefault(self._relabeled_key(record), record)
        self._find_predictions()

    def load_worker_records(self) -> None:
        """Reads the records that workers have written since."""
        for path in self._shard_files(RECORDS_FILE, _WORKER_PREFIX):
            for record in read_records(path, EVALUATION, run_id=self.folder.run_id):
                self.records.setdefault(self._relabeled_key(record), record)
        self._find_predictions()

    def worker_files(self) -> list[Path]:
        """The files written by workers."""
        return [*self._shard_files(RECORDS_FILE, _WORKER_PREFIX), *self._shard_files(PREDICTIONS_FILE, _WORKER_PREFIX)]

    def _find_predictions(self) -> None:
        for path in self._shard_files(PREDICTIONS_FILE, _WORKER_PREFIX) if self.shard is None else []:
            for offset, record in self._read_predictions(path):
                self.predictions.setdefault(self._relabeled_key(record), (path, offset))

    def _read_predictions(self, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        """The answers in a worker's file, each with the byte offset of its line."""
        for line in parse_lines(read_bytes(path), path, WORKER_PREDICTIONS, self.folder.run_id):
            if line.problem is not None:
                raise UserError(line.problem)
            if line.record is not None:
                yield line.offset, line.record

    def _relabeled_key(self, record: dict[str, Any]) -> RecordKey:
        """The key of a record; it is relabeled by its step if its label now means another step."""
        label = str(record["checkpoint"])
        if label in self._steps and record.get("step") != self._steps[label]:
            record["checkpoint"] = f"step {record['step']}"
        return record_key(record)

    def _shard_files(self, name: str, prefix: str = "") -> list[Path]:
        return sorted((self.folder.path / "pieces").glob(f"{prefix}*/{name}"))

    def find_same_weights(self, key: RecordKey) -> dict[str, Any] | None:
        """The record of the same evaluation under another name of the same step: `best` and `final` may be the same."""
        return next((self.records[same] for same in _equivalent_keys(key) if same in self.records), None)

    def has_predictions(self, key: RecordKey) -> bool:
        """Whether a worker has recorded the predictions of a cell."""
        return any(same in self.predictions for same in _equivalent_keys(key))

    def find_predictions(self, key: RecordKey) -> list[dict[str, Any]] | None:
        """The predictions of a cell that a worker has recorded, a line per question; None if there are none."""
        location = next((self.predictions[same] for same in _equivalent_keys(key) if same in self.predictions), None)
        if location is None:
            return None
        path, offset = location
        with disk.convert_os_errors(path), open(path, "rb") as file:
            file.seek(offset)
            record = parse_record(file.readline())
        if record is None:
            raise OperationalError(f"{path}: was modified while it was read; the same command resumes")
        return [line | {"checkpoint": key[0]} for line in record["lines"]]

    def prediction_lines(self, key: RecordKey) -> dict[int, Mapping[str, Any]]:
        """The predictions of a cell that are kept one by one, by row; only those with a checksum count."""
        if self._kept_predictions is None:
            self._kept_predictions = {}
            for line in self.folder.records(self.name_of(PREDICTIONS_FILE)):
                if "row" in line and CHECKSUM_KEY in line:
                    self._kept_predictions.setdefault(record_key(line), {})[line["row"]] = line
        kept = self._kept_predictions
        return next((kept[same] for same in _equivalent_keys(key) if same in kept), kept.setdefault(key, {}))

    def name_of(self, name: str) -> str:
        """The name of a file of records in the folder of the run, or of its shard."""
        return name if self.shard is None else f"pieces/{self.shard}/{name}"

    def add(self, key: RecordKey, record: dict[str, Any]) -> None:
        self.records[key] = record
        self._lines.add(record)

    def finalize(self) -> None:
        """Writes all records in order."""
        self._lines.flush()
        if self.shard is None:
            self.folder.write(self.file, json_lines(self.records[key] for key in sorted(self.records)))

    def remove_worker_folders(self, predictions: Collection[RecordKey] = ()) -> None:
        """Removes the folders of workers whose records are all written and whose answers are all in `predictions`.

        A worker that is still writing (because the command that started it was killed) keeps its folder.
        """
        gathered_keys = {key[1:] for key in predictions}  # without the label, since a step may have several
        for directory in sorted((self.folder.path / "pieces").glob(f"{_WORKER_PREFIX}*")):
            with contextlib.suppress(UserError, OperationalError), Lock(directory / "lock").hold("gathering"):
                found = read_records(directory / RECORDS_FILE, EVALUATION, run_id=self.folder.run_id)
                records = {self._relabeled_key(record) for record in found}
                lines = self._read_predictions(directory / PREDICTIONS_FILE)
                answers = {self._relabeled_key(record)[1:] for _, record in lines}
                if records <= self.records.keys() and answers <= gathered_keys:
                    shutil.rmtree(directory, ignore_errors=True)
        with contextlib.suppress(OSError):
            (self.folder.path / "pieces").rmdir()

    def write(self, name: str, lines: Sequence[Mapping[str, Any]], key_fields: Sequence[str]) -> None:
        """Writes lines to a file of records, replacing those with the same `key_fields`."""
        name = self.name_of(name)

        def shared_fields(line: Mapping[str, Any]) -> str:
            return json.dumps([line.get(field) for field in key_fields], sort_keys=True)

        replaced = {shared_fields(line) for line in lines}
        kept_lines, _ = self.folder.split_records(name, lambda line: shared_fields(line) not in replaced)
        self.folder.write(name, kept_lines + json_lines(lines))


class StoredPredictions:
    """The predictions of a cell, by row: those in `predictions.jsonl`, to which `add` appends others with `entries`;
    without a store, in memory. `on_added` is called with the number of lines added."""

    def __init__(self, store: EvaluationStore | None, key: RecordKey, entries: Mapping[str, Any]) -> None:
        self._store, self._entries = store, entries
        self.lines: dict[int, Mapping[str, Any]] = {} if store is None else store.prediction_lines(key)
        self.on_added: Callable[[int], None] = lambda count: None

    def add(self, lines: Sequence[Mapping[str, Any]]) -> None:
        complete = [with_checksum({**line, **self._entries}) for line in lines]
        if self._store is not None:
            self._store.folder.append(self._store.name_of(PREDICTIONS_FILE), *complete, durable=True)
        self.lines |= {line["row"]: line for line in complete}
        self.on_added(len(lines))


def with_checksum(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of predictions.jsonl with the checksum of its content, which is checked when it is read."""
    plain: dict[str, Any] = disk.to_plain_data(line, finite=True)
    return plain | {CHECKSUM_KEY: prediction_checksum(plain)}


def worker_directory(folder: RunFolder, worker: str) -> Path:
    """The folder of one worker of an engine; no shard has a folder with this prefix."""
    return folder.path / "pieces" / folder_name(_WORKER_PREFIX + worker)


def _equivalent_keys(key: RecordKey) -> list[RecordKey]:
    """A key, and those of the same evaluation under the other names of its step."""
    return [(name, *key[1:]) for name in (key[0], "final", "best", f"step {key[1]}")]


def record_key(record: Mapping[str, Any]) -> RecordKey:
    """The key of a stored record."""
    cell: Cell = tuple((str(axis), int(value)) for axis, value in record["cell"].items())
    if record.get(STRATUM) is not None:
        cell += ((STRATUM, str(record[STRATUM])),)
    return (
        str(record["checkpoint"]),
        int(record["step"]),
        settings_key(record.get("settings", {})),
        cell,
        int(record["position_offset"]),
        int(record["count"]),
        int(record.get("evaluation_seed", 0)),
        str(record["method"]),
    )


def json_lines(records: Iterable[Mapping[str, Any]]) -> bytes:
    """Records as lines of JSON."""
    return b"".join(map(disk.json_line, records))
