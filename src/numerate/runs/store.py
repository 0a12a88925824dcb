"""Evaluation records in the folder of a run."""

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

WeightsKey = tuple[int, tuple[tuple[str, float, str], ...], Cell, int, int, int, str]
"""What is measured: step, settings, cell, position offset, count, evaluation seed, method."""

RecordKey = tuple[str, int, tuple[tuple[str, float, str], ...], Cell, int, int, int, str]
"""The identity of a record, which also defines the order of records: the name of the checkpoint, of which a step may
have several, and what is measured."""

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
    """The records of evaluations in a run's folder; each shard, and each worker of an engine, has a subfolder.

    Records are appended immediately, so that a stopped evaluation resumes, and sorted at the end, so that the same
    evaluation writes identical files. An evaluation without a shard reads and collects the records of all pieces.
    """

    def __init__(self, folder: RunFolder, shard: str | None) -> None:
        self.folder, self.shard = folder, shard
        self.pieces = folder.path / "pieces"
        self.directory = self.pieces / shard if shard is not None else folder.path
        self.records: dict[RecordKey, dict[str, Any]] = {}
        self._worker_predictions: dict[WeightsKey, tuple[Path, int]] = {}
        self._gathered: set[WeightsKey] = set()
        self._kept_predictions: dict[WeightsKey, dict[int, Mapping[str, Any]]] | None = None
        self._lines = RecordWriter(self.directory / RECORDS_FILE)
        self._prediction_lines = RecordWriter(self.directory / PREDICTIONS_FILE)
        self._steps: Mapping[str, int] = {}

    @classmethod
    def of_worker(cls, folder: RunFolder, worker: str) -> "EvaluationStore":
        """The records that a worker of an engine writes; no shard has a folder with this prefix."""
        return cls(folder, folder_name(_WORKER_PREFIX + worker))

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Locks the folder for writing; added records are written when the context exits, also on an error."""
        disk.make_folder(self.directory)
        with self.folder.lock("evaluation") if self.shard is None else Lock(self.directory / "lock").hold("evaluation"):
            with self._lines, self._prediction_lines:
                yield

    def load(self, steps: Mapping[str, int]) -> None:
        """Reads existing records. Records of a `final` or `best` that is now another step are kept under their step."""
        self._steps = steps
        others = self._files(RECORDS_FILE) if self.shard is None else [self.folder.file(RECORDS_FILE)]
        self._read([self.directory / RECORDS_FILE, *others])

    def load_worker_records(self) -> None:
        """Reads the records that workers have written since."""
        self._read(self._files(RECORDS_FILE, _WORKER_PREFIX))

    def worker_files(self) -> list[Path]:
        """The files written by workers."""
        return [*self._files(RECORDS_FILE, _WORKER_PREFIX), *self._files(PREDICTIONS_FILE, _WORKER_PREFIX)]

    def _files(self, name: str, prefix: str = "") -> list[Path]:
        return sorted(self.pieces.glob(f"{prefix}*/{name}"))

    def _read(self, files: Iterable[Path]) -> None:
        for path in files:
            for key, record in self._read_records(path):
                self.records.setdefault(key, record)
        for path in self._files(PREDICTIONS_FILE, _WORKER_PREFIX) if self.shard is None else []:
            for measured, offset in self._read_predictions(path):
                self._worker_predictions.setdefault(measured, (path, offset))

    def _read_records(self, path: Path) -> Iterator[tuple[RecordKey, dict[str, Any]]]:
        """The records of a file by their keys; one is relabeled by its step if its label now means another step."""
        for record in read_records(path, EVALUATION, run_id=self.folder.run_id):
            if self._steps.get(record["checkpoint"], record["step"]) != record["step"]:
                record["checkpoint"] = f"step {record['step']}"
            yield record_key(record), record

    def _read_predictions(self, path: Path) -> Iterator[tuple[WeightsKey, int]]:
        """The cells whose answers are in a worker's file, each with the byte offset of its line."""
        for line in parse_lines(read_bytes(path), path, WORKER_PREDICTIONS, self.folder.run_id):
            if line.problem is not None:
                raise UserError(line.problem)
            if line.record is not None:
                yield record_key(line.record)[1:], line.offset

    def find_same_weights(self, key: RecordKey) -> dict[str, Any] | None:
        """The record of the same evaluation under another name of the same step: `best` and `final` may be the same."""
        keys: list[RecordKey] = [(name, *key[1:]) for name in ("final", "best", f"step {key[1]}")]
        return next((self.records[same] for same in keys if same in self.records), None)

    def has_predictions(self, key: RecordKey) -> bool:
        """Whether a worker has recorded the predictions of a cell."""
        return key[1:] in self._worker_predictions

    def find_predictions(self, key: RecordKey) -> list[dict[str, Any]] | None:
        """The predictions of a cell that a worker has recorded, a line per question; None if there are none."""
        if not self.has_predictions(key):
            return None
        path, offset = self._worker_predictions[key[1:]]
        with disk.convert_os_errors(path), open(path, "rb") as file:
            file.seek(offset)
            record = parse_record(file.readline())
        if record is None:
            raise OperationalError(f"{path}: was modified while it was read; the same command resumes")
        self._gathered.add(key[1:])
        return [line | {"checkpoint": key[0]} for line in record["lines"]]

    def prediction_lines(self, key: RecordKey) -> dict[int, Mapping[str, Any]]:
        """The predictions of a cell that are kept one by one, by row; only those with a checksum count."""
        if self._kept_predictions is None:
            self._kept_predictions = {}
            for line in self.folder.records(self.name_of(PREDICTIONS_FILE)):
                if "row" in line and CHECKSUM_KEY in line:
                    self._kept_predictions.setdefault(record_key(line)[1:], {})[line["row"]] = line
        return self._kept_predictions.setdefault(key[1:], {})

    def name_of(self, name: str) -> str:
        """The name of a file of records in the folder of the run, or of its shard."""
        return name if self.shard is None else f"pieces/{self.shard}/{name}"

    def add(self, key: RecordKey, record: dict[str, Any]) -> None:
        self.records[key] = record
        self._lines.add(record)

    def add_predictions(self, record: Mapping[str, Any]) -> None:
        """Appends the answers of a cell, in the store of a worker: one record, so that all are written or none."""
        self._prediction_lines.add(record)

    def finalize(self) -> None:
        """Writes all records in order."""
        self._lines.flush()
        if self.shard is None:
            self.folder.write(RECORDS_FILE, json_lines(self.records[key] for key in sorted(self.records)))

    def remove_worker_folders(self) -> None:
        """Removes the folders of workers whose records are all written and whose answers were all found and written.

        A worker that is still writing (because the command that started it was killed) keeps its folder.
        """
        for directory in sorted(self.pieces.glob(f"{_WORKER_PREFIX}*")):
            with contextlib.suppress(UserError, OperationalError), Lock(directory / "lock").hold("gathering"):
                records = {key for key, _ in self._read_records(directory / RECORDS_FILE)}
                answers = {key for key, _ in self._read_predictions(directory / PREDICTIONS_FILE)}
                if records <= self.records.keys() and answers <= self._gathered:
                    shutil.rmtree(directory, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.pieces.rmdir()

    def write_predictions(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Writes answers in place of those of the same checkpoints, position offsets and settings."""

        def model(line: Mapping[str, Any]) -> str:
            fields = ("checkpoint", "step", "position_offset", "settings")
            return json.dumps([line.get(field) for field in fields], sort_keys=True)

        name, replaced = self.name_of(PREDICTIONS_FILE), {model(line) for line in lines}
        kept_lines, _ = self.folder.split_records(name, lambda line: model(line) not in replaced)
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
