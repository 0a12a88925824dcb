"""In which state the tasks of a submission are, and what that means for items that are not over."""

import os
import socket
import subprocess
from collections.abc import Collection
from pathlib import Path

from numerate.executors.executor import Failure
from numerate.executors.submission import Submission

OVER = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "ENDED",
    "FAILED",
    "GONE",
    "LAUNCH_FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "RECONFIG_FAIL",
    "REVOKED",
    "TIMEOUT",
}
"""Job states of squeue(1) in which nothing runs any more, and two of ours: ENDED (a process of this machine) and GONE
(Slurm does not know the job any more). A task may come back from some of them when it is queued again."""

_MORE = {
    "TIMEOUT": "executor.minutes= gives a task more time",
    "OUT_OF_MEMORY": "executor.mem_gb= gives a task more memory, fewer workers need less",
}


_NEVER_BEGUN = ("CANCELLED", "DEADLINE", "REVOKED")
_OTHERS = ("srun:", "slurmstepd", "submitit ")


def states_of(one: Submission, tasks: Collection[int]) -> dict[int, str] | None:
    """The state of each of these tasks; None where Slurm does not answer.

    One call of squeue for all of them: it knows a job until some minutes after its end, and needs no accounting.
    """
    if one.cluster != "slurm":
        here = one.host == socket.gethostname()
        return {task: "RUNNING" if here and _same(one, task) else "ENDED" for task in tasks}
    command = ["squeue", "--noheader", "--array", "--states=all", f"--jobs={one.job()}", "--format=%i|%T"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode and "Invalid job id" not in answer.stderr:
        return None
    known = dict(line.strip().split("|", 1) for line in answer.stdout.splitlines() if "|" in line)
    return {task: known.get(one.jobs[task], "GONE") for task in tasks}


def died(one: Submission, task: int) -> Failure:
    """The failure of an item whose task ended without it."""
    state, log = one.ended[task], one.log(task)
    what = "its process" if one.cluster == "local" else "its Slurm task"
    parts = [f"{what} {one.jobs[task]} was over before it was done ({state})"]
    if state in _MORE:
        parts.append(_MORE[state])
    if log.exists() or one.began(task):
        last = _last_words(log)
        parts.append(f"log: {log}{f' ({last})' if last else ''}")
    elif state not in _NEVER_BEGUN:
        parts.append(
            f"its log {log} is not there: where the machines of the cluster do not see this folder, runs_dir= has to "
            "name one that they do"
        )
    return Failure("died", f"{'; '.join(parts)}; the same command resumes")


def _last_words(log: Path) -> str:
    """The last line that the program wrote, not Slurm or submitit: a Python error, where there was one."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - 4000))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    own = [line.strip() for line in lines if line.strip() and not line.startswith(_OTHERS)]
    return own[-1][-200:] if own else ""


def _same(one: Submission, task: int) -> bool:
    began = one.started[task]
    return began is not None and beginning(one.jobs[task]) == began


def beginning(process: str) -> str | None:
    """When a process of this machine began, in the kernel's own count; None where there is none, or it has ended.

    Together with its number it is that process and no later one.
    """
    try:
        state, *more = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else more[18]  # field 22 of proc(5)
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    try:
        os.kill(int(process), 0)
    except OSError:
        return None
    return "running"
