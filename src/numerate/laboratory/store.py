"""The records of evaluations in the folder of a run."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from numerate.evaluation.grid import Cell
from numerate.reports.records import settings_key
from numerate.training.lock import Lock
from numerate.training.run import RunFolder

Key = tuple[str, int, tuple[tuple[str, float, str], ...], Cell, int, int, int, str]
"""What tells two records apart, in the order they are kept: checkpoint, step, settings, cell, placement, count, key of
the questions, method."""


class Store:
    """The records of evaluations in a run's folder; a piece has a folder of its own below it.

    Records are appended as they come, so that a stopped evaluation goes on where it was, and put in their order at the
    end, so that the same evaluation leaves the same bytes.
    """

    def __init__(self, folder: RunFolder, piece: str | None) -> None:
        self.folder, self.piece = folder, piece
        self.place = folder.path / "pieces" / piece if piece is not None else folder.path
        self.file = f"pieces/{piece}/evaluation.jsonl" if piece is not None else "evaluation.jsonl"
        self.known: dict[Key, dict[str, Any]] = {}

    def lock(self) -> Any:
        if self.piece is None:
            return self.folder.lock("evaluation")
        self.place.mkdir(parents=True, exist_ok=True)
        return Lock(self.place / "lock").hold("evaluation")

    def relabel(self, steps: Mapping[str, int]) -> None:
        """Reads what is known. Records of a `final` or `best` that is another step by now are kept under their step."""
        files = [self.file]
        if self.piece is None:
            files += [
                f"pieces/{path.parent.name}/evaluation.jsonl"
                for path in sorted(self.folder.path.glob("pieces/*/evaluation.jsonl"))
            ]
        else:
            files.append("evaluation.jsonl")
        for name in dict.fromkeys(files):
            for record in self.folder.records(name):
                label = str(record["checkpoint"])
                if label in steps and record.get("step") != steps[label]:
                    record["checkpoint"] = f"step {record['step']}"
                self.known.setdefault(key_of(record), record)

    def same_weights(self, key: Key) -> dict[str, Any] | None:
        """The record of the same measurement under another name of the same step: `best` may be `final` too."""
        names = (key[0], "final", "best", f"step {key[1]}")
        return next((self.known[(name, *key[1:])] for name in names if (name, *key[1:]) in self.known), None)

    def add(self, key: Key, record: dict[str, Any]) -> None:
        self.known[key] = record
        self.folder.append(self.file, record)

    def settle(self) -> None:
        """Puts all records in their order."""
        if self.piece is None:
            self.folder.write(self.file, lines_of([self.known[key] for key in sorted(self.known)]))

    def write(self, name: str, lines: Sequence[Mapping[str, Any]], same: Sequence[str]) -> None:
        """Puts lines into a file of records, in the place of those that agree in `same`."""
        name = name if self.piece is None else f"pieces/{self.piece}/{name}"

        def place(line: Mapping[str, Any]) -> str:
            return json.dumps([line.get(field) for field in same], sort_keys=True)

        replaced = {place(line) for line in lines}
        kept = [line for line in self.folder.records(name) if place(line) not in replaced]
        self.folder.write(name, lines_of([*kept, *lines]))


def key_of(record: Mapping[str, Any]) -> Key:
    """The key of a record as it is written."""
    cell: Cell = tuple((str(axis), int(value)) for axis, value in record["cell"].items())
    return (
        str(record["checkpoint"]),
        int(record["step"]),
        settings_key(record.get("settings", {})),
        cell,
        int(record["placement"]),
        int(record["count"]),
        int(record.get("questions", 0)),
        str(record["method"]),
    )


def lines_of(records: Sequence[Mapping[str, Any]]) -> str:
    """Records as lines of JSON."""
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
