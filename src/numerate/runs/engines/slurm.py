"""Arrays of tasks on a Slurm cluster, submitted by submitit; each task does part of the items with local workers."""

import contextlib
import io
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numerate.config import setting
from numerate.errors import OperationalError, UserError, import_extra, pluralize
from numerate.runs.engines import engine, slurm_submission, worker
from numerate.runs.engines.engine import (
    Engine,
    Failure,
    Function,
    OnTick,
    Outcome,
    is_done,
    name_of,
    not_started,
    pickle_value,
)
from numerate.runs.engines.local import Local
from numerate.runs.engines.slurm_submission import Submission, next_number, running_submissions, say, sleep
from numerate.runs.engines.slurm_task import ArrayTask
from numerate.training import disk
from numerate.training.lock import Lock
from numerate.training.stopping import Stop

WARNING_SECONDS = 120
"""Seconds before its time limit at which a task is warned, so that runs write checkpoints and it is requeued."""

MAX_ARRAY_TASKS = 1000
"""Maximum number of tasks of an array, if it is not given: Slurm's own limit (MaxArraySize) is 1001 by default."""

_LOCK_TIMEOUT = 120.0  # seconds to wait for another command that is submitting


@dataclass(frozen=True)
class Slurm(Engine):
    """Arrays of tasks on a Slurm cluster, submitted by submitit: each does part of the items with local workers.

    The folder must be shared by all machines: tasks write each outcome there immediately, and the command reads it.
    Ctrl-C leaves the jobs running. Repeating the command first waits for jobs of earlier ones, whoever submitted them,
    and then submits what is not done; an item that was done by an earlier job comes back without a result.

        print(Slurm(partition="cpu", cpus_per_task=16, minutes=120).script(square, range(200), Path("runs")))
    """

    partition: str | None = setting(None, "partition; null: the cluster's default")
    account: str | None = setting(None, "account to charge")
    qos: str | None = setting(None, "quality of service")
    constraint: str | None = setting(None, "required node features")
    array_tasks: int | None = setting(None, "tasks of the job array; null: by items_per_task", at_least=1)
    items_per_task: int | None = setting(
        None, "minimum number of items per task, if array_tasks is null; null: 4 per worker", at_least=1
    )
    array_parallelism: int | None = setting(None, "tasks running at the same time; null: no limit", at_least=1)
    minutes: int = setting(
        60, "time limit of a task in minutes; a task that reaches it is requeued and resumes", at_least=1
    )
    max_requeues: int = setting(10, "how often a task that reached its time limit is requeued", at_least=0)
    cpus_per_task: int = setting(
        4, "CPU cores per task; if workers is null, it is cpus_per_task / threads, or one per GPU", at_least=1
    )
    gpus_per_task: int = setting(0, "GPUs per task, assigned to its workers in turn", at_least=0)
    mem_gb: float | None = setting(None, "memory per task in GB; null: the cluster's default", above=0)
    sbatch_options: tuple[str, ...] = setting((), "further sbatch options, such as exclude=node7 or exclusive")
    setup: tuple[str, ...] = setting(
        (), "shell commands run before each task: 'module load cuda', 'source venv/bin/activate'"
    )
    python: str | None = setting(None, "Python interpreter of the tasks; null: the current one")
    wait: bool = setting(True, "wait for the tasks and collect their results; false: submit only")

    def conflicts(self) -> Iterator[str]:
        for name in ("sbatch_options", "setup"):
            for line in getattr(self, name):
                if "\n" in line or not line.strip():
                    yield f"{name}: must be a single line, not {line!r}"

    @property
    def num_workers(self) -> int:
        return self.array_tasks * self.pool.num_workers if self.array_tasks else engine.DEFAULT_NUM_WORKERS

    @property
    def pool(self) -> Local:
        """The engine inside a task."""
        workers = self.workers or self.gpus_per_task or max(1, self.cpus_per_task // self.threads)
        return Local(workers, self.threads, self.timeout)

    def check_available(self) -> None:
        _import_submitit()
        if shutil.which("sbatch") is None:
            raise UserError("engine: sbatch was not found; run this on a login node of the cluster")

    def _map(
        self, function: Function, items: Sequence[Any], folder: Path | None, stop: Stop, on_tick: OnTick
    ) -> Iterator[Outcome]:
        if folder is None:
            raise UserError("engine: slurm needs a folder shared by all machines of the cluster")
        import cloudpickle

        job = worker.Job.of(function, self, cloudpickle.dumps)
        names = [name_of(function, item) for item in items]
        pickled = [(name, pickle_value(item, name, cloudpickle.dumps)) for name, item in zip(names, items, strict=True)]
        return self._submit_and_follow(function, job, items, pickled, folder.absolute() / "slurm", stop, on_tick)

    def script(self, function: Function, items: Sequence[Any], folder: Path) -> str:
        root = folder.absolute() / "slurm"
        new = [index for index, item in enumerate(items) if not is_done(function, item)]
        if not new:
            return f"# Nothing to submit: all {len(items)} items are done.\n"
        tasks = self._split(new)
        first, *rest = self._script(root / str(next_number(root)) / "logs", len(tasks)).splitlines()
        names = [name_of(function, items[index]) for index in tasks[0]]
        comments = [
            f"# {pluralize(len(new), 'item')} in {pluralize(len(tasks), 'task')} of at most {len(tasks[0])}, on "
            f"{pluralize(self.pool.num_workers, 'worker')} of {pluralize(self.threads, 'thread')} each.",
            f"# Task 0: {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}",
        ]
        if shutil.which("squeue") is not None:
            comments += [f"# Submitted after the end of: {one}" for one in running_submissions(root)]
        return "\n".join([first, *comments, *rest, ""])

    def _split(self, indices: Sequence[int]) -> list[Sequence[int]]:
        """The items of each task: in turn, so that neighboring expensive items are distributed.

        >>> Slurm(array_tasks=2)._split([0, 1, 2, 5, 6])
        [[0, 2, 6], [1, 5]]
        """
        count, min_items = len(indices), self.items_per_task or 4 * self.pool.num_workers
        num_tasks = max(1, min(count, self.array_tasks or min(MAX_ARRAY_TASKS, count // min_items)))
        return [indices[first::num_tasks] for first in range(num_tasks)]

    def _submit_and_follow(
        self,
        function: Function,
        job: worker.Job,
        items: Sequence[Any],
        pickled: Sequence[tuple[str, bytes]],
        root: Path,
        stop: Stop,
        on_tick: OnTick,
    ) -> Iterator[Outcome]:
        disk.make_folder(root)
        is_said = False
        while not stop.requested:
            if earlier := running_submissions(root):
                if not is_said:
                    say(f"waits for the jobs of an earlier command: {'; '.join(map(str, earlier))}")
                    is_said = True
                if not self.wait:
                    failure = Failure("not started", "jobs of an earlier command are queued or running", 0)
                    yield from (Outcome(index, failure=failure) for index in range(len(items)))
                    return
                sleep(slurm_submission.QUERY_INTERVAL, stop, on_tick)
                continue
            with Lock(root / "lock").hold("submitting", timeout=_LOCK_TIMEOUT):
                if running_submissions(root):
                    continue  # another command was faster
                new = [index for index, item in enumerate(items) if not is_done(function, item)]
                submission = self._submit(job, new, pickled, root) if new else None
            yield from (Outcome(index) for index in sorted(set(range(len(items))) - set(new)))
            if submission is not None:
                yield from submission.follow(function, items, self._split(new), stop, on_tick, wait=self.wait)
            return
        if is_said:
            say(f"{pluralize(len(items), 'item')} left. The same command waits for the jobs and submits the rest.")
        yield from (not_started(index, stop) for index in range(len(items)))

    def _submit(
        self, job: worker.Job, new: Sequence[int], pickled: Sequence[tuple[str, bytes]], root: Path
    ) -> Submission:
        submission, tasks = Submission(root / str(next_number(root))), self._split(new)
        logs = submission.path / "logs"
        for folder in (logs, submission.outcomes_file(0).parent):
            disk.make_folder(folder)
        array_tasks = [
            ArrayTask(str(submission.outcomes_file(task)), job, tuple((n, *pickled[n]) for n in numbers), self.pool)
            for task, numbers in enumerate(tasks)
        ]
        try:
            submission.jobs = [one.job_id for one in self._submit_tasks(logs, array_tasks)]
        except BaseException:
            shutil.rmtree(submission.path, ignore_errors=True)  # a job that was created nevertheless ends at once
            raise
        submission.save()
        count = f"{pluralize(len(new), 'item')} in {pluralize(len(tasks), 'task')}"
        say(f"submitted {count}: {submission}; logs: {logs}")
        return submission

    def _submit_tasks(self, logs: Path, array_tasks: Sequence[ArrayTask]) -> list[Any]:
        submitit = _import_submitit()
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # submitit prints what it also raises
                executor = submitit.SlurmExecutor(logs, max_num_timeout=self.max_requeues, python=self.python)
                executor.update_parameters(**self._parameters(len(array_tasks)))
                return list(executor.submit_array(array_tasks))
        except RuntimeError as error:
            raise OperationalError(f"engine: sbatch rejected the job: {str(error).strip()}") from error

    def _parameters(self, tasks: int) -> dict[str, Any]:
        """The parameters from which submitit creates the job script."""
        additional_parameters: dict[str, Any] = {"requeue": True}
        for text in self.sbatch_options:
            name, has_value, value = text.strip().lstrip("-").partition("=")
            additional_parameters[name] = value if has_value else True
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
            "signal_delay_s": self._warning_seconds(),
            "array_parallelism": self.array_parallelism or tasks,
            "setup": list(self.setup) or None,
            # srun does not take it from sbatch since Slurm 22.05
            "srun_args": [f"--cpus-per-task={self.cpus_per_task}"],
            "wckey": None,
            "additional_parameters": additional_parameters,
        }

    def _warning_seconds(self) -> int:
        return min(WARNING_SECONDS, 20 * self.minutes)

    def _script(self, logs: Path, tasks: int) -> str:
        """The job script as submitit writes it, by private names of submitit."""
        submitit = _import_submitit()

        class Shown(submitit.SlurmExecutor):  # type: ignore[misc, name-defined]
            @classmethod
            def affinity(cls) -> int:
                return 2  # a cluster is not required here

        executor = Shown(logs, max_num_timeout=self.max_requeues, python=self.python)
        executor.update_parameters(**self._parameters(tasks))
        if tasks > 1:
            executor.parameters["map_count"] = tasks
        return str(executor._make_submission_file_text(executor._submitit_command_str, ""))


def _import_submitit() -> Any:
    """Imports the package. Raises `UserError` if it is not installed."""
    return import_extra("submitit", "engine", "slurm")
