"""Arrays of tasks on a Slurm cluster, each of which runs the local pool on its share of the items."""

import contextlib
import io
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from numerate.config import setting
from numerate.errors import OperationalError, UserError
from numerate.executors.chunk import Carried, Chunk, dealt, finished_of
from numerate.executors.executor import Executor, Failure, Finished, Work
from numerate.executors.following import called, follow, many, pause, tell
from numerate.executors.local import Local
from numerate.executors.states import OVER, beginning, states_of
from numerate.executors.submission import Submission, key_of, next_number
from numerate.training import disk
from numerate.training.lock import Lock
from numerate.training.stopping import Stop

WARNING = 120
"""Seconds before its limit at which a task is warned, so that runs write checkpoints and it is queued again."""

MOST = 1000
"""Tasks of an array at most, where their number is not given: Slurm's own limit (MaxArraySize) is 1001 by default."""

_left_running: list[Any] = []
"""Tasks of the stand-in that still run: without them Python would warn of processes that nobody waits for."""


@dataclass(frozen=True)
class Slurm(Executor):
    """Arrays of tasks on a Slurm cluster, submitted by submitit: each runs the local pool on its share of the items.

    The folder has to be one that all machines see: the tasks write each result there as soon as it is there, and the
    command reads it. Ctrl-C leaves the jobs running. The same command again waits for what is still queued or running,
    whoever submitted it, and submits the rest.

    >>> print(Slurm(partition="cpu", cpus_per_task=16, minutes=120).script(Square(), range(200), Path("runs")))
    """

    partition: str | None = setting(None, "partition; null: the cluster's default")
    account: str | None = setting(None, "account to charge")
    qos: str | None = setting(None, "quality of service")
    constraint: str | None = setting(None, "required node features")
    array_tasks: int | None = setting(None, "tasks of the job array; null: by items_per_task")
    items_per_task: int | None = setting(
        None, "least number of items per task, where array_tasks is null; null: 4 per worker"
    )
    array_parallelism: int | None = setting(None, "tasks running at the same time; null: no limit")
    minutes: int = setting(60, "time limit of a task in minutes; a task that reaches it is requeued and resumes")
    max_requeues: int = setting(10, "how often a task that reached its time limit is requeued")
    cpus_per_task: int = setting(
        4, "CPU cores per task; workers is cpus_per_task / threads, or one per GPU, where it is null"
    )
    gpus_per_task: int = setting(0, "GPUs per task, assigned to its workers in turn")
    mem_gb: float | None = setting(None, "memory per task in GB; null: the cluster's default")
    sbatch_options: tuple[str, ...] = setting((), "further sbatch options, as exclude=node7 or exclusive")
    setup: tuple[str, ...] = setting(
        (), "shell commands run before each task: 'module load cuda', 'source venv/bin/activate'"
    )
    python: str | None = setting(None, "Python interpreter of the tasks; null: the current one")
    wait: bool = setting(True, "wait for the tasks and collect their results; false: submit only")
    cluster: Literal["slurm", "local", "debug"] = setting(
        "slurm", "local: run tasks as local processes, to try it out; debug: one after the other in this process"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("array_tasks", "items_per_task", "array_parallelism", "minutes", "cpus_per_task"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name}: {value} is too few; 1 or more is right")
        for name in ("gpus_per_task", "max_requeues"):
            if getattr(self, name) < 0:
                raise UserError(f"{name}: {getattr(self, name)} is less than nothing")
        if self.mem_gb is not None and not self.mem_gb > 0:
            raise UserError(f"mem_gb: {self.mem_gb} is nothing; a number above 0, or null for the cluster's default")
        for name in ("sbatch_options", "setup"):
            for line in getattr(self, name):
                if "\n" in line or not line.strip():
                    raise UserError(f"{name}: {line!r} is no single line")

    def ready(self) -> None:
        _submitit()
        if self.cluster == "slurm" and shutil.which("sbatch") is None:
            raise UserError(
                "executor: slurm needs sbatch, and this machine has none; a login node of the cluster has it. "
                "executor.cluster=local tries the same on this machine."
            )

    def run(
        self,
        work: Work,
        items: Sequence[Any],
        *,
        folder: Path | None = None,
        stop: Stop | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> Iterator[Finished]:
        self.ready()
        if folder is None:
            raise UserError("executor: slurm needs a folder that all machines of the cluster see")
        return self._run(work, items, folder.absolute() / "slurm", stop or Stop(), tick)

    def script(self, work: Work, items: Sequence[Any], folder: Path) -> str:
        root = folder.absolute() / "slurm"
        new = list(range(len(items)))
        if self.cluster == "local" or shutil.which("sbatch") is not None:
            _, new = self._joined(root, work, [key_of(work, item) for item in items])
        if not new:
            return f"# Nothing to submit: all {len(items)} items are in jobs of an earlier start.\n"
        tasks = dealt(len(new), self._tasks(len(new)))
        text = self._script(root / str(next_number(root)) / "logs", len(tasks))
        first, *rest = text.splitlines()
        names = [work.name_of(items[new[number]]) for number in tasks[0]]
        comments = [
            f"# {many(len(new), 'item')} in {many(len(tasks), 'task')} of {len(tasks[0])} at most, on "
            f"{many(self.pool.workers or 1, 'worker')} of {many(self.threads, 'thread')} each.",
            f"# Task 0: {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}",
        ]
        if len(new) < len(items):
            comments.insert(1, f"# {many(len(items) - len(new), 'item')} more: in jobs of an earlier start.")
        return "\n".join([first, *comments, *rest, ""])

    @property
    def pool(self) -> Local:
        """What runs inside a task."""
        workers = self.workers or self.gpus_per_task or max(1, self.cpus_per_task // self.threads)
        return Local(workers, self.threads, self.timeout, self.memory, self.stack_size)

    def _tasks(self, count: int) -> int:
        least = self.items_per_task or 4 * (self.pool.workers or 1)
        return max(1, min(count, self.array_tasks or min(MOST, count // least)))

    def _run(
        self, work: Work, items: Sequence[Any], root: Path, stop: Stop, tick: Callable[[], None]
    ) -> Iterator[Finished]:
        keys = [key_of(work, item) for item in items]
        with _alone(root, stop, tick):
            if stop.requested:
                submissions: list[Submission] = []
                new = list(range(len(items)))
            else:
                submissions, new = self._joined(root, work, keys)
                for one in submissions:
                    tell(
                        f"{many(len(one.waiting), 'item')} already submitted: {called(one)}; logs: {one.path / 'logs'}"
                    )
                if new:
                    submissions.append(self._submit(work, items, keys, new, root))
                new = []
        for index in new:
            yield Finished(
                index, failure=Failure("not begun", "not begun; the same command resumes", stop.status or 130)
            )
        yield from follow(submissions, work, stop, tick, wait=self.wait)

    def _joined(self, root: Path, work: Work, keys: Sequence[str]) -> tuple[list[Submission], list[int]]:
        """Earlier submissions that hold some of the items, and the indices of those that none of them holds.

        An item is held where its task may still finish it, or where it has a result that no command was given and that
        the work keeps. What failed there is not held: requesting it means to do it again.
        """
        wanted: dict[str, list[int]] = {}
        for index, key in reversed(list(enumerate(keys))):
            wanted.setdefault(key, []).append(index)
        found = []
        for one in Submission.all(root) if root.exists() else ():
            open_numbers = [
                number
                for number, item in enumerate(one.items)
                if item["key"] in wanted and number not in one.records and item["task"] not in one.ended
            ]
            alive = self._alive(one, {one.items[number]["task"] for number in open_numbers})
            ready = [
                number
                for number, record in one.records.items()
                if one.items[number]["key"] in wanted and number not in one.handed and _kept(record, work)
            ]
            for number in [*ready, *(number for number in open_numbers if one.items[number]["task"] in alive)]:
                indices = wanted.get(one.items[number]["key"])
                if indices:
                    one.waiting[number] = indices.pop()
            one.records = {number: record for number, record in one.records.items() if number in one.waiting}
            if one.waiting:
                found.append(one)
        return found, sorted(index for indices in wanted.values() for index in indices)

    def _alive(self, one: Submission, tasks: set[int]) -> set[int]:
        """Those tasks of a submission that Slurm has queued or running."""
        if not tasks:
            return set()
        states = states_of(one, tasks)
        if states is None:
            raise OperationalError(
                f"{one.path}: whether its jobs are over is unknown, since squeue does not answer; try again"
            )
        return {task for task in tasks if states[task] not in OVER}

    def _submit(
        self, work: Work, items: Sequence[Any], keys: Sequence[str], new: Sequence[int], root: Path
    ) -> Submission:
        carried = Carried.of(work)
        names = [work.name_of(items[index]) for index in new]
        parcels = [carried.parcel(name, items[index]) for name, index in zip(names, new, strict=True)]
        tasks = dealt(len(new), self._tasks(len(new)))
        path = Submission.prepare(root, [(name, keys[index]) for name, index in zip(names, new, strict=True)], tasks)
        chunks = [
            Chunk(
                str(path / "tasks" / f"{task:04d}.jsonl"), carried, tuple((n, parcels[n]) for n in numbers), self.pool
            )
            for task, numbers in enumerate(tasks)
        ]
        try:
            jobs = self._jobs(path / "logs", chunks)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)  # a job that came to be nevertheless finds nothing to do, and ends
            raise
        ids = [job.job_id for job in jobs]
        started = [beginning(job) if self.cluster == "local" else None for job in ids]
        one = Submission.submitted(path, self.cluster, ids, started)
        one.waiting = dict(enumerate(new))
        tell(f"submitted {many(len(new), 'item')} in {many(len(tasks), 'task')}: {called(one)}; logs: {path / 'logs'}")
        if self.cluster == "debug":
            for job in jobs:
                job.results()
        return one

    def _jobs(self, logs: Path, chunks: Sequence[Chunk]) -> list[Any]:
        submitit = _submitit()
        executor: Any
        if self.cluster == "debug":
            from submitit.local.debug import DebugExecutor

            return list(DebugExecutor(logs).submit_array(chunks))
        if self.cluster == "local":
            executor = submitit.LocalExecutor(logs, max_num_timeout=self.max_requeues, python=self.python)
            executor.update_parameters(
                timeout_min=self.minutes,
                signal_delay_s=self._warning(),
                gpus_per_node=self.gpus_per_task,
                setup=list(self.setup),
            )
            with _uninterrupted():
                jobs: list[Any] = executor.submit_array(chunks)
            _left_running.extend(jobs)
            return jobs
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # submitit prints what it also raises
                executor = submitit.SlurmExecutor(logs, max_num_timeout=self.max_requeues, python=self.python)
                executor.update_parameters(**self._parameters(len(chunks)))
                return list(executor.submit_array(chunks))
        except RuntimeError as error:
            raise OperationalError(f"executor: slurm did not take the job: {str(error).strip()}") from error

    def _parameters(self, tasks: int) -> dict[str, Any]:
        """What submitit makes the lines of the job script of."""
        extra: dict[str, Any] = {"requeue": True}
        for text in self.sbatch_options:
            name, given, value = text.strip().lstrip("-").partition("=")
            extra[name] = value if given else True
        return {
            "job_name": "numerate",
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "constraint": self.constraint,
            "time": self.minutes,
            "nodes": 1,
            "ntasks_per_node": 1,
            "cpus_per_task": self.cpus_per_task,
            "gpus_per_node": self.gpus_per_task or None,
            "mem": None if self.mem_gb is None else f"{round(self.mem_gb * 1024)}M",
            "signal_delay_s": self._warning(),
            "array_parallelism": self.array_parallelism or tasks,
            "setup": list(self.setup) or None,
            "srun_args": [
                f"--cpus-per-task={self.cpus_per_task}"
            ],  # srun does not take it from sbatch since Slurm 22.05
            "wckey": None,
            "additional_parameters": extra,
        }

    def _warning(self) -> int:
        return min(WARNING, 20 * self.minutes)

    def _script(self, logs: Path, tasks: int) -> str:
        """The job script as submitit writes it, by private names of submitit; the parameters if these are gone."""
        parameters = self._parameters(tasks)
        submitit = _submitit()

        class Shown(submitit.SlurmExecutor):  # type: ignore[misc, name-defined]
            @classmethod
            def affinity(cls) -> int:
                return 2  # there need not be a cluster here

        executor = Shown(logs, max_num_timeout=self.max_requeues, python=self.python)
        executor.update_parameters(**parameters)
        try:
            if tasks > 1:
                executor.parameters["map_count"] = tasks
            return str(executor._make_submission_file_text(executor._submitit_command_str, ""))
        except (AttributeError, TypeError):
            plain = {name: value for name, value in parameters.items() if value is not None}
            lines = [f"# {name}: {value}" for name, value in sorted(plain.items())]
            return "\n".join(["#!/bin/bash", "# what submitit makes the job script of:", *lines, ""])


def _kept(record: Mapping[str, Any], work: Work) -> bool:
    """Whether what an earlier submission wrote of an item is a result that is still good."""
    finished = finished_of(record, 0, work)
    return finished.failure is None and work.keeps(finished.result)


def _submitit() -> Any:
    """The package. Raises `UserError` where it is not installed."""
    try:
        import submitit
    except ImportError as error:
        raise UserError("executor: slurm needs the package submitit; pip install 'numerate[slurm]'") from error
    return submitit


@contextlib.contextmanager
def _alone(root: Path, stop: Stop, tick: Callable[[], None]) -> Iterator[None]:
    """Looks and submits while no other command does, so that nothing is submitted twice. Raises `UserError` naming who
    is at it where that takes minutes."""
    with disk.explained(root):
        root.mkdir(parents=True, exist_ok=True)
    lock, end = Lock(root / "lock"), time.monotonic() + 120
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(lock.hold("submitting"))
                break
            except UserError:
                if stop.requested or time.monotonic() > end:
                    raise
                pause(0.5, stop, tick)
        yield


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes begun inside do not end by a Ctrl-C at the terminal, as tasks on another machine do not."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
