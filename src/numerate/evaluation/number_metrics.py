"""Metrics of number answers: accuracy, accuracy within a tolerance, errors and correlations.

There are two scales: `mae`, `mse`, `r2`, ... are of the numbers themselves, `log_mae`, `log_mse`, `log_r2`, ... of
sign(x) log10(|x| + 1), which measures factors. A single outlier dominates the linear ones; the published tables are of
the logarithmic ones (Zausinger et al., 2025, https://arxiv.org/abs/2411.02083).

An answer without a number counts as wrong in all accuracies. It has no error: it is excluded from errors and
correlations and counted in `missing` or `invalid`, or it gets a given penalty.

To limit the effect of very long numbers, predictions are clipped to an absolute value of `CLIP_LIMIT`, or ten times the
target if that is larger, in errors, R² and correlations (`clipped` counts them). The published evaluation has the same
bound, regardless of the target. Accuracies, digits and ranks are not clipped.

All sums are exact decimals: merging cells gives exactly the result of all their questions together.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from math import isfinite
from typing import Any

from numerate.errors import UserError
from numerate.evaluation.numbers_in_texts import PUBLISHED_LIMIT, ExactNumber, ParsedNumber, last_number
from numerate.evaluation.sums import (
    EXACT_CONTEXT,
    Moments,
    QuantileSketch,
    absolute_error,
    cell_means,
    exact_median,
    signed_log,
    spearman,
    to_decimal,
)

NUMBER_METRICS: dict[str, str] = {
    "number_accuracy": "correct numbers",
    "within_1e-2": "numbers within 1 %",
    "within_1e-5": "numbers within 0.001 %",
    "number_digit_accuracy": "correct digits by position",
    "missing": "answers without a number",
    "invalid": "answers with an invalid number",
    "clipped": "numbers too large, clipped",
    "mae": "mean absolute error",
    "mse": "mean squared error",
    "median_error": "median absolute error",
    "r2": "R²",
    "pearson": "Pearson correlation",
    "log_mae": "mean absolute error of sign(x) log10(|x| + 1)",
    "log_mse": "mean squared error of sign(x) log10(|x| + 1)",
    "log_median_error": "median absolute error of sign(x) log10(|x| + 1)",
    "log_r2": "R² of sign(x) log10(|x| + 1)",
    "log_pearson": "Pearson correlation of sign(x) log10(|x| + 1)",
    "spearman": "Spearman rank correlation",
}
"""The metrics of numbers and their names in reports; docs/metrics.md defines them."""

PROPORTION_METRICS = (
    "number_accuracy",
    "within_1e-2",
    "within_1e-5",
    "number_digit_accuracy",
    "missing",
    "invalid",
    "clipped",
)
"""The metrics that are fractions from 0 to 1."""


@dataclass(frozen=True)
class Tolerance:
    """How far a number may be off: `absolute` + `relative` x |target|.

    >>> [Tolerance("0.01").is_close(Decimal(prediction), Decimal(100)) for prediction in (99, 98)]
    [True, False]
    """

    relative: str = "0"
    absolute: str = "0"

    def is_close(self, prediction: ExactNumber, target: ExactNumber) -> bool:
        """Whether `prediction` is within the tolerance of `target`, in exact arithmetic."""
        allowed = Fraction(self.absolute) + Fraction(self.relative) * abs(Fraction(target))
        return abs(Fraction(prediction) - Fraction(target)) <= allowed


TOLERANCES: dict[str, Tolerance] = {
    "within_1e-2": Tolerance("0.01"),
    "within_1e-5": Tolerance("1e-5", "1e-8"),
}
"""The tolerances that are always measured: 1 %, and that of numpy's `isclose`, as in the published accuracy."""


CLIP_LIMIT = Decimal(PUBLISHED_LIMIT)
"""Predictions are clipped to this absolute value, 10 billion, in errors, unless ten times the target is larger."""

_TARGET_FACTOR = Decimal(10)


def clip_prediction(prediction: Decimal, target: Decimal) -> Decimal:
    """A prediction, clipped in absolute value to `CLIP_LIMIT` or ten times the target, whichever is more.

    >>> clip_prediction(Decimal("-9e125"), Decimal(7)), clip_prediction(Decimal("9e125"), Decimal("2e30"))
    (Decimal('-10000000000'), Decimal('2.0E+31'))
    """
    limit = max(CLIP_LIMIT, EXACT_CONTEXT.multiply(_TARGET_FACTOR, target.copy_abs()))
    return limit.copy_sign(prediction) if prediction.copy_abs() > limit else prediction


# Scores ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NumberScores:
    """Scores of number answers, as sums that can be merged.

    `count` questions have a number as their target (others are not counted at all). `num_correct` of their answers are
    exactly that number, `within` are within a tolerance, `missing` have no number and `invalid` are malformed ones;
    `clipped` predictions were too large. `num_correct_digits` of the `num_digits` digits of the targets are predicted
    at their position. `cell_metrics` has the metrics that only single cells have: the exact medians and the rank
    correlation.

    >>> scores = NumberScores.from_texts(["it is 12", "1,000", "nothing"], ["12", "999", "3"])
    >>> scores.num_correct, scores.missing, scores.metrics()["mae"]
    (1, 1, 0.5)
    """

    count: int = 0
    num_correct: int = 0
    missing: int = 0
    invalid: int = 0
    clipped: int = 0
    num_digits: int = 0
    num_correct_digits: int = 0
    within: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(TOLERANCES, 0))
    linear_moments: Moments = Moments()
    log_moments: Moments = Moments()
    error_sketch: QuantileSketch = QuantileSketch()
    log_error_sketch: QuantileSketch = QuantileSketch()
    cell_metrics: Mapping[str, float | None] = field(default_factory=dict)

    @classmethod
    def from_numbers(cls, predictions: Sequence[ParsedNumber], targets: Sequence[ExactNumber | None]) -> "NumberScores":
        """From the numbers parsed from answers, and the targets (None for questions without a number as answer)."""
        questions = [(found, number) for found, number in zip(predictions, targets, strict=True) if number is not None]
        exact = [(found.value, number) for found, number in questions if found.value is not None]
        decimals = [(to_decimal(found), to_decimal(number)) for found, number in exact]
        pairs = [(clip_prediction(found, number), number) for found, number in decimals]
        logs = [(signed_log(found), signed_log(number)) for found, number in pairs]
        errors, log_errors = ([absolute_error(found, number) for found, number in every] for every in (pairs, logs))
        digits = [
            _matching_digits(None if found.value is None else to_decimal(found.value), to_decimal(n))
            for found, n in questions
        ]
        return cls(
            count=len(questions),
            num_correct=sum(found == number for found, number in exact),
            missing=sum(found.missing for found, _ in questions),
            invalid=sum(found.invalid for found, _ in questions),
            clipped=sum(found != other for (found, _), (other, _) in zip(decimals, pairs, strict=True)),
            num_digits=sum(count for _, count in digits),
            num_correct_digits=sum(count for count, _ in digits),
            within={name: sum(close.is_close(*pair) for pair in exact) for name, close in TOLERANCES.items()},
            linear_moments=Moments.from_pairs(pairs),
            log_moments=Moments.from_pairs(logs),
            error_sketch=QuantileSketch.from_errors(errors),
            log_error_sketch=QuantileSketch.from_errors(log_errors),
            cell_metrics={
                "median_error": exact_median(errors),
                "log_median_error": exact_median(log_errors),
                "spearman": spearman([found for found, _ in exact], [number for _, number in exact]),
            },
        )

    @classmethod
    def from_texts(cls, predictions: Sequence[str], targets: Sequence[str]) -> "NumberScores":
        """From the last numbers of answers and of targets. Raises `UserError` if their counts differ."""
        if len(predictions) != len(targets):
            raise UserError(f"number_metrics: {len(predictions)} answers to {len(targets)} questions; give one to each")
        return cls.from_numbers(
            [last_number(text) for text in predictions], [last_number(text).value for text in targets]
        )

    @classmethod
    def merge(cls, scores_of_cells: Iterable["NumberScores"]) -> "NumberScores":
        """Merges cells into one, without rank correlation and with medians accurate to 1 %."""
        each = list(scores_of_cells)
        if len(each) == 1:
            return each[0]
        names = dict.fromkeys(name for scores in each for name in scores.within)
        counts = ("count", "num_correct", "missing", "invalid", "clipped", "num_digits", "num_correct_digits")
        return cls(
            **{name: sum(getattr(scores, name) for scores in each) for name in counts},
            within={name: sum(scores.within.get(name, 0) for scores in each) for name in names},
            linear_moments=sum((scores.linear_moments for scores in each), Moments()),
            log_moments=sum((scores.log_moments for scores in each), Moments()),
            error_sketch=sum((scores.error_sketch for scores in each), QuantileSketch()),
            log_error_sketch=sum((scores.log_error_sketch for scores in each), QuantileSketch()),
        )

    def metrics(self, penalty: float | None = None) -> dict[str, float | None]:
        """Every metric of `METRICS` by name; None if it is undefined or overflows a float.

        With a `penalty`, an answer without a number has this error, and log10(penalty + 1) on the logarithmic scale, in
        `mae`, `mse`, `log_mae` and `log_mse`; otherwise it is excluded. It is always excluded from medians, R² and
        correlations. Raises `UserError` for a penalty below 0.
        """
        if penalty is not None and not (isfinite(penalty) and penalty >= 0):
            raise UserError(f"penalty: must be at least 0, or None to exclude such answers, not {penalty}")
        num_penalized = 0 if penalty is None else self.count - self.linear_moments.count
        linear = Decimal(penalty or 0)
        scales = (
            ("", self.linear_moments, self.error_sketch, linear),
            ("log_", self.log_moments, self.log_error_sketch, signed_log(linear)),
        )
        metrics: dict[str, float | None] = {
            "number_accuracy": self._proportion(self.num_correct),
            **{name: self._proportion(count) for name, count in self.within.items()},
            "number_digit_accuracy": self.num_correct_digits / self.num_digits if self.num_digits else None,
            "missing": self._proportion(self.missing),
            "invalid": self._proportion(self.invalid),
            "clipped": self._proportion(self.clipped),
        }
        for name, moments, sketch, error in scales:
            metrics[f"{name}mae"] = moments.mean("absolute_error", num_penalized, error)
            metrics[f"{name}mse"] = moments.mean("squared_error", num_penalized, EXACT_CONTEXT.multiply(error, error))
            metrics[f"{name}median_error"] = self.cell_metrics.get(f"{name}median_error", sketch.median())
            metrics[f"{name}r2"] = moments.r2()
            metrics[f"{name}pearson"] = moments.pearson()
        return metrics | {"spearman": self.cell_metrics.get("spearman")}

    def _proportion(self, count: int) -> float | None:
        return count / self.count if self.count else None

    # Records ------------------------------------------------------------------------------------------------------

    def to_record(self) -> dict[str, Any]:
        """The entry `numbers` in the record of a cell: counts, exact sums, and the metrics."""
        return {
            "count": self.count,
            "correct": self.num_correct,
            "missing": self.missing,
            "invalid": self.invalid,
            "clipped": self.clipped,
            "digits": self.num_digits,
            "correct_digits": self.num_correct_digits,
            "within": dict(self.within),
            "linear": self.linear_moments.to_record(),
            "log": self.log_moments.to_record(),
            "error_sketch": self.error_sketch.to_record(),
            "log_error_sketch": self.log_error_sketch.to_record(),
            "metrics": {
                name: value if value is None else float(f"{value:.9g}") for name, value in self.metrics().items()
            },
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "NumberScores | None":
        """From the record of a cell; None for one without numbers. Raises `KeyError`, `TypeError`, `ValueError` or
        `ArithmeticError` for an invalid record."""
        data = record.get("numbers")
        if data is None:
            return None
        num_parsed = int(data["count"]) - int(data["missing"]) - int(data["invalid"])
        stored_metrics = data.get("metrics", {})
        return cls(
            count=int(data["count"]),
            num_correct=int(data["correct"]),
            missing=int(data["missing"]),
            invalid=int(data["invalid"]),
            clipped=int(data.get("clipped", 0)),
            num_digits=int(data["digits"]),
            num_correct_digits=int(data["correct_digits"]),
            within={str(name): int(count) for name, count in data["within"].items()},
            linear_moments=Moments.from_record(num_parsed, data["linear"]),
            log_moments=Moments.from_record(num_parsed, data["log"]),
            error_sketch=QuantileSketch.from_record(data["error_sketch"]),
            log_error_sketch=QuantileSketch.from_record(data["log_error_sketch"]),
            cell_metrics={name: stored_metrics[name] for name in _CELL_METRICS if name in stored_metrics},
        )


_CELL_METRICS = ("median_error", "log_median_error", "spearman")


def pooled_metrics(cells: Sequence[NumberScores], penalty: float | None = None) -> dict[str, float | None]:
    """Every metric twice: over all questions of several cells, `log_mae`, and as the mean over the cells that have it,
    each weighing the same, `log_mae (mean of modules)`. Raises `UserError` for no cells."""
    if not cells:
        raise UserError("number_metrics: must be given at least one cell")
    metrics_by_cell = [scores.metrics(penalty) for scores in cells]
    return NumberScores.merge(cells).metrics(penalty) | cell_means(metrics_by_cell, NUMBER_METRICS)


def _matching_digits(prediction: Decimal | None, target: Decimal) -> tuple[int, int]:
    """The number of digits of the target that the prediction has at the same position (aligned at the decimal point),
    and the number of digits of the target. Leading zeros, and trailing ones after the point, do not count; 0 has one
    digit. Signs are ignored."""
    digits = _digits_by_exponent(target)
    if prediction is None:
        return 0, len(digits)
    predicted = _digits_by_exponent(prediction)
    highest = max(0, *predicted)
    return sum(exponent <= highest and predicted.get(exponent, 0) == digit for exponent, digit in digits.items()), len(
        digits
    )


def _digits_by_exponent(value: Decimal) -> dict[int, int]:
    """The digits of a number by their power of ten."""
    _, digits, exponent = value.normalize(EXACT_CONTEXT).as_tuple()
    assert isinstance(exponent, int)
    found = {exponent + index: digit for index, digit in enumerate(reversed(digits))}
    return found | dict.fromkeys(range(exponent), 0) if exponent > 0 and value else found
