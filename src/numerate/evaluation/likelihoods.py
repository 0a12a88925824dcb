"""Sums over text that can be merged: loss, perplexity, bits per byte."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import exp, inf, log, sqrt
from typing import Any

from numerate.evaluation.statistics import Z

CHUNK_AXIS = "chunk"
"""The axis of a cell with the number of the first chunk of a portion of the validation set."""


@dataclass(frozen=True)
class Likelihoods:
    """Sums over chunks of text that can be merged.

    `nll` is the sum of -ln(probability) of all tokens, in nats; `bytes` is the length of their text in UTF-8;
    `correct_tokens` of the tokens have the highest probability. Sums of squares and products over chunks are for
    intervals, those over batches for the published mean over batches.

    >>> both = Likelihoods(nll=30.0, tokens=10, bytes=40) + Likelihoods(nll=10.0, tokens=10, bytes=60)
    >>> both.loss, round(both.perplexity, 3), round(both.bits_per_byte, 3)
    (2.0, 7.389, 0.577)
    """

    nll: float = 0.0
    tokens: int = 0
    bytes: int = 0
    correct_tokens: int = 0
    chunks: int = 0
    nll_squared: float = 0.0
    nll_tokens: float = 0.0
    tokens_squared: int = 0
    nll_bytes: float = 0.0
    bytes_squared: int = 0
    batches: int = 0
    batch_losses: float = 0.0
    batch_exps: float = 0.0

    def as_batch(self) -> "Likelihoods":
        """The same, as one batch of the published mean over batches."""
        if not self.tokens:
            return self
        return replace(self, batches=1, batch_losses=self.loss, batch_exps=self.perplexity)

    def __add__(self, other: "Likelihoods") -> "Likelihoods":
        return Likelihoods(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    @property
    def loss(self) -> float:
        """Mean -ln(probability) of a token, in nats; every token weighs the same."""
        return self.nll / self.tokens if self.tokens else 0.0

    @property
    def perplexity(self) -> float:
        """exp(loss): the number of equally likely tokens with the same loss."""
        return inf if self.loss >= 700 else exp(self.loss)

    @property
    def bits_per_byte(self) -> float | None:
        """-log2(probability) of the text per byte of UTF-8, comparable across tokenizers; None without bytes."""
        return self.nll / (self.bytes * log(2.0)) if self.bytes else None

    @property
    def token_accuracy(self) -> float:
        """The share of tokens that were the most probable."""
        return self.correct_tokens / self.tokens if self.tokens else 0.0

    @property
    def mean_of_exp(self) -> float | None:
        """The published perplexity: the mean over batches of exp(mean loss of the batch)."""
        return self.batch_exps / self.batches if self.batches else None

    @property
    def batch_loss(self) -> float | None:
        """The published loss: the mean over batches of each one's mean loss."""
        return self.batch_losses / self.batches if self.batches else None

    def loss_interval(self) -> tuple[float, float] | None:
        """The 95 % interval for other text of the same distribution; None for a single chunk."""
        return self._interval(self.tokens, self.nll_tokens, self.tokens_squared, 1.0)

    def bits_per_byte_interval(self) -> tuple[float, float] | None:
        return self._interval(self.bytes, self.nll_bytes, self.bytes_squared, log(2.0))

    def _interval(self, total: int, product: float, squared: float, unit: float) -> tuple[float, float] | None:
        """That of the ratio of two sums over chunks (Cochran 1977, Sampling Techniques, section 6.3), as if these were
        independent."""
        if self.chunks < 2 or not total:
            return None
        ratio = self.nll / total
        residual_sum = self.nll_squared - 2 * ratio * product + ratio**2 * squared
        half = Z * (sqrt(max(0.0, residual_sum) * self.chunks / (self.chunks - 1)) / total) / unit
        return self.nll / (total * unit) - half, self.nll / (total * unit) + half

    def record(self) -> dict[str, Any]:
        """The metrics for a record, with six significant digits; `low` and `high` are the interval of the loss."""
        low, high = self.loss_interval() or (None, None)
        names = ("perplexity", "bits_per_byte", "token_accuracy", "batch_loss", "mean_of_exp")
        metrics = {"loss": self.loss, "low": low, "high": high} | {name: getattr(self, name) for name in names}
        rounded = {name: float(f"{value:.6g}") for name, value in metrics.items() if value is not None}
        return rounded | {"tokens": self.tokens, "bytes": self.bytes, "chunks": self.chunks}

    def sums(self) -> dict[str, float]:
        """The sums, for `from_sums`; with those of batches if there are any."""
        return {name: value for name, value in asdict(self).items() if self.batches or not name.startswith("batch")}

    @classmethod
    def from_sums(cls, sums: Mapping[str, Any]) -> "Likelihoods":
        known = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in sums.items() if name in known})


def merge_portions(portions: Iterable[tuple[int, Likelihoods]]) -> Likelihoods:
    """Merges portions of one text, each given with the index of its first chunk, so that no chunk counts twice: the
    longest of those with the same first chunk counts, and those that start inside another do not."""
    counted, end = [], 0
    for first, likelihoods in sorted(portions, key=lambda portion: (portion[0], -portion[1].chunks)):
        if first >= end:
            counted.append(likelihoods)
            end = first + likelihoods.chunks
    return sum(counted, Likelihoods())
