"""Decoding token by token, with the model's state as cache."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from numerate.batch import Model, Output, StepContext, Tokens
from numerate.vocabulary import END, PAD

Choose = Callable[[Float[Tensor, "rows vocabulary"], int], Int[Tensor, " rows"]]
"""The next token of each row, from its logits and how many tokens have been generated."""

OnTokens = Callable[[Sequence[int | None]], Collection[int]]
"""Called with the new token of each row, None for one that had ended; returns the rows that shall end with it."""

BETWEEN = 8
"""Tokens between two checks whether all rows have ended: each synchronizes with the device."""


@dataclass(frozen=True)
class Generated:
    """The tokens generated after each prompt: `ids` up to and with the end token, PAD behind it; their `lengths`.

    `log_probability` is the model's own of all of them, in nats. `values` are the numbers that its number head predicts
    with each token, 1 behind the end; None for a model without one. They have a meaning where the token is [NUM].
    `stopped` are the rows that ended with an end token, and not at the maximum length.
    """

    ids: Int[Tensor, "rows tokens"]
    lengths: Int[Tensor, " rows"]
    log_probability: Float[Tensor, " rows"]
    values: Float[Tensor, "rows tokens"] | None = None
    stopped: Bool[Tensor, " rows"] | None = None


class ModelReader(ABC):
    """Reads tokens and keeps the output behind the last one of each row."""

    output: Output

    @abstractmethod
    def read(self, ids: Int[Tensor, " rows"], values: Tensor | None) -> None:
        """One more token of each row."""


class Cached(ModelReader):
    """One token costs one step over the state of the model, not the prefix."""

    def __init__(
        self, model: Model, prompts: Tokens, most: int, source: Tokens | None = None, position_offset: int = 0
    ):
        self.model = model
        capacity = int(prompts.lengths.max()) + most
        started = model.start(prompts, source, capacity=capacity, position_offset=position_offset)
        self.output, self._state = started.output, started.state

    def read(self, ids: Int[Tensor, " rows"], values: Tensor | None) -> None:
        started = self.model.step(ids, values, self._state)
        self.output, self._state = started.output, started.state


class Plain(ModelReader):
    """The whole prefix is read again for every token: the reference that `Cached` is tested against.

    It computes every position, so that it uses neither a cache nor computation at target positions only.
    """

    def __init__(
        self, model: Model, prompts: Tokens, most: int, source: Tokens | None = None, position_offset: int = 0
    ):
        self.model, self.prompts, self.source, self.position_offset = model, prompts, source, position_offset
        self.time = prompts.ids.shape[1]
        self.ids = torch.nn.functional.pad(prompts.ids, (0, most))
        values = prompts.values
        self.values = None if values is None else torch.nn.functional.pad(values, (0, most), value=1.0)
        self.lengths, self.rows = prompts.lengths, torch.arange(len(self.ids), device=self.ids.device)
        self.output = self._read()

    def read(self, ids: Int[Tensor, " rows"], values: Tensor | None) -> None:
        self.ids[self.rows, self.lengths] = ids
        if values is not None:
            self.values = torch.ones_like(self.ids, dtype=values.dtype) if self.values is None else self.values
            self.values[self.rows, self.lengths] = values.to(self.values.dtype)
        self.lengths, self.time = self.lengths + 1, self.time + 1
        self.output = self._read()

    def _read(self) -> Output:
        read_values = None if self.values is None else self.values[:, : self.time]
        read = replace(
            self.prompts, ids=self.ids[:, : self.time], lengths=self.lengths, values=read_values, position_ids=None
        )
        output = self.model(self.model.assign_positions(read, StepContext.fixed(self.position_offset)), self.source)
        last, values = self.lengths - 1, output.values
        own = None if values is None else values[self.rows, last][:, None]
        return Output(
            output.hidden[self.rows, last][:, None], output.head, number_head=own if own is None else lambda _: own
        )


def speak(
    model: Model,
    reader: ModelReader,
    choose: Choose,
    rows: int,
    most: int,
    stop: Sequence[int],
    *,
    on_progress: OnTokens | None = None,
) -> Generated:
    """Generates up to `most` tokens after what a reader has read, each chosen by `choose`, or until every row has one
    of `stop`.

    The host synchronizes with the device only every `BETWEEN` tokens, to check whether all rows have ended; on a CPU,
    and with `on_progress`, at each token. The number that a number head predicts with a token is read with that token.
    A model with a regression head gives its number and the end token, whatever their probability.
    """
    device = reader.output.hidden.device
    ends = torch.tensor(list(stop), dtype=torch.long, device=device)
    regression = None if model.regression is None else (model.regression, stop[0] if stop else END)
    tokens: list[Tensor] = []
    numbers: list[Tensor] = []
    total: Any = 0.0
    done = torch.zeros(rows, dtype=torch.bool, device=device)
    lengths = torch.zeros(rows, dtype=torch.long, device=device)
    stopped = done
    for step in range(most):
        output = reader.output
        logits = output.logits[:, -1]
        if logits.dtype not in (torch.float32, torch.float64):
            logits = logits.float()
        fixed = None if regression is None else regression[min(step, 1)]
        chosen = choose(logits, step) if fixed is None else torch.full_like(lengths, fixed)
        # -1, an end that no token is, can be chosen by a regression head alone.
        score = logits.gather(1, chosen[:, None].clamp(min=0))[:, 0] - logits.logsumexp(-1)
        total = total + torch.where(done, 0.0, score)
        chosen = torch.where(done, PAD, chosen)
        tokens.append(chosen)
        value = value_beside(output)
        numbers += [] if value is None else [torch.where(done, 1.0, value)]
        lengths = lengths + ~done
        ending = ~done & torch.isin(chosen, ends) if len(ends) != 1 else ~done & (chosen == ends)
        stopped = stopped | ending
        before, done = done, done | ending
        if on_progress is not None:
            new = [None if over else i for i, over in zip(chosen.tolist(), before.tolist(), strict=True)]
            done[list(on_progress(new))] = True
        if step == most - 1:
            break
        check = device.type == "cpu" or on_progress is not None or step % BETWEEN == BETWEEN - 1
        if check and bool(done.all()):
            break
        reader.read(chosen, value)
    if not tokens:
        empty = torch.zeros(rows, 0, dtype=torch.long, device=device)
        return Generated(empty, lengths, torch.zeros(rows, device=device), None, stopped)
    longest = int(lengths.max())  # a device may have been a few tokens ahead of the check
    ids = torch.stack(tokens[:longest], dim=1)
    return Generated(ids, lengths, total, torch.stack(numbers[:longest], dim=1) if numbers else None, stopped)


def most_probable(logits: Float[Tensor, "rows vocabulary"], step: int) -> Int[Tensor, " rows"]:
    """The most probable next token of each row; of ties the one with the lowest id."""
    return logits.argmax(-1)


@torch.no_grad()
def greedy(
    model: Model, prompts: Tokens, most: int, *, source: Tokens | None = None, position_offset: int = 0, end: int = END
) -> Generated:
    """Greedy decoding of up to `most` tokens, or until every row has `end`.

    Prompts may differ in length (padded on the right). One token costs one step over the cached state, not the prefix.
    """
    reader = Cached(model, prompts, most, source, position_offset)
    return speak(model, reader, most_probable, len(prompts.ids), most, (end,))


def value_beside(output: Output) -> Float[Tensor, " rows"] | None:
    """The number predicted with the last token of each row, None for a model without a number head."""
    values = output.values
    return None if values is None else values[:, -1]


@torch.no_grad()
def greedy_uncached(
    model: Model, prompts: Tokens, most: int, *, source: Tokens | None = None, position_offset: int = 0, end: int = END
) -> Generated:
    """The same without a cache: the reference that `greedy` is tested against."""
    return speak(
        model, Plain(model, prompts, most, source, position_offset), most_probable, len(prompts.ids), most, (end,)
    )
