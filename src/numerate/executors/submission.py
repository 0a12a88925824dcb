"""The folder of a submission to Slurm: its items, its jobs, and the items that are finished."""

import contextlib
import hashlib
import json
import os
import socket
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from numerate.errors import UserError
from numerate.executors.chunk import outcome_from_record
from numerate.executors.executor import Failure, ItemOutcome, Work
from numerate.records.kinds import ITEM, SUBMISSION, TASK
from numerate.records.reading import FORMAT, Tail, check_format, damage_message, read_object, read_records
from numerate.training import disk


class Submission:
    """One array of tasks, as stored in its folder, which other commands also read.

        slurm/3/submission.json       cluster, and a job id per task
                items.jsonl           one line per item: its task, its name, its key
                tasks/0000.jsonl      written by task 0 alone; see `ArrayTask`
                logs/                 submitit's: the job script, what tasks printed

    `pending` belongs to this command: number of an item in the submission -> index in the command.
    """

    def __init__(self, path: Path, head: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> None:
        self.path = path
        self.cluster: str = head["cluster"]
        self.job_ids: list[str] = head["jobs"]
        self.host: str = head["host"]
        self.process_start_times: list[str | None] = head["started"]
        self.items = items
        self.pending: dict[int, int] = {}
        self.records: dict[int, dict[str, Any]] = {}
        self.ended: dict[int, str] = {}
        self.failures: dict[int, Failure] = {}
        self._tails: dict[str, Tail] = {}

    @classmethod
    def create_folder(cls, root: Path, items: Sequence[tuple[str, str]], tasks: Sequence[Sequence[int]]) -> Path:
        """Creates the next folder below `root` for items (name and key) in tasks; nothing is submitted yet."""
        path = root / str(next_number(root))
        for name in ("tasks", "logs"):
            disk.make_folder(path / name)
        task_of = {number: task for task, numbers in enumerate(tasks) for number in numbers}
        records = [{"task": task_of[n], "name": name, "key": key} for n, (name, key) in enumerate(items)]
        disk.write_atomically(path / "items.jsonl", b"".join(map(disk.json_line, records)))
        return path

    @classmethod
    def create(cls, path: Path, cluster: str, jobs: Sequence[str], started: Sequence[str | None]) -> "Submission":
        """Records the job ids, and the start times of local processes. From here on other commands see the
        submission."""
        items = read_records(path / "items.jsonl", ITEM)
        head = {
            "format": FORMAT,
            "cluster": cluster,
            "jobs": list(jobs),
            "started": list(started),
            "items": len(items),
            "host": socket.gethostname(),
            "time": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        disk.write_atomically(path / "submission.json", json.dumps(head).encode())
        return cls(path, head, items)

    @classmethod
    def load_all(cls, root: Path) -> "list[Submission]":
        """Reads the submissions below a folder, in order. Folders that were never submitted are skipped.

        Raises `UserError` for one that is damaged or was written by another version.
        """
        submissions = []
        for path in sorted((path for path in root.glob("*") if path.name.isdecimal()), key=lambda path: int(path.name)):
            head = read_object(path / "submission.json", SUBMISSION)
            if head is None:
                continue
            check_format(path, head["format"])
            submission = cls(path, head, _read_items(path, head))
            submission.read()
            submissions.append(submission)
        return submissions

    def read(self, reopen: Collection[int] = ()) -> None:
        """Reads new lines of the tasks.

        A shared file system may report the size of a file as it was a minute ago, unless it is opened: the files of the
        tasks in `reopen` are opened.
        """
        with os.scandir(self.path / "tasks") as entries:
            changed_files = {entry.name for entry in entries if entry.stat().st_size > self._tail(entry.name).offset}
        for name in sorted(changed_files | {f"{task:04d}.jsonl" for task in reopen}):
            for record in self._tail(name).read_new():
                task = int(name.partition(".")[0])
                if "item" in record:
                    self.records[record["item"]] = record
                elif "finished" in record:
                    self.ended[task] = "COMPLETED"
                elif "refused" in record:
                    with contextlib.suppress(ValueError):
                        self.failures[task] = Failure.from_dict(record["refused"])
                    self.ended[task] = "FAILED"
                elif "started" in record:
                    self.ended.pop(task, None)

    def _tail(self, name: str) -> Tail:
        return self._tails.setdefault(name, Tail(self.path / "tasks" / name, TASK))

    def tasks(self) -> set[int]:
        """The tasks that this command waits for."""
        return {self.items[number]["task"] for number in self.pending}

    def deliver(self, work: Work) -> Iterator[ItemOutcome]:
        """Yields the items read since the last call that this command waits for."""
        records, self.records = self.records, {}
        for number, record in records.items():
            if (index := self.pending.pop(number, None)) is not None:
                yield outcome_from_record(record, index, work)

    def fail_items(self, failures: Mapping[int, Failure]) -> Iterator[ItemOutcome]:
        """The items that this command waits for but whose tasks will not finish them, with the failure of each task."""
        for number in list(self.pending):
            task = self.items[number]["task"]
            if task in failures:
                yield ItemOutcome(self.pending.pop(number), failure=failures[task], worker=self.job_ids[task])

    def has_started(self, task: int) -> bool:
        """Whether a task has started, according to its files."""
        return (self.path / "tasks" / f"{task:04d}.jsonl").exists()

    def error_log(self, task: int) -> Path:
        """The file with a task's error stream; submitit defines the name."""
        return self.path / "logs" / f"{self.job_ids[task]}_0_log.err"

    def array_job_ids(self) -> str:
        """The arguments of `scancel` or `kill` that end all tasks."""
        return " ".join(dict.fromkeys(job.partition("_")[0] for job in self.job_ids))


def _read_items(path: Path, head: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The items of a submission, numbered by their lines. Raises `UserError` if some are missing."""
    file = path / "items.jsonl"
    found = read_records(file, ITEM)
    if len(found) != head.get("items", len(found)):
        raise UserError(damage_message(file, f"it has {len(found)} of {head['items']} items", ITEM.remedy))
    return found


def next_number(root: Path) -> int:
    """The number of the next submission below a folder."""
    return max((int(path.name) for path in root.glob("*") if path.name.isdecimal()), default=0) + 1


def item_key(work: Work, item: Any) -> str:
    """A key that is equal for the same item of the same work in any process: it identifies items in jobs of earlier
    commands.

    It is a hash of how both are printed (`repr`), so fields of a dataclass with `repr=False` are ignored. What is
    printed with its address is never recognized, and therefore submitted again.
    """
    return hashlib.sha256(repr((work, item)).encode(errors="backslashreplace")).hexdigest()[:20]
