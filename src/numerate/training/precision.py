"""The precision of matrix products: `training.precision` and `training.tf32` as torch settings."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

HALF_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The types of half precision by their names in a recipe; of `fp32` there is none."""


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Autocast around a forward: half precision where a recipe sets it; nothing for `fp32`."""
    dtype = HALF_DTYPES.get(precision)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


@contextmanager
def tf32_matmul(device: torch.device, *, tf32: bool) -> Iterator[None]:
    """Float32 products in TF32 on a CUDA device, where that is wanted."""
    if not tf32 or device.type != "cuda":
        yield
        return
    previous_precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous_precision)
