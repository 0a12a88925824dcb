"""Cross-entropy and a number token loss from hidden states and a head in chunks, without all logits in memory.

Logits are computed for a few hundred rows at a time, turned into their own gradient in place, and multiplied at once
into the gradients of hidden states and head. Memory is one chunk, and one gradient of the size of the head (two when
reweighing). As the incoming gradients of the two sums are unknown in the forward pass, each sum's part is kept by
itself: the number loss affects the rows of few tokens, and when reweighing it multiplies few rows a second time.

Positions without a label cost nothing: their rows are left out before the first product (on a CPU).
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from numerate.errors import UserError
from numerate.kernels.fused_number_loss import each_member, learns, number_rows, once, target_rows
from numerate.kernels.number_loss import Kind, LossSums, NumberDistance, weights_of, work_type
from numerate.kernels.number_loss_gradients import slopes
from numerate.kernels.number_table import NumberTable

CHUNK = {"cpu": 2**23}
"""How many logits are computed at a time, by device: 32 MB of float32, enough rows for fast products."""
CHUNK_ELSEWHERE = 2**27


def head_cross_entropy_and_number(
    hidden: Float[Tensor, "*places width"],
    weight: Float[Tensor, "vocabulary width"],
    labels: Int[Tensor, "*places"],
    table: NumberTable,
    *,
    bias: Float[Tensor, " vocabulary"] | None = None,
    kind: Kind = "was",
    gaussian_sigma: float | None = None,
    reweigh: bool = False,
    squash: float | None = None,
    unit_gaps: bool = False,
    loss_weights: Float[Tensor, "*places"] | None = None,
    quantity: Bool[Tensor, "*places"] | None = None,
    ignore_index: int = -100,
) -> LossSums:
    """As `cross_entropy_and_number` of the logits `hidden @ weight.T + bias`, which are never in memory
    at once.

    Under autocast products are computed in its type, as by the head itself. Raises `UserError` as there.
    """
    measure = NumberDistance(kind, gaussian_sigma, reweigh, squash, unit_gaps)
    table.belong(hidden.shape[:-1], labels.shape)
    if hidden.shape[-1] != weight.shape[-1]:
        raise UserError(f"weight: a head for width {weight.shape[-1]}, and hidden states have {hidden.shape[-1]}")
    table.check(weight.shape[0], labels, ignore_index)
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        to = torch.get_autocast_dtype(device)
        hidden, weight, bias = hidden.to(to), weight.to(to), None if bias is None else bias.to(to)
    if hidden.dtype != weight.dtype:
        raise UserError(
            f"weight: {weight.dtype}, and hidden states are {hidden.dtype}; one type, or autocast, is right"
        )
    index, weights = weights_of(labels, table, loss_weights, quantity, ignore_index, work_type(hidden.dtype))
    target_positions = labels != ignore_index
    entropy, number, *_ = HeadFused.apply(  # type: ignore[no-untyped-call]
        hidden.flatten(0, -2),
        weight,
        bias,
        labels.flatten().long(),
        target_positions.flatten(),
        index.flatten(),
        weights.flatten(),
        table,
        measure,
        learns(hidden),
        learns(weight) or learns(bias),
    )
    return LossSums(entropy, number, target_positions.sum(), weights.sum())


class Parts(NamedTuple):
    """The gradients of the two sums, each by itself: by hidden states, by the head, and by its bias. Empty: none.

    `number_head` and `number_bias` have a row per number token, or, reweighed, per token of the vocabulary.
    """

    hidden: Tensor
    head: Tensor
    bias: Tensor
    number_hidden: Tensor
    number_head: Tensor
    number_bias: Tensor


class FusedHeadInputs(NamedTuple):
    """What is read, in rows: hidden states, the head, labels, and which of them have which number loss."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    labels: Tensor
    target_positions: Tensor
    numbers: Tensor
    weights: Tensor


class HeadFused(torch.autograd.Function):
    """Hidden states [rows, width] and a head to the two sums; what else it returns belongs to its backward."""

    @staticmethod
    def forward(
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        target_positions: Tensor,
        index: Tensor,
        weights: Tensor,
        table: NumberTable,
        measure: NumberDistance,
        by_hidden: bool,
        by_head: bool,
    ) -> tuple[Tensor, ...]:
        given = FusedHeadInputs(hidden, weight, bias, labels, target_positions, index, weights)
        entropy, number, parts = _walk(given, table, measure, by_hidden, by_head)
        return entropy, number, *parts

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        _, _, *parts = output
        ctx.mark_non_differentiable(*parts)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:7])
        ctx.settings = inputs[7:]
        ctx.parts = parts

    @staticmethod
    @once
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        given, (table, _, by_hidden, by_head) = FusedHeadInputs(*ctx.saved_tensors), ctx.settings
        held, ctx.parts = ctx.parts, None  # given away: the buffers become the gradients
        parts = _walk(given, *ctx.settings)[2] if held is None else Parts(*held)
        entropy, number = (parts.hidden.new_zeros(()) if g is None else g for g in incoming[:2])

        def joined(own: Tensor, others: Tensor, like: Tensor) -> Tensor:
            own = own.mul_(entropy)
            if len(others) == len(own):
                own.add_(others.mul_(number))
            else:
                own.index_add_(0, table.ids, others.mul_(number))
            return own.to(like.dtype)

        found: list[Tensor | None] = [None] * 11
        if by_hidden:
            found[0] = joined(parts.hidden, parts.number_hidden, given.hidden)
        if by_head:
            found[1] = joined(parts.head, parts.number_head, given.weight)
            if given.bias is not None:
                found[2] = joined(parts.bias, parts.number_bias, given.bias)
        return tuple(found)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        """One after the other: a member's rows are a batch of their own."""
        return each_member(HeadFused, info, in_dims, args, 2)


def _walk(
    given: FusedHeadInputs, table: NumberTable, measure: NumberDistance, by_hidden: bool, by_head: bool
) -> tuple[Tensor, Tensor, Parts]:
    """The two sums and their gradients, a chunk of rows at a time."""
    hidden, (vocabulary, width) = given.hidden, given.weight.shape
    dtype, few = work_type(hidden.dtype), vocabulary if measure.reweigh else table.count

    def zeros(wanted: bool, *shape: int) -> Tensor:
        return hidden.new_zeros(shape if wanted else (0,), dtype=dtype)

    biased = by_head and given.bias is not None
    parts = Parts(
        zeros(by_hidden, len(hidden), width),
        zeros(by_head, vocabulary, width),
        zeros(biased, vocabulary),
        zeros(by_hidden, len(hidden), width),
        zeros(by_head, few, width),
        zeros(biased, few),
    )
    rows = target_rows(given.target_positions)
    chunk = max(1, CHUNK.get(hidden.device.type, CHUNK_ELSEWHERE) // vocabulary)
    buffer = hidden.new_empty((min(chunk, len(rows)), vocabulary))
    entropy, number = (hidden.new_zeros((), dtype=dtype) for _ in range(2))
    for first in range(0, len(rows), chunk):
        own = rows[first : first + chunk]
        sums = _chunk(buffer[: len(own)], given, own, table, measure, parts)
        entropy, number = entropy + sums[0], number + sums[1]
    return entropy, number, parts


def _chunk(
    buffer: Tensor, given: FusedHeadInputs, own: Tensor, table: NumberTable, measure: NumberDistance, parts: Parts
) -> tuple[Tensor, Tensor]:
    """The sums of the rows `own`; their gradients are added to `parts`."""
    x, target_positions, index, weights = (
        given.hidden[own],
        given.target_positions[own],
        given.numbers[own],
        given.weights[own],
    )
    if given.bias is None:
        torch.mm(x, given.weight.T, out=buffer)
    else:
        torch.addmm(given.bias, x, given.weight.T, out=buffer)
    soft = buffer.to(work_type(x.dtype))  # of float32 and float64 the buffer itself
    safe = torch.where(target_positions, given.labels[own], 0)[:, None]
    rows = number_rows(index)
    numbered, chosen = index[rows] >= 0, index[rows].clamp(min=0)
    columns, wanted = soft[rows[:, None], table.ids], soft.gather(1, safe)[:, 0]
    top = soft.amax(-1, keepdim=True)
    # What is smaller than e^-60 of the largest adds nothing, and as a denormal number would slow the products down.
    total = soft.sub_(top).clamp_(min=-60).exp_().sum(-1, keepdim=True)
    lse = (top + total.log())[:, 0]
    entropies = torch.where(target_positions, lse - wanted, 0)
    found = slopes(measure, columns, lse[rows], table, chosen)
    counted = torch.where(numbered, weights[rows], 0)
    targets = torch.where(numbered[:, None], measure.targets(table, chosen).to(soft.dtype), 0)
    if measure.smooth:
        spread = (targets * torch.where(targets > 0, lse[rows][:, None] - columns, 0)).sum(-1)
        entropies = entropies.index_copy(0, rows, torch.where(numbered, spread, entropies[rows]))
    sums = entropies.sum(), (counted * found.losses).sum()
    if not (parts.hidden.numel() or parts.head.numel()):
        return sums
    soft.mul_(torch.where(target_positions[:, None], 1 / total, 0))
    at_numbers = counted[:, None] * found.columns
    if found.row is None:
        _multiplied_out(at_numbers, x[rows], given.weight[table.ids], own[rows], *parts[3:])
    else:
        slope = soft[rows] * (counted * found.row)[:, None]
        slope[:, table.ids] += at_numbers
        _multiplied_out(slope, x[rows], given.weight, own[rows], *parts[3:])
    plain = target_positions
    if measure.smooth:
        soft[rows] *= torch.where(numbered, targets.sum(-1), 1)[:, None]
        soft.index_put_((rows[:, None], table.ids[None]), -targets, accumulate=True)
        plain = target_positions & (index < 0)
    soft.scatter_add_(1, safe, -plain.to(soft.dtype)[:, None])
    _multiplied_out(soft, x, given.weight, own, *parts[:3])
    return sums


def _multiplied_out(
    slope: Tensor, x: Tensor, weight: Tensor, own: Tensor, hidden: Tensor, head: Tensor, bias: Tensor
) -> None:
    """Adds a gradient by logits to those by hidden states (rows `own`), head and bias, where they are wanted."""
    typed = slope.to(x.dtype)
    if hidden.numel():
        hidden.index_add_(0, own, (typed @ weight).to(hidden.dtype))
    if head.numel() and typed.dtype == head.dtype:
        head.addmm_(typed.T, x)
    elif head.numel():
        head.add_(typed.T @ x)
    if bias.numel():
        bias.add_(slope.sum(0))
