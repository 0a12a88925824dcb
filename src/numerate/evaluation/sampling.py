"""Sampling of the next token.

Logits are processed by `temperature`, `top_k` (Fan et al., 2018, https://arxiv.org/abs/1805.04833), `top_p` (Holtzman
et al., 2020, https://arxiv.org/abs/1904.09751) and `min_p` (Nguyen et al., 2024, https://arxiv.org/abs/2407.01082), in
this order, that of transformers' `generate`. Ties with the last kept token are kept as well, so that results do not
depend on how a device sorts equal values. Then a uniform random number that depends only on (seed, row, position)
selects a token by cumulative probability: a prompt has the same continuation alone and in a batch, in any order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from numerate.batch import Model, Tokens
from numerate.config import Spec, setting
from numerate.evaluation.generate import CachedDecoder, GenerationOutput, TokensCallback, decode_tokens, greedy_token
from numerate.tasks.counter_rng import mix_bits
from numerate.vocabulary import EOS

EXCLUDED_SCORE = float("-inf")
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Sampling(Spec):
    """How the next token is chosen, by default with the model's own probabilities."""

    temperature: float = setting(
        1.0, "sampling temperature; logits are divided by it; 0 is greedy decoding", at_least=0
    )
    top_k: int | None = setting(None, "sample from the k most probable tokens; null: all", at_least=1)
    top_p: float | None = setting(
        None, "nucleus sampling: the most probable tokens up to this total probability; null: all", above=0, at_most=1
    )
    min_p: float | None = setting(
        None, "minimum probability of a token, relative to the most probable one; null: none", at_least=0, at_most=1
    )
    do_sample: bool = setting(True, "sample; false: greedy decoding")
    seed: int = setting(0, "random seed", at_least=0, below=2**63)

    @property
    def is_greedy(self) -> bool:
        return not self.do_sample or self.temperature == 0


@torch.no_grad()
def generate(
    model: Model,
    prompts: Tokens,
    max_new_tokens: int,
    sampling: Sampling,
    *,
    stop_ids: Sequence[int] = (EOS,),
    on_tokens: TokensCallback | None = None,
    window: int | None = None,
    position_offset: int = 0,
) -> GenerationOutput:
    """Generates up to `max_new_tokens` tokens after each prompt, or until one of `stop_ids` (which is then the last of
    its `ids`).

    Prompts may differ in length (padded on the right). The random numbers of a row depend only on (`sampling.seed`, its
    entry of `prompts.example_indices`, its number of new tokens). `on_tokens` is called with every generated token.

    With a `window` only the last `window` tokens of a row are used, as if the text started there: each token then costs
    a forward pass over the window as soon as a row is longer.

    Raises `UserError` for a model that is not causal, and for positions beyond its embeddings; `OperationalError` for
    NaN logits.
    """
    decoder, next_token = CachedDecoder(model, prompts, max_new_tokens, None, position_offset, window), greedy_token
    if not sampling.is_greedy:
        uniform = uniform_numbers(sampling.seed, prompts.example_indices.cpu().numpy(), max_new_tokens)
        samples = torch.from_numpy(uniform).to(_sum_dtype(prompts.ids.device)).to(prompts.ids.device)

        def next_token(logits: Tensor, step: int) -> Tensor:
            return sample_tokens(process_logits(logits, sampling), samples[:, step])

    found = decode_tokens(model, decoder, next_token, len(prompts.ids), max_new_tokens, stop_ids, on_tokens=on_tokens)
    found.check_finite()
    return found


def _sum_dtype(device: torch.device) -> torch.dtype:
    """The type in which probabilities are summed: float64, where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def process_logits(logits: Float[Tensor, "rows vocabulary"], sampling: Sampling) -> Float[Tensor, "rows vocabulary"]:
    """Scores after temperature, top-k, top-p and min-p, the highest of each row at 0, `EXCLUDED_SCORE` the others."""
    scores = logits - logits.amax(-1, keepdim=True)
    if sampling.temperature != 1:  # the maximum stays 0 for any temperature
        scores = scores / max(sampling.temperature, 1e-30)
    if sampling.top_k is not None and sampling.top_k < scores.shape[-1]:
        threshold = _sorted(scores)[:, sampling.top_k - 1, None]
        scores = scores.masked_fill(scores < threshold, EXCLUDED_SCORE)
    if sampling.top_p is not None and sampling.top_p < 1:
        sorted_scores = _sorted(scores)
        probabilities = sorted_scores.exp().to(_sum_dtype(scores.device))
        sums = probabilities.cumsum(-1)
        nucleus_size = (sums - probabilities < sampling.top_p * sums[:, -1:]).sum(-1, keepdim=True)
        threshold = sorted_scores.gather(-1, nucleus_size.clamp(min=1) - 1)
        scores = scores.masked_fill(scores < threshold, EXCLUDED_SCORE)
    if sampling.min_p:
        scores = scores.masked_fill(scores.exp() < sampling.min_p, EXCLUDED_SCORE)
    return scores


def _sorted(scores: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, "rows vocabulary"]:
    """The scores of each row from the highest on."""
    if scores.device.type != "cpu":
        return scores.sort(-1, descending=True).values
    return torch.from_numpy(np.sort(scores.detach().numpy(), axis=-1)).flip(-1)  # 32,000 in 0.1 ms; torch needs 2


def sample_tokens(
    scores: Float[Tensor, "rows vocabulary"], uniform_samples: Float[Tensor, " rows"]
) -> Int[Tensor, " rows"]:
    """The token of each row at which the sum of the probabilities, in the order of ids, exceeds `uniform_samples`.

    >>> sample_tokens(torch.tensor([[0.0, EXCLUDED_SCORE, 0.0]]), torch.tensor([0.5], dtype=torch.float64)).tolist()
    [2]
    """
    sums = scores.exp().cumsum(-1, dtype=uniform_samples.dtype)
    total = sums[:, -1:]
    threshold = torch.minimum(uniform_samples[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(sums, threshold, right=True)[:, 0].clamp(max=scores.shape[-1] - 1)


def uniform_numbers(seed: int, rows: NDArray[np.int64], num_steps: int) -> NDArray[np.float64]:
    """Numbers from 0 to below 1, `[rows, num_steps]`: a hash (splitmix64) of the seed, the row's index and the step."""
    start = mix_bits(np.array([seed], dtype=np.uint64) + _GOLDEN)
    row_keys = mix_bits(mix_bits(rows.astype(np.uint64) * _GOLDEN + start) + _GOLDEN)
    words = mix_bits(row_keys[:, None] + np.arange(1, num_steps + 1, dtype=np.uint64) * _GOLDEN)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
