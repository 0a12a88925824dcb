"""A stand-in for a Slurm cluster: `sbatch`, `srun`, `squeue`, `scontrol` and `scancel`, as if this machine were one.

A folder has a file per task with its state, `77_0` (`77` of a job that is no array), `77_0.pid` with the process that
srun started, and `77.name`. While there is a file `mute` squeue fails, and a file `blink` makes it print nothing once.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = ("sbatch", "srun", "squeue", "scontrol", "scancel")


def install(folder: Path) -> None:
    """Writes the commands. The interpreter's path may have a space, which no first line of a script can name."""
    folder.mkdir()
    for name in COMMANDS:
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{__file__}" "{folder}" {name} "$@"\n')
        (folder / name).chmod(0o755)
    # Nobody needs accounting: a cluster that has it is not asked.
    (folder / "sacct").write_text(f'#!/bin/sh\ntouch "{folder}/asked"\nexit 1\n')
    (folder / "sacct").chmod(0o755)


def _name(job: str, task: str) -> str:
    return f"{job}_{task}" if task else job


def sbatch(folder: Path, script: str) -> None:
    text = Path(script).read_text()
    if "partition=nowhere" in text:
        sys.exit("sbatch: error: invalid partition specified: nowhere")
    job = str(77 + len(list(folder.glob("*.name"))))
    found = re.search("array=0-([0-9]+)", text)
    (folder / f"{job}.name").write_text(re.search("job-name=(.*)", text)[1])  # type: ignore[index]
    for task in map(str, range(int(found[1]) + 1)) if found else [""]:
        (folder / _name(job, task)).write_text("PENDING")
        command = [sys.executable, "-S", __file__, str(folder), "supervise", script, job, task]
        nothing = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.Popen(command, start_new_session=True, **nothing).returncode = 0  # type: ignore[call-overload]
    print(f"Submitted batch job {job}")


def supervise(folder: Path, script: str, job: str, task: str) -> None:
    """Runs a task, again for as long as it is requeued."""
    state, requeued = folder / _name(job, task), folder / f"{_name(job, task)}.requeued"
    environment = dict(os.environ, SLURM_JOB_ID=job)
    if task:
        environment |= {"SLURM_ARRAY_JOB_ID": job, "SLURM_ARRAY_TASK_ID": task}
    while state.read_text() != "CANCELLED":
        state.write_text("RUNNING")
        status = subprocess.call(["bash", script], env=environment)
        if not requeued.exists():
            break
        requeued.unlink()
        state.write_text("PREEMPTED")
        time.sleep(0.3)
    if state.exists() and state.read_text() == "RUNNING":
        state.write_text("COMPLETED" if status == 0 else "NODE_FAIL" if status >= 128 else "FAILED")


def srun(folder: Path, *words: str) -> None:
    name = _name(os.environ["SLURM_JOB_ID"], os.environ.get("SLURM_ARRAY_TASK_ID", ""))
    (folder / f"{name}.pid").write_text(str(os.getpid()))
    rest = list(words)
    while rest[0].startswith("--"):
        del rest[: 2 if rest[0] in ("--output", "--error") else 1]
    log = words[words.index("--error") + 1].replace("%A_%a", name).replace("%j", name).replace("%t", "0")
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    os.execvp(rest[0], rest)


def named(folder: Path, option: str) -> list[Path]:
    """The tasks of the jobs of a name."""
    jobs = [path.stem for path in folder.glob("*.name") if f"--name={path.read_text()}" == option]
    return sorted(path for path in folder.glob("[0-9]*") if not path.suffix and path.name.partition("_")[0] in jobs)


def squeue(folder: Path, *words: str) -> None:
    if (folder / "mute").exists():
        sys.exit("slurm_load_jobs error: Unable to contact slurm controller")
    if (folder / "blink").exists():
        return (folder / "blink").unlink()
    (option,) = (word for word in words if word.startswith("--name="))
    for path in named(folder, option):
        print(f"{path.name}|{path.read_text()}")


def scontrol(folder: Path, verb: str, task: str) -> None:
    assert verb == "requeue"
    (folder / f"{task}.requeued").touch()


def scancel(folder: Path, job: str) -> None:
    tasks = named(folder, job) if job.startswith("--name") else [folder / job]
    for path in tasks:
        path.write_text("CANCELLED")
        with contextlib.suppress(OSError):
            os.kill(int((folder / f"{path.name}.pid").read_text()), signal.SIGKILL)


if __name__ == "__main__":
    globals()[sys.argv[2]](Path(sys.argv[1]), *sys.argv[3:])
