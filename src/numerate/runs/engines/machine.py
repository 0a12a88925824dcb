"""What this process may use of its machine: CPUs, GPUs; and the environment that a new process inherits."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path


def num_available_cpus() -> int:
    """The number of CPUs that this process may use: its CPU affinity, limited by its control group."""
    num_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(num_cpus, cgroup_cpu_limit(Path("/")) or num_cpus))


def cgroup_cpu_limit(system: Path) -> int | None:
    """The CPU limit of this process's control group (`cpu.max`, or `cpu.cfs_quota_us`), rounded up; None without a
    limit."""
    groups = system / "sys/fs/cgroup"
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with suppress(OSError, ValueError):
            quota, period = " ".join((groups / name).read_text() for name in files).split()
            return -(-int(quota) // int(period)) if int(quota) > 0 else None
    return None


def visible_gpus(system: Path = Path("/")) -> list[str]:
    """The GPUs visible to this process, named as in `CUDA_VISIBLE_DEVICES`, found without any library."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [] if visible.strip() in ("", "-1") else [name.strip() for name in visible.split(",")]
    cards = list((system / "proc/driver/nvidia/gpus").glob("*")) or list((system / "dev").glob("nvidia[0-9]*"))
    return [str(number) for number in range(len(cards))]


@contextmanager
def temporary_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Changes the environment, such as while a process starts: libraries read it when they are imported."""
    old_values = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in old_values.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
