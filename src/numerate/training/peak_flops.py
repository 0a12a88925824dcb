"""What a device can compute at most, to say which share of it a run uses.

For GPUs what their makers state for dense products of matrices, without sparsity, at full clock: NVIDIA's data sheets
of each (https://www.nvidia.com/en-us/data-center/, and the architecture papers of Ampere, Ada, Hopper and Blackwell).
GeForce and RTX values are those with float32 accumulation. Of a CPU nothing of the kind is stated for what is there: a
product of matrices is measured, once in a process.
"""

import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch

from numerate.training.precision import HALF

Products = Literal["bf16", "fp16", "tf32", "fp32"]
"""What products of matrices are computed in."""

STATED: dict[str, tuple[float, float, float]] = {
    "B200": (2250, 1125, 75),
    "H200 NVL": (835, 418, 60),
    "H200": (989, 494, 67),
    "H100 PCIe": (756, 378, 51),
    "H100 NVL": (835, 418, 60),
    "H100": (989, 494, 67),
    "A100": (312, 156, 19.5),
    "A40": (149.7, 74.8, 37.4),
    "A30": (165, 82, 10.3),
    "A10": (125, 62.5, 31.2),
    "L40S": (362, 183, 91.6),
    "L40": (181, 90.5, 90.5),
    "L4": (121, 60, 30.3),
    "RTX 6000 Ada": (364.2, 182.1, 91.1),
    "RTX A6000": (154.8, 77.4, 38.7),
    "RTX A4000": (76.7, 38.3, 19.2),
    "RTX 4090": (165.2, 82.6, 82.6),
    "RTX 3090": (71, 35.6, 35.6),
}
"""Teraflop/s with bf16 (or fp16), TF32 and float32 products, by part of a device's name; the first that fits."""

HALF_ONLY: dict[str, tuple[float, float]] = {"V100": (125, 15.7), "T4": (65, 8.1)}
"""The same with fp16 and float32 for devices that have neither bf16 nor TF32."""

_SIZE, _SECONDS, _LEAST = 512, 0.03, 10


@dataclass(frozen=True)
class Limit:
    """Floating-point operations per second at most, and where that is from: `stated` by its maker, or `measured`."""

    flops: float
    source: Literal["stated", "measured"]


def limit_of(device: torch.device, products: Products) -> Limit | None:
    """The limit of a device, in floating-point operations per second; None where it is not known here.

    >>> limit_of(torch.device("cuda"), "bf16")  # on an A100
    Limit(flops=312000000000000.0, source='stated')
    """
    if device.type == "cuda":
        found = stated(torch.cuda.get_device_name(device), products)
        return None if found is None else Limit(found, "stated")
    if device.type == "cpu":
        return Limit(_measured(HALF.get(products, torch.float32), torch.get_num_threads()), "measured")
    return None


def stated(name: str, products: Products) -> float | None:
    """What the maker of a device of this name states, in floating-point operations per second; None if not known."""
    for part, (half, tf32, full) in STATED.items():
        if part in name:
            return 1e12 * {"bf16": half, "fp16": half, "tf32": tf32, "fp32": full}[products]
    for part, (half, full) in HALF_ONLY.items():
        if part in name:
            return None if products == "bf16" else 1e12 * (half if products == "fp16" else full)
    return None


def products_of(precision: str, tf32: bool, device: torch.device) -> Products:
    """The precision of matrix products: half precision where a recipe sets it, else TF32 on CUDA, or float32."""
    if precision == "bf16":
        return "bf16"
    if precision == "fp16":
        return "fp16"
    return "tf32" if tf32 and device.type == "cuda" else "fp32"


@lru_cache
def _measured(dtype: torch.dtype, threads: int) -> float:
    """Operations per second of a product of two square matrices here: the quickest of ten or more, in about 30 ms;
    on a machine that others use as well in longer, as one product alone may be interrupted."""
    with torch.no_grad():
        one = torch.ones(_SIZE, _SIZE, dtype=dtype)
        out, quickest = torch.mm(one, one), float("inf")
        end, done = time.perf_counter() + _SECONDS, 0
        while True:
            began = time.perf_counter()
            torch.mm(one, one, out=out)
            now = time.perf_counter()
            quickest, done = min(quickest, now - began), done + 1
            if now > end and done >= _LEAST:
                return 2.0 * _SIZE**3 / quickest
