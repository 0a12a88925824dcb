"""Memory of workers: a memory limit inside a worker, and detection of processes killed by the kernel's OOM killer."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from numerate.training.disk import format_bytes

_OUT_OF_MEMORY_PATTERN = re.compile(
    r"can't allocate memory|cannot allocate memory|failed to map segment|out of memory|std::bad_alloc", re.IGNORECASE
)


class OOMKillCounter:
    """How many processes the kernel has killed for memory, where this process is accounted.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:  # a system without any of these files
    ...     OOMKillCounter(Path(folder)).has_new_kill()
    False

    The number is `oom_kill` of the control group (version 2 in `memory.events`, version 1 in `memory.oom_control`), and
    of the whole machine (`/proc/vmstat`) where there is no group. Where none can be read it stays 0, so that nothing is
    called out of memory that might not be. Documented in the kernel's admin-guide/cgroup-v2 and cgroup-v1/memory.
    """

    def __init__(self, system: Path = Path("/")) -> None:
        self.system = system
        self._last_count = self.count()

    def has_new_kill(self) -> bool:
        """Whether the kernel has killed another since the last call. Each kill is reported once."""
        more = self.count() > self._last_count
        self._last_count += more
        return more

    def count(self) -> int:
        """The number now."""
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


def limit_memory(num_bytes: float) -> bool:
    """Lets this process take at most `num_bytes` bytes more than it holds now; False where the system cannot.

    What it holds is its private writable memory (`VmData`), whether touched or not; a request beyond the limit then
    fails in the process, as `MemoryError` or as an error of torch, instead of taking the machine's last memory.
    """
    try:
        import resource

        match = re.search(r"^VmData:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
        if match is None:
            return False
        hard_limit = resource.getrlimit(resource.RLIMIT_DATA)[1]
        soft_limit = int(match[1]) * 1024 + int(num_bytes)
        resource.setrlimit(
            resource.RLIMIT_DATA, (soft_limit if hard_limit < 0 else min(soft_limit, hard_limit), hard_limit)
        )
    except (ImportError, OSError, ValueError):
        return False
    return True


def out_of_memory_error(error: BaseException, *, is_limited: bool = False) -> BaseException | None:
    """The error, or the one that it came from, which says that memory ran out: of Python, numpy, torch or a GPU.

    Under a limit (`is_memory_limited`) a thread that cannot be begun had no memory for its stack.
    """
    visited: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in visited:
        visited.add(id(cause))
        names = {part.__name__ for part in type(cause).__mro__}
        if names & {"MemoryError", "OutOfMemoryError"}:
            return cause
        if isinstance(cause, RuntimeError | OSError | ImportError) and _OUT_OF_MEMORY_PATTERN.search(str(cause)):
            return cause
        if is_limited and isinstance(cause, RuntimeError) and "can't start new thread" in str(cause):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def is_memory_limited() -> bool:
    """Whether somebody has limited what this process may take (`ulimit -v`, `ulimit -d`)."""
    try:
        import resource
    except ImportError:
        return False
    limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return any(limit != resource.RLIM_INFINITY for limit in limits)


def out_of_memory_text(cause: BaseException, limit: float | None = None) -> str:
    """Whose memory ran out and what needs less, in words; `limit` is what a worker may take, in bytes."""
    message = f"{type(cause).__name__}: {next(iter(str(cause).splitlines()), '')}".removesuffix(": ")
    if "cuda" in f"{type(cause).__module__} {cause}".lower() or "HIP" in str(cause):
        return f"the GPU is out of memory ({message}); a smaller batch or model, or fewer workers on it, need less"
    if limit is not None:
        reason = f"its worker may take {format_bytes(limit)} ({message})"
        return f"{reason}; a smaller batch or model needs less, executor.memory= gives more"
    if is_memory_limited():
        reason = f"this process is limited ({message})"
        return f"{reason}; a larger limit (`ulimit -v`) gives more, a smaller batch or model needs less"
    return f"the machine is out of memory ({message}); fewer workers at once, or a smaller batch or model, need less"
