"""What needs less memory, where a GPU is out of it."""

import contextlib
import math
from collections.abc import Iterator

import torch

from numerate.errors import OperationalError
from numerate.runs.engines.memory import is_on_gpu, out_of_memory_error
from numerate.training.disk import format_bytes


@contextlib.contextmanager
def explained_out_of_memory(device: torch.device, advice: str) -> Iterator[None]:
    """Raises an `OperationalError` with advice on what needs less where a GPU is out of memory."""
    try:
        yield
    except Exception as error:
        cause = out_of_memory_error(error)
        if cause is None or not is_on_gpu(cause):
            raise
        size = total_memory(device)
        has = f" ({format_bytes(size)})" if size < math.inf else ""
        raise OperationalError(f"the GPU is out of memory{has}: {advice}") from error


def total_memory(device: torch.device) -> float:
    """The memory of a GPU in bytes; infinite for another device."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else math.inf
