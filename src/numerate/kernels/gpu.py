"""What Triton kernels need to know about the GPU that they are launched on."""

import os
import shutil
import sys
import sysconfig
import warnings
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import torch


def has_triton() -> bool:
    """Whether Triton is installed, as it is with PyTorch for CUDA, and can launch kernels: it builds what launches them
    with a C compiler and the headers of Python. Warns once where only these are missing."""
    return find_spec("triton") is not None and (os.environ.get("TRITON_INTERPRET") == "1" or _can_build_launchers())


@lru_cache
def _can_build_launchers() -> bool:
    has_compiler = "CC" in os.environ or any(map(shutil.which, ("gcc", "clang")))
    has_headers = Path(sysconfig.get_path("include"), "Python.h").exists()
    if has_compiler and has_headers:
        return True
    missing = "the headers of Python (python3-dev)" if has_compiler else "a C compiler (gcc)"
    warnings.warn(f"on a GPU slower forms in torch are used: kernels of Triton need {missing}", stacklevel=4)
    return False


def max_shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that one program may have: 232,448 on an H100; 65,536 with ROCm, for which PyTorch does
    not report it; no limit in Triton's interpreter, on a CPU."""
    if device.type == "cpu":
        return sys.maxsize
    if torch.version.hip:
        return 65_536
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)  # type: ignore[attr-defined]


def is_before_ampere(device: torch.device) -> bool:
    """Whether it is an NVIDIA GPU of compute capability below 8.0, such as T4 or V100: products of half precision then
    need more shared memory than a T4 has, and those of float32 run on no matrix units."""
    if device.type == "cpu" or torch.version.hip:
        return False
    return bool(torch.cuda.get_device_properties(device).major < 8)


def contiguous_last_dim(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def matmul_precision(dtype: torch.dtype) -> str:
    """The `input_precision` of `tl.dot`, which matters for float32 alone.

    `tf32` where `torch.get_float32_matmul_precision()` allows it (`training.tf32`), else `tf32x3`: each factor is split
    into two numbers of TF32, and three of their four products are added on matrix units. That keeps 22 of 24 bits
    of each product; exact products (`ieee`) would not run on matrix units, and spill 2 to 10 times as many registers.
    The matrix units of AMD multiply float32 exactly.
    """
    if dtype != torch.float32 or torch.version.hip:
        return "ieee"
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


# `torch.compiler.assume_constant_result`, which is slow to import: the compiler cannot trace how torch is set, and what
# is installed.
has_triton._dynamo_marked_constant = True  # type: ignore[attr-defined]
matmul_precision._dynamo_marked_constant = True  # type: ignore[attr-defined]
