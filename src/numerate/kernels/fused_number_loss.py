"""Cross-entropy and a number token loss in one operation: one pass over the logits, one buffer as large as they are.

Memory bandwidth is the bottleneck. Logits of 32 x 64 positions and 32,128 tokens in float32 are 263 MB. They must be
read once and their gradient written once, into pages that the system has first to give (a quarter of the time of
torch's own cross-entropy by itself, on one core). torch writes three such tensors and reads five. Here the forward
takes the softmax of a few rows at a time, so that each row stays in the cache between its passes, straight into the
buffer that becomes the gradient; whatever depends on the incoming gradients is one number per row, and a few columns.

A second backward through the same graph works the softmax out again. Second derivatives are not supported:
`create_graph=True` raises an error; `reference_loss_sums` has all of them. On a GPU many rows are taken at a time.
Compiled, the operation is one chunk for `torch.compile` to make its own kernels of.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from numerate.errors import UserError
from numerate.kernels.number_loss import (
    LossFunction,
    LossSums,
    NumberDistance,
    compute_dtype,
    number_indices_and_weights,
)
from numerate.kernels.number_loss_gradients import number_loss_gradients
from numerate.kernels.number_table import NumberTokenTable, can_read_values

CHUNK_LOGITS = {"cpu": 2**18}
"""Number of logits processed at a time, by device: a megabyte of float32, which a core's own cache holds."""
DEFAULT_CHUNK_LOGITS = 2**26


def cross_entropy_and_number_loss(
    logits: Float[Tensor, "*positions vocabulary"],
    labels: Int[Tensor, "*positions"],
    table: NumberTokenTable,
    *,
    loss_function: LossFunction = "was",
    gaussian_sigma: float | None = None,
    reweigh: bool = False,
    squash_factor: float | None = None,
    unit_spacing: bool = False,
    loss_weights: Float[Tensor, "*positions"] | None = None,
    quantity_mask: Bool[Tensor, "*positions"] | None = None,
    ignore_index: int = -100,
) -> LossSums:
    """The sums of cross-entropy and of a number token loss, and the counts to divide them by.

    Labels are not shifted: the logits at a position are compared with the label at that position. `loss_weights` and
    `quantity_mask` concern the number loss (`quantity_mask` the spread of targets too). See `NumberDistance` for the
    settings, and `reference_loss_sums` for the reference implementation. Inputs of any float type; computed in float32
    at least. Raises `UserError` for labels of another shape, for logits too narrow for the number tokens, for labels
    outside the vocabulary where checking is cheap (on a CPU), and for invalid settings.
    """
    number_distance = NumberDistance(loss_function, gaussian_sigma, reweigh, squash_factor, unit_spacing)
    table.check_same_shape(logits.shape[:-1], labels.shape)
    table.check_logits_and_labels(logits.shape[-1], labels, ignore_index)
    dtype = compute_dtype(logits.dtype)
    number_indices, weights = number_indices_and_weights(
        labels, table, loss_weights, quantity_mask, ignore_index, dtype
    )
    flat_labels, target_mask = labels.flatten().long(), labels != ignore_index
    requires_grad = needs_gradient(logits)
    cross_entropy, number_loss, *_ = CrossEntropyAndNumberLossFunction.apply(  # type: ignore[no-untyped-call]
        logits.flatten(0, -2),
        flat_labels,
        target_mask.flatten(),
        number_indices.flatten(),
        weights.flatten(),
        table,
        number_distance,
        requires_grad,
    )
    return LossSums(cross_entropy, number_loss, target_mask.sum(), weights.sum())


def needs_gradient(tensor: Tensor | None) -> bool:
    """Whether a gradient of it may be needed; always under torch.func, and in a compiled graph."""
    if tensor is None or not torch.is_grad_enabled():
        return False
    if torch.compiler.is_compiling():
        return True
    return tensor.requires_grad or torch._C._functorch.is_functorch_wrapped_tensor(tensor)


class SavedForBackward(NamedTuple):
    """What the forward pass saves for the gradient, besides the softmax: per row, and per number row and number token.

    - `lse` [rows] log-sum-exp; `label_probabilities` [rows] the probability of the label;
    - `find_number_rows` which rows have a number loss; `number_probabilities`, `target_probabilities`,
      `number_gradients` [number rows, numbers] the softmax there, the target of cross-entropy and the derivative of the
      number loss; `softmax_scale` what the latter adds to the softmax's factor.
    """

    lse: Tensor
    label_probabilities: Tensor
    number_rows: Tensor
    number_probabilities: Tensor
    target_probabilities: Tensor
    number_gradients: Tensor
    softmax_scale: Tensor


def find_number_rows(number_indices: Int[Tensor, " rows"]) -> Int[Tensor, " numbers"]:
    """The rows with a number loss; all rows where finding them would synchronize, or cannot be compiled."""
    if can_read_values(number_indices):
        return (number_indices >= 0).nonzero()[:, 0]
    return torch.arange(len(number_indices), device=number_indices.device)


def softmax_with_logsumexp(x: Tensor, out: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The softmax of rows, into `out`; the log-sum-exp of each and the probability of its label `labels`."""
    torch.softmax(x, -1, dtype=out.dtype, out=out)
    label_probabilities = out.gather(-1, labels[:, None])[:, 0]
    if can_read_values(x) and bool((label_probabilities > torch.finfo(out.dtype).tiny * 1e6).all()):
        return x.gather(-1, labels[:, None])[:, 0].to(out.dtype) - label_probabilities.log(), label_probabilities
    # The largest probability is never too small for its logarithm.
    return x.amax(-1).to(out.dtype) - out.amax(-1).log(), label_probabilities


class _NoSecondDerivative(torch.autograd.Function):
    """The identity on gradients, whose own derivative raises an error."""

    @staticmethod
    def forward(gradient: Tensor, *_: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        raise UserError(
            "fused: the closed-form gradient of this loss has no second derivative; use fused=none, or "
            "`reference_loss_sums` of numerate.kernels.number_loss"
        )


BackwardFunction = Callable[..., tuple[Tensor | None, ...]]


def once_differentiable(backward: BackwardFunction) -> BackwardFunction:
    """A backward in closed form: with `create_graph=True` its gradients raise `UserError` when they are differentiated,
    instead of counting as constants."""

    @functools.wraps(backward)
    def wrapped(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            grad_inputs = backward(ctx, *grad_outputs)
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return grad_inputs
        differentiable = [one for one in (*ctx.saved_tensors, *grad_outputs) if one is not None and one.requires_grad]
        return tuple(None if one is None else _NoSecondDerivative.apply(one, *differentiable) for one in grad_inputs)  # type: ignore[no-untyped-call]

    return wrapped


class CrossEntropyAndNumberLossFunction(torch.autograd.Function):
    """Logits [rows, vocabulary] to the two sums; what else it returns belongs to its backward."""

    @staticmethod
    def forward(
        logits: Tensor,
        labels: Tensor,
        target_mask: Tensor,
        number_indices: Tensor,
        weights: Tensor,
        table: NumberTokenTable,
        number_distance: NumberDistance,
        requires_grad: bool,
    ) -> tuple[Tensor, ...]:
        safe_labels = torch.where(target_mask, labels, 0)
        probabilities, lse, label_probabilities = _softmax(logits, safe_labels, requires_grad)
        number_row_indices = find_number_rows(number_indices)
        label_logits = logits.gather(-1, safe_labels[:, None])[:, 0].to(lse.dtype)
        cross_entropies = torch.where(target_mask, lse - label_logits, 0)
        safe_number_indices = number_indices[number_row_indices].clamp(min=0)
        number_logits = logits[number_row_indices[:, None], table.ids].to(lse.dtype)
        number_gradients = number_loss_gradients(
            number_distance, number_logits, lse[number_row_indices], table, safe_number_indices
        )
        target_probabilities = number_distance.target_probabilities(table, safe_number_indices).to(lse.dtype)
        has_number = number_indices[number_row_indices] >= 0
        if number_distance.has_smooth_targets:
            negative_log_probs = torch.where(
                target_probabilities > 0, lse[number_row_indices][:, None] - number_logits, 0
            )  # a target may be 0 where a logit is -inf
            smoothed_cross_entropies = (target_probabilities * negative_log_probs).sum(-1)
            cross_entropies = cross_entropies.index_copy(
                0,
                number_row_indices,
                torch.where(has_number, smoothed_cross_entropies, cross_entropies[number_row_indices]),
            )
        row_weights = weights[number_row_indices]
        number_probabilities = (number_logits - lse[number_row_indices][:, None]).exp()
        scale, number_slopes = number_gradients.softmax_scale, row_weights[:, None] * number_gradients.number_gradients
        softmax_scale = lse.new_zeros(0) if scale is None else row_weights * scale
        by_number = (number_probabilities, target_probabilities, number_slopes, softmax_scale)
        saved = SavedForBackward(lse, label_probabilities, number_row_indices, *by_number)
        number_loss = torch.where(has_number, row_weights * number_gradients.losses, 0).sum()
        return cross_entropies.sum(), number_loss, probabilities, *saved

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        logits, labels, target_mask, number_indices, _, table, number_distance, _ = inputs
        _, _, probabilities, *saved = output
        ctx.mark_non_differentiable(probabilities, *saved)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, labels, target_mask, number_indices, table.ids, *saved)
        ctx.buffer, ctx.smooth = probabilities, number_distance.has_smooth_targets

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        logits, labels, target_mask, number_indices, ids, *saved_tensors = ctx.saved_tensors
        saved = SavedForBackward(*saved_tensors)
        zero = saved.lse.new_zeros(())
        grad_cross_entropy, grad_number_loss = (zero if g is None else g.to(saved.lse.dtype) for g in grad_outputs[:2])
        # Given away, not kept: autograd then takes the buffer itself for the gradient, without a copy.
        probabilities, ctx.buffer = ctx.buffer, None
        given = (logits, probabilities, labels, target_mask, number_indices, ids, saved)
        gradient = gradient_by_logits(*given, grad_cross_entropy, grad_number_loss, ctx.smooth)
        return gradient, *[None] * 7


def find_target_rows(target_mask: Bool[Tensor, " rows"]) -> Int[Tensor, " targets"]:
    """The rows with a label; all rows where finding them would synchronize, or cannot be compiled."""
    if can_read_values(target_mask):
        return target_mask.nonzero()[:, 0]
    return torch.arange(len(target_mask), device=target_mask.device)


def _softmax(logits: Tensor, labels: Tensor, requires_grad: bool) -> tuple[Tensor, Tensor, Tensor]:
    """In chunks of rows: the softmax (empty without `requires_grad`), each row's log-sum-exp, its label's
    probability."""
    num_rows, vocabulary = logits.shape
    dtype = compute_dtype(logits.dtype)
    if torch.compiler.is_compiling():
        float_logits = logits.to(dtype)
        compiled_lse = float_logits.logsumexp(-1)
        probabilities = (float_logits - compiled_lse[:, None]).exp()
        return probabilities.to(logits.dtype), compiled_lse, probabilities.gather(-1, labels[:, None])[:, 0]
    chunk_size = max(1, CHUNK_LOGITS.get(logits.device.type, DEFAULT_CHUNK_LOGITS) // max(1, vocabulary))
    probabilities = (
        torch.empty_like(logits, memory_format=torch.contiguous_format) if requires_grad else logits.new_empty(0)
    )
    writes_directly = requires_grad and logits.dtype == dtype
    work_buffer = None if writes_directly else logits.new_empty((min(chunk_size, num_rows), vocabulary), dtype=dtype)
    lse, label_probabilities = (logits.new_empty(num_rows, dtype=dtype) for _ in range(2))
    for start in range(0, num_rows, chunk_size):
        rows = slice(start, min(start + chunk_size, num_rows))
        x = logits[rows]
        out = probabilities[rows] if work_buffer is None else work_buffer[: len(x)]
        lse[rows], label_probabilities[rows] = softmax_with_logsumexp(x, out, labels[rows])
        if requires_grad and not writes_directly:
            probabilities[rows] = out
    return probabilities, lse, label_probabilities


def _scaled_softmax(logits: Tensor, buffer: Tensor | None, factor: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """The softmax of each row x `factor`, in the buffer where the forward pass left the softmax."""
    if buffer is None or buffer.shape != logits.shape:
        buffer = _softmax(logits, labels, True)[0]
    if not (can_read_values(factor) and bool((factor == 1).all())):
        buffer.mul_(factor[:, None])
    has_none = (factor == 0) & ~mask  # there a logit may be NaN or infinite
    if not can_read_values(factor):
        buffer.masked_fill_(has_none[:, None], 0)
    elif bool(has_none.any()):
        buffer[has_none] = 0
    return buffer


def gradient_by_logits(
    logits: Tensor,
    buffer: Tensor | None,
    labels: Tensor,
    target_mask: Tensor,
    number_indices: Tensor,
    ids: Tensor,
    saved: SavedForBackward,
    grad_cross_entropy: Tensor,
    grad_number_loss: Tensor,
    has_smooth_targets: bool,
) -> Tensor:
    """The gradient for incoming gradients of the two sums, in the buffer that holds the softmax if there is one."""
    factor = torch.where(target_mask, grad_cross_entropy, 0)
    has_number = number_indices[saved.number_rows] >= 0
    if len(saved.number_rows) and has_smooth_targets:  # a spread target adds up to a hair less than 1
        factor = factor.index_add(
            0,
            saved.number_rows,
            torch.where(has_number, grad_cross_entropy * (saved.target_probabilities.sum(-1) - 1), 0),
        )
    if len(saved.softmax_scale):
        factor = factor.index_add(
            0, saved.number_rows, torch.where(has_number, grad_number_loss * saved.softmax_scale, 0)
        )
    safe_labels = torch.where(target_mask, labels, 0)
    gradient = _scaled_softmax(logits, buffer, factor, safe_labels, target_mask)
    label_gradient = torch.where(target_mask, saved.label_probabilities * factor - grad_cross_entropy, 0)
    gradient.scatter_(1, safe_labels[:, None], label_gradient[:, None].to(gradient.dtype))
    number_gradient = (
        saved.number_probabilities * factor[saved.number_rows][:, None]
        - grad_cross_entropy * saved.target_probabilities
        + grad_number_loss * saved.number_gradients
    ).to(gradient.dtype)
    if can_read_values(gradient):
        gradient[saved.number_rows[:, None], ids] = number_gradient
    else:
        gradient[:, ids] = torch.where(has_number[:, None], number_gradient, gradient[:, ids])
    return gradient


def cross_entropy_and_token_logits(
    logits: Float[Tensor, "*positions vocabulary"],
    labels: Int[Tensor, "*positions"],
    ids: Int[Tensor, " numbers"],
    *,
    ignore_index: int = -100,
) -> tuple[Float[Tensor, ""], Float[Tensor, "*positions numbers"], Float[Tensor, "*positions"]]:
    """The sum of cross-entropy, the logits of some tokens, and the log-sum-exp of each position, all with gradients.

    For losses of few tokens: the latter two need no second buffer as large as the logits, which indexing columns would.
    """
    target_mask = labels != ignore_index
    requires_grad = needs_gradient(logits)
    cross_entropy, token_logits, lse, *_ = CrossEntropyAndTokenLogitsFunction.apply(  # type: ignore[no-untyped-call]
        logits.flatten(0, -2), labels.flatten().long(), target_mask.flatten(), ids, requires_grad
    )
    return cross_entropy, token_logits.view(*labels.shape, len(ids)), lse.view(labels.shape)


class CrossEntropyAndTokenLogitsFunction(torch.autograd.Function):
    """Logits [rows, vocabulary] to the sum of cross-entropy, some columns and the log-sum-exp of each row."""

    @staticmethod
    def forward(
        logits: Tensor, labels: Tensor, target_mask: Tensor, ids: Tensor, requires_grad: bool
    ) -> tuple[Tensor, ...]:
        safe_labels = torch.where(target_mask, labels, 0)
        probabilities, lse, label_probabilities = _softmax(logits, safe_labels, requires_grad)
        label_logits = logits.gather(-1, safe_labels[:, None])[:, 0].to(lse.dtype)
        cross_entropy = torch.where(target_mask, lse - label_logits, 0).sum()
        return cross_entropy, logits[:, ids].to(lse.dtype), lse, probabilities, label_probabilities

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        logits, labels, target_mask, ids, _ = inputs
        *_, probabilities, label_probabilities = output
        ctx.mark_non_differentiable(probabilities, label_probabilities)
        ctx.save_for_backward(logits, labels, target_mask, ids, label_probabilities)
        ctx.buffer = probabilities

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        logits, labels, target_mask, ids, label_probabilities = ctx.saved_tensors
        grad_cross_entropy, grad_token_logits, grad_lse = grad_outputs[:3]
        probabilities, ctx.buffer = ctx.buffer, None
        label_factor = torch.where(target_mask, grad_cross_entropy, 0)
        factor = label_factor + grad_lse
        safe_labels = torch.where(target_mask, labels, 0)
        gradient = _scaled_softmax(logits, probabilities, factor, safe_labels, target_mask)
        label_gradient = torch.where(factor == 0, 0, label_probabilities * factor)
        gradient.scatter_(1, safe_labels[:, None], (label_gradient - label_factor)[:, None].to(gradient.dtype))
        return gradient.index_add_(1, ids, grad_token_logits.to(gradient.dtype)), None, None, None, None
