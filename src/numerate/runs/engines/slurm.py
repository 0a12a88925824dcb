"""Arrays of tasks on a Slurm cluster, submitted by submitit; each task does part of the items with local workers."""

import contextlib
import io
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numerate.config import setting
from numerate.errors import OperationalError, UserError, import_extra, pluralize
from numerate.runs.engines import engine, worker
from numerate.runs.engines.engine import Engine, Failure, Function, OnTick, Outcome, name_of, not_started
from numerate.runs.engines.local import Local
from numerate.runs.engines.slurm_queue import Queue
from numerate.runs.engines.slurm_task import ArrayTask
from numerate.training import disk
from numerate.training.lock import Lock
from numerate.training.stopping import Stop

POLL_INTERVAL = 10.0  # seconds between two calls of squeue, and between two looks at the files of tasks
WARNING_SECONDS = 120  # before its time limit a task is warned, so that runs write checkpoints and it is requeued
MAX_ARRAY_TASKS = 1000  # if their number is not given: Slurm's own limit (MaxArraySize) is 1001 by default
_LOCK_TIMEOUT = 120.0  # seconds to wait for another command that is submitting


@dataclass(frozen=True)
class Slurm(Engine):
    """Arrays of tasks on a Slurm cluster, submitted by submitit: each does part of the items with local workers.

    The folder must be shared by all machines: the command sees there what is done (`done` of the function), and results
    do not come back. Ctrl-C leaves the jobs running. Repeating the command first waits for jobs of earlier ones,
    whoever submitted them, and then submits what is not done.

        print(Slurm(partition="cpu", cpus_per_task=16, minutes=120).script(square, range(200), Path("runs")))
    """

    partition: str | None = setting(None, "partition; null: the cluster's default")
    account: str | None = setting(None, "account to charge")
    qos: str | None = setting(None, "quality of service")
    constraint: str | None = setting(None, "required node features")
    array_tasks: int | None = setting(None, "tasks of the job array; null: by items_per_task", at_least=1)
    items_per_task: int | None = setting(None, "minimum of items per task; null: 4 per worker", at_least=1)
    array_parallelism: int | None = setting(None, "tasks running at the same time; null: no limit", at_least=1)
    minutes: int = setting(60, "time limit of a task; one that reaches it is requeued and resumes", at_least=1)
    max_requeues: int = setting(10, "how often a task that reached its time limit is requeued", at_least=0)
    cpus_per_task: int = setting(
        4, "CPU cores per task; if workers is null, it is cpus_per_task / threads, or one per GPU", at_least=1
    )
    gpus_per_task: int = setting(0, "GPUs per task, assigned to its workers in turn", at_least=0)
    mem_gb: float | None = setting(None, "memory per task in GB; null: the cluster's default", above=0)
    sbatch_options: tuple[str, ...] = setting((), "further sbatch options, such as exclude=node7 or exclusive")
    setup: tuple[str, ...] = setting((), "shell commands before each task, such as 'source venv/bin/activate'")
    python: str | None = setting(None, "Python interpreter of the tasks; null: the current one")
    wait: bool = setting(True, "wait for the tasks and collect their results; false: submit only")

    def conflicts(self) -> Iterator[str]:
        if any("job-name" in option for option in self.sbatch_options):
            yield "sbatch_options: job-name cannot be set, since jobs are found by the one that numerate gives them"

    @property
    def num_workers(self) -> int:
        return self.array_tasks * self.pool.num_workers if self.array_tasks else engine.DEFAULT_NUM_WORKERS

    @property
    def pool(self) -> Local:
        """The engine inside a task."""
        workers = self.workers or self.gpus_per_task or max(1, self.cpus_per_task // self.threads)
        return Local(workers, self.threads, self.timeout)

    def check_available(self) -> None:
        import_extra("submitit", "engine", "slurm")
        if shutil.which("sbatch") is None:
            raise UserError("engine: sbatch was not found; run this on a login node of the cluster")

    def _map(
        self, function: Function, items: Sequence[Any], folder: Path | None, stop: Stop, on_tick: OnTick
    ) -> Iterator[Outcome]:
        if folder is None:
            raise UserError("engine: slurm needs a folder shared by all machines of the cluster")
        root = folder.absolute() / "slurm"
        disk.make_folder(root)
        queue, said, everything = Queue(root), None, range(len(items))
        work: Any = function

        def is_done(index: int) -> bool:
            return bool(work.done(items[index]))

        while not stop.requested:
            obstacle = queue.obstacle()
            if obstacle is not None:
                if not self.wait:
                    failure = Failure("not started", f"not submitted: it has to wait for {obstacle}", 0)
                    yield from (Outcome(index, failure=failure) for index in everything)
                    return
                if obstacle != said:
                    _say(f"waits for {obstacle}")
                    said = obstacle
                _sleep(stop, on_tick)
                continue
            with Lock(root / "lock").hold("submitting", timeout=_LOCK_TIMEOUT):
                if queue.obstacle() is not None:
                    continue  # another command was faster
                new = [index for index in everything if not is_done(index)]
                folder = _next_folder(root)
                tasks = self._submit(function, {index: items[index] for index in new}, folder, queue) if new else {}
            yield from (Outcome(index) for index in sorted(set(everything) - set(new)))
            yield from self._follow(tasks, folder, queue, is_done, stop, on_tick)
            return
        yield from (not_started(index, stop) for index in everything)

    def _submit(self, function: Function, items: dict[int, Any], folder: Path, queue: Queue) -> dict[str, list[int]]:
        """Submits items, by their indices; returns the indices by the ids of their jobs."""
        import cloudpickle

        job, parts = worker.Job.of(function, self, cloudpickle.dumps), self.split(list(items))
        tasks = [ArrayTask(job, tuple(cloudpickle.dumps(items[index]) for index in part), self.pool) for part in parts]
        try:
            with disk.convert_os_errors(folder, "Nothing was submitted."), contextlib.redirect_stderr(io.StringIO()):
                folder.mkdir()
                jobs = self.executor(folder, queue.name, len(tasks)).submit_array(tasks)
        except BaseException as error:
            with contextlib.suppress(OSError):  # sbatch itself may have been successful
                subprocess.run(["scancel", f"--name={queue.name}"], capture_output=True)
            shutil.rmtree(folder, ignore_errors=True)  # without it, a task that starts ends at once
            if isinstance(error, RuntimeError):
                raise OperationalError(f"engine: sbatch rejected the job: {str(error).strip()}") from error
            raise
        _say(f"submitted {pluralize(len(items), 'item')} in {pluralize(len(tasks), 'task')}: {queue}; logs: {folder}")
        return {job.job_id: list(part) for job, part in zip(jobs, parts, strict=True)}

    def _follow(
        self,
        pending: dict[str, list[int]],
        folder: Path,
        queue: Queue,
        is_done: Callable[[int], bool],
        stop: Stop,
        on_tick: OnTick,
    ) -> Iterator[Outcome]:
        """Yields every item of the jobs when it is done and so are those before it in its task, or when that has ended.
        When a stop is requested, or at once without `wait`, the others are left to their jobs."""
        queue.times_ended |= dict.fromkeys(pending, 0)
        while True:
            ended = [job for job, left in pending.items() if left and queue.has_ended(job)]
            for left in pending.values():
                while left and is_done(left[0]):
                    yield Outcome(left.pop(0))
            for job in ended:
                log = folder / f"{job}_0_log.err"  # submitit's name
                text = f"Slurm task {job} ended ({queue.states[job]}) before it was done; log: {log}"
                lost = Failure("stopped", f"its {text}; the same command resumes")  # not by a fault of its own
                yield from (Outcome(index, failure=None if is_done(index) else lost) for index in pending[job])
                if pending[job]:
                    _say(text)
                pending[job].clear()
            if not any(pending.values()) or stop.requested or not self.wait:
                break
            _sleep(stop, on_tick)
            queue.update()
            if queue.num_silent == 1:
                _say(f"waits for {queue.silence}")
        if stop.requested and (count := sum(map(len, pending.values()))):
            _say(f"{pluralize(count, 'item')} left to {queue}. The same command waits for them, on any machine.")
        for job, left in pending.items():
            failure = Failure("not started", f"Slurm task {job} keeps running", 0)
            if stop.requested:
                failure = replace(failure, kind="stopped", status=stop.status or 130)
            yield from (Outcome(index, failure=failure) for index in sorted(left))

    def script(self, function: Callable[[Any], Any], items: Sequence[Any], folder: Path) -> str:
        root = folder.absolute() / "slurm"
        names = [name_of(function, item) for item in items]
        if not names:
            return "# Nothing to submit: everything is done.\n"
        tasks = self.split(names)
        executor = self.executor(_next_folder(root), Queue(root).name, len(tasks))
        if len(tasks) > 1:
            executor.parameters["map_count"] = len(tasks)
        first, *rest = executor._make_submission_file_text(executor._submitit_command_str, "").splitlines()
        more = f" and {len(tasks[0]) - 3} more" if len(tasks[0]) > 3 else ""
        comments = [
            f"# {pluralize(len(names), 'item')} in {pluralize(len(tasks), 'task')} of at most {len(tasks[0])}, on "
            f"{pluralize(self.pool.num_workers, 'worker')} of {pluralize(self.threads, 'thread')} each.",
            f"# Task 0: {', '.join(tasks[0][:3])}{more}",
        ]
        return "\n".join([first, *comments, *rest, ""])

    def split(self, items: Sequence[Any]) -> list[Sequence[Any]]:
        """The items of each task: in turn, so that neighboring expensive items are distributed.

        >>> Slurm(array_tasks=2).split([0, 1, 2, 5, 6])
        [[0, 2, 6], [1, 5]]
        """
        count, min_items = len(items), self.items_per_task or 4 * self.pool.num_workers
        num_tasks = max(1, min(count, self.array_tasks or min(MAX_ARRAY_TASKS, count // min_items)))
        return [items[first::num_tasks] for first in range(num_tasks)]

    def executor(self, folder: Path, job_name: str, num_tasks: int) -> Any:
        """The executor of submitit, which writes the job script, its logs and the pickled tasks into a folder."""
        base = import_extra("submitit", "engine", "slurm").SlurmExecutor
        cls = type("Executor", (base,), {"affinity": staticmethod(lambda: 2)})  # it writes a script without srun, too
        executor = cls(folder, max_num_timeout=self.max_requeues, python=self.python)
        options = [option.strip().lstrip("-").partition("=") for option in self.sbatch_options]
        executor.update_parameters(
            **{name: getattr(self, name) for name in ("partition", "account", "qos", "constraint", "cpus_per_task")},
            job_name=job_name,
            time=self.minutes,
            nodes=1,
            ntasks_per_node=1,
            gpus_per_node=self.gpus_per_task or None,
            mem=None if self.mem_gb is None else f"{round(self.mem_gb * 1024)}M",
            signal_delay_s=min(WARNING_SECONDS, 20 * self.minutes),
            array_parallelism=self.array_parallelism or num_tasks,
            setup=list(self.setup) or None,
            srun_args=[f"--cpus-per-task={self.cpus_per_task}"],  # not taken from sbatch since Slurm 22.05
            wckey=None,
            additional_parameters={"requeue": True} | {name: value or True for name, _, value in options},
        )
        return executor


def _next_folder(root: Path) -> Path:
    """The folder of the next submission."""
    return root / str(1 + max((int(path.name) for path in root.glob("*") if path.name.isdecimal()), default=0))


def _say(text: str) -> None:
    print(f"numerate: {text}", file=sys.stderr, flush=True)


def _sleep(stop: Stop, on_tick: OnTick) -> None:
    end = time.monotonic() + POLL_INTERVAL
    while not stop.requested and (remaining := end - time.monotonic()) > 0:
        time.sleep(min(engine.TICK_INTERVAL, remaining))
        on_tick()
