"""What is wrong with parts of users: each function yields problems, the first of which a check raises.

`numerate.training.preflight` runs them before training. The parts of numerate itself are left out: tests hold them to
more than this.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from numerate.batch import Batch, Model, Output, StepContext, Tokens
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import select_rows
from numerate.losses.loss import LossModule
from numerate.mixers.mixer import TokenMixer
from numerate.positions.position import InputPosition
from numerate.positions.position_ids import PositionIds
from numerate.tasks.counter_rng import CounterRNG, random_key
from numerate.tasks.questions import Questions
from numerate.tasks.task import Task

MAX_LENGTH = 24
"""The number of tokens that models are compared on."""

_NO_GRADIENT = "no .detach(), .item(), argmax or torch.no_grad() may stand in between"


def is_from_library(part: type) -> bool:
    """Whether a class belongs to numerate, or to a library that it builds models of."""
    return part.__module__.partition(".")[0] in ("numerate", "torch", "transformers")


def draw_questions(task: Task, count: int) -> Questions:
    """The same few questions of a task at every call; much cheaper than a block of `Task.examples`."""
    return task.draw(CounterRNG(random_key("preflight")), np.arange(count))


def task_problems(task: Task) -> Iterator[str]:
    """A task is a function of the key of its generator."""
    if not draw_questions(task, 32).is_same(draw_questions(task, 32)):
        yield (
            "draws other questions when it is asked again with the same random generator; all that is random must come "
            "from the argument rng (rng.random(), not random.random()), and nothing may count calls"
        )


def position_ids_problems(
    scheme: PositionIds, tokens: Tokens, token_kinds: Tensor, step_context: StepContext
) -> Iterator[str]:
    """Position ids have the right shape and type, are not negative, and are a function of their own row and the
    context."""
    (rows, time), dtype = tokens.ids.shape, torch.int64 if scheme.is_integer else torch.float32
    ids = scheme.assign(tokens, token_kinds, step_context)
    if not isinstance(ids, Tensor) or ids.shape not in ((rows, time), (1, time)):
        yield (
            f"must return a tensor of rows x time, here of the shape ({rows}, {time}), or (1, {time}) if it is the "
            f"same for all rows, not {_describe(ids)}"
        )
    if ids.dtype != dtype:
        yield f"must return a tensor of {dtype}, since its is_integer is {scheme.is_integer}, not of {ids.dtype}"
    if not bool((ids >= 0).all()):
        yield f"must return position ids from 0 on, not {ids.min().item()}"
    if not torch.equal(ids, scheme.assign(tokens, token_kinds, step_context)):
        yield (
            "must return the same position ids for the same tokens and step_context; random offsets are "
            "numerate.positions.counter.random_integers(step_context, tokens.example_indices, ...)"
        )
    last = scheme.assign(select_rows(tokens, slice(-1, None)), token_kinds[-1:], step_context)
    if not torch.equal(ids[-1:], last):
        yield "must return position ids of a row that do not depend on the other rows of the batch"


def model_problems(
    model: Model, tokens: Tokens, vocabulary_size: int, *, is_causal: bool = True, own_ids: bool = False
) -> Iterator[str]:
    """A model is a function of each row alone, and a causal one of earlier tokens alone, in forward and in decoding.

    `tokens` is one row, which must be at least 4 tokens long. With `own_ids` position ids are also compared. To be used
    within `evaluating`.
    """
    context, half = StepContext.for_evaluation(), tokens.ids.shape[1] // 2
    row = model.assign_positions(tokens, context)
    changed = replace(row, ids=row.ids.clone())
    changed.ids[0, half:] = (row.ids[0, half:] + 1) % vocabulary_size
    if own_ids:  # those of numerate may look at what kind the next token is
        changed = model.assign_positions(replace(changed, position_ids=None), context)
    with torch.enable_grad():
        hidden = model(row).hidden_states[0]
    whole, (again, other) = (
        hidden.detach(),
        (model(one).hidden_states[0] for one in (model.assign_positions(tokens, context), changed)),
    )
    together = model(_stack_rows(row, changed)).hidden_states
    decoded = _decode(model, tokens, row, half) if is_causal else None

    def differ(one: Tensor, two: Tensor, tolerance: float = 1e-4) -> bool:
        # 1e-2 where shapes differ, so that TF32 rounds otherwise.
        return bool((one - two).abs().max() > tolerance * whole.abs().max())

    checks = (
        (not bool(whole.isfinite().all()), "computes values that are not finite (nan or inf)"),
        (not hidden.requires_grad, f"must compute its output from its parameters with a gradient; {_NO_GRADIENT}"),
        (
            differ(whole, again),
            "has a forward that is random, also in evaluation mode; use nn.Dropout or dropout(x, p, self.training), "
            "and no other randomness",
        ),
        (
            differ(torch.stack((whole, other)), together, 1e-2),
            "computes something else for a row when other rows of the batch change; it must treat rows independently, "
            "without a mean or norm over the first dimension",
        ),
        (
            is_causal and differ(whole[:half], other[:half]),
            "depends on later tokens, so that it would see the answers; it must be causal",
        ),
        (
            decoded is not None and differ(whole[half - 1 :], decoded, 1e-2),
            "must compute in prefill and step what it computes in forward, token by token",
        ),
    )
    yield from (problem for is_wrong, problem in checks if is_wrong)


@contextmanager
def evaluating(model: nn.Module, own_modules: Sequence[nn.Module]) -> Iterator[None]:
    """Evaluation mode without gradients, in which parameters of a user's modules that begin at 0, such as gates, are
    0.1, and outputs of mixers and input positions of another shape than their input raise `UserError`."""
    was_training = model.training
    zeros = [parameter for module in own_modules for parameter in module.parameters() if not parameter.any()]
    model.eval()
    with torch.no_grad(), ExitStack() as hooks:
        for module in own_modules:
            if isinstance(module, TokenMixer | InputPosition):
                hooks.callback(module.register_forward_hook(_check_output_shape).remove)
        try:
            for parameter in zeros:
                parameter.fill_(0.1)
            yield
        finally:
            for parameter in zeros:
                parameter.zero_()
            model.train(was_training)


def loss_problems(loss: LossModule, batch: Batch, vocabulary_size: int, *, targets_only: bool = True) -> Iterator[str]:
    """A loss returns a sum and a count for each of its terms, and has a gradient."""
    positions = batch.target_positions_or_none if targets_only else None
    shape = (batch.targets if positions is None else positions).shape
    logits = torch.randn(*shape, vocabulary_size, generator=torch.Generator().manual_seed(0))
    logits = logits.to(batch.targets.device).requires_grad_()
    output = Output(
        logits, lambda hidden: hidden, target_positions=positions, number_head=lambda hidden: hidden.tanh().sum(-1)
    )
    terms, sums, counts = ", ".join(loss.weights), loss(output, batch), loss.counts(batch)
    if not isinstance(sums, Mapping) or sums.keys() != loss.weights.keys():
        yield f"must return a dictionary with a sum for each term of its weights ({terms}), not {_describe(sums)}"
    for name, value in sums.items():
        if not isinstance(value, Tensor) or value.shape:
            yield f"must return the sum of {name} over all targets, a tensor without dimensions, not {_describe(value)}"
    if counts.keys() != loss.weights.keys() or not all(isinstance(count, int) for count in counts.values()):
        yield f"must return a whole number for each term ({terms}) from counts(batch), not {counts}"
    if not all(bool(value.isfinite()) for value in sums.values()):
        yield "is not finite (nan or inf) for logits that are"
    if not any(value.requires_grad for value in sums.values()):
        yield f"must be computed from the logits with a gradient; {_NO_GRADIENT}"


def first_tokens(rows: Tokens, length: int) -> Tokens:
    """The first tokens of the first row."""
    values = None if rows.number_values is None else rows.number_values[:1, :length]
    return Tokens(rows.ids[:1, :length], torch.full_like(rows.lengths[:1], length), rows.example_indices[:1], values)


def _stack_rows(one: Tokens, other: Tokens) -> Tokens:
    """Two rows of the same length and the same values of numbers as a batch."""
    values, first, second = one.number_values, one.position_ids, other.position_ids
    return Tokens(
        torch.cat((one.ids, other.ids)),
        torch.cat((one.lengths, other.lengths)),
        torch.cat((one.example_indices, other.example_indices)),
        None if values is None else values.expand(2, -1),
        position_ids=None
        if first is None or second is None
        else tuple(torch.cat(pair) for pair in zip(first, second, strict=True)),
    )


def _decode(model: Model, tokens: Tokens, row: Tokens, length: int) -> Tensor | None:
    """The hidden states at the end of the first `length` tokens and at all later ones, token by token; None for a mixer
    that does not decode, whose `prefill` or `step` raises `NotImplementedError`."""
    try:
        step = model.prefill(first_tokens(tokens, length), capacity=row.ids.shape[1])
        found = [step.output.hidden_states[0, -1]]
        for t in range(length, row.ids.shape[1]):
            value = None if row.number_values is None else row.number_values[:, t]
            step = model.step(row.ids[:, t], value, step.state)
            found.append(step.output.hidden_states[0, -1])
        return torch.stack(found)
    except NotImplementedError:
        return None


def _check_output_shape(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
    shape = tuple(inputs[0].shape)
    if not isinstance(output, Tensor) or tuple(output.shape) != shape:
        raise UserError(
            f"model: {type(module).__name__}.forward must return a tensor of rows x time x width, here of the shape "
            f"{shape}, not {_describe(output)}"
        )


def _describe(value: object) -> str:
    """What a function has returned in place of the right thing."""
    if isinstance(value, Tensor):
        return f"a tensor of the shape {tuple(value.shape)}"
    return f"a dictionary of {', '.join(map(str, value))}" if isinstance(value, Mapping) else type(value).__name__
