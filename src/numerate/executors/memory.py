"""Memory of workers: a memory limit inside a worker, and detection of processes killed by the kernel's OOM killer."""

import contextlib
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from numerate.errors import chain_of_causes
from numerate.training.disk import format_bytes

_OUT_OF_MEMORY_PATTERN = re.compile(
    r"can't allocate memory|cannot allocate memory|failed to map segment|out of memory|std::bad_alloc|"
    r"STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)


class OOMKillCounter:
    """Counts the processes that the kernel's OOM killer has killed in the control group of this process.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:  # a system without any of these files
    ...     OOMKillCounter(Path(folder)).has_new_kill()
    False

    The number is `oom_kill` of the control group (version 2 in `memory.events`, version 1 in `memory.oom_control`), and
    of the whole machine (`/proc/vmstat`) without a group. If neither can be read it stays 0, so that no other failure
    is reported as out of memory. Documented in the kernel's admin-guide/cgroup-v2 and cgroup-v1/memory.
    """

    def __init__(self, system: Path = Path("/")) -> None:
        self.system = system
        self._last_count = self.count()

    def has_new_kill(self) -> bool:
        """Whether the kernel has killed a process since the last call. Each kill is reported once."""
        more = self.count() > self._last_count
        self._last_count += more
        return more

    def count(self) -> int:
        """The current number."""
        for path in self._paths():
            with contextlib.suppress(OSError):
                if found := re.search(r"^oom_kill (\d+)", path.read_text(), re.MULTILINE):
                    return int(found[1])
        return 0

    def _paths(self) -> Iterator[Path]:
        groups = self.system / "sys/fs/cgroup"
        with contextlib.suppress(OSError):
            for line in (self.system / "proc/self/cgroup").read_text().splitlines():
                _, controllers, group = line.split(":", 2)
                if not controllers:
                    yield from (groups / group.lstrip("/") / "memory.events", groups / "memory.events")
                elif "memory" in controllers.split(","):
                    memory = groups / "memory"
                    yield from (memory / group.lstrip("/") / "memory.oom_control", memory / "memory.oom_control")
        yield self.system / "proc/vmstat"


def limit_memory(num_bytes: float) -> None:
    """Limits this process to `num_bytes` bytes more than it uses now, if the system supports it.

    Its use is its private writable memory (`VmData`), whether touched or not. A request beyond the limit fails in the
    process with `MemoryError` or an error of torch, instead of exhausting the machine's memory.
    """
    with contextlib.suppress(OSError, ValueError):
        used = re.search(r"^VmData:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
        hard_limit = resource.getrlimit(resource.RLIMIT_DATA)[1]
        if used is not None:
            limit = int(used[1]) * 1024 + int(num_bytes)
            soft_limit = limit if hard_limit < 0 else min(limit, hard_limit)
            resource.setrlimit(resource.RLIMIT_DATA, (soft_limit, hard_limit))


def out_of_memory_error(error: BaseException, *, is_limited: bool = False) -> BaseException | None:
    """The out-of-memory error of Python, numpy, torch or a GPU in the chain of causes of an error; None if there is
    none.

    Under a limit (`is_memory_limited`), a thread that cannot be started had no memory for its stack.
    """
    for cause in chain_of_causes(error):
        if {part.__name__ for part in type(cause).__mro__} & {"MemoryError", "OutOfMemoryError"}:
            return cause
        if isinstance(cause, RuntimeError | OSError | ImportError) and _OUT_OF_MEMORY_PATTERN.search(str(cause)):
            return cause
        if is_limited and isinstance(cause, RuntimeError) and "can't start new thread" in str(cause):
            return cause
    return None


def is_on_gpu(cause: BaseException) -> bool:
    """Whether an out-of-memory error is a GPU's, or one of its libraries'."""
    text = f"{type(cause).__module__} {cause}"
    return "cuda" in text.lower() or any(name in text for name in ("CUBLAS", "CUDNN", "HIP", "MPS"))


def is_memory_limited() -> bool:
    """Whether the memory of this process is limited (`ulimit -v`, `ulimit -d`)."""
    limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return any(limit != resource.RLIM_INFINITY for limit in limits)


def out_of_memory_text(cause: BaseException, limit: float | None = None) -> str:
    """A message about which memory ran out and what needs less; `limit` is the worker's limit in bytes."""
    message = f"{type(cause).__name__}: {next(iter(str(cause).splitlines()), '')}".removesuffix(": ")
    if size := re.search(r"tried to allocate (\d+) bytes", message):  # torch on the CPU
        message = f"{format_bytes(int(size[1]))} for one tensor"
    if is_on_gpu(cause):
        return f"the GPU is out of memory ({message}); use a smaller batch or model, or fewer workers per GPU"
    if limit is not None:
        reason = f"its worker may take {format_bytes(limit)} ({message})"
        return f"{reason}; use a smaller batch or model, or a larger executor.memory="
    if is_memory_limited():
        reason = f"this process is limited ({message})"
        return f"{reason}; use a larger limit (`ulimit -v`), or a smaller batch or model"
    return f"the machine is out of memory ({message}); use fewer workers, or a smaller batch or model"
