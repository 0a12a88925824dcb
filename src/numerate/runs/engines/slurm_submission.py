"""A submission to Slurm: what its tasks have written, and what squeue says of them."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from numerate.errors import OperationalError, UserError, pluralize
from numerate.runs.engines.engine import TICK_INTERVAL, Failure, Outcome, is_done
from numerate.runs.engines.slurm_task import LineReader
from numerate.training import disk
from numerate.training.stopping import Stop

QUERY_INTERVAL, READ_INTERVAL = 10.0, 2.0
"""Seconds between two calls of squeue, and between two looks at the files of tasks on a shared file system."""

_ENDED_STATES = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "GONE", "LAUNCH_FAILED", "NODE_FAIL"),
    *("OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT"),
)
"""Job states of squeue(1) in which nothing runs any more, and GONE: Slurm no longer knows the job. A requeued task may
leave some of them."""

_HINTS = {
    "TIMEOUT": "engine.minutes= gives a task more time",
    "OUT_OF_MEMORY": "engine.mem_gb= gives a task more memory, fewer workers need less",
}
_NEVER_STARTED = ("CANCELLED", "DEADLINE", "REVOKED")
_LAUNCHER_PREFIXES = ("srun:", "slurmstepd", "submitit ")


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    jobs: list[Annotated[str, msgspec.Meta(pattern=r"^[0-9]+(_[0-9]+)?$")]]


class Submission:
    """One array of tasks, in a folder of its own:

    slurm/3/jobs.json              a job id per task
            outcomes/0000.jsonl    written by task 0 alone
            logs/                  submitit's: the job script, what tasks printed
    """

    def __init__(self, path: Path, jobs: Sequence[str] = ()) -> None:
        self.path, self.jobs = path, list(jobs)

    @classmethod
    def load(cls, path: Path) -> "Submission | None":
        """Reads a submission; None if nothing was submitted. Raises `UserError` for a damaged file."""
        try:
            return cls(path, msgspec.json.decode((path / "jobs.json").read_bytes(), type=_Head).jobs)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            text = f"is damaged ({error}); delete it if `squeue` shows none of its jobs"
            raise UserError(f"{path / 'jobs.json'}: {text}") from error

    def save(self) -> None:
        """Writes the job ids. From here on other commands see the submission."""
        disk.write_atomically(self.path / "jobs.json", json.dumps({"jobs": self.jobs}).encode())

    def states(self) -> dict[int, str] | None:
        """The state of each task; None if Slurm does not answer. squeue knows a job until some minutes after its end,
        and needs no accounting."""
        jobs = f"--jobs={','.join(self._array_jobs())}"
        command = ["squeue", "--noheader", "--array", "--states=all", jobs, "--format=%i|%T"]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=120)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if result.returncode and "Invalid job id" not in result.stderr:
            return None
        state_by_job = dict(line.strip().split("|", 1) for line in result.stdout.splitlines() if "|" in line)
        return {task: state_by_job.get(job, "GONE") for task, job in enumerate(self.jobs)}

    def is_running(self) -> bool:
        """Whether any task is queued or running. Raises `OperationalError` if Slurm does not answer."""
        states = self.states()
        if states is None:
            text = "squeue does not answer, so the state of its jobs is unknown; try again"
            raise OperationalError(f"{self.path}: {text}")
        return not set(states.values()) <= set(_ENDED_STATES)

    def follow(
        self,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        tasks: Sequence[Sequence[int]],
        stop: Stop,
        on_tick: Callable[[], None],
        *,
        wait: bool = True,
    ) -> Iterator[Outcome]:
        """Yields every item of `tasks` (by index) when its task has written its line, or with the failure of its task,
        unless its own folder shows that it is done.

        When `stop` is requested, or immediately without `wait`, unfinished items are left to their jobs.
        """
        pending = [set(numbers) for numbers in tasks]  # items without an outcome, by task
        readers = [LineReader(self.outcomes_file(task)) for task in range(len(tasks))]
        ended: set[int] = set()
        last_query = time.monotonic()

        def read(task: int) -> Iterator[Outcome]:
            for line in readers[task].read():
                if line.item in pending[task]:
                    pending[task].remove(line.item)
                    yield Outcome(line.item, line.result, line.failure, line.seconds, line.worker)

        while True:
            for task in range(len(tasks)):
                yield from read(task)
            if not any(pending):
                return
            if stop.requested or not wait:
                break
            if time.monotonic() - last_query >= max(QUERY_INTERVAL, 0.02 * len(tasks)):
                for task, state in (self.states() or {}).items():
                    if state not in _ENDED_STATES:
                        ended.discard(task)
                    elif task not in ended:  # it may be requeued: believed at the second time
                        ended.add(task)
                    else:
                        yield from read(task)
                        for number in sorted(pending[task]):
                            yield Outcome(
                                number, failure=None if is_done(function, items[number]) else self.failure(task, state)
                            )
                        pending[task].clear()
                last_query = time.monotonic()
            sleep(max(READ_INTERVAL, 0.01 * len(tasks)), stop, on_tick)
        if stop.requested:
            items = f"{pluralize(sum(map(len, pending)), 'item')} left to {self}"
            say(f"{items}. The same command waits for them, from any machine that sees the folder.")
        for task, numbers in enumerate(pending):
            failure = Failure("not started", f"submitted as Slurm task {self.jobs[task]}", 0)
            if stop.requested:
                failure = Failure("stopped", f"Slurm task {self.jobs[task]} keeps running", stop.status or 130)
            yield from (Outcome(number, failure=failure) for number in sorted(numbers))

    def outcomes_file(self, task: int) -> Path:
        """The file that a task writes."""
        return self.path / "outcomes" / f"{task:04d}.jsonl"

    def failure(self, task: int, state: str) -> Failure:
        """The failure of the items of a task that ended in a state before they were finished."""
        log = self.path / "logs" / f"{self.jobs[task]}_0_log.err"  # submitit's name
        parts = [f"its Slurm task {self.jobs[task]} ended before the item was finished ({state})"]
        parts += [_HINTS[state]] if state in _HINTS else []
        if log.exists() or self.outcomes_file(task).exists():
            last_line = _last_program_line(log)
            parts.append(f"log: {log}{f' ({last_line})' if last_line else ''}")
        elif state not in _NEVER_STARTED:
            parts.append(
                f"its log {log} is missing: if the machines of the cluster do not share this folder, runs_dir= must "
                "name one that they do"
            )
        return Failure("died", f"{'; '.join(parts)}; the same command resumes")

    def _array_jobs(self) -> list[str]:
        return list(dict.fromkeys(job.partition("_")[0] for job in self.jobs))

    def __str__(self) -> str:
        """The jobs, and the commands to inspect and to end them."""
        jobs = " ".join(self._array_jobs())
        return f"Slurm job {jobs} (`squeue -j {jobs}` shows it, `scancel {jobs}` ends it)"


def _last_program_line(log: Path) -> str:
    """The last line in the log that is not from Slurm or submitit: the Python error, if there was one."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - 4000))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    except OSError:
        return ""
    return next((line[-200:] for line in reversed(lines) if line and not line.startswith(_LAUNCHER_PREFIXES)), "")


def running_submissions(root: Path) -> list[Submission]:
    """The submissions below a folder of which a task is queued or running."""
    paths = [root / str(number) for number in range(1, next_number(root))]
    return [one for one in map(Submission.load, paths) if one is not None and one.is_running()]


def next_number(root: Path) -> int:
    """The number of the next submission below a folder."""
    return max((int(path.name) for path in root.glob("*") if path.name.isdecimal()), default=0) + 1


def sleep(seconds: float, stop: Stop, on_tick: Callable[[], None]) -> None:
    """Waits, with a tick twice a second, until the time has elapsed or a stop is requested."""
    end = time.monotonic() + seconds
    while not stop.requested and (remaining := end - time.monotonic()) > 0:
        time.sleep(min(TICK_INTERVAL, remaining))
        on_tick()


def say(text: str) -> None:
    """Prints a message to stderr."""
    print(f"numerate: {text}", file=sys.stderr, flush=True)
