"""The backend of a mixer: plain torch, or kernels of flash-linear-attention on a CUDA device."""

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
    """Raises `UserError` for an unknown backend."""
    if kernel not in KERNELS:
        raise UserError(f"backend: {kernel!r} is none of: {', '.join(KERNELS)}")


def takes_fla(kernel: Kernel, x: Tensor, mixer: str, half_only: bool = False) -> bool:
    """Whether to run flash-linear-attention (https://github.com/fla-org/flash-linear-attention) on this input.

    With "auto": on a CUDA device where the package is installed, except for float64, and for fp32 if `half_only`; where
    it is missing, or does not support fp32, one warning names the fallback. Inputs of models stacked by `torch.vmap`
    run in torch. Raises `UserError` for "fla" where it is not available; with `half_only` round the input first.
    """
    if kernel == "torch":
        return False
    on_device = x.device.type == "cuda" and x.element_size() < 8
    if kernel == "auto" and _stacked(x):
        return False
    if kernel == "auto" and half_only and x.element_size() > 2:
        if on_device and installed():
            _warn_half_only(mixer)
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
        _warn_missing(mixer)
    return on_device and installed()


@lru_cache
def installed() -> bool:
    """Whether the package and triton are installed."""
    return importlib.util.find_spec("fla") is not None and importlib.util.find_spec("triton") is not None


def _stacked(x: Tensor) -> bool:
    """Whether it is the input of several models under `torch.vmap`, which kernels cannot access."""
    return not torch.compiler.is_compiling() and bool(torch._C._functorch.is_functorch_wrapped_tensor(x))


@lru_cache
def _warn_half_only(mixer: str) -> None:
    warnings.warn(
        f"{mixer} runs in its chunked form in torch: the kernels of flash-linear-attention know bf16 and fp16 alone; "
        "training.precision=bf16 takes them",
        stacklevel=4,
    )


@lru_cache
def _warn_missing(mixer: str) -> None:
    warnings.warn(
        f"{mixer} runs in its chunked form in torch: the package flash-linear-attention, whose kernels are faster on "
        "this device, is not installed",
        stacklevel=4,
    )
