"""Training in processes of their own, one or several as torchrun starts them, and how far it is."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def launch(
    *words: str, processes: int = 1, prepare: Callable[[], None] | None = None, **environment: str
) -> "subprocess.Popen[str]":
    """Starts `python WORDS` in a session of its own, so that all of its processes can be killed."""
    many = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)) if processes > 1 else ()
    return subprocess.Popen(
        [sys.executable, *many, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        preexec_fn=prepare,
        start_new_session=True,
    )


def ended(process: "subprocess.Popen[str]", seconds: float = 120) -> tuple[int, str]:
    """The exit status and everything printed; kills all of its processes if it takes longer."""
    try:
        out, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, out


def last_logged_step(runs: Path) -> int:
    """The step of the last whole line of metrics of the only run of a folder; 0 if there is none yet."""
    found = list(runs.glob("*/*/metrics.jsonl"))
    lines = [line for line in found[0].read_bytes().split(b"\n")[:-1] if line] if found else []
    return int(json.loads(lines[-1])["step"]) if lines else 0
