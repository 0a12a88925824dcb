"""Peak FLOP/s of a device, for the model FLOPs utilization (MFU) of a run.

For GPUs, the specified values for dense matrix products, without sparsity, at boost clock: NVIDIA's data sheets
of each (https://www.nvidia.com/en-us/data-center/, and the architecture papers of Ampere, Ada, Hopper and Blackwell).
GeForce and RTX values are those with float32 accumulation. For CPUs a matrix product is timed, once per process.
"""

import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch

from numerate.training.precision import HALF_DTYPES

MatmulPrecision = Literal["bf16", "fp16", "tf32", "fp32"]
"""The precision of matrix products."""

VENDOR_TFLOPS: dict[str, tuple[float, float, float]] = {
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
"""Teraflop/s with bf16 (or fp16), TF32 and float32 products, by part of a device's name; the first match counts."""

VENDOR_TFLOPS_FP16_ONLY: dict[str, tuple[float, float]] = {"V100": (125, 15.7), "T4": (65, 8.1)}
"""The same with fp16 and float32 for devices that have neither bf16 nor TF32."""

_MATRIX_SIZE, _MIN_SECONDS, _MIN_REPEATS = 512, 0.03, 10


@dataclass(frozen=True)
class PeakFlops:
    """Peak floating-point operations per second, and their source: `stated` by the vendor, or `measured`."""

    flops: float
    source: Literal["stated", "measured"]


def peak_flops(device: torch.device, matmul_precision: MatmulPrecision) -> PeakFlops | None:
    """The limit of a device, in floating-point operations per second; None if it is not known here.

    On an A100 with bf16 it is 312e12, as stated by its maker.
    """
    if device.type == "cuda":
        flops = vendor_peak_flops(torch.cuda.get_device_name(device), matmul_precision)
        return None if flops is None else PeakFlops(flops, "stated")
    if device.type == "cpu":
        return PeakFlops(
            _measure_flops(HALF_DTYPES.get(matmul_precision, torch.float32), torch.get_num_threads()), "measured"
        )
    return None


def vendor_peak_flops(device_name: str, matmul_precision: MatmulPrecision) -> float | None:
    """The specified floating-point operations per second of a device by name; None if unknown."""
    for name_part, (half, tf32, full) in VENDOR_TFLOPS.items():
        if name_part in device_name:
            return 1e12 * {"bf16": half, "fp16": half, "tf32": tf32, "fp32": full}[matmul_precision]
    for name_part, (half, full) in VENDOR_TFLOPS_FP16_ONLY.items():
        if name_part in device_name:
            return None if matmul_precision == "bf16" else 1e12 * (half if matmul_precision == "fp16" else full)
    return None


def resolve_matmul_precision(precision: str, tf32: bool, device: torch.device) -> MatmulPrecision:
    """The precision of matrix products: half precision if a recipe sets it, otherwise TF32 (on CUDA, if set) or
    float32."""
    if precision == "bf16":
        return "bf16"
    if precision == "fp16":
        return "fp16"
    return "tf32" if tf32 and device.type == "cuda" else "fp32"


@lru_cache
def _measure_flops(dtype: torch.dtype, threads: int) -> float:
    """Operations per second of a product of two square matrices: the fastest of ten or more, which takes about 30 ms
    (longer on a busy machine)."""
    with torch.no_grad():
        matrix = torch.ones(_MATRIX_SIZE, _MATRIX_SIZE, dtype=dtype)
        out, best_seconds = torch.mm(matrix, matrix), float("inf")
        deadline, num_repeats = time.perf_counter() + _MIN_SECONDS, 0
        while True:
            start = time.perf_counter()
            torch.mm(matrix, matrix, out=out)
            now = time.perf_counter()
            best_seconds, num_repeats = min(best_seconds, now - start), num_repeats + 1
            if now > deadline and num_repeats >= _MIN_REPEATS:
                return 2.0 * _MATRIX_SIZE**3 / best_seconds
