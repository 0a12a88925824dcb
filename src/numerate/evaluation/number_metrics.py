"""Metrics of number answers: accuracy, accuracy within a tolerance, errors and correlations.

There are two scales: `mae`, `mse`, `r2`, ... are of the numbers themselves, `log_mae`, `log_mse`, `log_r2`, ... of
sign(x) log10(|x| + 1), as the published tables (Zausinger et al., 2025, https://arxiv.org/abs/2411.02083). An answer
without a number is wrong in all accuracies, has no error, and is counted in `missing` or `invalid`.

In errors, R² and correlations, predictions are clipped to an absolute value of `CLIP_LIMIT`, or ten times the target if
that is larger (`clipped` counts them). The published evaluation has the same bound, regardless of the target.
Accuracies and ranks are not clipped.

All sums are exact: merging cells gives exactly the result of all their questions together.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce
from math import sqrt
from statistics import median
from typing import Any

from numerate.evaluation.numbers_in_texts import ExactNumber, ParsedNumber, answer_number
from numerate.evaluation.statistics import Z, wilson_interval
from numerate.evaluation.sums import (
    Metric,
    Moments,
    add_sums,
    check_pairs,
    finite_decimal,
    finite_float,
    ratio,
    signed_log,
    spearman,
    sums_from_record,
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


def is_close(prediction: ExactNumber, target: ExactNumber, relative: Fraction, absolute: Fraction) -> bool:
    """Whether `prediction` is within a tolerance of `target`, exactly."""
    return abs(Fraction(prediction) - Fraction(target)) <= absolute + relative * abs(Fraction(target))


@dataclass(frozen=True)
class NumberScores:
    """Scores of number answers, as sums that can be merged.

    `count` questions have a number as their target (others are not counted at all). `correct` of their answers are
    exactly that number, `within` are within a tolerance, `missing` have no number and `invalid` are malformed ones;
    `clipped` predictions were too large. `relative_error` is a sum over the `nonzero` targets that are not 0.
    `of_cell` has the metrics that only single cells have: medians and the rank correlation.

    >>> scores = NumberScores.from_texts(["it is 12", "1,000", "nothing"], ["12", "999", "3"])
    >>> scores.correct, scores.missing, scores.metrics()["mae"]
    (1, 1, 0.5)
    """

    count: int = 0
    correct: int = 0
    missing: int = 0
    invalid: int = 0
    clipped: int = 0
    nonzero: int = 0
    within: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(TOLERANCES, 0))
    linear: Moments = Moments()
    log: Moments = Moments()
    relative_error: Fraction = Fraction(0)
    of_cell: Mapping[str, float | None] = field(default_factory=dict)

    @classmethod
    def from_numbers(cls, predictions: Sequence[ParsedNumber], targets: Sequence[ExactNumber | None]) -> "NumberScores":
        """From the numbers parsed from answers, and the targets (None for questions without a number as answer)."""
        questions = [(found, number) for found, number in zip(predictions, targets, strict=True) if number is not None]
        exact = [(found.value, number) for found, number in questions if found.value is not None]
        unclipped = [(finite_decimal(found), finite_decimal(number)) for found, number in exact]
        limits = [max(CLIP_LIMIT, 10 * abs(number)) for _, number in unclipped]
        pairs = [(max(-most, min(most, found)), y) for (found, y), most in zip(unclipped, limits, strict=True)]
        logs = [(signed_log(found), signed_log(number)) for found, number in pairs]
        medians = {
            name: finite_float(median(abs(found - number) for found, number in each)) if each else None
            for name, each in (("median_error", pairs), ("log_median_error", logs))
        }
        return cls(
            count=len(questions),
            correct=sum(found == number for found, number in exact),
            missing=sum(found.missing for found, _ in questions),
            invalid=sum(found.invalid for found, _ in questions),
            clipped=sum(one != other for one, other in zip(unclipped, pairs, strict=True)),
            nonzero=sum(number != 0 for _, number in pairs),
            within={name: sum(is_close(*pair, *bounds) for pair in exact) for name, bounds in TOLERANCES.items()},
            linear=Moments.from_pairs(pairs),
            log=Moments.from_pairs(logs),
            relative_error=sum((finite_decimal(abs(x / y - 1)) for x, y in pairs if y), Fraction(0)),
            of_cell=medians | {"spearman": spearman([found for found, _ in exact], [number for _, number in exact])},
        )

    @classmethod
    def from_texts(cls, predictions: Sequence[str], targets: Sequence[str]) -> "NumberScores":
        """From the numbers of answers and of targets (`answer_number`). Raises `UserError` if their counts differ."""
        check_pairs(predictions, targets)
        return cls.from_numbers([*map(answer_number, predictions)], [answer_number(text).value for text in targets])

    @classmethod
    def merge(cls, scores_of_cells: Iterable["NumberScores"]) -> "NumberScores":
        """Merges cells into one, which has no medians and no rank correlation if they are several."""
        each = list(scores_of_cells)
        return each[0] if len(each) == 1 else reduce(add_sums, (replace(one, of_cell={}) for one in each), cls())

    def metrics(self) -> dict[str, float | None]:
        """Every metric of `NUMBER_METRICS` by name; None if it is undefined or overflows a float."""
        counts = {name: getattr(self, name) for name in ("missing", "invalid", "clipped")} | {**self.within}
        counts["number_accuracy"] = self.correct
        found: dict[str, float | None] = {name: ratio(count, self.count) for name, count in counts.items()}
        found["mape"] = finite_float(self.relative_error / self.nonzero) if self.nonzero else None
        for prefix, moments in (("", self.linear), ("log_", self.log)):
            found |= {f"{prefix}mae": moments.mean("absolute_error"), f"{prefix}mse": moments.mean("squared_error")}
            found |= {f"{prefix}r2": moments.r2(), f"{prefix}pearson": moments.pearson()}
        return {name: found.get(name, self.of_cell.get(name)) for name in NUMBER_METRICS}

    def intervals(self) -> dict[str, float | None]:
        """The 95 % intervals of the share of correct numbers, by Wilson, and of `mae` and `log_mae`, by the normal
        approximation: `mae.low`, `mae.high` and so on."""
        low, high = wilson_interval(self.correct, self.count)
        found: dict[str, float | None] = {"number_accuracy.low": float(low), "number_accuracy.high": float(high)}
        for name, moments in (("mae", self.linear), ("log_mae", self.log)):
            mean, mean_square, count = moments.mean("absolute_error"), moments.mean("squared_error"), moments.count
            if mean is not None and mean_square is not None and count > 1:
                margin = Z * sqrt(max(0.0, mean_square - mean**2) / (count - 1))
                found |= {f"{name}.low": max(0.0, mean - margin), f"{name}.high": mean + margin}
        return found

    def to_record(self) -> dict[str, Any]:
        """The entry `numbers` in the record of a cell: counts, exact sums, and the metrics."""
        metrics = self.metrics().items()
        rounded = {name: None if value is None else float(f"{value:.9g}") for name, value in metrics}
        return sums_to_record(self) | {"metrics": rounded}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "NumberScores | None":
        """From the record of a cell; None for one without numbers. Raises `ValueError` for an invalid record."""
        return None if record.get("numbers") is None else sums_from_record(cls, record["numbers"])


def _error_metrics(prefix: str, of: str) -> dict[str, Metric]:
    return {
        f"{prefix}mae": Metric(f"mean absolute error{of}", lower_is_better=True),
        f"{prefix}mse": Metric(f"mean squared error{of}", lower_is_better=True),
        f"{prefix}median_error": Metric(f"median absolute error{of}", lower_is_better=True),
        f"{prefix}r2": Metric(f"R²{of}"),
        f"{prefix}pearson": Metric(f"Pearson correlation{of}"),
    }


NUMBER_METRICS: dict[str, Metric] = {
    "number_accuracy": Metric("correct numbers", True),
    "within_1e-2": Metric("numbers within 1 %", True),
    "within_1e-5": Metric("numbers within 0.001 %", True),
    "missing": Metric("answers without a number", True, True),
    "invalid": Metric("answers with an invalid number", True, True),
    "clipped": Metric("numbers too large, clipped", True, True),
    **_error_metrics("", ""),
    "mape": Metric("mean relative error", lower_is_better=True),
    **_error_metrics("log_", " of sign(x) log10(|x| + 1)"),
    "spearman": Metric("Spearman rank correlation"),
}
"""The metrics of numbers; docs/metrics.md defines them."""
