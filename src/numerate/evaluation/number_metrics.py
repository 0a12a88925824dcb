"""Metrics of answers that are numbers: accuracy, accuracy within a tolerance, errors and correlations.

There are two scales: `mae`, `mse`, `r2`, ... are of the numbers themselves, `log_mae`, `log_mse`, `log_r2`, ... of
sign(x) log10(|x| + 1), which measures factors. A single outlier dominates the linear ones; the published tables are of
the logarithmic ones (Zausinger et al., 2025, https://arxiv.org/abs/2411.02083).

An answer without a number is wrong in every share. It has no error: it is left out of errors and correlations and
counted in `missing` or `invalid`, or it counts with a given penalty.

So that one very long number does not dominate every mean, predictions are clipped to `BOUND` in size, or to ten times
the target where that is more, in errors, R² and correlations (`clipped` counts them). The published evaluation has the
same bound, for targets of any size. In shares, digits and ranks nothing is clipped.

All sums are exact, in decimals: merged cells give exactly what all their questions at once give.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from math import isfinite
from typing import Any

from numerate.errors import UserError
from numerate.evaluation.numbers_in_texts import PUBLISHED_LIMIT, Exact, Found, last_number
from numerate.evaluation.sums import (
    WIDE,
    Moments,
    Sketch,
    decimal_of,
    distance,
    means_of_modules,
    median,
    signed_log,
    spearman,
)

METRICS: dict[str, str] = {
    "number_accuracy": "numbers right",
    "within_1e-2": "numbers within 1 %",
    "within_1e-5": "numbers within 0.001 %",
    "number_digit_accuracy": "digits right, place by place",
    "missing": "answers without a number",
    "invalid": "answers with what is no number",
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

SHARES = ("number_accuracy", "within_1e-2", "within_1e-5", "number_digit_accuracy", "missing", "invalid", "clipped")
"""Those of them that are shares from 0 to 1."""


@dataclass(frozen=True)
class Tolerance:
    """How far a number may be off: `absolute` + `relative` x |target|.

    >>> Tolerance("0.01").holds(Decimal(99), Decimal(100)), Tolerance("0.01").holds(Decimal(98), Decimal(100))
    (True, False)
    """

    relative: str = "0"
    absolute: str = "0"

    def holds(self, prediction: Exact, target: Exact) -> bool:
        """Whether `prediction` is that near to `target`, decided exactly."""
        allowed = Fraction(self.absolute) + Fraction(self.relative) * abs(Fraction(target))
        return abs(Fraction(prediction) - Fraction(target)) <= allowed


TOLERANCES: dict[str, Tolerance] = {
    "within_1e-2": Tolerance("0.01"),
    "within_1e-5": Tolerance("1e-5", "1e-8"),
}
"""The tolerances that are always measured: 1 %, and that of numpy's `isclose`, as in the published accuracy."""


BOUND = Decimal(PUBLISHED_LIMIT)
"""Predictions are clipped to this size, 10 billion, in errors, unless the target is not much smaller."""

_TIMES = Decimal(10)


def clipped(prediction: Decimal, target: Decimal) -> Decimal:
    """A prediction, clipped in size to `BOUND` or ten times the target, whichever is more.

    >>> clipped(Decimal("-9e125"), Decimal(7)), clipped(Decimal("9e125"), Decimal("2e30"))
    (Decimal('-10000000000'), Decimal('2E+31'))
    """
    bound = max(BOUND, WIDE.multiply(_TIMES, target.copy_abs()))
    return bound.copy_sign(prediction) if prediction.copy_abs() > bound else prediction


# Scores ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NumberScores:
    """Scores of answers that are numbers, as sums that can be merged.

    `count` questions have a number as their target (others are not counted at all). Of their answers `exact` are that
    very number, `within` are within a tolerance, `missing` have no number and `invalid` are malformed ones; `clipped`
    predictions were too large. `digits_right` of the `digits` digits of the targets are predicted at their place.
    `own` has what only single cells have: the exact medians and the rank correlation.

    >>> scores = NumberScores.of_texts(["it is 12", "1,000", "nothing"], ["12", "999", "3"])
    >>> scores.exact, scores.missing, scores.measures()["mae"]
    (1, 1, 0.5)
    """

    count: int = 0
    exact: int = 0
    missing: int = 0
    invalid: int = 0
    clipped: int = 0
    digits: int = 0
    digits_right: int = 0
    within: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(TOLERANCES, 0))
    linear: Moments = Moments()
    log: Moments = Moments()
    errors: Sketch = Sketch()
    log_errors: Sketch = Sketch()
    own: Mapping[str, float | None] = field(default_factory=dict)

    @classmethod
    def of(cls, predictions: Sequence[Found], targets: Sequence[Exact | None]) -> "NumberScores":
        """From the numbers found in answers, and the targets, None where a question has no number as its answer."""
        questions = [(found, number) for found, number in zip(predictions, targets, strict=True) if number is not None]
        exact = [(found.value, number) for found, number in questions if found.value is not None]
        decimals = [(decimal_of(found), decimal_of(number)) for found, number in exact]
        pairs = [(clipped(found, number), number) for found, number in decimals]
        logs = [(signed_log(found), signed_log(number)) for found, number in pairs]
        errors, log_errors = ([distance(found, number) for found, number in every] for every in (pairs, logs))
        digits = [
            _digits(None if found.value is None else decimal_of(found.value), decimal_of(n)) for found, n in questions
        ]
        return cls(
            count=len(questions),
            exact=sum(found == number for found, number in exact),
            missing=sum(found.missing for found, _ in questions),
            invalid=sum(found.invalid for found, _ in questions),
            clipped=sum(found != other for (found, _), (other, _) in zip(decimals, pairs, strict=True)),
            digits=sum(count for _, count in digits),
            digits_right=sum(count for count, _ in digits),
            within={name: sum(close.holds(*pair) for pair in exact) for name, close in TOLERANCES.items()},
            linear=Moments.of(pairs),
            log=Moments.of(logs),
            errors=Sketch.of(errors),
            log_errors=Sketch.of(log_errors),
            own={
                "median_error": median(errors),
                "log_median_error": median(log_errors),
                "spearman": spearman([found for found, _ in exact], [number for _, number in exact]),
            },
        )

    @classmethod
    def of_texts(cls, predictions: Sequence[str], targets: Sequence[str]) -> "NumberScores":
        """From the last numbers of answers and of targets. Raises `UserError` for unequally many."""
        if len(predictions) != len(targets):
            raise UserError(f"number_metrics: {len(predictions)} answers to {len(targets)} questions; give one to each")
        return cls.of([last_number(text) for text in predictions], [last_number(text).value for text in targets])

    @classmethod
    def together(cls, several: Iterable["NumberScores"]) -> "NumberScores":
        """All questions of several cells as those of one, without rank correlation and with medians to 1 %."""
        each = list(several)
        if len(each) == 1:
            return each[0]
        names = dict.fromkeys(name for scores in each for name in scores.within)
        counts = ("count", "exact", "missing", "invalid", "clipped", "digits", "digits_right")
        return cls(
            **{name: sum(getattr(scores, name) for scores in each) for name in counts},
            within={name: sum(scores.within.get(name, 0) for scores in each) for name in names},
            linear=sum((scores.linear for scores in each), Moments()),
            log=sum((scores.log for scores in each), Moments()),
            errors=sum((scores.errors for scores in each), Sketch()),
            log_errors=sum((scores.log_errors for scores in each), Sketch()),
        )

    def measures(self, penalty: float | None = None) -> dict[str, float | None]:
        """Every metric of `METRICS` by its name; None where there is nothing to measure, or a float overflows.

        With a `penalty`, an answer without a number has this error, and log10(penalty + 1) on the logarithmic scale, in
        `mae`, `mse`, `log_mae` and `log_mse`; without, it is left out of them. It is left out of medians, R² and
        correlations either way. Raises `UserError` for a penalty below 0.
        """
        if penalty is not None and not (isfinite(penalty) and penalty >= 0):
            raise UserError(f"penalty: {penalty} is no error; 0 or more is right, or None to leave such answers out")
        extra = 0 if penalty is None else self.count - self.linear.count
        linear = Decimal(penalty or 0)
        scales = (("", self.linear, self.errors, linear), ("log_", self.log, self.log_errors, signed_log(linear)))
        found: dict[str, float | None] = {
            "number_accuracy": self._share(self.exact),
            **{name: self._share(count) for name, count in self.within.items()},
            "number_digit_accuracy": self.digits_right / self.digits if self.digits else None,
            "missing": self._share(self.missing),
            "invalid": self._share(self.invalid),
            "clipped": self._share(self.clipped),
        }
        for name, moments, sketch, error in scales:
            found[f"{name}mae"] = moments.mean("error", extra, error)
            found[f"{name}mse"] = moments.mean("squared", extra, WIDE.multiply(error, error))
            found[f"{name}median_error"] = self.own.get(f"{name}median_error", sketch.median())
            found[f"{name}r2"] = moments.r2()
            found[f"{name}pearson"] = moments.pearson()
        return found | {"spearman": self.own.get("spearman")}

    def _share(self, count: int) -> float | None:
        return count / self.count if self.count else None

    # Records ------------------------------------------------------------------------------------------------------

    def record(self) -> dict[str, Any]:
        """The entry of numbers in the record of a cell: counts, exact sums, and the metrics for people to read."""
        return {
            "asked": self.count,
            "exact": self.exact,
            "missing": self.missing,
            "invalid": self.invalid,
            "clipped": self.clipped,
            "digits": self.digits,
            "digits_right": self.digits_right,
            "within": dict(self.within),
            "linear": self.linear.record(),
            "log": self.log.record(),
            "errors": self.errors.record(),
            "log_errors": self.log_errors.record(),
            "measures": {
                name: value if value is None else float(f"{value:.9g}") for name, value in self.measures().items()
            },
        }

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> "NumberScores | None":
        """From the record of a cell; None for one without numbers. Raises `KeyError`, `TypeError`, `ValueError` or
        `ArithmeticError` for an invalid record."""
        data = record.get("numbers")
        if data is None:
            return None
        answered = int(data["asked"]) - int(data["missing"]) - int(data["invalid"])
        measures = data.get("measures", {})
        return cls(
            count=int(data["asked"]),
            exact=int(data["exact"]),
            missing=int(data["missing"]),
            invalid=int(data["invalid"]),
            clipped=int(data.get("clipped", 0)),
            digits=int(data["digits"]),
            digits_right=int(data["digits_right"]),
            within={str(name): int(count) for name, count in data["within"].items()},
            linear=Moments.read(answered, data["linear"]),
            log=Moments.read(answered, data["log"]),
            errors=Sketch.read(data["errors"]),
            log_errors=Sketch.read(data["log_errors"]),
            own={name: measures[name] for name in _OWN if name in measures},
        )


_OWN = ("median_error", "log_median_error", "spearman")


def pooled(cells: Sequence[NumberScores], penalty: float | None = None) -> dict[str, float | None]:
    """Every metric twice: over all questions of several cells, `log_mae`, and as the mean over the cells that have it,
    each weighing the same, `log_mae (mean of modules)`. Raises `UserError` for no cells."""
    if not cells:
        raise UserError("number_metrics: there are no cells to take together")
    each = [scores.measures(penalty) for scores in cells]
    return NumberScores.together(cells).measures(penalty) | means_of_modules(each, METRICS)


def _digits(prediction: Decimal | None, target: Decimal) -> tuple[int, int]:
    """How many digits of the target the prediction has at the same place, counted from the point, and how many the
    target has. Leading zeros, and trailing ones behind the point, are no digits; 0 has one. Signs do not matter."""
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
    _, digits, exponent = value.normalize(WIDE).as_tuple()
    assert isinstance(exponent, int)
    found = {exponent + index: digit for index, digit in enumerate(reversed(digits))}
    return found | dict.fromkeys(range(exponent), 0) if exponent > 0 and value else found
