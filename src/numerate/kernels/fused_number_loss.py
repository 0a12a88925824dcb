"""Cross-entropy and a number token loss in one operation: one pass over the logits, one buffer as large as they are.

The floor is memory. Logits of 32 x 64 places and 32,128 tokens in float32 are 263 MB. They must be read once and their
gradient written once, into pages that the system has first to give (a quarter of the time of torch's own
cross-entropy by itself, on one core). torch writes three such tensors and reads five. Here the forward takes the
softmax of a few rows at a time, so that each row stays in the cache between its passes, straight into the buffer that
becomes the gradient; whatever depends on the incoming gradients is one number per row, and a few columns.

A second backward through the same graph works the softmax out again. The gradient itself has no derivative, and says so
to whoever asks for one (`create_graph=True`); `plain_sums` has all of them. On a GPU the same rows are taken many at a
time; compiled, the operation is one chunk for `torch.compile` to make its own kernels of (Triton's on a GPU).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from numerate.errors import UserError
from numerate.kernels.number_loss import Kind, LossSums, NumberDistance, weights_of, work_type
from numerate.kernels.number_loss_gradients import slopes
from numerate.kernels.number_table import NumberTable

CHUNK = {"cpu": 2**18}
"""How many logits are taken at a time, by device: a megabyte of float32, which a core's own cache holds."""
CHUNK_ELSEWHERE = 2**26


def cross_entropy_and_number(
    logits: Float[Tensor, "*places vocabulary"],
    labels: Int[Tensor, "*places"],
    table: NumberTable,
    *,
    kind: Kind = "was",
    gaussian_sigma: float | None = None,
    reweigh: bool = False,
    squash: float | None = None,
    unit_gaps: bool = False,
    loss_weights: Float[Tensor, "*places"] | None = None,
    quantity: Bool[Tensor, "*places"] | None = None,
    ignore_index: int = -100,
) -> LossSums:
    """The sums of cross-entropy and of a number token loss, and the counts to divide them by.

    Labels are not shifted: the logits at a position are compared with the label at that position. `loss_weights` and
    `quantity` concern the number loss (`quantity` the spread of targets too). See `NumberDistance` for the settings,
    and `plain_sums` for the reference implementation. Inputs of any float type; computed in float32 at least. Raises
    `UserError` for labels of another shape, for logits too narrow for the number tokens, for labels outside the
    vocabulary where looking is cheap (on a CPU), and for settings that cannot be.
    """
    measure = NumberDistance(kind, gaussian_sigma, reweigh, squash, unit_gaps)
    table.belong(logits.shape[:-1], labels.shape)
    table.check(logits.shape[-1], labels, ignore_index)
    dtype = work_type(logits.dtype)
    index, weights = weights_of(labels, table, loss_weights, quantity, ignore_index, dtype)
    flat, target_positions = labels.flatten().long(), labels != ignore_index
    learning = learns(logits)
    entropy, number, *_ = Fused.apply(  # type: ignore[no-untyped-call]
        logits.flatten(0, -2),
        flat,
        target_positions.flatten(),
        index.flatten(),
        weights.flatten(),
        table,
        measure,
        learning,
    )
    return LossSums(entropy, number, target_positions.sum(), weights.sum())


def learns(tensor: Tensor | None) -> bool:
    """Whether a gradient of it may be needed; always in vmap, and in a compiled graph."""
    if tensor is None or not torch.is_grad_enabled():
        return False
    if torch.compiler.is_compiling():
        return True
    return tensor.requires_grad or torch._C._functorch.is_functorch_wrapped_tensor(tensor)


class SavedGradient(NamedTuple):
    """What the forward pass saves for the gradient, besides the softmax: per row, and per number row and number token.

    - `lse` [rows] log-sum-exp; `right` [rows] the probability of the label;
    - `rows` which rows have a number loss; `q`, `targets`, `columns` [number rows, numbers] the softmax there, the
      target of cross-entropy and the derivative of the number loss; `row` what the latter adds to the softmax's factor.
    """

    lse: Tensor
    right: Tensor
    rows: Tensor
    q: Tensor
    targets: Tensor
    columns: Tensor
    row: Tensor


def number_rows(index: Int[Tensor, " rows"]) -> Int[Tensor, " numbers"]:
    """The rows with a number loss; all rows where finding them would synchronize, or cannot be compiled."""
    if index.device.type == "cpu" and not torch.compiler.is_compiling():
        return (index >= 0).nonzero()[:, 0]
    return torch.arange(len(index), device=index.device)


def softmax_rows(x: Tensor, out: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The softmax of rows, into `out`; the log-sum-exp of each and the probability of its label `right`."""
    torch.softmax(x, -1, dtype=out.dtype, out=out)
    chosen = out.gather(-1, right[:, None])[:, 0]
    if x.device.type == "cpu" and bool((chosen > torch.finfo(out.dtype).tiny * 1e6).all()):
        return x.gather(-1, right[:, None])[:, 0].to(out.dtype) - chosen.log(), chosen
    # The largest probability is never too small for its logarithm.
    return x.amax(-1).to(out.dtype) - out.amax(-1).log(), chosen


class _Last(torch.autograd.Function):
    """The identity on gradients, whose own derivative raises an error."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor, *_: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        raise UserError(
            "fused: the closed-form gradient of this loss has no second derivative; fused=none, or `plain_sums` of "
            "numerate.kernels.number_loss, has one"
        )


Backward = Callable[..., tuple[Tensor | None, ...]]


def once(backward: Backward) -> Backward:
    """A backward in closed form: with `create_graph=True` its gradients raise `UserError` when they are differentiated,
    instead of counting as constants."""

    @functools.wraps(backward)
    def wrapped(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            found = backward(ctx, *incoming)
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return found
        learned = [one for one in (*ctx.saved_tensors, *incoming) if one is not None and one.requires_grad]
        return tuple(None if one is None else _Last.apply(one, *learned) for one in found)  # type: ignore[no-untyped-call]

    return wrapped


class Fused(torch.autograd.Function):
    """Logits [rows, vocabulary] to the two sums; what else it returns belongs to its backward."""

    @staticmethod
    def forward(
        logits: Tensor,
        labels: Tensor,
        target_positions: Tensor,
        index: Tensor,
        weights: Tensor,
        table: NumberTable,
        measure: NumberDistance,
        learning: bool,
    ) -> tuple[Tensor, ...]:
        safe = torch.where(target_positions, labels, 0)
        soft, lse, right = _softmax(logits, safe, learning)
        rows = number_rows(index)
        wanted = logits.gather(-1, safe[:, None])[:, 0].to(lse.dtype)
        entropies = torch.where(target_positions, lse - wanted, 0)
        chosen = index[rows].clamp(min=0)
        columns = logits[rows[:, None], table.ids].to(lse.dtype)
        found = slopes(measure, columns, lse[rows], table, chosen)
        targets = measure.targets(table, chosen).to(lse.dtype)
        numbered = index[rows] >= 0
        if measure.smooth:
            far = torch.where(targets > 0, lse[rows][:, None] - columns, 0)  # a target may be 0 where a logit is -inf
            spread = (targets * far).sum(-1)
            entropies = entropies.index_copy(0, rows, torch.where(numbered, spread, entropies[rows]))
        counted = weights[rows]
        known = SavedGradient(
            lse,
            right,
            rows,
            (columns - lse[rows][:, None]).exp(),
            targets,
            counted[:, None] * found.columns,
            lse.new_zeros(0) if found.row is None else counted * found.row,
        )
        number = torch.where(numbered, counted * found.losses, 0).sum()
        return entropies.sum(), number, soft, *known

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        logits, labels, target_positions, index, _, table, measure, _ = inputs
        _, _, soft, *known = output
        ctx.mark_non_differentiable(soft, *known)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, labels, target_positions, index, table.ids, *known)
        ctx.buffer, ctx.smooth = soft, measure.smooth

    @staticmethod
    @once
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        logits, labels, target_positions, index, ids, *rest = ctx.saved_tensors
        known = SavedGradient(*rest)
        zero = known.lse.new_zeros(())
        entropy, number = (zero if g is None else g.to(known.lse.dtype) for g in incoming[:2])
        # Given away, not kept: autograd then takes the buffer itself for the gradient, without a copy.
        soft, ctx.buffer = ctx.buffer, None
        if soft is None or soft.shape != logits.shape:
            soft = _softmax(logits, torch.where(target_positions, labels, 0), True)[0]
        gradient = into_gradient(soft, labels, target_positions, index, ids, known, entropy, number, ctx.smooth)
        return gradient, *[None] * 7

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        """One after the other: a member's rows are a batch of their own."""
        return each_member(Fused, info, in_dims, args, 2)


def target_rows(target_positions: Bool[Tensor, " rows"]) -> Int[Tensor, " targets"]:
    """The rows with a label; all rows where finding them would synchronize, or cannot be compiled."""
    if target_positions.device.type == "cpu" and not torch.compiler.is_compiling():
        return target_positions.nonzero()[:, 0]
    return torch.arange(len(target_positions), device=target_positions.device)


def each_member(
    function: Any, info: Any, in_dims: tuple[int | None, ...], args: tuple[Any, ...], batched: int
) -> tuple[Any, Any]:
    """A function of vmap's members, one after the other; its first `batched` results are stacked over the members."""
    members = [
        function.apply(*(x if at is None else x.select(at, own) for x, at in zip(args, in_dims, strict=True)))
        for own in range(info.batch_size)
    ]
    stacked = [torch.stack([found[at] for found in members]) for at in range(batched)]
    rest = members[0][batched:]  # unused: each member's backward has its own
    return (*stacked, *rest), (*[0] * batched, *[None] * len(rest))


def _softmax(logits: Tensor, right: Tensor, learning: bool) -> tuple[Tensor, Tensor, Tensor]:
    """In chunks of rows: the softmax (empty without `learning`), each row's log-sum-exp, its label's probability."""
    count, vocabulary = logits.shape
    dtype = work_type(logits.dtype)
    if torch.compiler.is_compiling():
        work = logits.to(dtype)
        whole = work.logsumexp(-1)
        soft = (work - whole[:, None]).exp()
        return soft.to(logits.dtype), whole, soft.gather(-1, right[:, None])[:, 0]
    chunk = max(1, CHUNK.get(logits.device.type, CHUNK_ELSEWHERE) // max(1, vocabulary))
    soft = torch.empty_like(logits, memory_format=torch.contiguous_format) if learning else logits.new_empty(0)
    direct = learning and logits.dtype == dtype
    scratch = None if direct else logits.new_empty((min(chunk, count), vocabulary), dtype=dtype)
    lse, chosen = (logits.new_empty(count, dtype=dtype) for _ in range(2))
    for first in range(0, count, chunk):
        own = slice(first, min(first + chunk, count))
        x = logits[own]
        out = soft[own] if scratch is None else scratch[: len(x)]
        lse[own], chosen[own] = softmax_rows(x, out, right[own])
        if learning and not direct:
            soft[own] = out
    return soft, lse, chosen


def into_gradient(
    soft: Tensor,
    labels: Tensor,
    target_positions: Tensor,
    index: Tensor,
    ids: Tensor,
    known: SavedGradient,
    entropy: Tensor,
    number: Tensor,
    smooth: bool,
) -> Tensor:
    """Turns the softmax into the gradient, in place, for incoming gradients of the two sums."""
    factor = torch.where(target_positions, entropy, 0)
    numbered = index[known.rows] >= 0
    if len(known.rows) and smooth:  # a spread target adds up to a hair less than 1
        factor = factor.index_add(0, known.rows, torch.where(numbered, entropy * (known.targets.sum(-1) - 1), 0))
    if len(known.row):
        factor = factor.index_add(0, known.rows, torch.where(numbered, number * known.row, 0))
    if not (soft.device.type == "cpu" and not torch.compiler.is_compiling() and bool((factor == 1).all())):
        soft.mul_(factor[:, None])
    if soft.device.type == "cpu" and not torch.compiler.is_compiling() and not bool(target_positions.all()):
        soft[~target_positions] = 0  # also where a logit is not finite
    safe = torch.where(target_positions, labels, 0)
    at_label = torch.where(target_positions, known.right * factor - entropy, 0)
    soft.scatter_(1, safe[:, None], at_label[:, None].to(soft.dtype))
    at_numbers = known.q * factor[known.rows][:, None] - entropy * known.targets + number * known.columns
    if soft.device.type == "cpu" and not torch.compiler.is_compiling():
        soft[known.rows[:, None], ids] = at_numbers.to(soft.dtype)
        return soft
    columns = soft[:, ids]
    soft[:, ids] = torch.where(numbered[:, None], at_numbers.to(soft.dtype), columns)
    return soft


def entropy_and_columns(
    logits: Float[Tensor, "*places vocabulary"],
    labels: Int[Tensor, "*places"],
    ids: Int[Tensor, " numbers"],
    *,
    ignore_index: int = -100,
) -> tuple[Float[Tensor, ""], Float[Tensor, "*places numbers"], Float[Tensor, "*places"]]:
    """The sum of cross-entropy, the logits of some tokens, and the log-sum-exp of each position, all with gradients.

    For losses of few tokens: the latter two need no second buffer as large as the logits, which indexing columns would.
    """
    target_positions = labels != ignore_index
    learning = learns(logits)
    entropy, columns, lse, *_ = Columns.apply(  # type: ignore[no-untyped-call]
        logits.flatten(0, -2), labels.flatten().long(), target_positions.flatten(), ids, learning
    )
    return entropy, columns.view(*labels.shape, len(ids)), lse.view(labels.shape)


class Columns(torch.autograd.Function):
    """Logits [rows, vocabulary] to the sum of cross-entropy, some columns and the log-sum-exp of each row."""

    @staticmethod
    def forward(
        logits: Tensor, labels: Tensor, target_positions: Tensor, ids: Tensor, learning: bool
    ) -> tuple[Tensor, ...]:
        safe = torch.where(target_positions, labels, 0)
        soft, lse, right = _softmax(logits, safe, learning)
        wanted = logits.gather(-1, safe[:, None])[:, 0].to(lse.dtype)
        return torch.where(target_positions, lse - wanted, 0).sum(), logits[:, ids].to(lse.dtype), lse, soft, right

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        logits, labels, target_positions, ids, _ = inputs
        *_, soft, right = output
        ctx.mark_non_differentiable(soft, right)
        ctx.save_for_backward(logits, labels, target_positions, ids, right)
        ctx.buffer = soft

    @staticmethod
    @once
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        logits, labels, target_positions, ids, right = ctx.saved_tensors
        entropy, columns, by_lse = incoming[:3]
        soft, ctx.buffer = ctx.buffer, None
        if soft is None or soft.shape != logits.shape:
            soft = _softmax(logits, torch.where(target_positions, labels, 0), True)[0]
        at_label = torch.where(target_positions, entropy, 0)
        factor = at_label + by_lse
        soft.mul_(factor[:, None])
        if soft.device.type == "cpu" and not torch.compiler.is_compiling() and not bool(target_positions.all()):
            soft[(factor == 0) & ~target_positions] = 0  # also where a logit is not finite
        safe = torch.where(target_positions, labels, 0)
        least = torch.where(factor == 0, 0, right * factor)
        soft.scatter_(1, safe[:, None], (least - at_label)[:, None].to(soft.dtype))
        return soft.index_add_(1, ids, columns.to(soft.dtype)), None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        """One after the other: a member's rows are a batch of their own."""
        return each_member(Columns, info, in_dims, args, 3)
