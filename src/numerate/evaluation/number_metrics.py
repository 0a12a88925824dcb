"""Metrics of number answers: accuracy, accuracy within a tolerance, errors and correlations.

There are two scales: `mae`, `mse`, `r2`, ... are of the numbers themselves, `log_mae`, `log_mse`, `log_r2`, ... of
sign(x) log10(|x| + 1), which measures factors. A single outlier dominates the linear ones; the published tables are of
the logarithmic ones (Zausinger et al., 2025, https://arxiv.org/abs/2411.02083).

An answer without a number counts as wrong in all accuracies. It has no error: it is excluded from errors and
correlations and counted in `missing` or `invalid`, or it gets a given penalty.

To limit the effect of very long numbers, predictions are clipped to an absolute value of `CLIP_LIMIT`, or ten times the
target if that is larger, in errors, R² and correlations (`clipped` counts them). The published evaluation has the same
bound, regardless of the target. Accuracies, digits and ranks are not clipped.

All sums are exact: merging cells gives exactly the result of all their questions together.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import reduce
from math import sqrt
from statistics import NormalDist, median
from typing import Any

from numerate.evaluation.numbers_in_texts import ExactNumber, ParsedNumber, answer_number
from numerate.evaluation.statistics import wilson_interval
from numerate.evaluation.sums import (
    Metric,
    Moments,
    QuantileSketch,
    add_sums,
    check_pairs,
    exact_decimal,
    finite_decimal,
    finite_float,
    ratio,
    signed_log,
    spearman,
    sums_to_record,
)

CLIP_LIMIT = Fraction(10**10)
"""Predictions are clipped to this absolute value, 10 billion, in errors, unless ten times the target is larger."""

TOLERANCES = {
    "within_1e-2": (Fraction("0.01"), Fraction(0)),
    "within_1e-5": (Fraction("1e-5"), Fraction("1e-8")),
}
"""How far a number may be off, relative to the target and absolutely: 1 %, and the tolerance of numpy's `isclose`, as
in the published accuracy."""

NORMAL_QUANTILE = NormalDist().inv_cdf(0.975)


def is_close(prediction: ExactNumber, target: ExactNumber, relative: Fraction, absolute: Fraction) -> bool:
    """Whether `prediction` is within a tolerance of `target`, exactly.

    >>> [is_close(Fraction(number), Fraction(100), *TOLERANCES["within_1e-2"]) for number in (99, 98)]
    [True, False]
    """
    return abs(Fraction(prediction) - Fraction(target)) <= absolute + relative * abs(Fraction(target))


@dataclass(frozen=True)
class NumberScores:
    """Scores of number answers, as sums that can be merged.

    `count` questions have a number as their target (others are not counted at all). `num_correct` of their answers are
    exactly that number, `within` are within a tolerance, `missing` have no number and `invalid` are malformed ones;
    `clipped` predictions were too large. `num_correct_digits` of the `num_digits` digits of the targets are predicted
    at their position. `relative_error` is a sum over predictions of the `num_nonzero` targets that are not 0.
    `cell_metrics` has the metrics that only single cells have: the exact medians and the rank
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
    linear: Moments = Moments()
    log: Moments = Moments()
    error_sketch: QuantileSketch = QuantileSketch()
    log_error_sketch: QuantileSketch = QuantileSketch()
    num_nonzero: int = 0
    relative_error: Fraction = Fraction(0)
    cell_metrics: Mapping[str, float | None] = field(default_factory=dict)

    @classmethod
    def from_numbers(cls, predictions: Sequence[ParsedNumber], targets: Sequence[ExactNumber | None]) -> "NumberScores":
        """From the numbers parsed from answers, and the targets (None for questions without a number as answer)."""
        questions = [(found, number) for found, number in zip(predictions, targets, strict=True) if number is not None]
        exact = [(found.value, number) for found, number in questions if found.value is not None]
        unclipped = [(finite_decimal(found), finite_decimal(number)) for found, number in exact]
        pairs = [(_clip(found, max(CLIP_LIMIT, 10 * abs(number))), number) for found, number in unclipped]
        logs = [(signed_log(found), signed_log(number)) for found, number in pairs]
        errors, log_errors = ([abs(found - number) for found, number in each] for each in (pairs, logs))
        digits = [_matching_digits(found.value, number) for found, number in questions]
        return cls(
            count=len(questions),
            num_correct=sum(found == number for found, number in exact),
            missing=sum(found.missing for found, _ in questions),
            invalid=sum(found.invalid for found, _ in questions),
            clipped=sum(one != other for one, other in zip(unclipped, pairs, strict=True)),
            num_digits=sum(count for _, count in digits),
            num_correct_digits=sum(count for count, _ in digits),
            within={name: sum(is_close(*pair, *bounds) for pair in exact) for name, bounds in TOLERANCES.items()},
            linear=Moments.from_pairs(pairs),
            log=Moments.from_pairs(logs),
            error_sketch=QuantileSketch.from_errors(errors),
            log_error_sketch=QuantileSketch.from_errors(log_errors),
            num_nonzero=sum(number != 0 for _, number in pairs),
            relative_error=sum((finite_decimal(abs(x / y - 1)) for x, y in pairs if y), Fraction(0)),
            cell_metrics={
                "median_error": finite_float(median(errors)) if errors else None,
                "log_median_error": finite_float(median(log_errors)) if errors else None,
                "spearman": spearman([found for found, _ in exact], [number for _, number in exact]),
            },
        )

    @classmethod
    def from_texts(cls, predictions: Sequence[str], targets: Sequence[str]) -> "NumberScores":
        """From the numbers of answers and of targets (`answer_number`). Raises `UserError` if their counts differ."""
        check_pairs(predictions, targets)
        return cls.from_numbers([*map(answer_number, predictions)], [answer_number(text).value for text in targets])

    @classmethod
    def merge(cls, scores_of_cells: Iterable["NumberScores"]) -> "NumberScores":
        """Merges cells into one, without rank correlation and with medians accurate to 1 %."""
        each = list(scores_of_cells)
        return each[0] if len(each) == 1 else reduce(add_sums, (replace(one, cell_metrics={}) for one in each), cls())

    def metrics(self, penalty: float | None = None) -> dict[str, float | None]:
        """Every metric of `NUMBER_METRICS` by name; None if it is undefined or overflows a float.

        With a `penalty`, an answer without a number has this error, and log10(penalty + 1) on the logarithmic scale, in
        `mae`, `mse`, `log_mae` and `log_mse`; otherwise it is excluded. It is always excluded from medians, R² and
        correlations.
        """
        found = {name: metric.compute(self) for name, metric in NUMBER_METRICS.items()}
        return found if penalty is None else found | dict(self._penalized_errors(Fraction(penalty)))

    def _penalized_errors(self, penalty: Fraction) -> Iterator[tuple[str, float | None]]:
        num_penalized = self.count - self.linear.count
        for prefix, moments, error in (("", self.linear, penalty), ("log_", self.log, signed_log(penalty))):
            yield f"{prefix}mae", moments.mean("absolute_error", num_penalized, error)
            yield f"{prefix}mse", moments.mean("squared_error", num_penalized, error**2)

    def intervals(self) -> dict[str, float | None]:
        """The 95 % intervals of the share of correct numbers, by Wilson, and of `mae` and `log_mae`, by the normal
        approximation: `mae.low`, `mae.high` and so on."""
        low, high = wilson_interval(self.num_correct, self.count)
        found: dict[str, float | None] = {"number_accuracy.low": float(low), "number_accuracy.high": float(high)}
        for name, moments in (("mae", self.linear), ("log_mae", self.log)):
            mean, mean_square, count = moments.mean("absolute_error"), moments.mean("squared_error"), moments.count
            if mean is not None and mean_square is not None and count > 1:
                margin = NORMAL_QUANTILE * sqrt(max(0.0, mean_square - mean**2) / (count - 1))
                found |= {f"{name}.low": max(0.0, mean - margin), f"{name}.high": mean + margin}
        return found

    def to_record(self) -> dict[str, Any]:
        """The entry `numbers` in the record of a cell: counts, exact sums, and the metrics."""
        record = sums_to_record(self)
        del record["cell_metrics"]
        metrics = self.metrics().items()
        return record | {"metrics": {name: None if value is None else float(f"{value:.9g}") for name, value in metrics}}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "NumberScores | None":
        """From the record of a cell; None for one without numbers. Raises `KeyError`, `TypeError`, `ValueError` or
        `ArithmeticError` for an invalid record."""
        data = record.get("numbers")
        if data is None:
            return None
        counts = {one.name: int(data[one.name.removeprefix("num_")]) for one in fields(cls) if one.type is int}
        num_parsed = counts["count"] - counts["missing"] - counts["invalid"]
        stored = data["metrics"]
        return cls(
            **counts,
            within={str(name): int(count) for name, count in data["within"].items()},
            linear=Moments.from_record(num_parsed, data["linear"]),
            log=Moments.from_record(num_parsed, data["log"]),
            relative_error=Fraction(str(data["relative_error"])),
            error_sketch=QuantileSketch.from_record(data["error_sketch"]),
            log_error_sketch=QuantileSketch.from_record(data["log_error_sketch"]),
            cell_metrics={name: stored[name] for name in _CELL_METRICS if name in stored},
        )


_CELL_METRICS = ("median_error", "log_median_error", "spearman")


def _error_metrics(scale: str, prefix: str, of: str) -> dict[str, Metric]:
    """The metrics of errors on one scale, `linear` or `log`."""

    def mean(name: str) -> Callable[[NumberScores], float | None]:
        return lambda scores: getattr(scores, scale).mean(name)

    def median_error(scores: NumberScores) -> float | None:
        sketch: QuantileSketch = getattr(scores, f"{prefix}error_sketch")
        return scores.cell_metrics.get(f"{prefix}median_error", sketch.median())

    return {
        f"{prefix}mae": Metric(f"mean absolute error{of}", mean("absolute_error"), lower_is_better=True),
        f"{prefix}mse": Metric(f"mean squared error{of}", mean("squared_error"), lower_is_better=True),
        f"{prefix}median_error": Metric(f"median absolute error{of}", median_error, lower_is_better=True),
        f"{prefix}r2": Metric(f"R²{of}", lambda scores: getattr(scores, scale).r2()),
        f"{prefix}pearson": Metric(f"Pearson correlation{of}", lambda scores: getattr(scores, scale).pearson()),
    }


def _proportion(title: str, count_of: Callable[[NumberScores], int], *, lower_is_better: bool = False) -> Metric:
    return Metric(title, lambda scores: ratio(count_of(scores), scores.count), True, lower_is_better)


NUMBER_METRICS: dict[str, Metric] = {
    "number_accuracy": _proportion("correct numbers", lambda s: s.num_correct),
    "within_1e-2": _proportion("numbers within 1 %", lambda s: s.within["within_1e-2"]),
    "within_1e-5": _proportion("numbers within 0.001 %", lambda s: s.within["within_1e-5"]),
    "number_digit_accuracy": Metric(
        "correct digits by position", lambda s: ratio(s.num_correct_digits, s.num_digits), is_proportion=True
    ),
    "missing": _proportion("answers without a number", lambda s: s.missing, lower_is_better=True),
    "invalid": _proportion("answers with an invalid number", lambda s: s.invalid, lower_is_better=True),
    "clipped": _proportion("numbers too large, clipped", lambda s: s.clipped, lower_is_better=True),
    **_error_metrics("linear", "", ""),
    "mape": Metric("mean relative error", lambda s: _mean_relative_error(s), lower_is_better=True),
    **_error_metrics("log", "log_", " of sign(x) log10(|x| + 1)"),
    "spearman": Metric("Spearman rank correlation", lambda scores: scores.cell_metrics.get("spearman")),
}
"""The metrics of numbers; docs/metrics.md defines them."""


def _mean_relative_error(scores: NumberScores) -> float | None:
    return finite_float(scores.relative_error / scores.num_nonzero) if scores.num_nonzero else None


def _clip(number: Fraction, limit: Fraction) -> Fraction:
    return max(-limit, min(limit, number))


def _matching_digits(prediction: ExactNumber | None, target: ExactNumber) -> tuple[int, int]:
    """The number of digits of the target that the prediction has at the same position (aligned at the decimal point),
    and the number of digits of the target. Leading zeros, and trailing ones after the point, do not count; 0 has one
    digit. Signs are ignored."""
    digits = _digits_by_exponent(target)
    if prediction is None:
        return 0, len(digits)
    predicted = _digits_by_exponent(prediction)
    highest = max(0, *predicted)
    matches = sum(exponent <= highest and predicted.get(exponent, 0) == digit for exponent, digit in digits.items())
    return matches, len(digits)


def _digits_by_exponent(value: ExactNumber) -> dict[int, int]:
    """The digits of a number by their power of ten."""
    _, digits, exponent = exact_decimal(finite_decimal(value)).as_tuple()
    assert isinstance(exponent, int)
    found = {exponent + index: digit for index, digit in enumerate(reversed(digits))}
    return found | dict.fromkeys(range(exponent), 0)
