"""The metrics of the published evaluation, by their names there, faults and all: to compare with its tables.

tum-ai/number-token-loss, src/ntl/evaluation.py (Zausinger et al., 2025, https://arxiv.org/abs/2411.02083). What is
otherwise than in `numerate.evaluation.number_metrics` and `text_metrics`:

- The number of a text is read so that `1,000` is 0, `1e5` is 5 and `5 - 3` is -3; what is said is cut to ±1e10, what
  is right is not.
- `number_accuracy` is numpy's `isclose` (off by 1e-5 of the right number is right), in floats.
- Errors are of answers with a number; R² leaves the right numbers of the others out as well.
- `token_accuracy`, `token_accuracy_whole`, `token_perplexity`, `bleu` and `rouge` are means over batches, each batch
  weighing the same, so that they change with the batch; and padding counts as tokens that are right.

ROUGE is there the median of a bootstrap of 1,000 resamples, which differs from the mean that is taken here by chance
alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from numerate.errors import UserError
from numerate.evaluation.numbers_in_texts import PUBLISHED_LIMIT, published_invalid, published_number
from numerate.evaluation.text_metrics import ROUGES, Stem, TextScores

BATCH = 64
"""Questions of a batch in the published evaluation."""

PADDING = 10
"""Places by which the published evaluation pads answers, all of which then count as right."""

IGNORED = -100
"""The label of a place that does not count."""

NUMBERS = (
    "number_accuracy",
    "MAE",
    "MSE",
    "R2",
    "median_absolute_error",
    "log_mae",
    "log_r2",
    "pearson",
    "spearman",
    "count_not_produced_valid_results",
    "average_count_not_produced_valid_results",
    "count_invalid_number_prediction",
    "average_invalid_number_prediction",
    "count_no_number_prediction",
    "average_no_number_prediction",
)
"""What `published_numbers` gives."""


def published_numbers(said: Sequence[str], right: Sequence[str]) -> dict[str, float]:
    """The published metrics of numbers, of answers and right answers as texts; nan where they are not defined.

    >>> published_numbers(["it is 12", "none"], ["12", "3"])["number_accuracy"]
    0.5

    Raises `UserError` for unequally many, for none, and for a right answer without a number.
    """
    _check(said, right)
    pairs = []
    for answer, truth in zip(said, right, strict=True):
        number, wanted = published_number(answer), published_number(truth)
        if wanted is None:
            raise UserError(f"published metrics: the right answer {truth!r} has no number; leave such questions out")
        cut = float("nan") if number is None else max(min(number, PUBLISHED_LIMIT), -PUBLISHED_LIMIT)
        pairs.append((cut, wanted))
    ours, theirs = np.array(pairs).T
    told = ~np.isnan(ours)
    close = np.isclose(ours, theirs)  # relative 1e-5, absolute 1e-8; nan is close to nothing
    ours, theirs = ours[told], theirs[told]
    counts = [published_invalid(text) for text in said]
    invalid, without = sum(count for count, _ in counts), sum(none for _, none in counts)
    silent, count = int(np.sum(~told)), len(said)
    log_ours, log_theirs = (np.sign(x) * np.log10(np.abs(x) + 1.0) for x in (ours, theirs))
    with np.errstate(all="ignore"):
        error, log_error = np.abs(ours - theirs), np.abs(log_ours - log_theirs)
        return {
            "number_accuracy": float(np.mean(close)),
            "MAE": _mean(error),
            "MSE": _mean(error**2),
            "R2": _r2(error, theirs),
            "median_absolute_error": float(np.median(error)) if error.size else float("nan"),
            "log_mae": _mean(log_error),
            "log_r2": _r2(log_error, log_theirs),
            "pearson": _pearson(ours, theirs),
            "spearman": _pearson(_ranks(ours), _ranks(theirs)),
            "count_not_produced_valid_results": silent,
            "average_count_not_produced_valid_results": silent / count,
            "count_invalid_number_prediction": invalid,
            "average_invalid_number_prediction": invalid / count,
            "count_no_number_prediction": without,
            "average_no_number_prediction": without / count,
        }


@dataclass(frozen=True)
class TokenBatch:
    """A batch of answers as ids, `[rows, places]`: what is said, what is right (`IGNORED` where nothing counts), and
    -ln(probability) of the right ids behind the right prefix, in nats."""

    said: Int[np.ndarray, "rows places"]
    right: Int[np.ndarray, "rows places"]
    nll: Float[np.ndarray, "rows places"] | None = None

    def padded(self, padding: int = PADDING) -> "TokenBatch":
        """As the published trainer hands batches on: answers and labels are filled up with id 0 to the longest label
        and `padding` more, and these places are not ignored."""
        width = self.right.shape[1] + padding
        said, right = (np.pad(ids, ((0, 0), (0, width - ids.shape[1]))) for ids in (self.said[:, :width], self.right))
        return TokenBatch(said, right, self.nll)


def published_tokens(batches: Sequence[TokenBatch]) -> dict[str, float]:
    """The published metrics of tokens, means over batches: `token_accuracy`, `token_accuracy_whole` and
    `token_perplexity`. With padding counted as there, for an answer of three tokens of which two are wrong:

    >>> batch = TokenBatch(np.array([[5, 7, 1]]), np.array([[6, 8, 1]])).padded()
    >>> round(published_tokens([batch])["token_accuracy"], 3)
    0.846

    Raises `UserError` for no batches.
    """
    if not batches:
        raise UserError("published metrics: there are no batches")
    accuracy, whole, perplexities = [], [], []
    for batch in batches:
        counted = batch.right != IGNORED
        hit = (batch.said == batch.right) & counted
        accuracy.append(hit.sum() / counted.sum() if counted.any() else 0.0)
        whole.append(np.mean((hit | ~counted).all(axis=1)))
        if batch.nll is not None:
            places = counted[:, : batch.nll.shape[1]]
            perplexities.append(exp(float(np.mean(batch.nll[places]))) if places.any() else float("nan"))
    found = {"token_accuracy": float(np.mean(accuracy)), "token_accuracy_whole": float(np.mean(whole))}
    return found | ({"token_perplexity": float(np.mean(perplexities))} if perplexities else {})


def published_texts(
    said: Sequence[str], right: Sequence[str], *, batch: int = BATCH, stem: Stem | None = None
) -> dict[str, float]:
    """The published metrics of texts, `bleu`, `rouge1`, `rouge2` and `rougeL`: means over batches. The published ROUGE
    is of stems: `stem=numerate.evaluation.text_metrics.porter()`. Raises `UserError` for unequally many, and for
    none."""
    _check(said, right)
    if batch < 1:
        raise UserError(f"batch: {batch} questions are no batch; the published evaluation has {BATCH}")
    each = [
        TextScores.of(
            [text.strip() for text in said[first : first + batch]],
            [text.strip() for text in right[first : first + batch]],
            stem=stem,
        ).measures()
        for first in range(0, len(said), batch)
    ]
    return {name: float(np.mean([measures[name] or 0.0 for measures in each])) for name in ("bleu", *ROUGES)}


def published(
    said: Sequence[str],
    right: Sequence[str],
    *,
    batch: int = BATCH,
    tokens: Sequence[TokenBatch] = (),
    stem: Stem | None = None,
) -> dict[str, float]:
    """The whole vector of the published evaluation; what is of tokens only where `tokens` are given."""
    found = published_numbers(said, right) | published_texts(said, right, batch=batch, stem=stem)
    return found | (published_tokens(tokens) if tokens else {})


def _check(said: Sequence[str], right: Sequence[str]) -> None:
    if len(said) != len(right) or not said:
        raise UserError(f"published metrics: {len(said)} answers to {len(right)} questions; give one to each, and some")


def _mean(values: NDArray[np.float64]) -> float:
    return float(np.mean(values)) if values.size else float("nan")


def _r2(error: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    if not right.size:
        return float("nan")
    return float(1.0 - np.sum(error**2) / np.sum((right - np.mean(right)) ** 2))


def _pearson(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """0 for fewer than two pairs, as there; nan where one of them is constant."""
    if one.size < 2:
        return 0.0
    ours, theirs = one - np.mean(one), other - np.mean(other)
    return float(np.sum(ours * theirs) / np.sqrt(np.sum(ours**2) * np.sum(theirs**2)))


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rank of each value, equal ones sharing their middle rank."""
    ordered = np.sort(values)
    first, last = np.searchsorted(ordered, values, side="left"), np.searchsorted(ordered, values, side="right")
    return (first + last + 1).astype(np.float64) / 2.0
