"""Exact, mergeable sums of errors, from which means, R² and correlations are computed."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction
from itertools import zip_longest
from math import log, log1p
from typing import Any, NamedTuple, TypeVar

import msgspec

from numerate.errors import UserError
from numerate.evaluation.numbers_in_texts import ExactNumber

T = TypeVar("T")

_EXACT = Context(prec=6000, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""Enough digits to write sums of squares of numbers with `MAX_DIGITS` digits."""

_ROUNDED = Context(prec=50, Emax=MAX_EMAX, Emin=MIN_EMIN)
_LN10 = log(10.0)

CELL_MEAN_SUFFIX = " (mean of modules)"
"""Suffix of a metric that is the mean over cells, with equal weights."""


class Metric(NamedTuple):
    """A metric of answers: its title, whether it is a fraction from 0 to 1, and whether it measures errors."""

    title: str
    is_proportion: bool = False
    lower_is_better: bool = False


def add_sums(first: Any, second: Any) -> Any:
    """Adds sums of the same kind: numbers; tuples of numbers, mappings and dataclasses of sums entry by entry."""
    if isinstance(first, tuple):
        return tuple(map(sum, zip_longest(first, second, fillvalue=0)))
    if isinstance(first, Mapping):
        shared = {key: add_sums(first[key], second[key]) for key in first.keys() & second.keys()}
        return {**first, **second, **shared}
    if is_dataclass(first) and not isinstance(first, type):
        names = [one.name for one in fields(first)]
        return type(first)(*(add_sums(getattr(first, name), getattr(second, name)) for name in names))
    return first + second


def sums_to_record(sums: Any) -> dict[str, Any]:
    """A dataclass of sums as data of JSON; fractions are decimals in full."""
    record = msgspec.to_builtins(sums, enc_hook=lambda fraction: str(exact_decimal(fraction)))
    return {name: list(value) if isinstance(value, tuple) else value for name, value in record.items()}


def sums_from_record(kind: type[T], record: Mapping[str, Any]) -> T:
    """The inverse of `sums_to_record`; other entries are ignored. Raises `ValueError` for an invalid record."""
    if missing := {one.name for one in fields(kind)} - record.keys():  # type: ignore[arg-type]
        raise ValueError(f"a record of {kind.__name__} must have {', '.join(sorted(missing))}")
    return msgspec.convert(record, kind, dec_hook=lambda _, text: Fraction(text))


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
    if size > 1:
        decimal = _ROUNDED.divide((size + 1).numerator, (size + 1).denominator)
        exponent = decimal.adjusted()
        natural = log(float(decimal.scaleb(-exponent, _ROUNDED))) + exponent * _LN10
    else:
        natural = log1p(float(size))
    return Fraction(Decimal(natural / _LN10).quantize(Decimal("1e-12"))) * (-1 if number < 0 else 1)


def finite_float(number: Fraction) -> float | None:
    """The nearest float; None on overflow."""
    try:
        return float(number)
    except OverflowError:
        return None


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

    def mean(self, name: str) -> float | None:
        """The mean of `absolute_error` or `squared_error`; None without values."""
        return finite_float(getattr(self, name) / self.count) if self.count else None

    def r2(self) -> float | None:
        """1 - (sum of squared errors) / (sum of squares of the targets about their mean); None for constant targets."""
        spread = self._scaled_variance(self.target, self.target_squared)
        return finite_float(1 - self.count * self.squared_error / spread) if spread else None

    def pearson(self) -> float | None:
        """Pearson correlation of predictions and targets; None if one of them is constant."""
        spread = self._scaled_variance(self.target, self.target_squared)
        spread *= self._scaled_variance(self.prediction, self.prediction_squared)
        if not spread:
            return None
        covariance = self.count * self.product - self.prediction * self.target
        squared = covariance**2 / spread
        size = float(_ROUNDED.sqrt(_ROUNDED.divide(squared.numerator, squared.denominator)))
        return min(1.0, size) * (-1 if covariance < 0 else 1)

    def _scaled_variance(self, total: Fraction, squares: Fraction) -> Fraction:
        """count x (sum of squares) - (sum)²: count² times the variance."""
        return self.count * squares - total**2


def spearman(predictions: Sequence[ExactNumber], targets: Sequence[ExactNumber]) -> float | None:
    """Spearman's rank correlation, with mean ranks for ties; None if one side is constant.

    Spearman (1904), https://doi.org/10.2307/1412159.
    """
    return Moments.from_pairs(zip(_doubled_ranks(predictions), _doubled_ranks(targets), strict=True)).pearson()


def _doubled_ranks(values: Sequence[ExactNumber]) -> list[Fraction]:
    """Twice the rank of each value, so that mean ranks are integers."""
    ordered = sorted(Fraction(value) for value in values)
    return [Fraction(bisect_left(ordered, value) + bisect_right(ordered, value) + 1) for value in values]
