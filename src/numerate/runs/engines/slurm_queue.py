"""What Slurm says of the jobs of a folder."""

import hashlib
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from numerate.errors import OperationalError

CONFIRMATIONS = 3  # answers in a row by which a job has ended: one may be empty, or between an end and a requeue
MAX_SILENT = 30  # calls of squeue in a row without an answer after which a command that waits for jobs gives up

_ENDED_STATES = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT", "unknown to squeue"),
}


class Queue:
    """The jobs of a folder in Slurm. All have a name that is made from its path, so that one squeue tells of those of
    every command, and none is lost if a command dies, or the disk is full, while it submits them.

    `states` are those of the last answer. squeue knows a job until some minutes after its end, and needs no accounting.
    """

    def __init__(self, root: Path) -> None:
        self.name = f"numerate-{hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:8]}"
        self.states: Mapping[str, str] = {}
        self.times_ended: dict[str, int] = {}  # of each job that was queued or running, by the last answers
        self.num_silent = 0
        self.silence: str | None = None  # what is waited for where the last call had no answer

    def update(self) -> None:
        """Calls squeue. Without an answer everything stays as it was; raises `OperationalError` after minutes."""
        command = ["squeue", "--noheader", "--array", "--states=all", f"--name={self.name}", "--format=%i|%T"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            self.num_silent += 1
            self.silence = f"an answer of squeue ({(getattr(error, 'stderr', None) or str(error)).strip()})"
            if self.num_silent >= MAX_SILENT:
                raise OperationalError(f"gave up waiting for {self.silence}; the same command tries again") from error
            return
        found = dict(line.strip().split("|", 1) for line in answer.stdout.splitlines() if "|" in line)
        self.states, self.num_silent, self.silence = defaultdict(lambda: "unknown to squeue", found), 0, None
        for job in found.keys() | self.times_ended.keys():
            if self.states[job] not in _ENDED_STATES:
                self.times_ended[job] = 0
            elif job in self.times_ended:
                self.times_ended[job] += 1

    def has_ended(self, job: str) -> bool:
        return self.times_ended[job] >= CONFIRMATIONS

    def obstacle(self) -> str | None:
        """Updates; returns why nothing should be submitted now."""
        self.update()
        has_ended = all(map(self.has_ended, self.times_ended))
        return self.silence or (None if has_ended else f"the jobs of an earlier command: {self}")

    def __str__(self) -> str:
        jobs = self.name
        return f"Slurm jobs {jobs} (`squeue --name={jobs}` shows them, `scancel --name={jobs}` ends them)"
