"""The records and predictions of evaluations in the folder of a run."""

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from numerate.config.differences import settings_key
from numerate.errors import OperationalError, UserError
from numerate.evaluation.grid import STRATUM, Cell
from numerate.records.kinds import EVALUATION, PREDICTIONS, prediction_checksum
from numerate.records.reading import parse_lines, read_bytes, read_records
from numerate.records.schema import CHECKSUM_KEY
from numerate.training import disk
from numerate.training.lock import Lock
from numerate.training.run_folder import RunFolder

WRITE_INTERVAL = 0.5
"""Seconds between two writes: on a shared disk each takes milliseconds. A killed process loses at most this much."""

RECORDS_FILE, PREDICTIONS_FILE = "cells.jsonl", "predictions.jsonl"

WORKER_PREFIX = "worker-"
"""Prefix of the folder of a worker of an engine; that of a shard has another name."""


class RecordKey(NamedTuple):
    """The identity of a record, which also defines the order of records: the name of the checkpoint, of which a step
    may have several, and what is measured."""

    checkpoint: str
    step: int
    settings: tuple[tuple[str, float, str], ...]
    cell: Cell
    position_offset: int
    num_questions: int
    evaluation_seed: int
    method: str

    @property
    def model(self) -> tuple[Any, ...]:
        return (*self[:3], self.position_offset)


class EvaluationStore:
    """The records and predictions of a run; each shard of a grid, and each worker of an engine, adds its own to a
    folder in `pieces`.

    They are appended as they are made, so that a stopped evaluation resumes, and sorted at the end, so that the same
    evaluation writes identical files. `steps` has the step of each checkpoint's name: records of a `final` or `best`
    that is now another step are kept under their step.
    """

    def __init__(self, folder: RunFolder, piece: str | None = None, steps: Mapping[str, int] | None = None) -> None:
        self.folder, self.steps = folder, steps or {}
        self.pieces = folder.path / "pieces"
        self.directory = folder.path if piece is None else self.pieces / piece
        self.records: dict[RecordKey, dict[str, Any]] = {}
        self.predictions: dict[RecordKey, dict[int, bytes]] = {}
        self._unwritten: dict[str, list[Mapping[str, Any]]] = {PREDICTIONS_FILE: [], RECORDS_FILE: []}
        self._last_write = time.monotonic()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Locks the folder for writing; what was added is written when the context exits, also on an error."""
        disk.make_folder(self.directory)
        is_run = self.directory == self.folder.path
        with self.folder.lock("evaluation") if is_run else Lock(self.directory / "lock").hold("evaluation"):
            try:
                yield
            finally:
                self.flush()

    # Reading ------------------------------------------------------------------------------------------------------

    def read(self, *, predictions: bool = False) -> None:
        """Reads the records, and predictions if required, of the run and of all shards and workers. Raises `UserError`
        for a damaged line."""
        for directory in (self.folder.path, *sorted(self.pieces.glob("*"))):
            self._read(directory, predictions)

    def num_worker_records(self) -> int:
        """The number of records in the folders of workers."""
        return sum(file.read_bytes().count(b"\n") for file in self.pieces.glob(f"{WORKER_PREFIX}*/{RECORDS_FILE}"))

    def _read(self, directory: Path, predictions: bool) -> bool:
        """Reads the lines of a folder; returns whether any is new."""
        num_known = len(self.records)
        for record in read_records(directory / RECORDS_FILE, EVALUATION, run_id=self.folder.run_id):
            self.records.setdefault(self._key(record), record)
        has_new, path = len(self.records) > num_known, directory / PREDICTIONS_FILE
        for line in parse_lines(read_bytes(path) if predictions else b"", path, PREDICTIONS, self.folder.run_id):
            if line.problem is not None:
                raise UserError(line.problem)
            if line.record is not None and {"row", CHECKSUM_KEY} <= line.record.keys():
                name, key, row = line.record["checkpoint"], self._key(line.record), line.record["row"]
                rows = self.predictions.setdefault(key, {})
                has_new |= row not in rows
                rows.setdefault(row, line.text + b"\n" if key.checkpoint == name else disk.json_line(line.record))
        return has_new

    def _key(self, record: dict[str, Any]) -> RecordKey:
        """The key of a record; it is named by its step if its name now means another step."""
        if self.steps.get(record["checkpoint"], record["step"]) != record["step"]:
            record["checkpoint"] = f"step {record['step']}"
        return record_key(record)

    def take_over(self, key: RecordKey) -> None:
        """Takes over what was recorded under another name of the same step: `best` and `final` may be the same."""
        for name in ("final", "best", f"step {key.step}"):
            same = key._replace(checkpoint=name)
            if same in self.records:
                self.records.setdefault(key, self.records[same] | {"checkpoint": key.checkpoint})
            if len(self.predictions.get(same, ())) > len(self.predictions.get(key, ())):
                lines = {row: json.loads(line) for row, line in self.predictions[same].items()}
                own = {row: disk.json_line(line | {"checkpoint": key.checkpoint}) for row, line in lines.items()}
                self.predictions[key] = own | self.predictions.get(key, {})

    # Writing ------------------------------------------------------------------------------------------------------

    def add(self, key: RecordKey, record: dict[str, Any]) -> None:
        self.records[key] = record
        self._append(RECORDS_FILE, record)

    def add_predictions(self, key: RecordKey, lines: Sequence[Mapping[str, Any]]) -> None:
        self.predictions.setdefault(key, {}).update({line["row"]: disk.json_line(line) for line in lines})
        self._append(PREDICTIONS_FILE, *lines)

    def _append(self, name: str, *lines: Mapping[str, Any]) -> None:
        self._unwritten[name] += lines
        if time.monotonic() - self._last_write >= WRITE_INTERVAL:
            self.flush()

    def flush(self) -> None:
        """Writes what was added. Raises the error of `disk.convert_os_error` on failure; it then stays buffered."""
        for name, lines in self._unwritten.items():
            disk.append_records(self.directory / name, lines, unharmed_note="What was written before is safe.")
            lines.clear()
        self._last_write = time.monotonic()

    def finalize(self, replacing: Collection[RecordKey] = ()) -> None:
        """Writes all records and predictions in order, and removes the folders of workers, which are in them.

        The predictions of `replacing` replace others of the same models. A worker that is still writing (because the
        command that started it was killed) keeps its folder.
        """
        self.flush()
        if any(self.pieces.glob(f"{WORKER_PREFIX}*/{PREDICTIONS_FILE}")):
            self.read(predictions=True)
        self.folder.write(RECORDS_FILE, json_lines(self.records[key] for key in sorted(self.records)))
        if self.predictions:
            models = {key.model for key in replacing}
            kept = sorted(key for key in self.predictions if key in replacing or key.model not in models)
            lines = (line for key in kept for _, line in sorted(self.predictions[key].items()))
            self.folder.write(PREDICTIONS_FILE, b"".join(lines))
        for directory in self.pieces.glob(f"{WORKER_PREFIX}*"):
            with contextlib.suppress(UserError, OperationalError), Lock(directory / "lock").hold("gathering"):
                if not self._read(directory, predictions=True):
                    shutil.rmtree(directory, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.pieces.rmdir()


class StoredPredictions:
    """The predictions of a cell in a store, by row, to which `add` appends others with `entries`; `on_added` is called
    with the number of lines added."""

    def __init__(
        self, store: EvaluationStore, key: RecordKey, entries: Mapping[str, Any], on_added: Callable[[int], None]
    ) -> None:
        self._store, self._key, self._entries, self._on_added = store, key, entries, on_added
        self.lines: dict[int, Mapping[str, Any]] = {
            row: json.loads(line) for row, line in store.predictions.get(key, {}).items()
        }

    def add(self, lines: Sequence[Mapping[str, Any]]) -> None:
        complete = [with_checksum({**line, **self._entries}) for line in lines]
        self._store.add_predictions(self._key, complete)
        self.lines |= {line["row"]: line for line in complete}
        self._on_added(len(lines))


def with_checksum(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of predictions.jsonl with the checksum of its content, which is checked when it is read."""
    plain: dict[str, Any] = disk.to_plain_data(line, finite=True)
    return plain | {CHECKSUM_KEY: prediction_checksum(plain)}


def record_key(record: Mapping[str, Any]) -> RecordKey:
    """The key of a stored record."""
    cell: Cell = tuple((str(axis), int(value)) for axis, value in record["cell"].items())
    if record.get(STRATUM) is not None:
        cell += ((STRATUM, str(record[STRATUM])),)
    return RecordKey(
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
