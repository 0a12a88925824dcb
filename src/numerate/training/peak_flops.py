"""Peak FLOP/s of a device, for the model FLOPs utilization (MFU) of a run.

For GPUs, the specified values for dense matrix products, without sparsity, at boost clock: NVIDIA's data sheets
of each (https://www.nvidia.com/en-us/data-center/, and the architecture papers of Ampere, Ada, Hopper and Blackwell).
GeForce and RTX values are those with float32 accumulation. For CPUs a matrix product is timed, once per process.
"""

import time
from functools import lru_cache
from typing import Literal, NamedTuple

import torch

from numerate.training.precision import HALF_DTYPES

MatmulPrecision = Literal["bf16", "fp16", "tf32", "fp32"]
"""The precision of matrix products."""


class GPU(NamedTuple):
    """What the maker of a GPU states: its teraflop/s with half precision (bf16 and fp16), TF32 and float32 products."""

    half: float
    tf32: float
    fp32: float


GPUS: dict[str, GPU] = {
    "B200": GPU(2250, 1125, 75),
    "H200 NVL": GPU(835, 418, 60),
    "H200": GPU(989, 494, 67),
    "H100 PCIe": GPU(756, 378, 51),
    "H100 NVL": GPU(835, 418, 60),
    "H100": GPU(989, 494, 67),
    "A100": GPU(312, 156, 19.5),
    "A40": GPU(149.7, 74.8, 37.4),
    "A10": GPU(125, 62.5, 31.2),
    "L40S": GPU(362, 183, 91.6),
    "L4": GPU(121, 60, 30.3),
    "RTX A6000": GPU(154.8, 77.4, 38.7),
    "RTX 4090": GPU(165.2, 82.6, 82.6),
    "RTX 3090": GPU(71, 35.6, 35.6),
}
"""GPUs by part of the name that the driver gives them; the first match counts. Of others no share is recorded."""

_MATRIX_SIZE, _MIN_SECONDS, _MIN_REPEATS = 512, 0.03, 10


class PeakFlops(NamedTuple):
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
    dtype = HALF_DTYPES.get(matmul_precision, torch.float32)
    return PeakFlops(_measure_flops(dtype, torch.get_num_threads()), "measured") if device.type == "cpu" else None


def vendor_peak_flops(device_name: str, matmul_precision: MatmulPrecision) -> float | None:
    """The specified floating-point operations per second of a device by name; None if unknown."""
    column = {"bf16": "half", "fp16": "half"}.get(matmul_precision, matmul_precision)
    return next((1e12 * float(getattr(gpu, column)) for name, gpu in GPUS.items() if name in device_name), None)


def resolve_matmul_precision(precision: str, tf32: bool, device: torch.device) -> MatmulPrecision:
    """The precision of matrix products: half precision if a recipe sets it, otherwise TF32 (on CUDA, if set) or
    float32."""
    if precision in ("bf16", "fp16"):
        return precision  # type: ignore[return-value]
    return "tf32" if tf32 and device.type == "cuda" else "fp32"


@lru_cache
def _measure_flops(dtype: torch.dtype, threads: int) -> float:
    """Operations per second of a product of two square matrices: the fastest of ten or more, which takes about 30 ms
    (longer on a busy machine)."""
    with torch.no_grad():
        matrix = torch.ones(_MATRIX_SIZE, _MATRIX_SIZE, dtype=dtype)
        out = torch.mm(matrix, matrix)
        times, deadline = list[float](), time.perf_counter() + _MIN_SECONDS
        while len(times) < _MIN_REPEATS or time.perf_counter() < deadline:
            start = time.perf_counter()
            torch.mm(matrix, matrix, out=out)
            times.append(time.perf_counter() - start)
        return 2.0 * _MATRIX_SIZE**3 / min(times)
