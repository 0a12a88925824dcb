"""What is wrong with parts of users: each function yields problems, the first of which a check raises.

`numerate.training.preflight` runs them before training. They find what would go unnoticed: data and forwards that are
not functions of their key, and models that see what they must not. Of wrong shapes and missing gradients PyTorch
complains by itself, with the name of the part (`naming_own_parts`). The parts of numerate are left out: tests hold them
to more than this.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from numerate.batch import Model, StepContext, Tokens
from numerate.errors import OperationalError, UserError, user_code_location
from numerate.evaluation.evaluation_data import select_rows
from numerate.positions.position_ids import PositionIds
from numerate.tasks.counter_rng import CounterRNG, random_key
from numerate.tasks.questions import Questions
from numerate.tasks.task import Task

MAX_LENGTH = 24
"""The number of tokens that models are compared on."""


def is_from_library(part: type) -> bool:
    """Whether a class belongs to numerate, or to a library that it builds models of."""
    return part.__module__.partition(".")[0] in ("numerate", "torch", "transformers")


def own_parts(part: object) -> list[str]:
    """The classes of a user among a part and its settings, by their names."""
    values = part if isinstance(part, tuple) else ()
    if is_dataclass(part) and not isinstance(part, type):
        values = tuple(getattr(part, field.name) for field in fields(part))
        if not is_from_library(type(part)):
            return list(dict.fromkeys([type(part).__name__, *own_parts(values)]))
    return list(dict.fromkeys(name for value in values for name in own_parts(value)))


@contextmanager
def naming_own_parts(recipe: object) -> Iterator[None]:
    """Raises a `UserError` that names the parts of users in a recipe where PyTorch fails outside of their files: a
    tensor of a wrong shape fails only where it is used."""
    try:
        yield
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError) as error:
        names = own_parts(recipe)
        if isinstance(error, UserError | OperationalError) or not names or user_code_location(error) is not None:
            raise
        if "out of memory" in str(error):
            raise
        what = f"what it computes cannot be used here: {type(error).__name__}: {error}"
        raise UserError(f"{' or '.join(names)}: {what}; see the class that it derives from (docs/adding.md)") from error


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
    """Position ids are not negative, and are a function of their own row and the context."""
    ids = scheme.assign(tokens, token_kinds, step_context)
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
    whole, again, other = (
        model(one).hidden_states[0] for one in (row, model.assign_positions(tokens, context), changed)
    )
    together = model(_stack_rows(row, changed)).hidden_states
    decoded = _decode(model, tokens, row, half) if is_causal else None

    def differ(one: Tensor, two: Tensor, tolerance: float = 1e-4) -> bool:
        # 1e-2 where shapes differ, so that TF32 rounds otherwise.
        return bool((one - two).abs().max() > tolerance * whole.abs().max())

    if differ(whole, again):
        yield (
            "has a forward that is random, also in evaluation mode; use nn.Dropout or dropout(x, p, self.training), "
            "and no other randomness"
        )
    if differ(torch.stack((whole, other)), together, 1e-2):
        yield (
            "computes something else for a row when other rows of the batch change; it must treat rows independently, "
            "without a mean or norm over the first dimension"
        )
    if is_causal and differ(whole[:half], other[:half]):
        yield "depends on later tokens, so that it would see the answers; it must be causal"
    if decoded is not None and differ(whole[half - 1 :], decoded, 1e-2):
        yield "must compute in prefill and step what it computes in forward, token by token"


@contextmanager
def evaluating(model: nn.Module, own_modules: Sequence[nn.Module]) -> Iterator[None]:
    """Evaluation mode without gradients, in which parameters of a user's modules that begin at 0, such as gates, are
    0.1."""
    was_training = model.training
    zeros = [parameter for module in own_modules for parameter in module.parameters() if not parameter.any()]
    model.eval()
    with torch.no_grad():
        try:
            for parameter in zeros:
                parameter.fill_(0.1)
            yield
        finally:
            for parameter in zeros:
                parameter.zero_()
            model.train(was_training)


def first_tokens(rows: Tokens, length: int) -> Tokens:
    """The first tokens of the first row."""
    values = None if rows.number_values is None else rows.number_values[:1, :length]
    return Tokens(rows.ids[:1, :length], torch.full_like(rows.lengths[:1], length), rows.example_indices[:1], values)


def _stack_rows(one: Tokens, other: Tokens) -> Tokens:
    """Two rows of the same length and the same values of numbers as a batch."""
    values, pairs = one.number_values, zip(one.position_ids or (), other.position_ids or (), strict=False)
    return Tokens(
        torch.cat((one.ids, other.ids)),
        torch.cat((one.lengths, other.lengths)),
        torch.cat((one.example_indices, other.example_indices)),
        None if values is None else values.expand(2, -1),
        position_ids=None if None in (one.position_ids, other.position_ids) else tuple(map(torch.cat, pairs)),
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
