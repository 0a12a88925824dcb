"""Memory that runs out: an error of this process instead of its end, and what needs less."""

import contextlib
import re
import resource
import threading
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import torch

from numerate.errors import OperationalError
from numerate.evaluation.evaluation_data import MAX_TOKENS_PER_BATCH
from numerate.runs.engines.memory import is_on_gpu, out_of_memory_error
from numerate.training.disk import format_bytes

MAX_SHARE = 0.9
"""The largest share of the available memory that an evaluation may take."""

CGROUP_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
_LOCK = threading.RLock()


@contextlib.contextmanager
def explained_out_of_memory(
    device: torch.device, advice: str, num_tokens: float = 0, row: str = "a row"
) -> Iterator[None]:
    """Raises an `OperationalError` with advice on what needs less where a GPU is out of memory, or one that names the
    `row` where it has more tokens than are otherwise evaluated at a time and the CPU lacks the memory for them."""
    is_limited = device.type == "cpu" and num_tokens > MAX_TOKENS_PER_BATCH
    with _limited_memory() if is_limited else contextlib.nullcontext(0) as room:
        try:
            yield
        except Exception as error:
            cause = out_of_memory_error(error)
            if cause is not None and is_on_gpu(cause):
                is_cuda = device.type == "cuda"
                size = torch.cuda.get_device_properties(device).total_memory if is_cuda else 0
                has = f" ({format_bytes(size)})" if is_cuda else ""
                raise OperationalError(f"the GPU is out of memory{has}: {advice}") from error
            if cause is not None and room:
                needs = f"needs more than the {format_bytes(room)} of memory that this process may take"
                kept = "shorter ones need less, and recorded cells are kept"
                raise OperationalError(f"{row}: a row of about {num_tokens:,.0f} tokens {needs}; {kept}") from None
            raise


@contextlib.contextmanager
def _limited_memory() -> Iterator[int]:
    """Limits the memory of this process to what it can have, and yields how much more that is: Linux grants more than
    there is, and ends a process, or stalls the machine, once it is used. Elsewhere there is no limit, and 0. Threads
    take turns."""
    with _LOCK:
        (limit, most), room = resource.getrlimit(resource.RLIMIT_DATA), 0
        with contextlib.suppress(OSError, ValueError):
            used = 1024 * _kilobytes(Path("/proc/self/status"), "VmData")
            new = used + int(MAX_SHARE * available_memory())
            new = new if limit == resource.RLIM_INFINITY else min(new, limit)
            resource.setrlimit(resource.RLIMIT_DATA, (new, most))
            room = new - used
        try:
            yield room
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, most))


def available_memory(root: Path = Path("/")) -> int:
    """The memory in bytes that is available on this machine, and within the limits of a container or job (cgroups).
    Raises `OSError` where Linux does not say it."""
    available = [sum(1024 * _kilobytes(root / "proc/meminfo", name) for name in ("MemAvailable", "SwapFree"))]
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        folder = root / "sys/fs/cgroup" / controllers / path[1:]
        for place, names in product((folder, *folder.parents), CGROUP_FILES):
            with contextlib.suppress(OSError, ValueError):  # there is none, or no limit (`max`)
                limit, used, stat = ((place / name).read_text() for name in (*names, "memory.stat"))
                files = dict(re.findall(r"^(?:total_)?((?:in)?active_file) (\d+)$", stat, re.MULTILINE))
                available.append(int(limit) - int(used) + sum(map(int, files.values())))
    return max(0, min(available))


def _kilobytes(file: Path, name: str) -> int:
    """An entry of a file in /proc. Raises `ValueError` if it is not there."""
    found = re.search(rf"^{name}:\s+(\d+) kB", file.read_text(), re.MULTILINE)
    return int(found[1] if found else "")
