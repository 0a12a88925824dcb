"""The precision of matrix products: `training.precision` and `training.tf32` as torch settings."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

HALF_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The half precision types by their names in a recipe."""


def resolve_precision(precision: str, device: torch.device) -> str:
    """What `training.precision` is on a device: `auto` is bf16 on a CUDA device that computes in it, else fp32."""
    if precision != "auto":
        return precision
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Autocast for a forward pass: half precision if a recipe sets it; no autocast for `fp32`."""
    dtype = HALF_DTYPES.get(precision)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


@contextmanager
def tf32_matmul(device: torch.device, *, tf32: bool) -> Iterator[None]:
    """Float32 matrix products in TF32 on a CUDA device, if `tf32` is set."""
    if not tf32 or device.type != "cuda":
        yield
        return
    previous_precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous_precision)
