"""Token shift, short convolutions and helpers of recurrent mixers."""

from typing import Any

import torch
from jaxtyping import Float, Inexact, Int, Shaped
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable
from torch.nn.functional import pad


def gather_last_tokens(
    x: Inexact[Tensor, "rows time width"], lengths: Int[Tensor, " rows"] | None
) -> Inexact[Tensor, "rows width"]:
    """The entry at the last of the first `lengths` tokens of each row, or of all tokens."""
    return x[:, -1] if lengths is None else x[torch.arange(x.shape[0], device=x.device), lengths - 1]


def shift_tokens(
    x: Float[Tensor, "rows time width"], before: Tensor | None = None, lengths: Tensor | None = None
) -> tuple[Float[Tensor, "rows time width"], Float[Tensor, "rows 1 width"]]:
    """Token shift: the predecessor of each position, and the newest token, rows x 1 x width, as `before` of the next.

    The first position's predecessor is zeros. With `before`, x is one token behind it. The newest token is the last of
    the first `lengths` tokens of each row, or of all.
    """
    if before is not None:
        return before, x
    return pad(x, (0, 0, 1, -1)), gather_last_tokens(x, lengths)[:, None]


def zero_padding(
    x: Shaped[Tensor, "rows time *more"], lengths: Int[Tensor, " rows"] | None
) -> Shaped[Tensor, "rows time *more"]:
    """x with zeros behind the first `lengths` tokens of each row; unchanged if that is None. A recurrence that keeps
    its state where what it reads is 0 ends with the state after each row's last real token."""
    if lengths is None:
        return x
    is_padding = torch.arange(x.shape[1], device=lengths.device) >= lengths[:, None]
    return x.masked_fill(is_padding[(..., *[None] * (x.dim() - 2))], 0)


def upcast(x: Tensor) -> Tensor:
    """x in at least single precision: recurrences accumulate rounding errors, and complex numbers need it."""
    return x.float() if x.element_size() < 4 else x


class ShortConvolution(nn.Module):
    """Depthwise causal convolution over the last `kernel_size` tokens.

    Its state is a window of the last size - 1 inputs, oldest first: rows x (size - 1) x channels. Weights are initially
    uniform within +-1/sqrt(size), as in `torch.nn.Conv1d`.
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

    def run(
        self, x: Float[Tensor, "rows time channels"], window: Tensor | None, lengths: Tensor | None
    ) -> tuple[Float[Tensor, "rows time channels"], Tensor | None]:
        """The convolution of whole rows, or of one token behind its `window`; and the next window, which is that behind
        the first `lengths` tokens of each row, and None without them."""
        if window is not None:
            window = torch.cat([window, x], dim=1)
            out = (window * self.weight).sum(dim=1, keepdim=True)
            return out if self.bias is None else out + self.bias, window[:, 1:]
        if lengths is not None:
            places = lengths[:, None] + torch.arange(self.kernel_size - 1, device=x.device)
            row_index = torch.arange(x.shape[0], device=x.device)[:, None]
            window = pad(x, (0, 0, self.kernel_size - 1, 0))[row_index, places]
        return self(x), window


class _Convolution(Function):
    """The convolution of tokens (... x time x channels) with taps (size x ... x channels), and its gradient in as few
    passes: on a CPU two to three times as fast as autograd through shifted copies or a grouped `conv1d`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor) -> Tensor:
        ctx.save_for_backward(x, taps)
        out = x * taps[-1]
        for far in range(1, min(len(taps), x.shape[-2])):
            out[..., far:, :].addcmul_(x[..., :-far, :], taps[-1 - far])
        return out

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
