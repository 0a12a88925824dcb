"""The precision of matrix products: `training.precision` and `training.tf32` as torch settings."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The types of half precision by their names in a recipe; of `fp32` there is none."""


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Autocast around a forward: half precision where a recipe sets it; nothing for `fp32`."""
    half = HALF.get(precision)
    return torch.autocast(device.type, dtype=half, enabled=half is not None)


@contextmanager
def products(device: torch.device, *, tf32: bool) -> Iterator[None]:
    """Float32 products in TF32 on a CUDA device, where that is wanted."""
    if not tf32 or device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
