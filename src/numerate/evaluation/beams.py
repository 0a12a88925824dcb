"""Beam search."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from numerate.batch import Model, Tokens
from numerate.evaluation.evaluation_data import select_rows
from numerate.evaluation.generate import CachedDecoder, GenerationOutput, greedy_decode, last_number
from numerate.vocabulary import EOS, PAD

PUBLISHED_NUM_BEAMS = 4
"""The number of beams of the number token loss: Zausinger et al. (2025), https://arxiv.org/abs/2411.02083."""

MIN_SCORE = -1e9  # below every score


@torch.no_grad()
def beam_search(
    model: Model,
    prompts: Tokens,
    max_new_tokens: int,
    *,
    source: Tokens | None = None,
    num_beams: int = PUBLISHED_NUM_BEAMS,
    position_offset: int = 0,
) -> GenerationOutput:
    """Beam search with `num_beams` beams, up to `max_new_tokens` tokens.

    Finished answers are ranked by their log-probability per token. A row is done when its best unfinished answer, at
    its current length, is no better than the worst of `num_beams` finished ones. This is the default of transformers'
    `generate(num_beams=...)`, and the answers are the same. Raises `OperationalError` for NaN logits.
    """
    if model.regression_token_id is not None:  # it predicts the whole answer at once
        return greedy_decode(model, prompts, max_new_tokens, source=source, position_offset=position_offset)
    rows, device = prompts.ids.shape[0], prompts.ids.device
    row_index = torch.arange(rows, device=device).repeat_interleave(num_beams)
    repeated_source = None if source is None else select_rows(source, row_index)
    decoder = CachedDecoder(model, select_rows(prompts, row_index), max_new_tokens, repeated_source, position_offset)
    first_beams = torch.arange(rows, device=device)[:, None] * num_beams
    ids = torch.full((rows, num_beams, max_new_tokens), PAD, device=device)
    numbers = last_number(decoder.output)
    values = None if numbers is None else torch.ones(ids.shape, dtype=numbers.dtype, device=device)
    finished = _Beams(ids, torch.full((rows, num_beams), MIN_SCORE, device=device), values)
    active = finished._replace(scores=finished.scores.clone())
    active.scores[:, 0] = 0.0  # all beams are equal at first: continue only one
    can_improve = torch.ones(rows, 1, dtype=torch.bool, device=device)
    has_nan = torch.zeros(rows, dtype=torch.bool, device=device)
    ends = torch.tensor((EOS, *model.other_end_ids), device=device)
    for step in range(max_new_tokens):
        output, is_last = decoder.output, step == max_new_tokens - 1
        scores = output.logits[:, -1].float().log_softmax(-1).view(rows, num_beams, -1) + active.scores[..., None]
        top_scores, flat_index = scores.flatten(1).topk(min(2 * num_beams, scores[0].numel()))
        has_nan |= top_scores.isnan().any(1)  # topk ranks NaN highest
        parents, ids = flat_index // scores.shape[-1], flat_index % scores.shape[-1]
        extended = active.select(parents, top_scores)
        extended.ids[..., step] = ids
        if extended.values is not None and (numbers := last_number(output)) is not None:
            extended.values[..., step] = numbers.view(rows, num_beams).gather(1, parents)
        is_ending = torch.isin(ids, ends) | is_last
        is_top_beam = torch.arange(top_scores.shape[1], device=device) < num_beams
        final_scores = torch.where(is_ending & is_top_beam & can_improve, top_scores / (step + 1), MIN_SCORE)
        finished = finished.best(extended._replace(scores=final_scores))
        active_scores, active_index = torch.where(is_ending, MIN_SCORE, top_scores).topk(num_beams)
        active = extended.select(active_index, active_scores)
        can_improve &= active_scores[:, :1] / (step + 1) > finished.scores[:, -1:]
        if is_last or not bool(can_improve.any()):
            break
        decoder.step(
            active.ids[..., step].flatten(),
            None if active.values is None else active.values[..., step].flatten(),
            (first_beams + parents.gather(1, active_index)).flatten(),
        )
    ids = finished.ids[:, 0]
    is_end = torch.isin(ids, ends)
    lengths = torch.where(is_end.any(1), is_end.long().argmax(1) + 1, ids.shape[1])
    longest = int(lengths.max())
    found = GenerationOutput(
        ids.where(~is_end, EOS)[:, :longest],  # whichever end token it is
        lengths,
        torch.where(has_nan, torch.nan, finished.scores[:, 0] * lengths),
        None if finished.values is None else finished.values[:, 0, :longest],
        is_end.any(1),
    )
    found.check_finite()
    return found


class _Beams(NamedTuple):
    """The beams of each row with their scores, and the values of their number tokens, if any."""

    ids: Int[Tensor, "rows beams most"]
    scores: Float[Tensor, "rows beams"]
    values: Float[Tensor, "rows beams most"] | None

    def select(self, index: Int[Tensor, "rows some"], scores: Float[Tensor, "rows some"]) -> "_Beams":
        values = None if self.values is None else self.values.take_along_dim(index[..., None], 1)
        return _Beams(self.ids.take_along_dim(index[..., None], 1), scores, values)

    def best(self, others: "_Beams") -> "_Beams":
        """The best of both, as many as before."""
        scores, index = torch.cat([self.scores, others.scores], 1).topk(self.scores.shape[1])
        values = None if self.values is None or others.values is None else torch.cat([self.values, others.values], 1)
        return _Beams(torch.cat([self.ids, others.ids], 1), scores, values).select(index, scores)
