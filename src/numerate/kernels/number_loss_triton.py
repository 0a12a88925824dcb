"""Triton kernels of what is as wide as the vocabulary in cross-entropy and number losses; the rest is a few columns.

The derivative of these losses by the logits z of a row is one number times their softmax, but for the label and the
number tokens (`number_loss_gradients`). That number depends on gradients that come in with the backward pass. So the
forward pass keeps nothing but the log-sum-exp L of each row, from a running maximum and sum (Milakov and Gimelshein,
2018, https://arxiv.org/abs/1805.02867), and the backward pass reads the logits again and writes factor x exp(z - L),
into the logits themselves where the caller has no more use for them. Writing the gradient over the logits is the idea
of Liger (Hsu et al., 2024, https://arxiv.org/abs/2410.10989) for cross-entropy alone; there the gradient is written in
the forward pass, and read and written once more when it is multiplied by the incoming one.

With N the bytes of the logits (rows x vocabulary x 2 in bf16), memory traffic is 3 N, the floor if a factor must be
known before the gradient is written and a batch of logits is larger than the cache: 1 N read forward, 1 N read and 1 N
written backward. Rows that count for nothing are not read. Cross-entropy of torch alone moves 6 N to 8 N (its
log-softmax is written and read, the gradient of that written and read, logits and softmax are read once or twice, and
the gradient is written), so 0.38 to 0.5 of its time is expected; the same operations in torch moved 11 N. Not measured:
no GPU was available.

One program computes one row in blocks of columns, for bf16, fp16 and fp32 logits, in float32. Importing this module
needs the package `triton`, which is installed with PyTorch for CUDA; with TRITON_INTERPRET=1 the kernels run on a CPU.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float
from torch import Tensor

from numerate.kernels.gpu import contiguous_last_dim

MAX_BLOCK = 8192
"""Columns at a time, 32 for each thread of 8 warps: several programs fit one multiprocessor and hide each other's waits
for memory. Not tuned: no GPU was available."""


@triton.jit
def _logsumexp_kernel(logits, mask, lse, row_stride, vocabulary, BLOCK: tl.constexpr):
    """The log-sum-exp of the rows in the mask; -inf, without reading them, of the others."""
    row = tl.program_id(0).to(tl.int64)
    end = tl.where(tl.load(mask + row), vocabulary, 0)
    row_max = tl.full([], float("-inf"), tl.float32)
    row_sum = tl.full([], 0.0, tl.float32)
    for start in range(0, end, BLOCK):
        column = start + tl.arange(0, BLOCK)
        z = tl.load(logits + row * row_stride + column, mask=column < vocabulary, other=float("-inf")).to(tl.float32)
        new_max = tl.maximum(row_max, tl.max(z, 0))
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)  # while all logits are -inf: -inf - -inf is no number
        row_sum = row_sum * tl.exp(row_max - shift) + tl.sum(tl.exp(z - shift), 0)
        row_max = new_max
    tl.store(lse + row, row_max + tl.log(row_sum))


@triton.jit
def _scaled_softmax_kernel(logits, lse, factor, out, row_stride, out_stride, vocabulary, BLOCK: tl.constexpr):
    """factor x softmax of each row; 0, without reading it, where the factor is 0. `out` may be the logits."""
    row = tl.program_id(0).to(tl.int64)
    row_factor, row_lse = tl.load(factor + row), tl.load(lse + row)
    end = tl.where(row_factor != 0, vocabulary, 0)
    for start in range(0, vocabulary, BLOCK):
        column = start + tl.arange(0, BLOCK)
        z = tl.load(logits + row * row_stride + column, mask=column < end, other=0.0).to(tl.float32)
        scaled = tl.where(column < end, tl.exp(z - row_lse) * row_factor, 0.0)
        tl.store(out + row * out_stride + column, scaled.to(out.dtype.element_ty), mask=column < vocabulary)


def launch_logsumexp(logits: Tensor, mask: Tensor) -> Tensor:
    lse = logits.new_empty(len(logits), dtype=torch.float32)
    with torch.cuda.device_of(logits):
        _logsumexp_kernel[(len(logits),)](
            logits, mask, lse, logits.stride(0), logits.shape[1], **launch_settings(logits.shape[1])
        )
    return lse


def launch_scaled_softmax(logits: Tensor, lse: Tensor, factor: Tensor, out: Tensor) -> None:
    with torch.cuda.device_of(logits):
        _scaled_softmax_kernel[(len(logits),)](
            logits, lse, factor, out, logits.stride(0), out.stride(0), logits.shape[1],
            **launch_settings(logits.shape[1]),
        )  # fmt: skip


# Operators of torch, so that fake tensors pass. (`torch.library.custom_op` would import torch._dynamo, in 2 s.)
_OPERATORS = torch.library.Library("numerate", "FRAGMENT")
_OPERATORS.define("logsumexp(Tensor logits, Tensor mask) -> Tensor")
_OPERATORS.define("scaled_softmax(Tensor logits, Tensor lse, Tensor factor, Tensor(a!) out) -> ()")
for _device in ("CUDA", "CPU"):
    _OPERATORS.impl("logsumexp", launch_logsumexp, _device)
    _OPERATORS.impl("scaled_softmax", launch_scaled_softmax, _device)
torch.library.register_fake(
    "numerate::logsumexp", lambda logits, mask: logits.new_empty(len(logits), dtype=torch.float32), lib=_OPERATORS
)
torch.library.register_fake("numerate::scaled_softmax", lambda logits, lse, factor, out: None, lib=_OPERATORS)


def logsumexp(logits: Float[Tensor, "rows vocabulary"], mask: Bool[Tensor, " rows"]) -> Float[Tensor, " rows"]:
    """The log-sum-exp of each row in the mask, in float32; -inf of the others."""
    found: Tensor = torch.ops.numerate.logsumexp(contiguous_last_dim(logits), mask.contiguous())
    return found


def scaled_softmax(
    logits: Float[Tensor, "rows vocabulary"],
    lse: Float[Tensor, " rows"],
    factor: Float[Tensor, " rows"],
    overwrite_logits: bool = False,
) -> Float[Tensor, "rows vocabulary"]:
    """factor x the softmax of each row, given its log-sum-exp; zeros where the factor is 0, whatever the logits are.

    With `overwrite_logits` it is written over the logits, and autograd knows it: whatever else has saved them for its
    backward raises torch's error for tensors that were modified.
    """
    logits = contiguous_last_dim(logits.detach())
    out = logits if overwrite_logits else torch.empty_like(logits, memory_format=torch.contiguous_format)
    torch.ops.numerate.scaled_softmax(logits, lse, factor.contiguous(), out)
    if overwrite_logits:
        torch.autograd.graph.increment_version(out)
    return out


def launch_settings(vocabulary: int) -> dict[str, Any]:
    """The columns at a time and the number of warps."""
    block = min(MAX_BLOCK, triton.next_power_of_2(vocabulary))
    return {"BLOCK": block, "num_warps": max(1, block // 1024)}
