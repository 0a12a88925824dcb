"""Triton kernels compiled for GPUs that are not there, in the configurations in which they would be launched.

`compiled_for(gpu, call)` calls a function that launches kernels on tensors of the device `meta`. Every launch is
compiled for the GPU instead, with the constants, options and specialized arguments that Triton's launcher derives, and
its shared memory, registers and spills are read from the binary. What was compiled before is read from a cache, by a
hash of the kernel's source, everything that the compiler is told, and Triton's version.
"""

import hashlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from numerate.tasks.folders import cache_folder


@dataclass(frozen=True)
class Gpu:
    """A target of the compiler, and the limits of one multiprocessor (a compute unit with ROCm)."""

    name: str
    target: GPUTarget
    shared_memory: int
    """Bytes that one program may have."""
    multiprocessor_memory: int
    warps: int
    """The maximum number of resident warps of 32 threads (wavefronts of 64)."""

    def occupancy(self, kernel: "CompiledKernel") -> float:
        """The fraction of the warps of a multiprocessor that fit, by registers and shared memory."""
        if self.target.backend == "hip":  # 512 vector registers for each lane of 4 SIMD units, in blocks of 8
            warps = 4 * min(self.warps // 4, 512 // max(8, -(-kernel.registers // 8) * 8))
            by_registers, reserved = warps // kernel.warps, 0
        else:  # 65,536 registers, given to warps in blocks of 256; 1 KiB of shared memory is kept for each program
            by_registers, reserved = 65_536 // (-(-kernel.registers * 32 // 256) * 256) // kernel.warps, 1024
        by_memory = self.multiprocessor_memory // max(1, kernel.shared_memory + reserved)
        return min(by_registers, by_memory, self.warps // kernel.warps) * kernel.warps / self.warps


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("sm80", GPUTarget("cuda", 80, 32), 166_912, 167_936, 64),  # A100
        Gpu("sm86", GPUTarget("cuda", 86, 32), 101_376, 102_400, 48),  # RTX 30, A10, A40
        Gpu("sm90", GPUTarget("cuda", 90, 32), 232_448, 233_472, 64),  # H100, H200
        Gpu("gfx942", GPUTarget("hip", "gfx942", 64), 65_536, 65_536, 32),  # MI300
    )
}


@dataclass(frozen=True)
class CompiledKernel:
    """What a launch needs: bytes of shared memory per program, registers and bytes of spilled registers per thread."""

    name: str
    constants: dict[str, Any]
    warps: int
    stages: int
    shared_memory: int
    registers: int
    spilled_bytes: int


class _Driver:
    """Tells Triton's launcher that one GPU is there."""

    def __init__(self, target: GPUTarget) -> None:
        self.get_current_target = lambda: target
        self.get_current_device = lambda: 0
        self.get_current_stream = lambda device: 0


def compiled_for(gpu: Gpu, call: Callable[[], None]) -> list[CompiledKernel]:
    """The kernels that a function would launch on the GPU, in this order."""
    found: list[CompiledKernel] = []
    with _launches(gpu, found):
        call()
    return found


@contextmanager
def _launches(gpu: Gpu, found: list[CompiledKernel]) -> Iterator[None]:
    launch, file = JITFunction.run, Path()

    def is_cached(*, key: str, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        nonlocal file
        told = (fn.jit_function.cache_key, compile["specialization_data"], triton.__version__)
        file = cache_folder() / "gpu-kernels" / f"{hashlib.sha256(repr(told).encode()).hexdigest()}.json"
        return file.exists()

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        kernel.device_caches.clear()  # so that the hook is asked for each launch
        compiled = launch(kernel, *args, grid=grid, warmup=True, **options)
        if compiled is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            partial = file.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(asdict(_measured(compiled, kernel))), encoding="utf-8")
            partial.replace(file)
        found.append(CompiledKernel(**json.loads(file.read_text(encoding="utf-8"))))

    properties = SimpleNamespace(shared_memory_per_block_optin=gpu.shared_memory, major=8)
    driver.set_active(_Driver(gpu.target))
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.object(JITFunction, "run", run),
            mock.patch.object(knobs.runtime, "jit_cache_hook", is_cached),
            mock.patch.object(knobs.cache, "dir", folder),
            mock.patch.object(torch.cuda, "get_device_properties", return_value=properties),
            mock.patch.object(torch.version, "hip", "6.4" if gpu.target.backend == "hip" else None),
        ):
            yield
    finally:
        driver._active = None


def _measured(compiled: Any, kernel: Any) -> CompiledKernel:
    if "amdgcn" in compiled.asm:
        registers, spilled = (
            int(re.search(rf"\.{name}:\s+(\d+)", compiled.asm["amdgcn"])[1])  # type: ignore[index]
            for name in ("vgpr_count", "private_segment_fixed_size")
        )
    else:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(compiled.asm["cubin"])
            file.flush()
            line = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
            usage = subprocess.run(line, capture_output=True, text=True, check=True).stdout
        registers, spilled = (int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("REG", "STACK"))  # type: ignore[index]
    constants = {kernel.arg_names[place]: value for (place, *_), value in compiled.src.constants.items()}
    metadata = compiled.metadata
    return CompiledKernel(
        metadata.name, constants, metadata.num_warps, metadata.num_stages, metadata.shared, registers, spilled
    )
