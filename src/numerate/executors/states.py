"""The states of the tasks of a submission, and what they mean for unfinished items."""

import os
import socket
import subprocess
from collections.abc import Collection
from pathlib import Path

from numerate.executors.executor import Failure
from numerate.executors.submission import Submission

ENDED_STATES = {
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
"""Job states of squeue(1) in which nothing runs any more, and two additional ones: ENDED (a process of this machine)
and GONE (Slurm no longer knows the job). A requeued task may leave some of them."""

_HINTS = {
    "TIMEOUT": "executor.minutes= gives a task more time",
    "OUT_OF_MEMORY": "executor.mem_gb= gives a task more memory, fewer workers need less",
}


_NEVER_STARTED = ("CANCELLED", "DEADLINE", "REVOKED")
_LAUNCHER_PREFIXES = ("srun:", "slurmstepd", "submitit ")


def task_states(submission: Submission, tasks: Collection[int]) -> dict[int, str] | None:
    """The state of each of these tasks; None if Slurm does not answer.

    One call of squeue for all of them: it knows a job until some minutes after its end, and needs no accounting.
    """
    if submission.cluster != "slurm":
        is_this_host = submission.host == socket.gethostname()
        return {task: "RUNNING" if is_this_host and _is_same_process(submission, task) else "ENDED" for task in tasks}
    command = [
        "squeue",
        "--noheader",
        "--array",
        "--states=all",
        f"--jobs={submission.array_job_ids()}",
        "--format=%i|%T",
    ]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if result.returncode and "Invalid job id" not in result.stderr:
        return None
    state_by_job = dict(line.strip().split("|", 1) for line in result.stdout.splitlines() if "|" in line)
    return {task: state_by_job.get(submission.job_ids[task], "GONE") for task in tasks}


def task_failure(submission: Submission, task: int) -> Failure:
    """The failure of an item whose task ended before the item was finished."""
    state, log = submission.ended[task], submission.error_log(task)
    job_text = "its process" if submission.cluster == "local" else "its Slurm task"
    parts = [f"{job_text} {submission.job_ids[task]} ended before the item was finished ({state})"]
    if state in _HINTS:
        parts.append(_HINTS[state])
    if log.exists() or submission.has_started(task):
        last_line = _last_program_line(log)
        parts.append(f"log: {log}{f' ({last_line})' if last_line else ''}")
    elif state not in _NEVER_STARTED:
        parts.append(
            f"its log {log} is missing: if the machines of the cluster do not share this folder, runs_dir= must "
            "name one that they do"
        )
    return Failure("died", f"{'; '.join(parts)}; the same command resumes")


def _last_program_line(log: Path) -> str:
    """The last line in the log that is not from Slurm or submitit: the Python error, if there was one."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - 4000))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    program_lines = [line.strip() for line in lines if line.strip() and not line.startswith(_LAUNCHER_PREFIXES)]
    return program_lines[-1][-200:] if program_lines else ""


def _is_same_process(submission: Submission, task: int) -> bool:
    start_time = submission.process_start_times[task]
    return start_time is not None and process_start_time(submission.job_ids[task]) == start_time


def process_start_time(process: str) -> str | None:
    """The start time of a process of this machine in clock ticks; None if it does not exist or has ended.

    Together with the process id it identifies the process uniquely.
    """
    try:
        state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else fields[18]  # field 22 of proc(5)
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    try:
        os.kill(int(process), 0)
    except OSError:
        return None
    return "running"
