"""Token shift, short convolutions and helpers of recurrent mixers."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable
from torch.nn.functional import pad

Params = ParamSpec("Params")
Result = TypeVar("Result")


def gather_last_tokens(
    x: Float[Tensor, "rows time width"], lengths: Int[Tensor, " rows"]
) -> Float[Tensor, "rows width"]:
    """The entry at each row's last real token."""
    return x[torch.arange(x.shape[0], device=x.device), lengths - 1]


def shift_tokens(x: Float[Tensor, "rows time width"]) -> Float[Tensor, "rows time width"]:
    """Token shift over whole rows: each position gets its predecessor, the first one zeros."""
    return pad(x, (0, 0, 1, -1))


def length_mask(lengths: Int[Tensor, " rows"], time: int) -> Tensor:
    """The mask of real tokens: rows x time, boolean. A recurrence that keeps its state where this is False ends with
    the state after each row's last real token."""
    return torch.arange(time, device=lengths.device) < lengths[:, None]


def upcast(x: Tensor) -> Tensor:
    """x in at least single precision: recurrences accumulate rounding errors, and complex numbers need it."""
    return x.float() if x.element_size() < 4 else x


def disable_compile(function: Callable[Params, Result]) -> Callable[Params, Result]:
    """Excludes a function from torch.compile (a graph break).

    For loops over a row, which would be unrolled, taking minutes, and again for other lengths.
    (`torch.compiler.disable` is resolved at the first call, because importing it is slow.)
    """

    @wraps(function)
    def guarded(*given: Params.args, **named: Params.kwargs) -> Result:
        if torch.compiler.is_compiling():
            made: Result = torch.compiler.disable(function)(*given, **named)  # type: ignore[no-untyped-call]
            return made
        return function(*given, **named)

    return guarded


class ShortConvolution(nn.Module):
    """Depthwise causal convolution over the last `kernel_size` tokens.

    Its state in a step is the last size - 1 inputs, oldest first: rows x (size - 1) x channels. Weights are initially
    uniform within +-1/sqrt(size), as in `torch.nn.Conv1d`; a mixer that has one initializes its parameters itself.
    """

    def __init__(self, channels: int, size: int, biases: bool = True) -> None:
        super().__init__()
        self.kernel_size = size
        self.weight = nn.Parameter(torch.empty(size, channels).uniform_(-(size**-0.5), size**-0.5))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-(size**-0.5), size**-0.5)) if biases else None

    def forward(self, x: Float[Tensor, "rows time channels"]) -> Float[Tensor, "rows time channels"]:
        """Tap `kernel_size - 1` is that of the latest token."""
        kept = torch.promote_types(x.dtype, self.weight.dtype)
        out: Tensor = _Convolution.apply(x.to(kept), self.weight.to(kept))  # type: ignore[no-untyped-call]
        return out if self.bias is None else out + self.bias

    def state(
        self, x: Float[Tensor, "rows time channels"], lengths: Int[Tensor, " rows"]
    ) -> Float[Tensor, "rows kept channels"]:
        """The last size - 1 inputs before and at each row's last real token."""
        padded = pad(x, (0, 0, self.kernel_size - 1, 0))
        places = lengths[:, None] + torch.arange(self.kernel_size - 1, device=x.device)
        return padded[torch.arange(x.shape[0], device=x.device)[:, None], places]

    def step(
        self, x: Float[Tensor, "rows 1 channels"], state: Float[Tensor, "rows kept channels"]
    ) -> tuple[Tensor, Tensor]:
        """One more token per row, and the state after it."""
        window = torch.cat([state, x], dim=1)
        out = (window * self.weight).sum(dim=1, keepdim=True)
        return out if self.bias is None else out + self.bias, window[:, 1:]


class _Convolution(Function):
    """The convolution of tokens (... x time x channels) with taps (size x ... x channels), and its gradient in as few
    passes: on a CPU two to three times as fast as autograd through shifted copies or a grouped `conv1d`."""

    @staticmethod
    def forward(x: Tensor, taps: Tensor) -> Tensor:
        out = x * taps[-1]
        for far in range(1, min(len(taps), x.shape[-2])):
            out[..., far:, :].addcmul_(x[..., :-far, :], taps[-1 - far])
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, taps = ctx.saved_tensors
        of_x, of_taps = gradient * taps[-1], torch.zeros_like(taps)
        of_taps[-1] = (gradient * x).sum_to_size(taps.shape[1:])
        for far in range(1, min(len(taps), x.shape[-2])):
            of_x[..., :-far, :].addcmul_(gradient[..., far:, :], taps[-1 - far])
            of_taps[-1 - far] = (gradient[..., far:, :] * x[..., :-far, :]).sum_to_size(taps.shape[1:])
        return of_x, of_taps

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, taps: Tensor) -> tuple[Tensor, int]:
        """The members of a stack come before the rows."""
        x = x.expand(info.batch_size, *x.shape) if in_dims[0] is None else x.movedim(in_dims[0], 0)
        if in_dims[1] is not None:
            taps = taps.movedim(in_dims[1], 1)[:, :, None, None]
        found: Tensor = _Convolution.apply(x, taps)  # type: ignore[no-untyped-call]
        return found, 0
