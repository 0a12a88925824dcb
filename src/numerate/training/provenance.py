"""Where a result comes from: versions, command line, git commit, hardware, time. Quick, and imports nothing heavy."""

import contextlib
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_GIT_TIMEOUT = 2.0  # seconds for git, which may be slow on a huge tree


def provenance() -> dict[str, Any]:
    """The entries `command`, `git`, `hardware`, `versions` and `times` of a run's metadata, as plain data."""
    found = {"command": command_line(), "git": git_state(), "hardware": hardware(), "versions": versions()}
    return found | {"times": {"started": utc_now()}}


def utc_now() -> str:
    """The time as UTC to the second, such as `2026-03-01T12:00:00+00:00`."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def command_line(args: Sequence[str] | None = None) -> str:
    """The command line in shell syntax: `numerate train addition_abacus seed=1`; `args` are by default those that
    Python was started with."""
    args = list(sys.orig_argv if args is None else args)
    for index, arg in enumerate(args):
        if Path(arg).name == "numerate" or args[index : index + 2] == ["-m", "numerate"]:
            args = ["numerate", *args[index + 1 + (arg == "-m") :]]
            break
    return shlex.join(args).encode(errors="replace").decode()


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that results depend on."""
    found = {"python": platform.python_version()}
    for name in ("numerate", "torch", "numpy", "safetensors"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def changed_versions(old_versions: Mapping[str, str]) -> list[str]:
    """The differences from the versions that a run was made with: `["torch 2.12.0, now 2.13.0"]`."""
    current_versions = versions()
    return [
        f"{name} {old}, now {current_versions.get(name, 'absent')}"
        for name, old in old_versions.items()
        if current_versions.get(name) != old
    ]


def git_state() -> dict[str, dict[str, Any]]:
    """Commit, and whether files differ from it, of the current repository (`here`) and of the package's own
    (`numerate`, if it runs from a checkout). Empty without git or a repository."""
    package = Path(__file__).resolve().parents[3]
    repositories = {"here": Path.cwd(), **({"numerate": package} if (package / ".git").exists() else {})}
    states = {name: _git_status(repository) for name, repository in repositories.items()}
    return {name: state for name, state in states.items() if state is not None}


def _git_status(repository: Path) -> dict[str, Any] | None:
    """The state of a repository, without writing its index: another git command may be at work in this tree."""
    args = ["git", "--no-optional-locks", "-C", str(repository), "status", "--porcelain=v2", "--branch"]
    try:
        done = subprocess.run(args, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=_GIT_TIMEOUT)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.decode(errors="replace").splitlines()
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid")), None)
    dirty = any(not line.startswith("#") for line in lines)
    return {"commit": None if commit == "(initial)" else commit, "dirty": dirty}


def hardware() -> dict[str, Any]:
    """Processor, cores (usable and present), memory in bytes, operating system; and if torch is loaded already, its
    threads and graphics cards."""
    found: dict[str, Any] = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cores_present": os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "gpus": [],
    }
    if (torch := sys.modules.get("torch")) is not None:
        found["threads"] = torch.get_num_threads()
        if torch.cuda.is_initialized():
            found["gpus"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return found


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith(("model name", "Model", "cpu model")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
