"""What lies in the folder of one submission to Slurm: which items, in which jobs, what is over, what was handed on."""

import contextlib
import hashlib
import json
import os
import pickle
import socket
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from numerate.errors import UserError
from numerate.executors.chunk import finished_of
from numerate.executors.executor import Failure, Finished, Work
from numerate.records.kinds import HANDED, ITEM, SUBMISSION, TASK
from numerate.records.reading import Tail, damaged, read, read_object
from numerate.training import disk

FORMAT = 1
"""Of submission.json and the files beside it."""


class Submission:
    """One array of tasks, as stored in its folder, which other commands read too.

        slurm/3/submission.json       cluster, and a job id per task
                items.jsonl           one line per item: its task, its name, its key
                tasks/0000.jsonl      written by task 0 alone; see `Chunk`
                handed/HOST-PID.jsonl written by one command alone: items whose result it was given, tasks that ended
                logs/                 submitit's: the job script, what tasks printed

    `waiting` is this command's own: number of an item here -> index in the command.
    """

    def __init__(self, path: Path, head: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> None:
        self.path = path
        self.cluster: str = head["cluster"]
        self.jobs: list[str] = head["jobs"]
        self.host: str = head["host"]
        self.started: list[str | None] = head["started"]
        self.items = items
        self.waiting: dict[int, int] = {}
        self.records: dict[int, dict[str, Any]] = {}
        self.handed: set[int] = set()
        self.ended: dict[int, str] = {}
        self.refused: dict[int, Failure] = {}
        self._tails: dict[str, Tail] = {}
        self._own = path / "handed" / f"{socket.gethostname()}-{os.getpid()}.jsonl"

    @classmethod
    def prepare(cls, root: Path, items: Sequence[tuple[str, str]], tasks: Sequence[Sequence[int]]) -> Path:
        """Makes the next folder below `root` for items (name and key) in tasks; nothing is submitted yet."""
        path = root / str(next_number(root))
        with disk.explained(path):
            for folder in (path / "tasks", path / "handed", path / "logs"):
                folder.mkdir(parents=True)
        task_of = {number: task for task, numbers in enumerate(tasks) for number in numbers}
        records = [{"task": task_of[n], "name": name, "key": key} for n, (name, key) in enumerate(items)]
        disk.replace(path / "items.jsonl", b"".join(map(disk.line, records)))
        return path

    @classmethod
    def submitted(cls, path: Path, cluster: str, jobs: Sequence[str], started: Sequence[str | None]) -> "Submission":
        """Writes down which jobs it became, and when they began where they are processes of this machine. From here on
        other commands see it."""
        head = {
            "format": FORMAT,
            "cluster": cluster,
            "jobs": list(jobs),
            "started": list(started),
            "items": len(read(path / "items.jsonl", ITEM)),
            "host": socket.gethostname(),
            "at": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        disk.replace(path / "submission.json", json.dumps(head).encode())
        return cls(path, head, _items(path, head))

    @classmethod
    def all(cls, root: Path) -> "list[Submission]":
        """Those below a folder, in order, read up to now. One that was never submitted is left out.

        Raises `UserError` for one that was damaged or that a later version wrote.
        """
        found = []
        for path in sorted((path for path in root.glob("*") if path.name.isdecimal()), key=lambda path: int(path.name)):
            head = read_object(path / "submission.json", SUBMISSION)
            if head is None:
                continue
            if head["format"] > FORMAT:
                raise UserError(
                    f"{path}: is of format {head['format']}, this version reads up to {FORMAT}; update numerate."
                )
            one = cls(path, head, _items(path, head))
            one.read()
            for file in (path / "handed").glob("*.jsonl"):
                for record in read(file, HANDED):
                    if "item" in record:
                        one.handed.add(record["item"])
                    else:
                        one.ended[record["task"]] = record["state"]
            found.append(one)
        return found

    def read(self, surely: Collection[int] = ()) -> list[int]:
        """Takes in the lines that tasks have written since; the numbers of the items that are over since.

        A shared file system may report the size of a file as it was a minute ago, unless it is opened: the files of the
        tasks in `surely` are opened.
        """
        fresh = []
        with os.scandir(self.path / "tasks") as entries:
            grown = {entry.name for entry in entries if entry.stat().st_size > self._tail(entry.name).end}
        for name in sorted(grown | {f"{task:04d}.jsonl" for task in surely}):
            for record in self._tail(name).new():
                task = int(name.partition(".")[0])
                if "item" in record:
                    self.records[record["item"]] = record
                    fresh.append(record["item"])
                elif "over" in record:
                    self.ended[task] = "COMPLETED"
                elif "refused" in record:
                    with contextlib.suppress(ValueError):
                        self.refused[task] = Failure.of(record["refused"])
                    self.ended[task] = "FAILED"
                elif "began" in record:
                    self.ended.pop(task, None)
        return fresh

    def _tail(self, name: str) -> Tail:
        return self._tails.setdefault(name, Tail(self.path / "tasks" / name, TASK))

    def tasks(self) -> set[int]:
        """The tasks that this command waits for."""
        return {self.items[number]["task"] for number in self.waiting}

    def take(self, number: int, work: Work) -> Iterator[Finished]:
        """Yields an item of a work that is over, if this command waits for it, and notes that it was handed on."""
        record = self.records.pop(number, None)
        index = self.waiting.pop(number, None)
        if record is None or index is None:
            return
        yield finished_of(record, index, work)
        disk.append(self._own, [{"item": number}])

    def end(self, task: int, state: str) -> None:
        """Records that a task is over in whatever way, so that no command has to query Slurm again."""
        self.ended[task] = state
        disk.append(self._own, [{"task": task, "state": state}])

    def lost(self, failures: Mapping[int, Failure]) -> Iterator[Finished]:
        """The items that this command waits for of tasks that will not finish them, with the failure of each task."""
        for number in list(self.waiting):
            task = self.items[number]["task"]
            if task in failures:
                yield Finished(self.waiting.pop(number), failure=failures[task], worker=self.jobs[task])

    def began(self, task: int) -> bool:
        """Whether a task was ever begun, as far as can be seen from here."""
        return (self.path / "tasks" / f"{task:04d}.jsonl").exists()

    def log(self, task: int) -> Path:
        """What a task printed to its error stream; submitit decides the name."""
        return self.path / "logs" / f"{self.jobs[task]}_0_log.err"

    def job(self) -> str:
        """What `scancel` or `kill` takes to end all its tasks."""
        return " ".join(dict.fromkeys(job.partition("_")[0] for job in self.jobs))


def _items(path: Path, head: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The items of a submission, which are known by the numbers of their lines. Raises `UserError` where some are
    missing."""
    file = path / "items.jsonl"
    found = read(file, ITEM)
    if len(found) != head.get("items", len(found)):
        raise UserError(damaged(file, f"it has {len(found)} of {head['items']} items", ITEM.remedy))
    return found


def next_number(root: Path) -> int:
    """The number of the next submission below a folder."""
    return max((int(path.name) for path in root.glob("*") if path.name.isdecimal()), default=0) + 1


def key_of(work: Work, item: Any) -> str:
    """The same for the same item of the same work in any process: by this an item is found in jobs of an earlier start.

    Fields of a dataclass with `compare=False` do not count, of the work or of the item. What is neither plain data nor
    made of it counts as it is pickled; what cannot be pickled alike twice is never found again, and so submitted again.
    """
    return hashlib.sha256(_encoded(work) + b"\n" + _encoded(item)).hexdigest()[:20]


def _encoded(value: Any) -> bytes:
    try:
        return json.dumps(_plain(value), sort_keys=True).encode()
    except (TypeError, ValueError, AttributeError, RecursionError):
        pass
    try:
        return pickle.dumps(value)
    except Exception:
        return uuid.uuid4().bytes


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {"mapping": sorted(([_plain(key), _plain(item)] for key, item in value.items()), key=repr)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.path.abspath(value)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if is_dataclass(value):
        return {kind: {part.name: _plain(getattr(value, part.name)) for part in fields(value) if part.compare}}
    if isinstance(value, Work):
        return {kind: _plain(vars(value))}
    raise TypeError(kind)
