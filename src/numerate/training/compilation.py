"""`training.compile`: batches of few shapes, each of which is compiled once."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from numerate.batch import IGNORE_INDEX, Batch, Tokens
from numerate.errors import UserError
from numerate.vocabulary import PAD

CompileMode = Literal["default", "reduce-overhead", "max-autotune"]

MAX_SHAPES = 64
"""Most shapes of batches that a run compiles; batches of further shapes run uncompiled."""

TOO_MANY_SHAPES = (
    f"training.compile: batches have more than {MAX_SHAPES} shapes; those of further shapes run uncompiled. A larger "
    "training.shuffle_window gives fewer shapes"
)


def allow_compiling() -> None:
    """Lets torch compile a graph for every shape (its limit is 8), and models with a recurrent net of torch."""
    config = torch._dynamo.config
    config.recompile_limit = max(8 * MAX_SHAPES, config.recompile_limit)
    config.accumulated_recompile_limit = max(8 * MAX_SHAPES, config.accumulated_recompile_limit)
    config.allow_rnn = True


def check_compile_mode(mode: CompileMode, device: torch.device, num_micro_batches: int) -> None:
    """Raises `UserError` where CUDA graphs would write the gradients of a micro-batch over those of the one before."""
    if mode != "default" and device.type == "cuda" and num_micro_batches > 1:
        raise UserError(
            f"training.compile_mode: must be default for {num_micro_batches} micro-batches per step, not {mode}, whose "
            "CUDA graphs reuse the memory of gradients"
        )


def bucket_length(length: int, limit: int | None = None) -> int:
    """The length to which rows are padded: the next multiple of 8 up to 64, above that of a quarter of the power of two
    below it. At most `limit`, where a model has no more positions.

    >>> [bucket_length(length) for length in (0, 1, 8, 9, 64, 65, 200, 513)]
    [0, 8, 8, 16, 64, 80, 224, 640]
    """
    step = max(8, 1 << max(0, (length - 1).bit_length() - 3))
    padded = -(-length // step) * step
    return padded if limit is None else max(length, min(padded, limit))


def pad_to_buckets(batch: Batch, limit: int | None = None) -> Batch:
    """A batch with position ids, padded to one of few shapes; its loss is the same. `limit` is that of `bucket_length`.
    Counts are left out: they are those of the batch, and a compiled graph would be one for each."""
    time = bucket_length(batch.tokens.ids.shape[1], limit)
    num_targets = min(time, bucket_length(batch.target_positions.shape[1]))
    source = batch.source
    return replace(
        batch,
        tokens=_pad_tokens(batch.tokens, time),
        targets=_pad(batch.targets, time, IGNORE_INDEX),
        target_positions=_repeat_last(batch.target_positions, num_targets),
        target_ids=_pad(batch.target_ids, num_targets, IGNORE_INDEX),
        target_number_values=_pad(batch.target_number_values, time, 1),
        source=None if source is None else _pad_tokens(source, bucket_length(source.ids.shape[1], limit)),
        counts={},
        num_input_tokens=0,
    )


def _pad_tokens(tokens: Tokens, time: int) -> Tokens:
    position_ids = tokens.position_ids
    return replace(
        tokens,
        ids=_pad(tokens.ids, time, PAD),
        number_values=_pad(tokens.number_values, time, 1),
        blocked_keys=_pad(tokens.blocked_keys, time, 0),
        # Those of padding must be in the table of position embeddings, too.
        position_ids=None if position_ids is None else tuple(_repeat_last(ids, time) for ids in position_ids),
    )


def _pad(x: Any, time: int, value: float) -> Any:
    return None if x is None else pad(x, (0, time - x.shape[1]), value=value)


def _repeat_last(x: Tensor, time: int) -> Tensor:
    return torch.cat([x, x[:, -1:].expand(-1, time - x.shape[1])], dim=1)


class CompiledShapes:
    """The shapes of batches that a run has compiled."""

    def __init__(self) -> None:
        self.shapes: set[tuple[torch.Size | None, ...]] = set()
        self.is_full = False
        """Whether a batch had a shape beyond them."""

    def stance(self, batch: Batch) -> AbstractContextManager[object]:
        """The context of the forward pass of a batch: compiled, or beyond `MAX_SHAPES` shapes uncompiled."""
        source = None if batch.source is None else batch.source.ids.shape
        shape = (batch.tokens.ids.shape, batch.target_positions.shape, source)
        if shape not in self.shapes and len(self.shapes) >= MAX_SHAPES:
            self.is_full = True
            return torch.compiler.set_stance("force_eager")  # type: ignore[no-any-return]
        self.shapes.add(shape)
        return nullcontext()
