"""Exact, mergeable sums of errors, from which means, R², correlations and medians are computed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction
from math import ceil, exp, isfinite, log, log1p
from statistics import fmean

from numerate.evaluation.numbers_in_texts import Exact

WIDE = Context(prec=6000, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""Wide enough that no sum of squares of numbers of `MOST_DIGITS` digits is rounded."""

_FINE = Context(prec=50, Emax=MAX_EMAX, Emin=MIN_EMIN)
_LOG_STEP = Decimal("1e-12")
_LN10 = log(10.0)


def signed_log(number: Exact) -> Decimal:
    """sign(x) log10(|x| + 1), to 12 decimals; it exists for numbers that no float holds.

    >>> signed_log(Decimal(-99)), signed_log(Decimal("1e400"))
    (Decimal('-2.000000000000'), Decimal('400.000000000000'))
    """
    value = decimal_of(number)
    size = _log(_FINE.add(abs(value), Decimal(1))) if abs(value) > 1 else log1p(float(abs(value)))
    return Decimal(size / _LN10).copy_sign(value).quantize(_LOG_STEP)


def decimal_of(number: Exact) -> Decimal:
    """A number as a decimal: itself, and of a quotient the first 50 digits."""
    if isinstance(number, Decimal):
        return number
    return _FINE.divide(Decimal(number.numerator), Decimal(number.denominator))


def distance(one: Decimal, other: Decimal) -> Decimal:
    """|one - other|, exactly: `abs` alone would round to 28 digits."""
    return WIDE.subtract(one, other).copy_abs()


def _log(value: Decimal) -> float:
    """The natural logarithm of a positive decimal of any size."""
    exponent = value.adjusted()
    return log(float(value.scaleb(-exponent, _FINE))) + exponent * _LN10


def _float(value: Decimal) -> float | None:
    """A float; None for what none holds."""
    number = float(value)
    return number if isfinite(number) else None


@dataclass(frozen=True)
class Moments:
    """Exact sums over pairs (prediction, target), from which all errors and correlations are computed."""

    count: int = 0
    error: Decimal = Decimal(0)
    squared: Decimal = Decimal(0)
    target: Decimal = Decimal(0)
    target_squared: Decimal = Decimal(0)
    prediction: Decimal = Decimal(0)
    prediction_squared: Decimal = Decimal(0)
    product: Decimal = Decimal(0)

    @classmethod
    def of(cls, pairs: Iterable[tuple[Decimal, Decimal]]) -> "Moments":
        """From pairs (prediction, target)."""
        count, sums = 0, [Decimal(0)] * 7
        for prediction, target in pairs:
            error = distance(prediction, target)
            squares = (
                WIDE.multiply(*both)
                for both in ((error, error), (target, target), (prediction, prediction), (prediction, target))
            )
            squared, target_squared, prediction_squared, product = squares
            terms = (error, squared, target, target_squared, prediction, prediction_squared, product)
            sums = [WIDE.add(total, term) for total, term in zip(sums, terms, strict=True)]
            count += 1
        return cls(count, *sums)

    def __add__(self, other: "Moments") -> "Moments":
        names = [field.name for field in fields(self)][1:]
        return Moments(
            self.count + other.count, *(WIDE.add(getattr(self, name), getattr(other, name)) for name in names)
        )

    def mean(self, name: str, penalised: int = 0, penalty: Decimal = Decimal(0)) -> float | None:
        """The mean of `error` or `squared`, with `penalised` further values of `penalty`; None of nothing."""
        count = self.count + penalised
        if not count:
            return None
        return _float(_FINE.divide(WIDE.add(getattr(self, name), WIDE.multiply(Decimal(penalised), penalty)), count))

    def r2(self) -> float | None:
        """1 - (sum of squared errors) / (sum of squares of the targets about their mean); None for constant targets."""
        spread = self._spread(self.target, self.target_squared)
        if not spread:
            return None
        return _float(
            _FINE.subtract(Decimal(1), _FINE.divide(WIDE.multiply(Decimal(self.count), self.squared), spread))
        )

    def pearson(self) -> float | None:
        """Pearson correlation of predictions and targets; None where one of them is constant."""
        spreads = [
            self._spread(self.target, self.target_squared),
            self._spread(self.prediction, self.prediction_squared),
        ]
        if not all(spreads):
            return None
        together = WIDE.subtract(
            WIDE.multiply(Decimal(self.count), self.product), WIDE.multiply(self.prediction, self.target)
        )
        found = float(_FINE.divide(together, _FINE.multiply(_FINE.sqrt(spreads[0]), _FINE.sqrt(spreads[1]))))
        return min(1.0, max(-1.0, found))

    def _spread(self, total: Decimal, squares: Decimal) -> Decimal:
        """count x (sum of squares) - (sum)²: count² times the variance, exactly."""
        return WIDE.subtract(WIDE.multiply(Decimal(self.count), squares), WIDE.multiply(total, total))

    def record(self) -> dict[str, str]:
        return {key: _short(getattr(self, name)) for name, key in _SUMS.items()}

    @classmethod
    def read(cls, count: int, data: Mapping[str, str]) -> "Moments":
        return cls(count, *(WIDE.create_decimal(str(data[key])) for key in _SUMS.values()))


_SUMS = {
    field.name: field.name.replace("prediction", "said").replace("target", "right")
    for field in fields(Moments)
    if field.name != "count"
}
"""The key of each sum in records."""


def _short(value: Decimal) -> str:
    """An exact decimal as a short text: 12.50 is 12.5."""
    return str(value.normalize(WIDE)) if value else "0"


@dataclass(frozen=True)
class Sketch:
    """A mergeable histogram of errors in classes 2 % wide; its median is exact to 1 %.

    DDSketch, Masson et al. (2019), https://arxiv.org/abs/1908.10693: class k has the errors from g^(k-1) to g^k with
    g = 1.01 / 0.99. At most as many classes as errors, and 115 for each power of ten.
    """

    zero: int = 0
    classes: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, errors: Iterable[Decimal]) -> "Sketch":
        classes: dict[int, int] = {}
        zero = 0
        for error in errors:
            if error:
                at = ceil(_log(error) / _CLASS)
                classes[at] = classes.get(at, 0) + 1
            else:
                zero += 1
        return cls(zero, dict(sorted(classes.items())))

    def __add__(self, other: "Sketch") -> "Sketch":
        classes = dict(self.classes)
        for at, count in other.classes.items():
            classes[at] = classes.get(at, 0) + count
        return Sketch(self.zero + other.zero, dict(sorted(classes.items())))

    @property
    def count(self) -> int:
        return self.zero + sum(self.classes.values())

    def median(self) -> float | None:
        """The median; None of nothing, and where a float overflows."""
        count = self.count
        if not count:
            return None
        middle = [self._at(rank) for rank in {(count - 1) // 2, count // 2}]
        found = fmean(middle)
        return found if isfinite(found) else None

    def _at(self, rank: int) -> float:
        below = self.zero
        if rank < below:
            return 0.0
        for at, count in self.classes.items():
            below += count
            if rank < below:
                size = at * _CLASS + log(2.0 / (1.0 + exp(_CLASS)))
                return exp(size) if size < 709.0 else float("inf")
        raise IndexError(f"there are {below} errors, so none has rank {rank}")

    def record(self) -> dict[str, int]:
        return {"0": self.zero, **{f"k{at}": count for at, count in self.classes.items()}}

    @classmethod
    def read(cls, data: Mapping[str, int]) -> "Sketch":
        classes = {int(name[1:]): int(count) for name, count in data.items() if name != "0"}
        return cls(int(data["0"]), dict(sorted(classes.items())))


_CLASS = log(1.01 / 0.99)


def spearman(predictions: Sequence[Exact], targets: Sequence[Exact]) -> float | None:
    """Spearman's rank correlation, ties sharing their middle rank; None where one side is constant.

    Spearman (1904), https://doi.org/10.2307/1412159.
    """
    ranked = [[Decimal(rank) for rank in _doubled_ranks(values)] for values in (predictions, targets)]
    return Moments.of(zip(*ranked, strict=True)).pearson()


def _doubled_ranks(values: Sequence[Exact]) -> list[int]:
    """Twice the rank of each value, so that the middle of two ranks is whole."""
    keys = [Fraction(value) for value in values]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    ranks, first = [0] * len(keys), 0
    while first < len(order):
        last = first
        while last + 1 < len(order) and keys[order[last + 1]] == keys[order[first]]:
            last += 1
        for index in order[first : last + 1]:
            ranks[index] = first + last + 2
        first = last + 1
    return ranks


def median(errors: Sequence[Decimal]) -> float | None:
    if not errors:
        return None
    ordered, middle = sorted(errors), len(errors) // 2
    found = ordered[middle] if len(errors) % 2 else _FINE.divide(WIDE.add(ordered[middle - 1], ordered[middle]), 2)
    return _float(found)


BY_MODULE = " (mean of modules)"
"""Suffix of a metric that is the mean over cells, each weighing the same."""


def means_of_modules(cells: Sequence[Mapping[str, float | None]], names: Iterable[str]) -> dict[str, float | None]:
    """The mean of each metric over the cells that have it, as name + `BY_MODULE`."""
    found: dict[str, float | None] = {}
    for name in names:
        values = [value for measures in cells if (value := measures.get(name)) is not None]
        found[f"{name}{BY_MODULE}"] = fmean(values) if values else None
    return found
