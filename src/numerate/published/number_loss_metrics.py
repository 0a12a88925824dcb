"""The metrics of the published evaluation under their published names, errors included, to compare with its tables.

tum-ai/number-token-loss, src/ntl/evaluation.py (Zausinger et al., 2025, https://arxiv.org/abs/2411.02083). The
differences from `numerate.evaluation.number_metrics` and `text_metrics`:

- The number of a text is read so that `1,000` is 0, `1e5` is 5 and `5 - 3` is -3; predictions are clipped to ±1e10,
  labels are not.
- `number_accuracy` is numpy's `isclose` (off by 1e-5 of the correct number is correct), in floats.
- Errors are of answers with a number; R² leaves out the labels of the others as well.
- `bleu` and `rouge` are means over batches, each batch weighing the same, so that they change with the batch.

ROUGE is there the median of a bootstrap of 1,000 resamples, which differs from the mean that is taken here by chance
alone.
"""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from numerate.errors import UserError
from numerate.evaluation.text_metrics import ROUGE_METRICS, TextScores

BATCH_SIZE = 64
"""Questions of a batch in the published evaluation."""

PUBLISHED_NUMBER_PATTERN = re.compile(r"[+-]?\s*\d+(?:\.\d+)?")
"""A number of a text: a minus sign of a subtraction belongs to the number, `1,000` ends with 0, and `1e5` with 5."""

_CANDIDATE = re.compile(r"[+-]?[\d,.]*\d")

PUBLISHED_LIMIT = 1e10
"""Predictions, but not labels, are clipped to this absolute value."""


def published_number(text: str) -> float | None:
    """The last number of a text before clipping; None if there is none.

    >>> published_number("5 - 3"), published_number("1,000"), published_number("1e5")
    (-3.0, 0.0, 5.0)
    """
    matches = PUBLISHED_NUMBER_PATTERN.findall(text)
    return float("".join(matches[-1].split())) if matches else None


def published_invalid_count(text: str) -> tuple[int, bool]:
    """The number of invalid numbers for `float`, and whether there is no number.

    >>> published_invalid_count("1,000 and 3"), published_invalid_count("none")
    ((1, False), (0, True))
    """
    candidates = _CANDIDATE.findall(text)
    return sum(map(_is_not_float, candidates)), not candidates


def _is_not_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return True
    return False


def published_number_metrics(predictions: Sequence[str], labels: Sequence[str]) -> dict[str, float]:
    """The published metrics of numbers, from texts of predictions and labels; nan where they are not defined.

    >>> published_number_metrics(["it is 12", "none"], ["12", "3"])["number_accuracy"]
    0.5

    Raises `UserError` for unequally many, for none, and for a label without a number.
    """
    from scipy import stats

    _check_lengths(predictions, labels)
    pairs = []
    for answer, label in zip(predictions, labels, strict=True):
        number, target = published_number(answer), published_number(label)
        if target is None:
            raise UserError(f"published metrics: the label {label!r} must contain a number")
        clipped = float("nan") if number is None else max(min(number, PUBLISHED_LIMIT), -PUBLISHED_LIMIT)
        pairs.append((clipped, target))
    predicted, expected = np.array(pairs).T
    is_number = ~np.isnan(predicted)
    close = np.isclose(predicted, expected)  # relative 1e-5, absolute 1e-8; nan is close to nothing
    predicted, expected = predicted[is_number], expected[is_number]
    counts = [published_invalid_count(text) for text in predictions]
    invalid, num_without_number = sum(count for count, _ in counts), sum(none for _, none in counts)
    missing, count = int(np.sum(~is_number)), len(predictions)
    log_predicted, log_expected = (np.sign(x) * np.log10(np.abs(x) + 1.0) for x in (predicted, expected))
    with np.errstate(all="ignore"):
        error, log_error = np.abs(predicted - expected), np.abs(log_predicted - log_expected)
        return {
            "number_accuracy": float(np.mean(close)),
            "MAE": _mean(error),
            "MSE": _mean(error**2),
            "R2": _r2(error, expected),
            "median_absolute_error": float(np.median(error)) if error.size else float("nan"),
            "log_mae": _mean(log_error),
            "log_r2": _r2(log_error, log_expected),
            "pearson": _pearson(predicted, expected),
            "spearman": _pearson(stats.rankdata(predicted), stats.rankdata(expected)),
            "count_not_produced_valid_results": missing,
            "average_count_not_produced_valid_results": missing / count,
            "count_invalid_number_prediction": invalid,
            "average_invalid_number_prediction": invalid / count,
            "count_no_number_prediction": num_without_number,
            "average_no_number_prediction": num_without_number / count,
        }


def published_text_metrics(
    predictions: Sequence[str], labels: Sequence[str], *, batch_size: int = BATCH_SIZE, use_stemmer: bool = False
) -> dict[str, float]:
    """The published metrics of texts, `bleu`, `rouge1`, `rouge2` and `rougeL`: means over batches. The published ROUGE
    is of stems: `use_stemmer=True`. Raises `UserError` for unequally many, and for none."""
    _check_lengths(predictions, labels)
    if batch_size < 1:
        raise UserError(f"batch_size: must be at least 1 (published: {BATCH_SIZE}), not {batch_size}")
    metrics_by_batch = [
        TextScores.from_texts(
            [text.strip() for text in predictions[first : first + batch_size]],
            [text.strip() for text in labels[first : first + batch_size]],
            use_stemmer=use_stemmer,
        ).metrics()
        for first in range(0, len(predictions), batch_size)
    ]
    return {
        name: float(np.mean([metrics[name] or 0.0 for metrics in metrics_by_batch]))
        for name in ("bleu", *ROUGE_METRICS)
    }


def published_metrics(
    predictions: Sequence[str], labels: Sequence[str], *, batch_size: int = BATCH_SIZE, use_stemmer: bool = False
) -> dict[str, float]:
    """The whole vector of the published evaluation, but for the metrics of tokens."""
    return published_number_metrics(predictions, labels) | published_text_metrics(
        predictions, labels, batch_size=batch_size, use_stemmer=use_stemmer
    )


def _check_lengths(predictions: Sequence[str], labels: Sequence[str]) -> None:
    if len(predictions) != len(labels) or not predictions:
        raise UserError(
            f"published metrics: {len(predictions)} answers to {len(labels)} questions; give one for each question, "
            "and at least one"
        )


def _mean(values: NDArray[np.float64]) -> float:
    return float(np.mean(values)) if values.size else float("nan")


def _r2(error: NDArray[np.float64], labels: NDArray[np.float64]) -> float:
    if not labels.size:
        return float("nan")
    return float(1.0 - np.sum(error**2) / np.sum((labels - np.mean(labels)) ** 2))


def _pearson(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """0 for fewer than two pairs, as there; nan where one of them is constant."""
    if one.size < 2:
        return 0.0
    first_centered, second_centered = one - np.mean(one), other - np.mean(other)
    return float(
        np.sum(first_centered * second_centered) / np.sqrt(np.sum(first_centered**2) * np.sum(second_centered**2))
    )
