"""Exact, mergeable sums of errors, from which means, R², correlations and medians are computed."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction
from itertools import accumulate
from math import ceil, exp, isfinite, log, log1p
from statistics import fmean
from typing import Any

from numerate.errors import UserError
from numerate.evaluation.numbers_in_texts import ExactNumber

_EXACT = Context(prec=6000, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""Enough digits to write sums of squares of numbers with `MAX_DIGITS` digits."""

_ROUNDED = Context(prec=50, Emax=MAX_EMAX, Emin=MIN_EMIN)
_LN10 = log(10.0)
_LOG_GAMMA = log(1.01 / 0.99)

CELL_MEAN_SUFFIX = " (mean of modules)"
"""Suffix of a metric that is the mean over cells, with equal weights."""


@dataclass(frozen=True)
class Metric:
    """A metric of answers: its title in reports and how it is computed from scores; None if it is undefined.

    `is_proportion`: it is a fraction from 0 to 1, displayed in per cent. `lower_is_better`: it measures errors.
    """

    title: str
    compute: Callable[..., float | None]
    is_proportion: bool = False
    lower_is_better: bool = False


def add_sums(first: Any, second: Any) -> Any:
    """Adds sums of the same kind: numbers, and tuples, mappings and dataclasses of sums entry by entry."""
    if isinstance(first, tuple):
        return tuple(map(add_sums, first, second))
    if isinstance(first, Mapping):
        return {key: first.get(key, 0) + second.get(key, 0) for key in {**first, **second}}
    if is_dataclass(first) and not isinstance(first, type):
        names = [one.name for one in fields(first)]
        return type(first)(*(add_sums(getattr(first, name), getattr(second, name)) for name in names))
    return first + second


def sums_to_record(sums: Any) -> dict[str, Any]:
    """The fields of a dataclass of sums as data of JSON, by their names without `num_`."""
    record = {one.name.removeprefix("num_"): getattr(sums, one.name) for one in fields(sums)}
    for name, value in record.items():
        if isinstance(value, Moments | QuantileSketch):
            record[name] = value.to_record()
        elif isinstance(value, Fraction):
            record[name] = str(exact_decimal(value))
        elif isinstance(value, tuple):
            record[name] = list(value)
    return record


def check_pairs(predictions: Sequence[str], references: Sequence[str]) -> None:
    """Raises `UserError` unless there is one answer to each question."""
    if len(predictions) != len(references):
        raise UserError(f"metrics: {len(predictions)} answers to {len(references)} questions; give one to each")


def ratio(total: float, count: int) -> float | None:
    """The mean of values with this sum; None without values."""
    return total / count if count else None


def finite_decimal(number: ExactNumber) -> Fraction:
    """A number as a fraction that a finite decimal can write: quotients such as 1/3 are rounded to 50 digits."""
    if isinstance(number, Decimal):
        return Fraction(number)
    return Fraction(_ROUNDED.divide(number.numerator, number.denominator))


def exact_decimal(number: Fraction) -> Decimal:
    """The same number as a decimal in its shortest form: 25/2 is `12.5`, 100 is `1E+2`."""
    return _EXACT.divide(number.numerator, number.denominator).normalize(_EXACT)


def signed_log(number: Fraction) -> Fraction:
    """sign(x) log10(|x| + 1), to 12 decimals, also for numbers beyond the range of float.

    >>> float(signed_log(Fraction(-99))), float(signed_log(Fraction(10) ** 400))
    (-2.0, 400.0)
    """
    size = abs(number)
    natural = _log(size + 1) if size > 1 else log1p(float(size))
    return Fraction(Decimal(natural / _LN10).quantize(Decimal("1e-12"))) * (-1 if number < 0 else 1)


def finite_float(number: Fraction) -> float | None:
    """The nearest float; None on overflow."""
    try:
        return float(number)
    except OverflowError:
        return None


def _log(number: Fraction) -> float:
    """The natural logarithm of a positive number of any size."""
    decimal = _ROUNDED.divide(number.numerator, number.denominator)
    exponent = decimal.adjusted()
    return log(float(decimal.scaleb(-exponent, _ROUNDED))) + exponent * _LN10


@dataclass(frozen=True)
class Moments:
    """Exact sums over pairs (prediction, target), from which all errors and correlations are computed."""

    count: int = 0
    absolute_error: Fraction = Fraction(0)
    squared_error: Fraction = Fraction(0)
    target: Fraction = Fraction(0)
    target_squared: Fraction = Fraction(0)
    prediction: Fraction = Fraction(0)
    prediction_squared: Fraction = Fraction(0)
    product: Fraction = Fraction(0)

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[Fraction, Fraction]]) -> "Moments":
        """From pairs (prediction, target)."""
        terms = [(1, abs(p - t), (p - t) ** 2, t, t * t, p, p * p, p * t) for p, t in pairs]
        sums: list[Any] = [sum(column) for column in zip(*terms, strict=True)]
        return cls(*sums)

    def mean(self, name: str, num_penalized: int = 0, penalty: Fraction = Fraction(0)) -> float | None:
        """The mean of `absolute_error` or `squared_error`, with `num_penalized` further values of `penalty`; None
        without values."""
        count = self.count + num_penalized
        return finite_float((getattr(self, name) + num_penalized * penalty) / count) if count else None

    def r2(self) -> float | None:
        """1 - (sum of squared errors) / (sum of squares of the targets about their mean); None for constant targets."""
        spread = self._scaled_variance(self.target, self.target_squared)
        return finite_float(1 - self.count * self.squared_error / spread) if spread else None

    def pearson(self) -> float | None:
        """Pearson correlation of predictions and targets; None if one of them is constant."""
        spread = self._scaled_variance(self.target, self.target_squared) * self._scaled_variance(
            self.prediction, self.prediction_squared
        )
        if not spread:
            return None
        covariance = self.count * self.product - self.prediction * self.target
        squared = covariance**2 / spread
        size = float(_ROUNDED.sqrt(_ROUNDED.divide(squared.numerator, squared.denominator)))
        return min(1.0, size) * (-1 if covariance < 0 else 1)

    def _scaled_variance(self, total: Fraction, squares: Fraction) -> Fraction:
        """count x (sum of squares) - (sum)²: count² times the variance."""
        return self.count * squares - total**2

    def to_record(self) -> dict[str, str]:
        return {one.name: str(exact_decimal(getattr(self, one.name))) for one in fields(self)[1:]}

    @classmethod
    def from_record(cls, count: int, data: Mapping[str, str]) -> "Moments":
        return cls(count, *(Fraction(str(data[one.name])) for one in fields(cls)[1:]))


@dataclass(frozen=True)
class QuantileSketch:
    """A mergeable histogram of errors with bins 2 % wide; its median is accurate to 1 %.

    DDSketch, Masson et al. (2019), https://arxiv.org/abs/1908.10693: bin k has the errors from g^(k-1) to g^k with g =
    1.01 / 0.99. There are at most as many bins as errors, and 115 per power of ten.
    """

    zero_count: int = 0
    buckets: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def from_errors(cls, errors: Sequence[Fraction]) -> "QuantileSketch":
        buckets = Counter(ceil(_log(error) / _LOG_GAMMA) for error in errors if error)
        return cls(len(errors) - buckets.total(), dict(buckets))

    def median(self) -> float | None:
        """The median; None without values or on overflow."""
        count = self.zero_count + sum(self.buckets.values())
        if not count:
            return None
        found = fmean(self._value_at_rank(rank) for rank in ((count - 1) // 2, count // 2))
        return found if isfinite(found) else None

    def _value_at_rank(self, rank: int) -> float:
        buckets = sorted(self.buckets)
        ends = list(accumulate((self.buckets[bucket] for bucket in buckets), initial=self.zero_count))
        index = bisect_right(ends, rank)
        if not index:
            return 0.0
        log_value = buckets[index - 1] * _LOG_GAMMA + log(2.0 / (1.0 + exp(_LOG_GAMMA)))
        return exp(log_value) if log_value < 709.0 else float("inf")

    def to_record(self) -> dict[str, int]:
        return {"0": self.zero_count, **{f"k{bucket}": count for bucket, count in sorted(self.buckets.items())}}

    @classmethod
    def from_record(cls, data: Mapping[str, int]) -> "QuantileSketch":
        return cls(int(data["0"]), {int(name[1:]): int(count) for name, count in data.items() if name != "0"})


def spearman(predictions: Sequence[ExactNumber], targets: Sequence[ExactNumber]) -> float | None:
    """Spearman's rank correlation, with mean ranks for ties; None if one side is constant.

    Spearman (1904), https://doi.org/10.2307/1412159.
    """
    return Moments.from_pairs(zip(_doubled_ranks(predictions), _doubled_ranks(targets), strict=True)).pearson()


def _doubled_ranks(values: Sequence[ExactNumber]) -> list[Fraction]:
    """Twice the rank of each value, so that mean ranks are integers."""
    ordered = sorted(Fraction(value) for value in values)
    return [Fraction(bisect_left(ordered, value) + bisect_right(ordered, value) + 1) for value in values]
