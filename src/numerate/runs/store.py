"""The records and predictions of evaluations in the folder of a run."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from numerate.config.differences import settings_key
from numerate.errors import UserError
from numerate.evaluation.grid import STRATUM, Cell
from numerate.records.kinds import EVALUATION, PREDICTIONS, prediction_checksum
from numerate.records.reading import RecordLine, parse_lines
from numerate.records.schema import CHECKSUM_KEY, Schema
from numerate.training import disk
from numerate.training.lock import Lock
from numerate.training.run_folder import RunFolder

WRITE_INTERVAL = 0.5
"""Seconds between two writes: on a shared disk each takes milliseconds. A killed process loses at most this much."""

LOCK_TIMEOUT = 60.0
"""Seconds to wait for other processes that are writing their records."""

RECORDS_FILE, PREDICTIONS_FILE = "cells.jsonl", "predictions.jsonl"


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

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "RecordKey":
        """The key of a record."""
        cell: Cell = tuple((str(axis), int(value)) for axis, value in record["cell"].items())
        if record.get(STRATUM) is not None:
            cell += ((STRATUM, str(record[STRATUM])),)
        return cls(
            str(record["checkpoint"]),
            int(record["step"]),
            settings_key(record.get("settings", {})),
            cell,
            int(record["position_offset"]),
            int(record["count"]),
            int(record.get("evaluation_seed", 0)),
            str(record["method"]),
        )


class EvaluationStore:
    """The records and predictions of a run, to which several processes may add: the workers of an engine, and commands
    with a shard each.

    They are appended as they are made, so that a stopped evaluation resumes. Each process appends under a lock, and
    reads before what the others have written, so that no cell is recorded twice. They are sorted at the end, so that
    the same evaluation leaves identical files. `steps` has the step of each checkpoint's name: records of a `final` or
    `best` that is now another step are kept under their step.
    """

    def __init__(self, folder: RunFolder, steps: Mapping[str, int]) -> None:
        self.folder, self.steps = folder, steps
        self.records: dict[RecordKey, dict[str, Any]] = {}
        self.predictions: dict[RecordKey, dict[int, bytes]] = {}
        self._new_records: dict[RecordKey, Mapping[str, Any]] = {}
        self._new_predictions: list[Mapping[str, Any]] = []
        self._read_to: dict[str, tuple[int, int, bytes]] = {}  # of each file: see `_new_lines`
        self._lock = Lock(folder.file("cells.lock"))
        self._last_write = time.monotonic()

    def __enter__(self) -> "EvaluationStore":
        self.read()
        return self

    def __exit__(self, *error: object) -> None:
        self.flush()

    # Reading ------------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Reads the records that were written since the last call. Raises `UserError` for a damaged line."""
        for line in self._new_lines(RECORDS_FILE, EVALUATION):
            record: dict[str, Any] = line.record or {}
            key = self._key(record)
            if self._new_records.pop(key, None) or key not in self.records:
                self.records[key] = record

    def read_predictions(self) -> None:
        """Reads the predictions that were written since the last call. Raises `UserError` for a damaged line."""
        for line in self._new_lines(PREDICTIONS_FILE, PREDICTIONS):
            record: dict[str, Any] = line.record or {}
            if {"row", CHECKSUM_KEY} <= record.keys():
                name, key = record["checkpoint"], self._key(record)
                text = line.text + b"\n" if key.checkpoint == name else disk.json_line(record)
                self.predictions.setdefault(key, {}).setdefault(record["row"], text)

    def _new_lines(self, name: str, schema: Schema) -> Iterator[RecordLine]:
        """The lines that were appended to a file since the last call; all lines if it was sorted since: then it has
        another inode, or that of a removed file and not the line that was read last at its place."""
        path, (inode, end, last), content = self.folder.file(name), self._read_to.get(name, (0, 0, b"")), b""
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            found = os.fstat(file.fileno()).st_ino
            file.seek(end - len(last))
            content = file.read()
            if found == inode and content.startswith(last):
                content = content[len(last) :]
            else:
                file.seek(0)
                content, end, last = file.read(), 0, b""
            size = content.rfind(b"\n") + 1
            last = content[content.rfind(b"\n", 0, max(0, size - 1)) + 1 : size] or last
            self._read_to[name] = found, end + size, last
        for line in parse_lines(content, path, schema, self.folder.run_id):
            if line.problem is not None:
                self.folder.records(name)  # which gives its number in the whole file
                raise UserError(line.problem)
            if line.record is not None:
                yield line

    def _key(self, record: dict[str, Any]) -> RecordKey:
        """The key of a record; it is named by its step if its name now means another step."""
        if self.steps.get(record["checkpoint"], record["step"]) != record["step"]:
            record["checkpoint"] = f"step {record['step']}"
        return RecordKey.of(record)

    def take_over(self, key: RecordKey) -> None:
        """Takes over what was recorded under another name of the same step: `best` and `final` may be the same."""
        for same in (key._replace(checkpoint=name) for name in ("final", "best", f"step {key.step}")):
            if same in self.records:
                self.records.setdefault(key, self.records[same] | {"checkpoint": key.checkpoint})
            if len(lines := self.predictions.get(same, {})) > len(self.predictions.get(key, {})):
                self.predictions[key] = {
                    row: disk.json_line(json.loads(line) | {"checkpoint": key.checkpoint})
                    for row, line in lines.items()
                }

    # Writing ------------------------------------------------------------------------------------------------------

    def add(self, key: RecordKey, record: dict[str, Any]) -> None:
        self.records[key] = self._new_records[key] = record
        self._flush_in_time()

    def add_predictions(self, key: RecordKey, lines: Sequence[Mapping[str, Any]]) -> None:
        self.predictions.setdefault(key, {}).update({line["row"]: disk.json_line(line) for line in lines})
        self._new_predictions += lines
        self._flush_in_time()

    def _flush_in_time(self) -> None:
        if time.monotonic() - self._last_write >= WRITE_INTERVAL:
            self.flush()

    def flush(self) -> None:
        """Writes what was added, but for cells that another process has recorded meanwhile. Raises `LockedError`, and
        the error of `disk.convert_os_errors`; it then stays buffered."""
        self._last_write = time.monotonic()
        if not self._new_records and not self._new_predictions:
            return
        with self._lock.hold("evaluation", timeout=LOCK_TIMEOUT):
            self.read()
            self.folder.append(PREDICTIONS_FILE, *self._new_predictions)
            self._new_predictions.clear()
            self.folder.append(RECORDS_FILE, *self._new_records.values())
            self._new_records.clear()

    def sort(self, predictions: bool, replacing: Collection[RecordKey] = ()) -> None:
        """Writes all records in order, and the predictions if required. The predictions of `replacing` replace others
        of the same models."""
        self.flush()
        with self._lock.hold("evaluation", timeout=LOCK_TIMEOUT):
            self.read()
            self.folder.write(RECORDS_FILE, json_lines(self.records[key] for key in sorted(self.records)))
            if predictions:
                self.read_predictions()
                models = {key.model for key in replacing}
                kept = sorted(key for key in self.predictions if key in replacing or key.model not in models)
                lines = (line for key in kept for _, line in sorted(self.predictions[key].items()))
                self.folder.write(PREDICTIONS_FILE, b"".join(lines))


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


def json_lines(records: Iterable[Mapping[str, Any]]) -> bytes:
    """Records as lines of JSON."""
    return b"".join(map(disk.json_line, records))
