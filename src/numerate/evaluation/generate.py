"""Decoding token by token, with the model's state as cache."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from numerate.batch import Draw, Model, Output, Tokens
from numerate.vocabulary import END, PAD


@dataclass(frozen=True)
class Generated:
    """What was said after each prompt: `ids` up to and with the end token, PAD behind it; `lengths` of it.

    `log_probability` is the model's own of all it said, in nats. `values` are the numbers that its number head said
    beside each token, 1 behind the end; None for a model without one. They mean something where [NUM] was said.
    """

    ids: Int[Tensor, "rows said"]
    lengths: Int[Tensor, " rows"]
    log_probability: Float[Tensor, " rows"]
    values: Float[Tensor, "rows said"] | None = None


@torch.no_grad()
def greedy(
    model: Model, prompts: Tokens, most: int, *, source: Tokens | None = None, placement: int = 0, end: int = END
) -> Generated:
    """Always the likeliest next token, up to `most` tokens or until every row has said `end`.

    Prompts may differ in length (padded on the right). One token costs one step over the cached state, not the prefix.
    The number that a number head says beside a token is read with that token. A model with a regression head says its
    number and the end, whatever it finds likely.
    """
    capacity = int(prompts.lengths.max()) + most
    started = model.start(prompts, source, capacity=capacity, placement=placement)
    said: list[Tensor] = []
    numbers: list[Tensor] = []
    done = torch.zeros_like(prompts.lengths, dtype=torch.bool)
    total = torch.zeros(prompts.ids.shape[0], device=prompts.ids.device)
    for place in range(most):
        best, chosen = _next(model, started.output.logits[:, -1], place, end)
        total = total + torch.where(done, 0.0, best)
        chosen = torch.where(done, PAD, chosen)
        said.append(chosen)
        value = value_beside(started.output)
        numbers += [] if value is None else [torch.where(done, 1.0, value)]
        done = done | (chosen == end)
        if place == most - 1 or bool(done.all()):
            break
        started = model.step(chosen, value, started.state)
    ids = torch.stack(said, dim=1)
    ended = ids == end
    after = ended.long().cumsum(1) - ended.long()
    ids = torch.where(after > 0, PAD, ids)
    lengths = torch.where(ended.any(1), ended.long().argmax(1) + 1, ids.shape[1])
    return Generated(ids, lengths, total, torch.stack(numbers, dim=1) if numbers else None)


def _next(
    model: Model, logits: Float[Tensor, "rows vocabulary"], place: int, end: int
) -> tuple[Float[Tensor, " rows"], Int[Tensor, " rows"]]:
    """The next token of each row, and its log-probability: the likeliest, or what a regression head's answer has."""
    scores = logits.float().log_softmax(-1)
    if model.regression is None:
        best, chosen = scores.max(-1)
        return best, chosen
    token = model.regression if place == 0 else end
    return scores[:, token], torch.full_like(scores[:, 0], token, dtype=torch.int64)


def value_beside(output: Output) -> Float[Tensor, " rows"] | None:
    """The number that is said beside the last token of each row, None for a model without a number head."""
    values = output.values
    return None if values is None else values[:, -1]


@torch.no_grad()
def greedy_uncached(
    model: Model, prompts: Tokens, most: int, *, source: Tokens | None = None, placement: int = 0, end: int = END
) -> Generated:
    """The same by reading the whole prefix again for every token: the plain form that `greedy` is tested against.

    It computes every place in full, so that it leans neither on a cache nor on what is computed at asked places only.
    """
    rows, width = prompts.ids.shape
    ids = torch.nn.functional.pad(prompts.ids, (0, most))
    values = None if prompts.values is None else torch.nn.functional.pad(prompts.values, (0, most), value=1.0)
    numbers: list[Tensor] = []
    lengths, row = prompts.lengths.clone(), torch.arange(rows, device=prompts.ids.device)
    said: list[Tensor] = []
    done = torch.zeros(rows, dtype=torch.bool, device=ids.device)
    total = torch.zeros(rows, device=ids.device)
    for place in range(most):
        read = None if values is None else values[:, : width + place]
        tokens = replace(prompts, ids=ids[:, : width + place], lengths=lengths, values=read, places=None)
        output = model(model.place(tokens, Draw.fixed(placement)), source)
        best, chosen = _next(model, output.logits[row, lengths - 1], place, end)
        total = total + torch.where(done, 0.0, best)
        chosen = torch.where(done, PAD, chosen)
        said.append(chosen)
        ids[row, lengths] = chosen
        if output.values is not None:
            value = output.values[row, lengths - 1]
            numbers.append(torch.where(done, 1.0, value))
            values = torch.ones_like(ids, dtype=value.dtype) if values is None else values
            values[row, lengths] = value.to(values.dtype)
        lengths = lengths + 1
        done = done | (chosen == end)
        if bool(done.all()):
            break
    out = torch.stack(said, dim=1)
    ended = out == end
    last = torch.where(ended.any(1), ended.long().argmax(1) + 1, out.shape[1])
    return Generated(out, last, total, torch.stack(numbers, dim=1) if numbers else None)
