"""The backend of a mixer: plain torch, or kernels of flash-linear-attention on a CUDA device."""

import importlib.util
import warnings
from functools import lru_cache
from typing import Literal

from torch import Tensor
from torch.compiler import is_compiling

from numerate.errors import UserError

Backend = Literal["auto", "torch", "fla"]


def should_use_fla(backend: Backend, x: Tensor, mixer_name: str, requires_half_precision: bool = False) -> bool:
    """Whether to run flash-linear-attention (https://github.com/fla-org/flash-linear-attention) on this input.

    With "auto": on a CUDA device where the package is installed, except for float64, and for fp32 if
    `requires_half_precision`; where it is missing, or does not support fp32, one warning names the fallback. Raises
    `UserError` for "fla" where it is not available; with `requires_half_precision` round the input first.
    """
    if backend == "torch":
        return False
    is_supported_input = x.device.type == "cuda" and x.element_size() < 8
    if backend == "auto" and requires_half_precision and x.element_size() > 2:
        if is_supported_input and is_fla_installed() and not is_compiling():
            _warn_half_only(mixer_name)
        return False
    if backend == "fla":
        if not is_fla_installed() or not is_supported_input:
            missing = "needs the package flash-linear-attention; pip install flash-linear-attention, or backend=auto"
            unsupported = "runs in fp32, bf16 or fp16 on a CUDA device; use backend=auto"
            raise UserError(f"model.mixer.backend: fla {unsupported if is_fla_installed() else missing}")
        return True
    if is_supported_input and not is_fla_installed() and not is_compiling():
        _warn_missing(mixer_name)
    return is_supported_input and is_fla_installed()


@lru_cache
def is_fla_installed() -> bool:
    """Whether the package is installed, with Triton, which compiles its kernels."""
    return all(importlib.util.find_spec(name) is not None for name in ("fla", "triton"))


@lru_cache
def _warn_half_only(mixer: str) -> None:
    warnings.warn(
        f"{mixer} runs in its chunked form in torch: the kernels of flash-linear-attention support only bf16 and fp16; "
        "set training.precision=bf16 to use them",
        stacklevel=4,
    )


@lru_cache
def _warn_missing(mixer: str) -> None:
    warnings.warn(
        f"{mixer} runs in its chunked form in torch: the package flash-linear-attention, whose kernels are faster on "
        "this device, is not installed",
        stacklevel=4,
    )
