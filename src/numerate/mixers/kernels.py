"""Which form of a mixer runs: the tested one in plain torch, or a kernel of flash-linear-attention on a CUDA device."""

import importlib.util
import warnings
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from numerate.errors import UserError

Kernel = Literal["auto", "torch", "fla"]
KERNELS = ("auto", "torch", "fla")


def refuse_other_kernels(kernel: str) -> None:
    """Raises `UserError` for a kernel that there is not."""
    if kernel not in KERNELS:
        raise UserError(f"backend: {kernel!r} is none of: {', '.join(KERNELS)}")


def takes_fla(kernel: Kernel, x: Tensor, mixer: str, half_only: bool = False) -> bool:
    """Whether this input goes through flash-linear-attention (https://github.com/fla-org/flash-linear-attention).

    With "auto" it does on a CUDA device where the package is installed and the numbers are not float64, nor fp32 for a
    kernel that knows `half_only`; where it is missing there, or knows no fp32, that is said once, with the form that
    runs instead. Inputs of several models stacked by `torch.vmap` take the form in torch. Raises `UserError` for "fla"
    where that cannot be; what is `half_only` must then be rounded first.
    """
    if kernel == "torch":
        return False
    on_device = x.device.type == "cuda" and x.element_size() < 8
    if kernel == "auto" and _stacked(x):
        return False
    if kernel == "auto" and half_only and x.element_size() > 2:
        if on_device and installed():
            _say_half_only(mixer)
        return False
    if kernel == "fla":
        if not installed():
            raise UserError(
                "model.mixer.backend: fla needs the package flash-linear-attention; pip install "
                "flash-linear-attention, or backend=auto"
            )
        if not on_device:
            raise UserError(
                "model.mixer.backend: fla runs in fp32, bf16 or fp16 on a CUDA device; backend=auto is right"
            )
        return True
    if on_device and not installed():
        _say_missing(mixer)
    return on_device and installed()


@lru_cache
def installed() -> bool:
    """Whether the package is there, with the compiler that its kernels need."""
    return importlib.util.find_spec("fla") is not None and importlib.util.find_spec("triton") is not None


def _stacked(x: Tensor) -> bool:
    """Whether it is the input of several models under `torch.vmap`, whose data no kernel can reach."""
    return not torch.compiler.is_compiling() and bool(torch._C._functorch.is_functorch_wrapped_tensor(x))


@lru_cache
def _say_half_only(mixer: str) -> None:
    warnings.warn(
        f"{mixer} runs in its chunked form in torch: the kernels of flash-linear-attention know bf16 and fp16 alone; "
        "training.precision=bf16 takes them",
        stacklevel=4,
    )


@lru_cache
def _say_missing(mixer: str) -> None:
    warnings.warn(
        f"{mixer} runs in its chunked form in torch: the package flash-linear-attention, whose kernels are faster on "
        "this device, is not installed",
        stacklevel=4,
    )
