"""Memory that ran out, in an error of any library."""

import contextlib
import re
from collections.abc import Iterator

from numerate.errors import OperationalError, chain_of_causes

_OUT_OF_MEMORY_PATTERN = re.compile(
    r"can't allocate memory|cannot allocate memory|failed to map segment|out of memory|bad_alloc|STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)


def out_of_memory_error(error: BaseException) -> BaseException | None:
    """The out-of-memory error of Python, numpy, torch or a GPU in the chain of causes of an error; None if there is
    none."""
    for cause in chain_of_causes(error):
        if {part.__name__ for part in type(cause).__mro__} & {"MemoryError", "OutOfMemoryError"}:
            return cause
        if isinstance(cause, RuntimeError | OSError | ImportError) and _OUT_OF_MEMORY_PATTERN.search(str(cause)):
            return cause
    return None


def is_on_gpu(cause: BaseException) -> bool:
    """Whether an out-of-memory error is a GPU's, or one of its libraries'."""
    text = f"{type(cause).__module__} {cause}"
    return "cuda" in text.lower() or any(name in text for name in ("CUBLAS", "CUDNN", "HIP", "MPS"))


def out_of_memory_text(cause: BaseException) -> str:
    """A message about which memory ran out and what needs less."""
    message = f"{type(cause).__name__}: {next(iter(str(cause).splitlines()), '')}".removesuffix(": ")
    where, what = ("GPU", "fewer workers per GPU") if is_on_gpu(cause) else ("machine", "fewer workers")
    return f"the {where} is out of memory ({message}); use a smaller batch or model, or {what}"


@contextlib.contextmanager
def explained_out_of_memory(advice: str) -> Iterator[None]:
    """Raises an `OperationalError` with advice on what needs less where a GPU is out of memory."""
    try:
        yield
    except Exception as error:
        cause = out_of_memory_error(error)
        if cause is None or not is_on_gpu(cause):
            raise
        raise OperationalError(f"the GPU is out of memory: {advice}") from error
