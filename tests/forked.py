"""Commands in a process of their own that is forked from that of the tests, where everything is imported.

What is tested of a fresh process (imports, signals, `python -m numerate`) is started by `subprocess`.
"""

import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

from numerate.cli import main


class Ended(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str


def run_command(words: Sequence[str], cwd: Path, **environment: str) -> Ended:
    """How `numerate WORDS` ends, run in a folder."""
    if not hasattr(os, "fork"):
        command = [sys.executable, "-m", "numerate", *words]
        done = subprocess.run(command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True)
        return Ended(done.returncode, done.stdout, done.stderr)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        pid = os.fork()
        if pid == 0:
            _work(words, cwd, environment, out, err)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return Ended(status, *(file.seek(0) or file.read() for file in (out, err)))


def _work(words: Sequence[str], cwd: Path, environment: dict[str, str], out: IO[str], err: IO[str]) -> None:
    status = 70
    try:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        warnings.resetwarnings()  # which are errors in a test
        os.chdir(cwd)
        os.environ.update(environment)
        status = main(words)
    except SystemExit as leaving:  # argparse's way of ending
        status = int(leaving.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
