"""Waiting for tasks: their results, failures of tasks that end early, and detaching."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from numerate.errors import pluralize
from numerate.executors.executor import Failure, ItemOutcome, Work
from numerate.executors.states import ENDED_STATES, task_failure, task_states
from numerate.executors.submission import Submission
from numerate.training.stopping import Stop


def wait_for_items(
    submissions: Sequence[Submission], work: Work, stop: Stop, on_tick: Callable[[], None], *, wait: bool = True
) -> Iterator[ItemOutcome]:
    """Yields every item that a command waits for when its task finishes it, or with the failure of its task.

    When `stop` is requested, or immediately without `wait`, unfinished items are left to their jobs.
    """
    ended_once: set[tuple[Path, int]] = set()
    last_query = time.monotonic()
    while True:
        for submission in submissions:
            submission.read()
            yield from submission.deliver(work)
            ended_tasks = submission.tasks() & submission.ended.keys()
            yield from submission.fail_items(
                {task: submission.failures.get(task) or task_failure(submission, task) for task in ended_tasks}
            )
        unfinished = [one for one in submissions if one.pending]
        if not unfinished:
            return
        if stop.requested or not wait:
            for submission in unfinished:
                yield from _detach(submission, stop)
            return
        if time.monotonic() - last_query >= _query_interval(unfinished):
            for submission in unfinished:
                tasks = submission.tasks()
                states = task_states(submission, tasks) or {}
                for task, state in states.items():
                    task_key = (submission.path, task)
                    if state not in ENDED_STATES:
                        ended_once.discard(task_key)
                    elif task_key in ended_once:
                        submission.read([task])
                        yield from submission.deliver(work)
                        submission.ended[task] = state
                    else:
                        ended_once.add(task_key)
            last_query = time.monotonic()
        sleep_with_ticks(_poll_interval(unfinished), stop, on_tick)


def _detach(submission: Submission, stop: Stop) -> Iterator[ItemOutcome]:
    """Failures for items that a command no longer waits for. The jobs keep running."""
    if stop.requested:
        count = pluralize(len(submission.pending), "item")
        verb = "continues" if len(submission.pending) == 1 else "continue"
        print_message(
            f"{count} {verb} in {describe(submission)}. The same command waits for them, from any machine that sees "
            "the folder."
        )
    failures = {}
    for task in submission.tasks():
        job_text = f"{'process' if submission.cluster == 'local' else 'Slurm task'} {submission.job_ids[task]}"
        if stop.requested:
            failures[task] = Failure("stopped", f"{job_text} keeps running", stop.status or 130)
        else:
            failures[task] = Failure("not started", f"submitted as {job_text}", 0)
    yield from submission.fail_items(failures)


def describe(submission: Submission) -> str:
    """A submission, and the commands to inspect it and end it."""
    if submission.cluster == "slurm":
        return (
            f"Slurm job {submission.array_job_ids()} (`squeue -j {submission.array_job_ids()}` shows it, `scancel "
            f"{submission.array_job_ids()}` ends it)"
        )
    if submission.cluster == "local":
        return f"processes of this machine (`kill {submission.array_job_ids()}` ends them)"
    return "this process"


def print_message(text: str) -> None:
    """Prints a message to stderr."""
    print(f"numerate: {text}", file=sys.stderr, flush=True)


def _query_interval(submissions: Sequence[Submission]) -> float:
    """Seconds between two queries to Slurm."""
    if all(one.cluster == "local" for one in submissions):
        return 1.0
    return max(10.0, sum(len(one.job_ids) for one in submissions) / 50)


def _poll_interval(submissions: Sequence[Submission]) -> float:
    """Seconds between two reads of the tasks' files on a shared file system."""
    if all(one.cluster == "local" for one in submissions):
        return 0.5
    return max(2.0, sum(len(one.job_ids) for one in submissions) / 100)


def sleep_with_ticks(seconds: float, stop: Stop, on_tick: Callable[[], None]) -> None:
    """Waits, with a tick twice a second, until the time has elapsed or a stop is requested."""
    end = time.monotonic() + seconds
    while not stop.requested and (remaining := end - time.monotonic()) > 0:
        time.sleep(min(0.5, remaining))
        on_tick()
