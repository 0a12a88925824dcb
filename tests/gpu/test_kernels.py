"""Every Triton kernel compiles for GPUs that are not there, fits their shared memory, and spills little.

To add a kernel: a function in `KERNELS` that launches all of its kernels, forward and backward, on tensors of the
device `meta`, for a dtype and a width.
"""

import os
from collections.abc import Callable
from importlib.util import find_spec
from unittest import mock

import pytest
import torch

from numerate.kernels.relational import RelationalHeads

if not os.environ.get("GPU_READINESS"):
    pytest.skip("takes minutes: run by make test-gpu-readiness", allow_module_level=True)
if find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from compiled import GPUS, CompiledKernel, compiled_for

MAX_SPILLED_BYTES = 256
"""Per thread: a register has 4 bytes, and a thread 255 of them."""


def relational_attention(dtype: torch.dtype, width: int) -> None:
    """8 heads and 8 relations of the same width, with the activation that takes the most arithmetic."""
    from numerate.kernels.relational_triton import RelationalInputs, attended_symbols_and_relations

    inputs = {
        name: torch.empty(8, 512, 8, width, dtype=dtype, device="meta", requires_grad=True).transpose(1, 2)
        for name in RelationalInputs._fields
    }
    heads = RelationalHeads(**inputs)
    output, relations = attended_symbols_and_relations(heads, "gelu")
    (output.sum() + relations.sum()).backward()


KERNELS: dict[str, Callable[[torch.dtype, int], None]] = {"relational_attention": relational_attention}

WIDTHS = (16, 32, 64, 128)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32}
"""`tf32` is float32 with `training.tf32=true`."""


def launched(kernel: str, dtype: str, width: int, gpu: str) -> list[CompiledKernel]:
    precision = "high" if dtype == "tf32" else "highest"
    with mock.patch.object(torch, "get_float32_matmul_precision", return_value=precision):
        return compiled_for(GPUS[gpu], lambda: KERNELS[kernel](DTYPES[dtype], width))
