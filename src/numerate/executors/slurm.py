"""Arrays of tasks on a Slurm cluster; each task runs the local pool on its part of the items."""

import contextlib
import io
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from numerate.config import setting
from numerate.errors import OperationalError, UserError, import_extra, pluralize
from numerate.executors.array_task import ArrayTask, PickledWork, pickle_value, split_round_robin
from numerate.executors.executor import DEFAULT_NUM_WORKERS, Executor, Failure, ItemOutcome, Work, sleep_with_ticks
from numerate.executors.local import Local, block_interrupts
from numerate.executors.submission import Submission, item_key, next_number, print_message, wait_for_items
from numerate.training import disk
from numerate.training.lock import Lock
from numerate.training.stopping import Stop, Stopped

WARNING_SECONDS = 120
"""Seconds before its time limit at which a task is warned, so that runs write checkpoints and it is requeued."""

MAX_ARRAY_TASKS = 1000
"""Maximum number of tasks of an array, if it is not given: Slurm's own limit (MaxArraySize) is 1001 by default."""

_LOCK_TIMEOUT = 120.0  # seconds to wait for another command that is submitting

_running_jobs: list[Any] = []
"""Running tasks of a local stand-in cluster; keeping them avoids Python's warnings about unreferenced processes."""


@dataclass(frozen=True)
class Slurm(Executor):
    """Arrays of tasks on a Slurm cluster, submitted by submitit: each runs the local pool on its part of the items.

    The folder must be shared by all machines: tasks write each result there immediately, and the command reads it.
    Ctrl-C leaves the jobs running. Repeating the command waits for items that are still queued or running, whoever
    submitted them, and submits the rest.

        print(Slurm(partition="cpu", cpus_per_task=16, minutes=120).script(Square(), range(200), Path("runs")))
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
    cluster: Literal["slurm", "local"] = setting("slurm", "local: run tasks as local processes, to try it out")

    def conflicts(self) -> Iterator[str]:
        for name in ("sbatch_options", "setup"):
            for line in getattr(self, name):
                if "\n" in line or not line.strip():
                    yield f"{name}: must be a single line, not {line!r}"

    @property
    def num_workers(self) -> int:
        return self.array_tasks * self.pool.num_workers if self.array_tasks else DEFAULT_NUM_WORKERS

    def check_available(self) -> None:
        _import_submitit()
        if self.cluster == "slurm" and shutil.which("sbatch") is None:
            raise UserError(
                "executor: sbatch was not found; run this on a login node of the cluster. "
                "executor.cluster=local runs the tasks on this machine."
            )

    def run(
        self,
        work: Work,
        items: Sequence[Any],
        *,
        folder: Path | None = None,
        stop: Stop | None = None,
        on_tick: Callable[[], None] = lambda: None,
    ) -> Iterator[ItemOutcome]:
        self.check_available()
        if folder is None:
            raise UserError("executor: slurm needs a folder shared by all machines of the cluster")
        return self._run(work, items, folder.absolute() / "slurm", stop or Stop(), on_tick)

    def script(self, work: Work, items: Sequence[Any], folder: Path) -> str:
        root = folder.absolute() / "slurm"
        new = list(range(len(items)))
        if self.cluster == "local" or shutil.which("sbatch") is not None:
            _, new = self._match_submissions(root, [item_key(work, item) for item in items])
        if not new:
            return f"# Nothing to submit: all {len(items)} items are in jobs of an earlier command.\n"
        tasks = split_round_robin(len(new), self._num_tasks(len(new)))
        text = self._script(root / str(next_number(root)) / "logs", len(tasks))
        first, *rest = text.splitlines()
        names = [work.item_name(items[new[number]]) for number in tasks[0]]
        comments = [
            f"# {pluralize(len(new), 'item')} in {pluralize(len(tasks), 'task')} of at most {len(tasks[0])}, on "
            f"{pluralize(self.pool.num_workers, 'worker')} of {pluralize(self.threads, 'thread')} each.",
            f"# Task 0: {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}",
        ]
        if len(new) < len(items):
            comments.insert(1, f"# {pluralize(len(items) - len(new), 'item')} more: in jobs of an earlier command.")
        return "\n".join([first, *comments, *rest, ""])

    @property
    def pool(self) -> Local:
        """The executor inside a task."""
        workers = self.workers or self.gpus_per_task or max(1, self.cpus_per_task // self.threads)
        return Local(workers, self.threads, self.timeout, self.memory)

    def _num_tasks(self, count: int) -> int:
        min_items = self.items_per_task or 4 * self.pool.num_workers
        return max(1, min(count, self.array_tasks or min(MAX_ARRAY_TASKS, count // min_items)))

    def _run(
        self, work: Work, items: Sequence[Any], root: Path, stop: Stop, on_tick: Callable[[], None]
    ) -> Iterator[ItemOutcome]:
        def sleep(seconds: float) -> None:
            sleep_with_ticks(seconds, stop, on_tick)
            _raise_if_stopped(stop)

        with disk.convert_os_errors(root):
            root.mkdir(parents=True, exist_ok=True)
        try:
            with Lock(root / "lock").hold("submitting", timeout=_LOCK_TIMEOUT, sleep=sleep):
                _raise_if_stopped(stop)
                submissions = self._find_or_submit(work, items, root)
        except Stopped:
            failure = Failure("not started", "not started; the same command resumes", stop.status or 130)
            yield from (ItemOutcome(index, failure=failure) for index in range(len(items)))
            return
        yield from wait_for_items(submissions, work, stop, on_tick, wait=self.wait)

    def _find_or_submit(self, work: Work, items: Sequence[Any], root: Path) -> list[Submission]:
        """The submissions that contain the items, under the lock, so that nothing is submitted twice: earlier ones, and
        a new one for the others."""
        keys = [item_key(work, item) for item in items]
        submissions, new = self._match_submissions(root, keys)
        for submission in submissions:
            print_message(
                f"{pluralize(len(submission.pending), 'item')} already submitted: {submission}; "
                f"logs: {submission.path / 'logs'}"
            )
        return [*submissions, self._submit(work, items, keys, new, root)] if new else submissions

    def _match_submissions(self, root: Path, keys: Sequence[str]) -> tuple[list[Submission], list[int]]:
        """Earlier submissions that contain some of the items, and the indices of the remaining items.

        An item counts as submitted while its task is queued or running, unless it has failed: requesting it repeats it.
        """
        indices_by_key: dict[str, list[int]] = {}
        for index, key in reversed(list(enumerate(keys))):
            indices_by_key.setdefault(key, []).append(index)
        matched = []
        for submission in Submission.load_all(root) if root.exists() else ():
            tasks_by_item = {
                number: item["task"]
                for number, item in enumerate(submission.items)
                if item["key"] in indices_by_key
                and item["task"] not in submission.ended
                and "failure" not in submission.records.get(number, {})
            }
            running_tasks = submission.running(set(tasks_by_item.values()))
            for number, task in tasks_by_item.items():
                indices = indices_by_key[submission.items[number]["key"]]
                if indices and task in running_tasks:
                    submission.pending[number] = indices.pop()
            if submission.pending:
                matched.append(submission)
        return matched, sorted(index for indices in indices_by_key.values() for index in indices)

    def _submit(
        self, work: Work, items: Sequence[Any], keys: Sequence[str], new: Sequence[int], root: Path
    ) -> Submission:
        pickled_work = PickledWork.from_work(work)
        names = [work.item_name(items[index]) for index in new]
        pickled_items = [(name, pickle_value(items[index], name)) for name, index in zip(names, new, strict=True)]
        tasks = split_round_robin(len(new), self._num_tasks(len(new)))
        path = Submission.create_folder(
            root, [(name, keys[index]) for name, index in zip(names, new, strict=True)], tasks
        )
        array_tasks = [
            ArrayTask(
                str(path / "tasks" / f"{task:04d}.jsonl"),
                pickled_work,
                tuple((n, pickled_items[n]) for n in numbers),
                self.pool,
            )
            for task, numbers in enumerate(tasks)
        ]
        try:
            jobs = self._submit_tasks(path / "logs", array_tasks)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)  # a job that was created nevertheless finds nothing to do, and ends
            raise
        submission = Submission.create(path, self.cluster, [job.job_id for job in jobs])
        submission.pending = dict(enumerate(new))
        print_message(
            f"submitted {pluralize(len(new), 'item')} in {pluralize(len(tasks), 'task')}: {submission}; "
            f"logs: {path / 'logs'}"
        )
        return submission

    def _submit_tasks(self, logs: Path, array_tasks: Sequence[ArrayTask]) -> list[Any]:
        submitit = _import_submitit()
        executor: Any
        if self.cluster == "local":
            executor = submitit.LocalExecutor(logs, max_num_timeout=self.max_requeues, python=self.python)
            executor.update_parameters(
                timeout_min=self.minutes,
                signal_delay_s=self._warning_seconds(),
                gpus_per_node=self.gpus_per_task,
                setup=list(self.setup),
            )
            with block_interrupts():
                jobs: list[Any] = executor.submit_array(array_tasks)
            _running_jobs.extend(jobs)
            return jobs
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # submitit prints what it also raises
                executor = submitit.SlurmExecutor(logs, max_num_timeout=self.max_requeues, python=self.python)
                executor.update_parameters(**self._parameters(len(array_tasks)))
                return list(executor.submit_array(array_tasks))
        except RuntimeError as error:
            raise OperationalError(f"executor: sbatch rejected the job: {str(error).strip()}") from error

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
            "srun_args": [
                f"--cpus-per-task={self.cpus_per_task}"
            ],  # srun does not take it from sbatch since Slurm 22.05
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
    return import_extra("submitit", "executor", "slurm")


def _raise_if_stopped(stop: Stop) -> None:
    if stop.requested:
        raise Stopped
