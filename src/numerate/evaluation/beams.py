"""Beam search."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from numerate.batch import Model, Output, Tokens
from numerate.errors import OperationalError, check_positive
from numerate.evaluation.evaluation_data import select_rows
from numerate.evaluation.generate import GenerationOutput, end_ids, greedy_decode, last_number
from numerate.vocabulary import EOS, PAD

PUBLISHED_NUM_BEAMS = 4
"""The number of beams in the published evaluation of the number token loss: Zausinger et al. (2025),
https://arxiv.org/abs/2411.02083."""

PUBLISHED_EXTRA_TOKENS = 10
"""The number of tokens that answers may be longer than the correct one in that evaluation."""

MIN_SCORE = -1e9
"""Below every score."""


@torch.no_grad()
def beam_search(
    model: Model,
    prompts: Tokens,
    max_new_tokens: int,
    *,
    source: Tokens | None = None,
    num_beams: int = PUBLISHED_NUM_BEAMS,
    length_penalty: float = 1.0,
    position_offset: int = 0,
    end_id: int = EOS,
) -> GenerationOutput:
    """Beam search with `num_beams` beams, up to `max_new_tokens` tokens.

    Finished answers are ranked by their log-probability divided by their length to the power `length_penalty`. A row is
    done when its best unfinished answer, at its current length, is no better than the worst of `num_beams` finished
    ones. This is the default of transformers' `generate(num_beams=...)`, and the answers are the same. One beam is
    greedy decoding, except that an unfinished answer ends only at `max_new_tokens`.

    Raises `UserError` for fewer than one beam, `OperationalError` for NaN logits.
    """
    check_positive("beams", num_beams)
    if model.regression_token_id is not None:  # it predicts the whole answer at once
        return greedy_decode(
            model, prompts, max_new_tokens, source=source, position_offset=position_offset, end_id=end_id
        )
    rows, device = prompts.ids.shape[0], prompts.ids.device
    decoder = _BeamDecoder(model, prompts, max_new_tokens, source, num_beams, position_offset)
    row_offsets = torch.arange(rows, device=device)[:, None] * num_beams
    active = _Beams.empty(rows, num_beams, max_new_tokens, device)
    active.scores[:, 0] = 0.0  # all beams are equal at first: continue only one
    finished = _Beams.empty(rows, num_beams, max_new_tokens, device)
    can_improve = torch.ones(rows, 1, dtype=torch.bool, device=device)
    output = decoder.output
    has_nan = torch.zeros(rows, dtype=torch.bool, device=device)
    ends = torch.tensor(end_ids(model, end_id), device=device)
    for step in range(max_new_tokens):
        scores = output.logits[:, -1].float().log_softmax(-1).view(rows, num_beams, -1) + active.scores[..., None]
        top_scores, flat_index = scores.flatten(1).topk(min(2 * num_beams, scores[0].numel()))
        has_nan |= top_scores.isnan().any(1)  # topk ranks NaN highest
        parents, ids = flat_index // scores.shape[-1], flat_index % scores.shape[-1]
        value = last_number(output)
        new_numbers = None if value is None else value.view(rows, num_beams).gather(1, parents)
        extended = active.append_tokens(step, parents, ids, new_numbers, top_scores)
        is_ending = torch.isin(ids, ends) | (step == max_new_tokens - 1)
        is_top_beam = torch.arange(top_scores.shape[1], device=device) < num_beams
        final_scores = torch.where(
            is_ending & is_top_beam & can_improve, top_scores / (step + 1) ** length_penalty, MIN_SCORE
        )
        finished = finished.concatenate(extended.with_scores(final_scores)).top_k(num_beams)
        active_scores, active_index = torch.where(is_ending, MIN_SCORE, top_scores).topk(num_beams)
        active = extended.select(active_index).with_scores(active_scores)
        worst_finished = finished.scores[:, -1:]
        can_improve = can_improve & (active_scores[:, :1] / (step + 1) ** length_penalty > worst_finished)
        if step == max_new_tokens - 1 or not bool(can_improve.any()):
            break
        number_values = active.number_values
        output = decoder.step(
            (row_offsets + parents.gather(1, active_index)).flatten(),
            active.ids[..., step].flatten(),
            None if number_values is None else number_values[..., step].flatten(),
        )
    if bool(has_nan.any()):
        raise OperationalError(
            f"beams: the scores of {int(has_nan.sum())} of {rows} answers are NaN: the model's weights "
            "are corrupt; use an earlier checkpoint"
        )
    return finished.best_output(ends, length_penalty)


class _Beams:
    """The beams of each row: `ids`, their `number_values` and `scores`."""

    def __init__(
        self,
        ids: Int[Tensor, "rows answers most"],
        scores: Float[Tensor, "rows answers"],
        values: Float[Tensor, "rows answers most"] | None,
    ) -> None:
        self.ids, self.scores, self.number_values = ids, scores, values

    @classmethod
    def empty(cls, rows: int, answers: int, max_new_tokens: int, device: torch.device) -> "_Beams":
        ids = torch.full((rows, answers, max_new_tokens), PAD, device=device)
        return cls(ids, torch.full((rows, answers), MIN_SCORE, device=device), None)

    def append_tokens(
        self, step: int, parents: Tensor, ids: Tensor, number_values: Tensor | None, scores: Tensor
    ) -> "_Beams":
        """A selection of the beams, each extended by one token."""
        extended = self.select(parents)
        extended.ids[..., step] = ids
        if number_values is not None:
            if extended.number_values is None:
                extended.number_values = torch.ones_like(extended.ids, dtype=number_values.dtype)
            extended.number_values[..., step] = number_values
        return extended.with_scores(scores)

    def select(self, index: Int[Tensor, "rows some"]) -> "_Beams":
        return _Beams(
            self.ids.take_along_dim(index[..., None], 1),
            self.scores.gather(1, index),
            None if self.number_values is None else self.number_values.take_along_dim(index[..., None], 1),
        )

    def with_scores(self, scores: Float[Tensor, "rows answers"]) -> "_Beams":
        return _Beams(self.ids, scores, self.number_values)

    def concatenate(self, others: "_Beams") -> "_Beams":
        values = others.number_values
        if values is not None:
            own = torch.ones_like(self.ids, dtype=values.dtype) if self.number_values is None else self.number_values
            values = torch.cat([own, values], 1)
        return _Beams(torch.cat([self.ids, others.ids], 1), torch.cat([self.scores, others.scores], 1), values)

    def top_k(self, count: int) -> "_Beams":
        scores, index = self.scores.topk(count)
        return self.select(index).with_scores(scores)

    def best_output(self, ends: Int[Tensor, " ends"], length_penalty: float) -> GenerationOutput:
        """The best beam of each row, which ends with the first of `ends` for all of them."""
        ids = self.ids[:, 0]
        is_end = torch.isin(ids, ends)
        ids = ids.where(~is_end, ends[0])
        lengths = torch.where(is_end.any(1), is_end.long().argmax(1) + 1, ids.shape[1])
        longest = int(lengths.max())
        values = None if self.number_values is None else self.number_values[:, 0, :longest]
        log_probability = self.scores[:, 0] * lengths**length_penalty
        return GenerationOutput(ids[:, :longest], lengths, log_probability, values, is_end.any(1))


class _BeamDecoder:
    """Computes the next token of selected beams: from the cache if it can be reordered, otherwise from the whole
    prefix."""

    def __init__(
        self,
        model: Model,
        prompts: Tokens,
        max_new_tokens: int,
        source: Tokens | None,
        num_beams: int,
        position_offset: int,
    ) -> None:
        rows = torch.arange(prompts.ids.shape[0], device=prompts.ids.device).repeat_interleave(num_beams)
        self.model, self.position_offset = model, position_offset
        self.capacity = int(prompts.lengths.max()) + max_new_tokens
        self.tokens, self.source = select_rows(prompts, rows), None if source is None else select_rows(source, rows)
        decoding_step = model.prefill(self.tokens, self.source, capacity=self.capacity, position_offset=position_offset)
        self.output: Output = decoding_step.output
        self.state: Any = decoding_step.state

    def step(
        self, row_index: Int[Tensor, " answers"], ids: Int[Tensor, " answers"], number_values: Tensor | None
    ) -> Output:
        """The output after these beams, each extended by one token."""
        state = self.model.reorder_rows(self.state, row_index) if self.state is not None else None
        if state is not None:
            decoding_step = self.model.step(ids, number_values, state)
            self.state = decoding_step.state
            return decoding_step.output
        self.state = None
        self.tokens = select_rows(self.tokens, row_index).append(ids, number_values)
        decoding_step = self.model.prefill(
            self.tokens, self.source, capacity=self.capacity, position_offset=self.position_offset
        )
        return decoding_step.output
