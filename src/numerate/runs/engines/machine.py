"""What this process may use of its machine: CPUs and GPUs."""

import os
from contextlib import suppress
from pathlib import Path


def num_available_cpus(system: Path = Path("/")) -> int:
    """The number of CPUs that this process may use: its CPU affinity, limited by its control group (`cpu.max`)."""
    num_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # there is no limit
        quota, period = (system / "sys/fs/cgroup/cpu.max").read_text().split()
        num_cpus = min(num_cpus, -(-int(quota) // int(period)))
    return num_cpus


def visible_gpus(system: Path = Path("/")) -> list[str]:
    """The GPUs visible to this process, named as in `CUDA_VISIBLE_DEVICES`, found without any library."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [] if visible.strip() in ("", "-1") else [name.strip() for name in visible.split(",")]
    cards = list((system / "proc/driver/nvidia/gpus").glob("*")) or list((system / "dev").glob("nvidia[0-9]*"))
    return [str(number) for number in range(len(cards))]
