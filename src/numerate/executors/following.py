"""Waiting for tasks: their results, failures of tasks that end early, and detaching."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from numerate.executors.executor import Failure, Finished, Work
from numerate.executors.states import OVER, died, states_of
from numerate.executors.submission import Submission
from numerate.training.stopping import Stop


def follow(
    submissions: Sequence[Submission], work: Work, stop: Stop, tick: Callable[[], None], *, wait: bool = True
) -> Iterator[Finished]:
    """Every item that a command waits for, as its task finishes it, or with the failure of its task.

    When `stop` is requested, and at once without `wait`, the items that are not over are left to their jobs.
    """
    for one in submissions:
        for number in list(one.records):
            yield from one.take(number, work)
    doubted: set[tuple[Path, int]] = set()
    last_query = time.monotonic()
    while True:
        for one in submissions:
            for number in one.read():
                yield from one.take(number, work)
            over = one.tasks() & one.ended.keys()
            yield from one.lost({task: one.refused.get(task) or died(one, task) for task in over})
        open_ones = [one for one in submissions if one.waiting]
        if not open_ones:
            return
        if stop.requested or not wait:
            for one in open_ones:
                yield from _leave(one, stop)
            return
        if time.monotonic() - last_query >= _patience(open_ones):
            for one in open_ones:
                tasks = one.tasks()
                states = states_of(one, tasks) or {}
                for task, state in states.items():
                    about = (one.path, task)
                    if state not in OVER:
                        doubted.discard(about)
                    elif about in doubted:
                        for number in one.read([task]):
                            yield from one.take(number, work)
                        one.end(task, state)
                    else:
                        doubted.add(about)
            last_query = time.monotonic()
        pause(_pace(open_ones), stop, tick)


def _leave(one: Submission, stop: Stop) -> Iterator[Finished]:
    """The failures of items that a command does not wait for any longer. The jobs keep running."""
    if stop.requested:
        count = many(len(one.waiting), "item")
        tell(f"{count} left to {called(one)}. The same command waits for them, from any machine that sees the folder.")
    failures = {}
    for task in one.tasks():
        where = f"{'process' if one.cluster == 'local' else 'Slurm task'} {one.jobs[task]}"
        if stop.requested:
            failures[task] = Failure("stopped", f"left to {where}, which keeps running", stop.status or 130)
        else:
            failures[task] = Failure("not begun", f"submitted as {where}", 0)
    yield from one.lost(failures)


def called(one: Submission) -> str:
    """A submission, and how to look at it and end it without this program."""
    if one.cluster == "slurm":
        return f"Slurm job {one.job()} (`squeue -j {one.job()}` shows it, `scancel {one.job()}` ends it)"
    if one.cluster == "local":
        return f"processes of this machine (`kill {one.job()}` ends them)"
    return "this process"


def many(count: int, what: str) -> str:
    """`many(2, "task")` is `"2 tasks"`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def tell(text: str) -> None:
    """Prints a message to stderr."""
    print(f"numerate: {text}", file=sys.stderr, flush=True)


def _patience(submissions: Sequence[Submission]) -> float:
    """Seconds between two queries to Slurm, which serves many users."""
    if all(one.cluster == "local" for one in submissions):
        return 1.0
    return max(10.0, sum(len(one.jobs) for one in submissions) / 50)


def _pace(submissions: Sequence[Submission]) -> float:
    """Seconds between two looks at the files of the tasks, which a shared file system serves."""
    if all(one.cluster == "local" for one in submissions):
        return 0.5
    return max(2.0, sum(len(one.jobs) for one in submissions) / 100)


def pause(seconds: float, stop: Stop, tick: Callable[[], None]) -> None:
    """Waits, with a tick twice a second, until time is up or a stop is requested."""
    end = time.monotonic() + seconds
    while not stop.requested and (left := end - time.monotonic()) > 0:
        time.sleep(min(0.5, left))
        tick()
