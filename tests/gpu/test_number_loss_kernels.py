"""The Triton kernels of cross-entropy and number losses compile for 32k to 200k tokens on every GPU."""

import os
from importlib.util import find_spec

import pytest
import torch

if not os.environ.get("GPU_READINESS"):
    pytest.skip("takes minutes: run by make test-gpu-readiness", allow_module_level=True)
if find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from gpu.compiled import GPUS, Gpu, compiled_for
from numerate.kernels import number_loss_triton


@pytest.mark.parametrize("vocabulary", [32128, 50257, 128256, 200064])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_they_take_almost_no_shared_memory_and_spill_nothing(gpu: Gpu, dtype: torch.dtype, vocabulary: int) -> None:
    """Programs of several rows fit one multiprocessor, and hide each other's waits for memory: half of its warps, where
    rows begin at multiples of 16 bytes."""

    def launch() -> None:
        logits = torch.empty(2048, vocabulary, dtype=dtype, device="meta")
        mask = torch.empty(2048, dtype=torch.bool, device="meta")
        lse = number_loss_triton.launch_logsumexp(logits, mask)
        number_loss_triton.launch_scaled_softmax(logits, lse, lse, torch.empty_like(logits))

    for kernel in compiled_for(gpu, launch):
        print(gpu.name, dtype, vocabulary, kernel, gpu.occupancy(kernel))
        assert kernel.spilled_bytes == 0
        assert kernel.shared_memory <= 1024
        assert gpu.occupancy(kernel) >= (0.5 if vocabulary % 16 == 0 else 0.375)
