"""Memory that runs out: an error of this process instead of its end, and what needs less."""

import contextlib
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import torch

from numerate.errors import OperationalError
from numerate.runs.engines.memory import is_on_gpu, out_of_memory_error
from numerate.training.disk import format_bytes

MAX_SHARE = 0.9
"""The largest share of the available memory that an evaluation may take."""


@contextlib.contextmanager
def explained_out_of_memory(device: torch.device, advice: str) -> Iterator[None]:
    """Raises an `OperationalError` with advice on what needs less where a GPU is out of memory."""
    try:
        yield
    except Exception as error:
        cause = out_of_memory_error(error)
        if cause is None or not is_on_gpu(cause):
            raise
        is_cuda = device.type == "cuda"
        has = f" ({format_bytes(torch.cuda.get_device_properties(device).total_memory)})" if is_cuda else ""
        raise OperationalError(f"the GPU is out of memory{has}: {advice}") from error


@contextlib.contextmanager
def limited_memory(device: torch.device) -> Iterator[None]:
    """Limits the memory of this process to what the machine has available, for work on the CPU: a row that is too long
    is then an error of torch. Linux grants more than there is, and ends a process, or stalls the machine, once it is
    used. Elsewhere there is no limit.
    """
    limit, most = before = resource.getrlimit(resource.RLIMIT_DATA)
    with contextlib.suppress(OSError, ValueError):
        available, used = (_kilobytes(*at) for at in (("meminfo", "MemAvailable"), ("self/status", "VmData")))
        new = 1024 * (used + int(MAX_SHARE * available))
        if device.type == "cpu" and (limit == resource.RLIM_INFINITY or new < limit):
            resource.setrlimit(resource.RLIMIT_DATA, (new, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _kilobytes(file: str, name: str) -> int:
    """An entry of a file in /proc. Raises `ValueError` if it is not there."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc", file).read_text(), re.MULTILINE)
    return int(found[1] if found else "")
