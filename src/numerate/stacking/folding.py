"""Attention under `torch.vmap`: the stacked models are folded into the batch dimension.

In torch 2.13 `vmap` (https://docs.pytorch.org/docs/stable/generated/torch.func.vmap.html) has no rule for the fused
attention of a CPU: it would compute one model after the other, and warn. Attention has no weights, so folding is exact.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode


class FoldedAttentionMode(TorchFunctionMode):
    """A context in which `scaled_dot_product_attention` under one `vmap` folds the mapped dimension into the rows.

    >>> queries = keys = values = torch.zeros(2, 3, 4, 5, 8)  # models x rows x heads x time x width
    >>> with FoldedAttentionMode():
    ...     torch.vmap(scaled_dot_product_attention)(queries, keys, values).shape
    torch.Size([2, 3, 4, 5, 8])
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is scaled_dot_product_attention:
            func = _attention
        return func(*args, **(kwargs or {}))


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """`scaled_dot_product_attention` by the rule below."""
    options = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    return _FoldedAttention.apply(query, key, value, attn_mask, options)  # type: ignore[no-untyped-call]


class _FoldedAttention(torch.autograd.Function):
    """Has a rule for `vmap` and needs nothing else: below that rule autograd sees plain attention."""

    @staticmethod
    def forward(*args: Any) -> Tensor:
        raise RuntimeError("attention is folded under vmap only")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Never called."""

    @staticmethod
    def vmap(
        info: Any,
        dims: tuple[int | None, ...],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        options: dict[str, Any],
    ) -> tuple[Tensor, int]:
        num_members = info.batch_size
        query, key, value = (
            _move_to_front(x, dim, num_members) for x, dim in zip((query, key, value), dims[:3], strict=True)
        )
        rows = query.shape[1]
        if mask is not None and (dims[3] is not None or (mask.dim() > 3 and mask.shape[0] > 1)):
            mask = _move_to_front(mask, dims[3], num_members)
            mask = mask.view(num_members, *(1,) * (5 - mask.dim()), *mask.shape[1:])
            if mask.requires_grad:  # nothing fused takes a learned one, and it is often one for all rows: so it stays
                return scaled_dot_product_attention(query, key, value, mask, **options), 0
            mask = mask.expand(num_members, rows, *mask.shape[2:]).flatten(0, 1)
        out = scaled_dot_product_attention(query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1), mask, **options)
        return out.view(num_members, rows, *out.shape[1:]), 0


def _move_to_front(x: Tensor, dim: int | None, num_members: int) -> Tensor:
    """The members' dimension in front; expanded where there is none."""
    return x.unsqueeze(0).expand(num_members, *x.shape) if dim is None else x.movedim(dim, 0)
