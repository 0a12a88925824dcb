"""What a loss for any training loop is called with: logits, labels and counts, checked."""

from collections.abc import Iterator
from typing import NoReturn

import torch
from torch import Tensor

from numerate.errors import OperationalError, UserError


def input_problems(
    logits: Tensor,
    labels: Tensor,
    max_id: int,
    shift: bool,
    loss_weights: Tensor | None,
    is_quantity: Tensor | None,
) -> Iterator[str]:
    """What is wrong with the arguments of a loss whose last number token is `max_id`, and what would be right."""
    for name, value in (("logits", logits), ("labels", labels)):
        if not isinstance(value, Tensor):
            yield f"{name}: must be a tensor, such as output.logits of a model, not a {type(value).__name__}"
    described_labels = describe_tensor(labels)
    if not logits.is_floating_point() or logits.ndim < 2:
        yield f"logits: must be floating point [rows, time, vocabulary], not {describe_tensor(logits)}"
    if labels.is_floating_point() or labels.dtype == torch.bool:
        yield f"labels: must be integer token ids, not {described_labels}"
    if logits.shape[:-1] != labels.shape:
        hint = " (shift=True shifts them here: pass both unshifted)" if shift else ""
        yield (
            f"labels: must have one label per position of the logits {describe_tensor(logits)}, not "
            f"{described_labels}{hint}"
        )
    for name, tensor in (("loss_weights", loss_weights), ("is_quantity", is_quantity)):
        if tensor is not None and tensor.shape != labels.shape:
            yield f"{name}: must have the shape of the labels {described_labels}, not {describe_tensor(tensor)}"
    if is_quantity is not None and is_quantity.dtype != torch.bool:
        yield f"is_quantity: must be boolean, one per label, not {describe_tensor(is_quantity)}"
    if logits.shape[-1] <= max_id:
        yield (
            f"logits: {logits.shape[-1]} wide, and token {max_id} is a number; logits as wide as the "
            "tokenizer's vocabulary or wider are required; do model and tokenizer belong together?"
        )


def raise_non_finite(logits: Tensor) -> NoReturn:
    """Raises an `OperationalError` that names the first of the logits that is not finite."""
    non_finite = (~logits.isfinite()).nonzero()
    if len(non_finite):
        *position, token_id = non_finite[0].tolist()
        raise OperationalError(
            f"logits: {logits[tuple(non_finite[0])].item()} for token {token_id} at position {tuple(position)}, "
            f"and {len(non_finite) - 1} more that are not finite"
        )
    raise OperationalError("the loss is not finite although the logits are; check loss_weights")


def describe_tensor(tensor: Tensor) -> str:
    """Its shape and type, such as `(2, 5) of int64`."""
    return f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


def scalar_count(count: int | float | Tensor, name: str) -> float | Tensor:
    """A count as a number, or as a scalar on its device where reading it would wait for that."""
    if isinstance(count, Tensor) and count.numel() != 1:
        raise UserError(
            f"{name}: {describe_tensor(count)}; must be one number (torch.nn.DataParallel gives several: use "
            "DistributedDataParallel)"
        )
    if isinstance(count, Tensor) and count.device.type != "cpu":
        return count.reshape(())
    number = count.item() if isinstance(count, Tensor) else count
    if not number >= 0:
        raise UserError(f"{name}: must be a count of 0 or more, not {number:g}")
    return number
