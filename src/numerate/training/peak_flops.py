"""Peak FLOP/s of a device, for the model FLOPs utilization (MFU) of a run.

For GPUs, the specified values for dense matrix products, without sparsity, at boost clock: NVIDIA's data sheets
of each (https://www.nvidia.com/en-us/data-center/, and the architecture papers of Ampere, Ada, Hopper and Blackwell).
GeForce and RTX values are those with float32 accumulation. For CPUs a matrix product is timed, once per process.
"""

import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import torch

from numerate.training.precision import HALF_DTYPES

MatmulPrecision = Literal["bf16", "fp16", "tf32", "fp32"]
"""The precision of matrix products."""


class GPU(NamedTuple):
    """What the maker of a GPU states: its teraflop/s with half precision (bf16 and fp16), TF32 and float32 products. A
    GPU without bf16 has no TF32 either."""

    half: float
    tf32: float
    fp32: float
    has_bf16: bool = True

    def flops(self, matmul_precision: MatmulPrecision) -> float | None:
        """Peak floating-point operations per second; None for a precision that it lacks."""
        if matmul_precision == "bf16" and not self.has_bf16:
            return None
        return 1e12 * {"bf16": self.half, "fp16": self.half, "tf32": self.tf32, "fp32": self.fp32}[matmul_precision]


GPUS: dict[str, GPU] = {
    "B200": GPU(2250, 1125, 75),
    "H200 NVL": GPU(835, 418, 60),
    "H200": GPU(989, 494, 67),
    "H100 PCIe": GPU(756, 378, 51),
    "H100 NVL": GPU(835, 418, 60),
    "H100": GPU(989, 494, 67),
    "A100": GPU(312, 156, 19.5),
    "A40": GPU(149.7, 74.8, 37.4),
    "A30": GPU(165, 82, 10.3),
    "A10": GPU(125, 62.5, 31.2),
    "L40S": GPU(362, 183, 91.6),
    "L40": GPU(181, 90.5, 90.5),
    "L4": GPU(121, 60, 30.3),
    "RTX 6000 Ada": GPU(364.2, 182.1, 91.1),
    "RTX A6000": GPU(154.8, 77.4, 38.7),
    "RTX A4000": GPU(76.7, 38.3, 19.2),
    "RTX 4090": GPU(165.2, 82.6, 82.6),
    "RTX 3090": GPU(71, 35.6, 35.6),
    "V100": GPU(125, 15.7, 15.7, has_bf16=False),
    "T4": GPU(65, 8.1, 8.1, has_bf16=False),
}
"""GPUs by part of the name that the driver gives them; the first match counts."""

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
    return next((gpu.flops(matmul_precision) for name, gpu in GPUS.items() if name in device_name), None)


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
