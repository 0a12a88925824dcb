"""Exact, mergeable sums of errors, from which means, R², correlations and medians are computed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction
from math import ceil, exp, isfinite, log, log1p
from statistics import fmean

from numerate.evaluation.numbers_in_texts import ExactNumber

EXACT_CONTEXT = Context(prec=6000, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""Precise enough that sums of squares of numbers with `MAX_DIGITS` digits are not rounded."""

_ROUNDING_CONTEXT = Context(prec=50, Emax=MAX_EMAX, Emin=MIN_EMIN)
_LOG_STEP = Decimal("1e-12")
_LN10 = log(10.0)


def signed_log(number: ExactNumber) -> Decimal:
    """sign(x) log10(|x| + 1), to 12 decimals, also for numbers beyond the range of float.

    >>> signed_log(Decimal(-99)), signed_log(Decimal("1e400"))
    (Decimal('-2.000000000000'), Decimal('400.000000000000'))
    """
    value = to_decimal(number)
    size = _log(_ROUNDING_CONTEXT.add(abs(value), Decimal(1))) if abs(value) > 1 else log1p(float(abs(value)))
    return Decimal(size / _LN10).copy_sign(value).quantize(_LOG_STEP)


def to_decimal(number: ExactNumber) -> Decimal:
    """A number as a decimal; quotients are rounded to 50 digits."""
    if isinstance(number, Decimal):
        return number
    return _ROUNDING_CONTEXT.divide(Decimal(number.numerator), Decimal(number.denominator))


def absolute_error(prediction: Decimal, target: Decimal) -> Decimal:
    """|one - other|, exactly: `abs` alone would round to 28 digits."""
    return EXACT_CONTEXT.subtract(prediction, target).copy_abs()


def _log(value: Decimal) -> float:
    """The natural logarithm of a positive decimal of any size."""
    exponent = value.adjusted()
    return log(float(value.scaleb(-exponent, _ROUNDING_CONTEXT))) + exponent * _LN10


def _finite_float(value: Decimal) -> float | None:
    """The value as a float; None on overflow."""
    number = float(value)
    return number if isfinite(number) else None


@dataclass(frozen=True)
class Moments:
    """Exact sums over pairs (prediction, target), from which all errors and correlations are computed."""

    count: int = 0
    absolute_error: Decimal = Decimal(0)
    squared_error: Decimal = Decimal(0)
    target: Decimal = Decimal(0)
    target_squared: Decimal = Decimal(0)
    prediction: Decimal = Decimal(0)
    prediction_squared: Decimal = Decimal(0)
    product: Decimal = Decimal(0)

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[Decimal, Decimal]]) -> "Moments":
        """From pairs (prediction, target)."""
        count, sums = 0, [Decimal(0)] * 7
        for prediction, target in pairs:
            error = absolute_error(prediction, target)
            squares = (
                EXACT_CONTEXT.multiply(*factors)
                for factors in ((error, error), (target, target), (prediction, prediction), (prediction, target))
            )
            squared, target_squared, prediction_squared, product = squares
            terms = (error, squared, target, target_squared, prediction, prediction_squared, product)
            sums = [EXACT_CONTEXT.add(total, term) for total, term in zip(sums, terms, strict=True)]
            count += 1
        return cls(count, *sums)

    def __add__(self, other: "Moments") -> "Moments":
        names = [field.name for field in fields(self)][1:]
        return Moments(
            self.count + other.count, *(EXACT_CONTEXT.add(getattr(self, name), getattr(other, name)) for name in names)
        )

    def mean(self, name: str, num_penalized: int = 0, penalty: Decimal = Decimal(0)) -> float | None:
        """The mean of `absolute_error` or `squared_error`, with `num_penalized` further values of `penalty`; None
        without values."""
        count = self.count + num_penalized
        if not count:
            return None
        return _finite_float(
            _ROUNDING_CONTEXT.divide(
                EXACT_CONTEXT.add(getattr(self, name), EXACT_CONTEXT.multiply(Decimal(num_penalized), penalty)), count
            )
        )

    def r2(self) -> float | None:
        """1 - (sum of squared errors) / (sum of squares of the targets about their mean); None for constant targets."""
        spread = self._scaled_variance(self.target, self.target_squared)
        if not spread:
            return None
        return _finite_float(
            _ROUNDING_CONTEXT.subtract(
                Decimal(1),
                _ROUNDING_CONTEXT.divide(EXACT_CONTEXT.multiply(Decimal(self.count), self.squared_error), spread),
            )
        )

    def pearson(self) -> float | None:
        """Pearson correlation of predictions and targets; None if one of them is constant."""
        variances = [
            self._scaled_variance(self.target, self.target_squared),
            self._scaled_variance(self.prediction, self.prediction_squared),
        ]
        if not all(variances):
            return None
        covariance = EXACT_CONTEXT.subtract(
            EXACT_CONTEXT.multiply(Decimal(self.count), self.product),
            EXACT_CONTEXT.multiply(self.prediction, self.target),
        )
        correlation = float(
            _ROUNDING_CONTEXT.divide(
                covariance,
                _ROUNDING_CONTEXT.multiply(_ROUNDING_CONTEXT.sqrt(variances[0]), _ROUNDING_CONTEXT.sqrt(variances[1])),
            )
        )
        return min(1.0, max(-1.0, correlation))

    def _scaled_variance(self, total: Decimal, squares: Decimal) -> Decimal:
        """count x (sum of squares) - (sum)²: count² times the variance, exactly."""
        return EXACT_CONTEXT.subtract(
            EXACT_CONTEXT.multiply(Decimal(self.count), squares), EXACT_CONTEXT.multiply(total, total)
        )

    def to_record(self) -> dict[str, str]:
        return {name: _decimal_text(getattr(self, name)) for name in _SUM_NAMES}

    @classmethod
    def from_record(cls, count: int, data: Mapping[str, str]) -> "Moments":
        return cls(count, *(EXACT_CONTEXT.create_decimal(str(data[name])) for name in _SUM_NAMES))


_SUM_NAMES = tuple(field.name for field in fields(Moments) if field.name != "count")


def _decimal_text(value: Decimal) -> str:
    """An exact decimal as a short text: 12.50 is 12.5."""
    return str(value.normalize(EXACT_CONTEXT)) if value else "0"


@dataclass(frozen=True)
class QuantileSketch:
    """A mergeable histogram of errors with bins 2 % wide; its median is accurate to 1 %.

    DDSketch, Masson et al. (2019), https://arxiv.org/abs/1908.10693: bin k has the errors from g^(k-1) to g^k with g =
    1.01 / 0.99. There are at most as many bins as errors, and 115 per power of ten.
    """

    zero_count: int = 0
    buckets: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def from_errors(cls, errors: Iterable[Decimal]) -> "QuantileSketch":
        classes: dict[int, int] = {}
        zero = 0
        for error in errors:
            if error:
                bucket = ceil(_log(error) / _LOG_GAMMA)
                classes[bucket] = classes.get(bucket, 0) + 1
            else:
                zero += 1
        return cls(zero, dict(sorted(classes.items())))

    def __add__(self, other: "QuantileSketch") -> "QuantileSketch":
        classes = dict(self.buckets)
        for at, count in other.buckets.items():
            classes[at] = classes.get(at, 0) + count
        return QuantileSketch(self.zero_count + other.zero_count, dict(sorted(classes.items())))

    @property
    def count(self) -> int:
        return self.zero_count + sum(self.buckets.values())

    def median(self) -> float | None:
        """The median; None without values or on overflow."""
        count = self.count
        if not count:
            return None
        middle_values = [self._value_at_rank(rank) for rank in {(count - 1) // 2, count // 2}]
        found = fmean(middle_values)
        return found if isfinite(found) else None

    def _value_at_rank(self, rank: int) -> float:
        cumulative = self.zero_count
        if rank < cumulative:
            return 0.0
        for at, count in self.buckets.items():
            cumulative += count
            if rank < cumulative:
                log_value = at * _LOG_GAMMA + log(2.0 / (1.0 + exp(_LOG_GAMMA)))
                return exp(log_value) if log_value < 709.0 else float("inf")
        raise IndexError(f"there are {cumulative} errors, so none has rank {rank}")

    def to_record(self) -> dict[str, int]:
        return {"0": self.zero_count, **{f"k{at}": count for at, count in self.buckets.items()}}

    @classmethod
    def from_record(cls, data: Mapping[str, int]) -> "QuantileSketch":
        classes = {int(name[1:]): int(count) for name, count in data.items() if name != "0"}
        return cls(int(data["0"]), dict(sorted(classes.items())))


_LOG_GAMMA = log(1.01 / 0.99)


def spearman(predictions: Sequence[ExactNumber], targets: Sequence[ExactNumber]) -> float | None:
    """Spearman's rank correlation, with mean ranks for ties; None if one side is constant.

    Spearman (1904), https://doi.org/10.2307/1412159.
    """
    ranked = [[Decimal(rank) for rank in _doubled_ranks(values)] for values in (predictions, targets)]
    return Moments.from_pairs(zip(*ranked, strict=True)).pearson()


def _doubled_ranks(values: Sequence[ExactNumber]) -> list[int]:
    """Twice the rank of each value, so that mean ranks are integers."""
    keys = [Fraction(value) for value in values]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    ranks, start = [0] * len(keys), 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and keys[order[end + 1]] == keys[order[start]]:
            end += 1
        for index in order[start : end + 1]:
            ranks[index] = start + end + 2
        start = end + 1
    return ranks


def exact_median(errors: Sequence[Decimal]) -> float | None:
    if not errors:
        return None
    ordered, middle = sorted(errors), len(errors) // 2
    found = (
        ordered[middle]
        if len(errors) % 2
        else _ROUNDING_CONTEXT.divide(EXACT_CONTEXT.add(ordered[middle - 1], ordered[middle]), 2)
    )
    return _finite_float(found)


CELL_MEAN_SUFFIX = " (mean of modules)"
"""Suffix of a metric that is the mean over cells, with equal weights."""


def cell_means(cells: Sequence[Mapping[str, float | None]], names: Iterable[str]) -> dict[str, float | None]:
    """The mean of each metric over the cells that have it, as name + `CELL_MEAN_SUFFIX`."""
    means: dict[str, float | None] = {}
    for name in names:
        values = [value for metrics in cells if (value := metrics.get(name)) is not None]
        means[f"{name}{CELL_MEAN_SUFFIX}"] = fmean(values) if values else None
    return means
