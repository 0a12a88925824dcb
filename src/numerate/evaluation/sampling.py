"""Sampling of the next token.

Logits are processed in this order, that of transformers' `generate`:

1. `repetition_penalty`: the logit of every token in the row is divided by it if above 0, else multiplied with it;
   Keskar et al. (2019), https://arxiv.org/abs/1909.05858;
2. `temperature`: logits are divided by it;
3. `top_k`: the k most probable tokens are kept; Fan et al. (2018), https://arxiv.org/abs/1805.04833;
4. `top_p`: the fewest most probable tokens with this total probability are kept (the nucleus); Holtzman et al.
   (2020), https://arxiv.org/abs/1904.09751;
5. `min_p`: tokens with at least this share of the highest probability are kept; Nguyen et al. (2024),
   https://arxiv.org/abs/2407.01082.

Ties with the last one kept are kept too, so that results do not depend on how a device sorts equal numbers. Then a
uniform random number, a function of (seed, row, position) alone, picks a token by cumulative probability: a prompt has
the same continuation by itself and in a batch, in any order and on any number of processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from numerate.batch import Model, Output, StepContext, Tokens
from numerate.config import setting
from numerate.errors import OperationalError, UserError
from numerate.evaluation.generate import Cached, Choose, Generated, ModelReader, OnTokens, Plain, most_probable, speak
from numerate.tasks.counter_rng import mix
from numerate.vocabulary import END

NEVER = float("-inf")
"""The score of an excluded token."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. The defaults are the model's own probabilities; `temperature=0` is `greedy=True`.

    >>> Sampling(temperature=0.8, top_p=0.95, seed=1).likeliest
    False
    """

    temperature: float = setting(1.0, "sampling temperature; logits are divided by it; 0 is greedy decoding")
    top_k: int | None = setting(None, "sample from the k most probable tokens; null: all")
    top_p: float | None = setting(
        None, "nucleus sampling: the most probable tokens up to this total probability; null: all"
    )
    min_p: float | None = setting(None, "least probability of a token, relative to the most probable one; null: none")
    do_sample: bool = setting(True, "sample; false: greedy decoding")
    repetition_penalty: float = setting(1.0, "penalty for tokens that already occurred; 1: none")
    seed: int = setting(0, "random seed")

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature: {self.temperature} is none; 0 (the most probable token) or more is right")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k: {self.top_k} tokens leave nothing to sample; 1 or more is right, null for all")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top_p: {self.top_p} is not right; above 0 up to 1 is, null for all")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise UserError(f"min_p: {self.min_p} is not a share; 0 to 1 is right, null for all")
        if not 0 < self.repetition_penalty < float("inf"):
            raise UserError(f"repetition_penalty: {self.repetition_penalty} is none; above 0 is right, 1 is no penalty")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed: {self.seed} is out of range; a whole number from 0 to 2^63 - 1 is right")

    @property
    def likeliest(self) -> bool:
        """Whether decoding is greedy."""
        return not self.do_sample or self.temperature == 0


@torch.no_grad()
def generate(
    model: Model,
    prompts: Tokens,
    most: int,
    sampling: Sampling,
    *,
    stop: Sequence[int] = (END,),
    on_progress: OnTokens | None = None,
    window: int | None = None,
    position_offset: int = 0,
) -> Generated:
    """Generates up to `most` tokens after each prompt, or until one of `stop` (which is then the last of its `ids`).

    Prompts may differ in length (padded on the right). A row's random numbers depend on (`sampling.seed`, its number in
    `prompts.row`, its count of new tokens) and on nothing else. `on_progress` is called with every token as it comes.
    `log_probability` is the model's own, before any setting of `sampling`.

    With a `window` only so many of a row's last tokens are read, as if the text started there: each token then costs a
    forward pass over the window. As long as no row is longer the cache is used.

    >>> generate(model, prompts, 50, Sampling(temperature=0.8)).lengths.tolist()
    [50]

    Raises `UserError` for a model that cannot continue a text, and for places beyond its tables; `OperationalError`
    for NaN logits.
    """
    reader: ModelReader
    if window is None:
        reader = Cached(model, prompts, most, position_offset=position_offset)
    else:
        reader = Windowed(model, prompts, most, window, position_offset)
    return _generated(model, reader, prompts, most, sampling, stop, on_progress)


@torch.no_grad()
def generate_uncached(
    model: Model,
    prompts: Tokens,
    most: int,
    sampling: Sampling,
    *,
    stop: Sequence[int] = (END,),
    position_offset: int = 0,
) -> Generated:
    """The same without a cache: the reference that `generate` is tested against."""
    return _generated(
        model, Plain(model, prompts, most, position_offset=position_offset), prompts, most, sampling, stop, None
    )


def _generated(
    model: Model,
    reader: ModelReader,
    prompts: Tokens,
    most: int,
    sampling: Sampling,
    stop: Sequence[int],
    on_progress: OnTokens | None,
) -> Generated:
    if most < 1:
        raise UserError(f"most: {most} tokens generate nothing; 1 or more is right")
    choose: Choose = TokenSampler(sampling, prompts, most)
    found = speak(model, reader, choose, len(prompts.ids), most, stop, on_progress=on_progress)
    if bool(found.log_probability.isnan().any()):
        raise OperationalError("model: its logits are NaN; its weights, or its precision, are broken")
    return found


class Windowed(ModelReader):
    """The last `window` tokens of every row are read, from the cache as long as that is all there is."""

    def __init__(self, model: Model, prompts: Tokens, most: int, window: int, position_offset: int = 0) -> None:
        if window < 1:
            raise UserError(f"window: {window} tokens are nothing to read; 1 or more is right")
        if prompts.values is not None or prompts.blocked_keys is not None:
            raise UserError("window: rows with numbers beside their tokens, or with hidden tokens, cannot be cut")
        self.model, self.prompts, self.window, self.position_offset = model, prompts, window, position_offset
        self.ids = torch.nn.functional.pad(prompts.ids, (0, most))
        self.lengths, self.longest = prompts.lengths, int(prompts.lengths.max())
        self.cached: Cached | None = None
        if self.longest <= window:
            self.cached = Cached(model, prompts, min(most, window - self.longest), position_offset=position_offset)
            self.output = self.cached.output
        else:
            self.output = self._read()

    def read(self, ids: Int[Tensor, " rows"], values: Tensor | None) -> None:
        self.ids.scatter_(1, self.lengths[:, None], ids[:, None])
        self.lengths, self.longest = self.lengths + 1, self.longest + 1
        if self.cached is not None and self.longest <= self.window:
            self.cached.read(ids, values)
            self.output = self.cached.output
        else:
            self.cached = None
            self.output = self._read()

    def _read(self) -> Output:
        places = torch.arange(min(self.window, self.longest), device=self.ids.device)
        first = (self.lengths - self.window).clamp(min=0)
        lengths = self.lengths.clamp(max=self.window)
        tokens = replace(
            self.prompts, ids=self.ids.gather(1, first[:, None] + places), lengths=lengths, position_ids=None
        )
        tokens = self.model.assign_positions(tokens, StepContext.fixed(self.position_offset))
        return self.model(tokens, target_positions=lengths[:, None] - 1)  # type: ignore[no-any-return]


class TokenSampler:
    """Samples the next token of each row."""

    def __init__(self, sampling: Sampling, prompts: Tokens, most: int) -> None:
        self.sampling = sampling
        self.device = prompts.ids.device
        self.there: Tensor | None = None
        self.prompts = prompts
        # On a device without numbers of 64 bits those of 32 have to do.
        self.kind = torch.float32 if self.device.type == "mps" else torch.float64
        if not sampling.likeliest:
            drawn = torch.from_numpy(uniforms(sampling.seed, prompts.row.cpu().numpy(), most))
            self.drawn = drawn.to(self.kind).to(self.device)

    def __call__(self, logits: Float[Tensor, "rows vocabulary"], place: int) -> Int[Tensor, " rows"]:
        sampling = self.sampling
        if sampling.repetition_penalty != 1:
            logits = penalised(logits, self._there(logits), sampling.repetition_penalty)
        chosen = (
            most_probable(logits, place)
            if sampling.likeliest
            else picked(allowed(logits, sampling), self.drawn[:, place], self.kind)
        )
        if self.there is not None:
            self.there.scatter_(1, chosen[:, None], True)
        return chosen

    def _there(self, logits: Tensor) -> Tensor:
        """Which tokens each row has had."""
        if self.there is None:
            ids, lengths = self.prompts.ids, self.prompts.lengths
            real = torch.arange(ids.shape[1], device=self.device) < lengths[:, None]
            # Padding counts as the first token of the row.
            ids = torch.where(real, ids, ids[:, :1])
            self.there = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, ids, True)
        return self.there


def penalised(
    logits: Float[Tensor, "rows vocabulary"], there: Tensor, penalty: float
) -> Float[Tensor, "rows vocabulary"]:
    """Scores with those of tokens that are `there` already made smaller (for a penalty above 1)."""
    return torch.where(there, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def allowed(logits: Float[Tensor, "rows vocabulary"], sampling: Sampling) -> Float[Tensor, "rows vocabulary"]:
    """Scores after temperature, top-k, top-p and min-p, the highest of each row at 0; `NEVER` of excluded tokens.

    The most probable token is always kept.
    """
    scores = logits - logits.amax(-1, keepdim=True)
    if sampling.temperature != 1:  # what a temperature near 0 makes of 0 is 0
        scores = scores / max(sampling.temperature, 1e-30)
    if sampling.top_k is not None and sampling.top_k < scores.shape[-1]:
        scores = scores.masked_fill(scores < _highest(scores, sampling.top_k), NEVER)
    if sampling.top_p is not None and sampling.top_p < 1:
        scores = scores.masked_fill(scores < _least_of_nucleus(scores, sampling.top_p), NEVER)
    if sampling.min_p:
        scores = scores.masked_fill(scores.exp() < sampling.min_p, NEVER)
    return scores


def _highest(scores: Float[Tensor, "rows vocabulary"], rank: int) -> Float[Tensor, "rows 1"]:
    """The score of the `rank`-th most probable token of each row."""
    if scores.device.type != "cpu":
        return scores.topk(rank).values[:, -1:]
    below = scores.shape[-1] - rank  # numpy finds it in a fifth of the time
    return torch.from_numpy(np.partition(scores.detach().numpy(), below, axis=-1)[:, below : below + 1])


def _least_of_nucleus(scores: Float[Tensor, "rows vocabulary"], share: float) -> Float[Tensor, "rows 1"]:
    """The score of the least probable token of the nucleus: those above it have less than `share` together."""
    if scores.device.type == "cpu":  # numpy sorts 32,000 scores in 0.1 ms, torch in 2
        found = torch.from_numpy(np.sort(scores.detach().numpy(), axis=-1)).flip(-1)
    else:
        found = scores.sort(-1, descending=True).values
    mass = found.exp().to(torch.float32 if scores.device.type == "mps" else torch.float64)
    sums = mass.cumsum(-1)
    needed = (sums - mass < share * sums[:, -1:]).sum(-1, keepdim=True)
    return found.gather(-1, needed.clamp(min=1) - 1)


def picked(
    scores: Float[Tensor, "rows vocabulary"], drawn: Float[Tensor, " rows"], kind: torch.dtype = torch.float64
) -> Int[Tensor, " rows"]:
    """The token of each row at which the sum of the probabilities, in the order of ids, goes over `drawn`.

    >>> picked(torch.tensor([[0.0, NEVER, 0.0]]), torch.tensor([0.5], dtype=torch.float64)).tolist()
    [2]
    """
    sums = scores.exp().cumsum(-1, dtype=kind)
    whole = sums[:, -1:]
    wanted = torch.minimum(drawn[:, None].to(kind) * whole, torch.nextafter(whole, torch.zeros_like(whole)))
    return torch.searchsorted(sums, wanted, right=True)[:, 0].clamp(max=scores.shape[-1] - 1)


def uniforms(seed: int, rows: NDArray[np.int64], most: int) -> NDArray[np.float64]:
    """Numbers from 0 to below 1, `[rows, most]`: a hash (splitmix64) of the seed, the row's number and the step.

    >>> bool((uniforms(0, np.array([7, 8]), 3)[1] == uniforms(0, np.array([8]), 3)[0]).all())
    True
    """
    start = mix(np.array([seed], dtype=np.uint64) + _GOLDEN)
    own = mix(mix(rows.astype(np.uint64) * _GOLDEN + start) + _GOLDEN)
    words = mix(own[:, None] + np.arange(1, most + 1, dtype=np.uint64) * _GOLDEN)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
