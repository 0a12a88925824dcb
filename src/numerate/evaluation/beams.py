"""Beam search."""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from numerate.batch import Model, Output, Tokens
from numerate.errors import OperationalError, UserError
from numerate.evaluation.generate import Generated, greedy, value_beside
from numerate.vocabulary import END, PAD

PUBLISHED_BEAMS = 4
"""As the number token loss is evaluated: Zausinger et al. (2025), https://arxiv.org/abs/2411.02083."""

PUBLISHED_SPARE = 10
"""There an answer may have so many tokens more than the right one."""

NEVER = -1e9
"""Below every score."""


@torch.no_grad()
def beam_search(
    model: Model,
    prompts: Tokens,
    most: int,
    *,
    source: Tokens | None = None,
    beams: int = PUBLISHED_BEAMS,
    length_penalty: float = 1.0,
    position_offset: int = 0,
    end: int = END,
) -> Generated:
    """The best answer of `beams` that are kept at every token, up to `most` tokens.

    What is compared of answers that have ended is their log-probability divided by their length to the power
    `length_penalty`. A row is done when its best open answer, at its present length, is no better than the worst of
    `beams` ended ones: as transformers' `generate(num_beams=...)` does by default, whose answers these are. One beam
    is greedy decoding, but that an open answer may end by `most` alone.

    Raises `UserError` for fewer than one beam, `OperationalError` for NaN logits.
    """
    if beams < 1:
        raise UserError(f"beams: {beams} beams search nothing; 4 were published, 1 is greedy decoding")
    if model.regression is not None:  # it has one answer
        return greedy(model, prompts, most, source=source, position_offset=position_offset, end=end)
    rows, device = prompts.ids.shape[0], prompts.ids.device
    reader = _Reader(model, prompts, most, source, beams, position_offset)
    base = torch.arange(rows, device=device)[:, None] * beams
    open_ones = _Answers.none(rows, beams, most, device)
    open_ones.scores[:, 0] = 0.0  # all are alike at first: one is continued
    ended = _Answers.none(rows, beams, most, device)
    hopeful = torch.ones(rows, 1, dtype=torch.bool, device=device)
    output = reader.output
    broken = torch.zeros(rows, dtype=torch.bool, device=device)
    for place in range(most):
        scores = output.logits[:, -1].float().log_softmax(-1).view(rows, beams, -1) + open_ones.scores[..., None]
        found, flat = scores.flatten(1).topk(min(2 * beams, scores[0].numel()))
        broken |= found.isnan().any(1)  # which are the highest of all to topk
        parents, ids = flat // scores.shape[-1], flat % scores.shape[-1]
        value = value_beside(output)
        new_values = None if value is None else value.view(rows, beams).gather(1, parents)
        longer = open_ones.longer(place, parents, ids, new_values, found)
        stops = (ids == end) | (place == most - 1)
        best = torch.arange(found.shape[1], device=device) < beams
        final = torch.where(stops & best & hopeful, found / (place + 1) ** length_penalty, NEVER)
        ended = ended.joined(longer.scored(final)).best(beams)
        going, chosen = torch.where(stops, NEVER, found).topk(beams)
        open_ones = longer.taken(chosen).scored(going)
        worst = ended.scores[:, -1:]
        hopeful = hopeful & (going[:, :1] / (place + 1) ** length_penalty > worst)
        if place == most - 1 or not bool(hopeful.any()):
            break
        values = open_ones.values
        output = reader.read(
            (base + parents.gather(1, chosen)).flatten(),
            open_ones.ids[..., place].flatten(),
            None if values is None else values[..., place].flatten(),
        )
    if bool(broken.any()):
        raise OperationalError(
            f"beams: the scores of {int(broken.sum())} of {rows} answers are no numbers (NaN): the model's weights "
            "have gone wrong; an earlier checkpoint may be right"
        )
    return ended.first(end, length_penalty)


class _Answers:
    """So many answers of each row: `ids`, `values` beside them and `scores`."""

    def __init__(
        self,
        ids: Int[Tensor, "rows answers most"],
        scores: Float[Tensor, "rows answers"],
        values: Float[Tensor, "rows answers most"] | None,
    ) -> None:
        self.ids, self.scores, self.values = ids, scores, values

    @classmethod
    def none(cls, rows: int, answers: int, most: int, device: torch.device) -> "_Answers":
        ids = torch.full((rows, answers, most), PAD, device=device)
        return cls(ids, torch.full((rows, answers), NEVER, device=device), None)

    def longer(self, place: int, parents: Tensor, ids: Tensor, values: Tensor | None, scores: Tensor) -> "_Answers":
        """Some of them, each with one more token."""
        found = self.taken(parents)
        found.ids[..., place] = ids
        if values is not None:
            found.values = torch.ones_like(found.ids, dtype=values.dtype) if found.values is None else found.values
            found.values[..., place] = values
        return found.scored(scores)

    def taken(self, which: Int[Tensor, "rows some"]) -> "_Answers":
        return _Answers(
            self.ids.take_along_dim(which[..., None], 1),
            self.scores.gather(1, which),
            None if self.values is None else self.values.take_along_dim(which[..., None], 1),
        )

    def scored(self, scores: Float[Tensor, "rows answers"]) -> "_Answers":
        return _Answers(self.ids, scores, self.values)

    def joined(self, others: "_Answers") -> "_Answers":
        values = others.values
        if values is not None:
            own = torch.ones_like(self.ids, dtype=values.dtype) if self.values is None else self.values
            values = torch.cat([own, values], 1)
        return _Answers(torch.cat([self.ids, others.ids], 1), torch.cat([self.scores, others.scores], 1), values)

    def best(self, count: int) -> "_Answers":
        scores, which = self.scores.topk(count)
        return self.taken(which).scored(scores)

    def first(self, end: int, length_penalty: float) -> Generated:
        """The best one of each row."""
        ids = self.ids[:, 0]
        stops = ids == end
        lengths = torch.where(stops.any(1), stops.long().argmax(1) + 1, ids.shape[1])
        longest = int(lengths.max())
        values = None if self.values is None else self.values[:, 0, :longest]
        return Generated(ids[:, :longest], lengths, self.scores[:, 0] * lengths**length_penalty, values)


class _Reader:
    """Reads one more token of chosen answers: from the model's state where that can be taken apart, else all again."""

    def __init__(
        self, model: Model, prompts: Tokens, most: int, source: Tokens | None, beams: int, position_offset: int
    ) -> None:
        rows = torch.arange(prompts.ids.shape[0], device=prompts.ids.device).repeat_interleave(beams)
        self.model, self.position_offset = model, position_offset
        self.capacity = int(prompts.lengths.max()) + most
        self.tokens, self.source = _rows(prompts, rows), None if source is None else _rows(source, rows)
        started = model.start(self.tokens, self.source, capacity=self.capacity, position_offset=position_offset)
        self.output: Output = started.output
        self.state: Any = started.state

    def read(self, chosen: Int[Tensor, " answers"], ids: Int[Tensor, " answers"], values: Tensor | None) -> Output:
        """The output behind these answers, each with one more token."""
        state = self.model.chosen(self.state, chosen) if self.state is not None else None
        if state is not None:
            started = self.model.step(ids, values, state)
            self.state = started.state
            return started.output
        self.state = None
        self._append(chosen, ids, values)
        started = self.model.start(
            self.tokens, self.source, capacity=self.capacity, position_offset=self.position_offset
        )
        return started.output

    def _append(self, chosen: Tensor, ids: Tensor, values: Tensor | None) -> None:
        tokens = _rows(self.tokens, chosen)
        ends = tokens.lengths[:, None]
        wide = pad(tokens.ids, (0, 1), value=PAD).scatter(1, ends, ids[:, None])
        numbers = tokens.values
        if values is not None or numbers is not None:
            numbers = torch.ones_like(tokens.ids, dtype=torch.float32) if numbers is None else numbers
            one = torch.ones_like(ids) if values is None else values
            numbers = pad(numbers, (0, 1), value=1.0).scatter(1, ends, one[:, None].to(numbers.dtype))
        hidden = None if tokens.blocked_keys is None else pad(tokens.blocked_keys, (0, 1))
        self.tokens = replace(tokens, ids=wide, lengths=tokens.lengths + 1, values=numbers, blocked_keys=hidden)


def _rows(tokens: Tokens, rows: Int[Tensor, " chosen"]) -> Tokens:
    """These rows of tokens, in this order."""
    return replace(
        tokens,
        ids=tokens.ids[rows],
        lengths=tokens.lengths[rows],
        row=tokens.row[rows],
        values=None if tokens.values is None else tokens.values[rows],
        blocked_keys=None if tokens.blocked_keys is None else tokens.blocked_keys[rows],
        position_ids=None,
    )
