"""A submission to Slurm as its folder shows it: its items, its jobs with their states, and what is finished."""

import contextlib
import hashlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from numerate.errors import OperationalError, UserError, pluralize
from numerate.executors.array_task import outcome_from_record
from numerate.executors.executor import Failure, ItemOutcome, Work, sleep_with_ticks
from numerate.records.kinds import ITEM, SUBMISSION, TASK
from numerate.records.reading import FORMAT, TailFolder, check_format, damage_message, read_object, read_records
from numerate.training import disk
from numerate.training.lock import has_ended
from numerate.training.stopping import Stop

_ENDED_STATES = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "ENDED", "FAILED", "GONE", "LAUNCH_FAILED", "NODE_FAIL"),
    *("OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT"),
)
"""Job states of squeue(1) in which nothing runs any more, and two additional ones: ENDED (a process of this machine)
and GONE (Slurm no longer knows the job). A requeued task may leave some of them."""

_HINTS = {
    "TIMEOUT": "executor.minutes= gives a task more time",
    "OUT_OF_MEMORY": "executor.mem_gb= gives a task more memory, fewer workers need less",
}
_NEVER_STARTED = ("CANCELLED", "DEADLINE", "REVOKED")
_LAUNCHER_PREFIXES = ("srun:", "slurmstepd", "submitit ")


class Submission:
    """One array of tasks, as stored in its folder, which other commands also read.

        slurm/3/submission.json       cluster, and a job id per task
                items.jsonl           one line per item: its task, its name, its key
                tasks/0000.jsonl      written by task 0 alone; see `ArrayTask`
                logs/                 submitit's: the job script, what tasks printed

    `pending` belongs to this command: number of an item in the submission -> index in the command.
    """

    def __init__(self, path: Path, head: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> None:
        self.path, self.items = path, items
        self.cluster: str = head["cluster"]
        self.job_ids: list[str] = head["jobs"]
        self.host: str = head["host"]
        self.pending: dict[int, int] = {}
        self.records: dict[int, dict[str, Any]] = {}
        self.ended: dict[int, str] = {}
        """The tasks that have ended, with their state."""
        self.refused: dict[int, Failure] = {}
        """The tasks that could not start."""
        self._ended_once: set[int] = set()
        self._files = TailFolder(path / "tasks", TASK)

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
    def create(cls, path: Path, cluster: str, jobs: Sequence[str]) -> "Submission":
        """Records the job ids. From here on other commands see the submission."""
        items = read_records(path / "items.jsonl", ITEM)
        head = {
            "format": FORMAT,
            "cluster": cluster,
            "jobs": list(jobs),
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
            items = read_records(path / "items.jsonl", ITEM)
            if len(items) != head.get("items", len(items)):
                damage = f"it has {len(items)} of {head['items']} items"
                raise UserError(damage_message(path / "items.jsonl", damage, ITEM.remedy))
            submissions.append(cls(path, head, items))
            submissions[-1].read()
        return submissions

    # The files of tasks ---------------------------------------------------------------------------------------------

    def read(self, *tasks: int) -> None:
        """Reads new lines of these tasks, otherwise of all."""
        for name, record in self._files.read_new(*(f"{task:04d}.jsonl" for task in tasks)):
            task = int(name.partition(".")[0])
            if "item" in record:
                self.records[record["item"]] = record
            elif "finished" in record:
                self.ended[task] = "COMPLETED"
            elif "refused" in record:
                self.ended[task] = "FAILED"
                with contextlib.suppress(ValueError):
                    self.refused[task] = Failure.from_dict(record["refused"])
            elif "started" in record:
                self.ended.pop(task, None)

    def tasks(self) -> set[int]:
        """The tasks that this command waits for."""
        return {self.items[number]["task"] for number in self.pending}

    def deliver(self, work: Work) -> Iterator[ItemOutcome]:
        """Yields the items read since the last call that this command waits for, and those that will not be finished,
        since their tasks have ended."""
        records, self.records = self.records, {}
        for number, record in records.items():
            if (index := self.pending.pop(number, None)) is not None:
                yield outcome_from_record(record, index, work)
        yield from self._fail_items(
            {task: self.refused.get(task) or self.failure(task) for task in self.tasks() & self.ended.keys()}
        )

    def _fail_items(self, failures: Mapping[int, Failure]) -> Iterator[ItemOutcome]:
        for number in list(self.pending):
            task = self.items[number]["task"]
            if task in failures:
                yield ItemOutcome(self.pending.pop(number), failure=failures[task], worker=self.job_ids[task])

    def detach(self, stop: Stop) -> Iterator[ItemOutcome]:
        """The items that this command no longer waits for, as failures. The jobs keep running."""
        if stop.requested:
            verb = "continues" if len(self.pending) == 1 else "continue"
            print_message(
                f"{pluralize(len(self.pending), 'item')} {verb} in {self}. The same command waits for them, from any "
                "machine that sees the folder."
            )
        failures = {}
        for task in self.tasks():
            job = f"{'process' if self.cluster == 'local' else 'Slurm task'} {self.job_ids[task]}"
            if stop.requested:
                failures[task] = Failure("stopped", f"{job} keeps running", stop.status or 130)
            else:
                failures[task] = Failure("not started", f"submitted as {job}", 0)
        yield from self._fail_items(failures)

    # The states of tasks --------------------------------------------------------------------------------------------

    def find_ended_tasks(self, work: Work) -> Iterator[ItemOutcome]:
        """Asks for the states of the tasks. One that has ended twice in a row, and so is not being requeued, leaves its
        unfinished items behind."""
        for task, state in (self.states(self.tasks()) or {}).items():
            if state not in _ENDED_STATES:
                self._ended_once.discard(task)
            elif task in self._ended_once:
                self.read(task)
                yield from self.deliver(work)
                self.ended[task] = state
            else:
                self._ended_once.add(task)

    def running(self, tasks: Collection[int]) -> set[int]:
        """Those of these tasks that are queued or running. Raises `OperationalError` if Slurm does not answer."""
        states = self.states(tasks)
        if states is None:
            raise OperationalError(
                f"{self.path}: squeue does not answer, so the state of its jobs is unknown; try again"
            )
        return {task for task in tasks if states[task] not in _ENDED_STATES}

    def states(self, tasks: Collection[int]) -> dict[int, str] | None:
        """The state of each of these tasks; None if Slurm does not answer.

        One call of squeue for all of them: it knows a job until some minutes after its end, and needs no accounting.
        """
        if not tasks:
            return {}
        if self.cluster == "local":
            is_here = self.host == socket.gethostname()
            ended = {task for task in tasks if not is_here or has_ended({"host": self.host, "pid": self.job_ids[task]})}
            return {task: "ENDED" if task in ended else "RUNNING" for task in tasks}
        jobs = f"--jobs={self._array_job_ids()}"
        command = ["squeue", "--noheader", "--array", "--states=all", jobs, "--format=%i|%T"]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=120)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if result.returncode and "Invalid job id" not in result.stderr:
            return None
        state_by_job = dict(line.strip().split("|", 1) for line in result.stdout.splitlines() if "|" in line)
        return {task: state_by_job.get(self.job_ids[task], "GONE") for task in tasks}

    def failure(self, task: int) -> Failure:
        """The failure of the items of a task that ended before they were finished."""
        state, log = self.ended[task], self.error_log(task)
        job = "its process" if self.cluster == "local" else "its Slurm task"
        parts = [f"{job} {self.job_ids[task]} ended before the item was finished ({state})"]
        parts += [_HINTS[state]] if state in _HINTS else []
        if log.exists() or (self.path / "tasks" / f"{task:04d}.jsonl").exists():
            last_line = _last_program_line(log)
            parts.append(f"log: {log}{f' ({last_line})' if last_line else ''}")
        elif state not in _NEVER_STARTED:
            parts.append(
                f"its log {log} is missing: if the machines of the cluster do not share this folder, runs_dir= must "
                "name one that they do"
            )
        return Failure("died", f"{'; '.join(parts)}; the same command resumes")

    def error_log(self, task: int) -> Path:
        """The file with a task's error stream; submitit defines the name."""
        return self.path / "logs" / f"{self.job_ids[task]}_0_log.err"

    def _array_job_ids(self) -> str:
        """The arguments of `scancel` or `kill` that end all tasks."""
        return " ".join(dict.fromkeys(job.partition("_")[0] for job in self.job_ids))

    def __str__(self) -> str:
        """The jobs, and the commands to inspect and to end them."""
        jobs = self._array_job_ids()
        if self.cluster == "slurm":
            return f"Slurm job {jobs} (`squeue -j {jobs}` shows it, `scancel {jobs}` ends it)"
        return f"processes of this machine (`kill {jobs}` ends them)"


def wait_for_items(
    submissions: Sequence[Submission], work: Work, stop: Stop, on_tick: Callable[[], None], *, wait: bool = True
) -> Iterator[ItemOutcome]:
    """Yields every item that a command waits for when its task finishes it, or with the failure of its task.

    When `stop` is requested, or immediately without `wait`, unfinished items are left to their jobs.
    """
    last_query = time.monotonic()
    while True:
        for submission in submissions:
            submission.read()
            yield from submission.deliver(work)
        unfinished = [one for one in submissions if one.pending]
        if not unfinished:
            return
        if stop.requested or not wait:
            for submission in unfinished:
                yield from submission.detach(stop)
            return
        if time.monotonic() - last_query >= _interval(unfinished, 1.0, 10.0, 0.02):
            for submission in unfinished:
                yield from submission.find_ended_tasks(work)
            last_query = time.monotonic()
        sleep_with_ticks(_interval(unfinished, 0.5, 2.0, 0.01), stop, on_tick)


def _interval(submissions: Sequence[Submission], local: float, remote: float, per_task: float) -> float:
    """Seconds between two queries to Slurm, or two looks at the files of tasks on a shared file system."""
    if all(one.cluster == "local" for one in submissions):
        return local
    return max(remote, per_task * sum(len(one.job_ids) for one in submissions))


def print_message(text: str) -> None:
    """Prints a message to stderr."""
    print(f"numerate: {text}", file=sys.stderr, flush=True)


def _last_program_line(log: Path) -> str:
    """The last line in the log that is not from Slurm or submitit: the Python error, if there was one."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - 4000))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    except OSError:
        return ""
    return next((line[-200:] for line in reversed(lines) if line and not line.startswith(_LAUNCHER_PREFIXES)), "")


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
