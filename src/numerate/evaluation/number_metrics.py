"""How far the numbers in answers are from the right ones: exact, within a tolerance, and their errors.

Two scales under two names: `mae`, `mse`, `r2`, ... are of the numbers themselves, `log_mae`, `log_mse`, `log_r2`, ...
of sign(x) log10(|x| + 1), where a factor counts and not a difference. One number that is far off rules the linear
ones; the published tables are of the logarithmic ones (Zausinger et al., 2025, https://arxiv.org/abs/2411.02083).

An answer without a number is wrong in every share. It has no error: it is left out of errors and correlations, how
many there are is said beside (`missing`, `invalid`), or it counts with a stated penalty.

One endless run of digits would rule every mean. In errors, R² and correlations a number said is taken as at most
`BOUND` in size, or as ten times the right one where that is more; how many were is said (`clipped`). The published
evaluation has the same bound, for right numbers of any size. In shares, digits and ranks nothing is clipped.

All sums are exact, in decimals: cells taken together give what all their questions at once give, to the last digit.
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
"""What is measured of numbers, with the words that reports use; `definitions` are in docs/metrics.md."""

SHARES = ("number_accuracy", "within_1e-2", "within_1e-5", "number_digit_accuracy", "missing", "invalid", "clipped")
"""Those of them that are shares from 0 to 1."""


@dataclass(frozen=True)
class Tolerance:
    """How far a number may be off: by `absolute`, and by `relative` times the right one, together.

    >>> Tolerance("0.01").holds(Decimal(99), Decimal(100)), Tolerance("0.01").holds(Decimal(98), Decimal(100))
    (True, False)
    """

    relative: str = "0"
    absolute: str = "0"

    def holds(self, said: Exact, right: Exact) -> bool:
        """Whether `said` is that near to `right`, decided exactly."""
        allowed = Fraction(self.absolute) + Fraction(self.relative) * abs(Fraction(right))
        return abs(Fraction(said) - Fraction(right)) <= allowed


TOLERANCES: dict[str, Tolerance] = {
    "within_1e-2": Tolerance("0.01"),
    "within_1e-5": Tolerance("1e-5", "1e-8"),
}
"""The tolerances that are always measured: 1 %, and that of numpy's `isclose`, which the published accuracy has."""


BOUND = Decimal(PUBLISHED_LIMIT)
"""The size, 10 billion, that a number said has at most in errors, unless the right one is not much smaller."""

_TIMES = Decimal(10)


def clipped(said: Decimal, right: Decimal) -> Decimal:
    """A number said, not beyond `BOUND` or ten times the right one in size.

    >>> clipped(Decimal("-9e125"), Decimal(7)), clipped(Decimal("9e125"), Decimal("2e30"))
    (Decimal('-10000000000'), Decimal('2E+31'))
    """
    bound = max(BOUND, WIDE.multiply(_TIMES, right.copy_abs()))
    return bound.copy_sign(said) if said.copy_abs() > bound else said


# Scores ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NumberScores:
    """The numbers of some answers beside the right ones, as sums that can be taken together.

    `asked` questions have a number as their right answer (others are not counted at all). Of these `exact` were
    answered with that very number, `within` with one that a tolerance allows, `missing` with none and `invalid` with
    what is no number; `clipped` of the numbers said were too large. `digits_right` of `digits` digits of the right
    numbers stand at their place in the one said. `own` has what only single cells have: the exact medians and the rank
    correlation.

    >>> scores = NumberScores.of_texts(["it is 12", "1,000", "nothing"], ["12", "999", "3"])
    >>> scores.exact, scores.missing, scores.measures()["mae"]
    (1, 1, 0.5)
    """

    asked: int = 0
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
    def of(cls, said: Sequence[Found], right: Sequence[Exact | None]) -> "NumberScores":
        """Of what was found in answers and the right numbers, None where a question asks for none."""
        asked = [(one, number) for one, number in zip(said, right, strict=True) if number is not None]
        exact = [(one.value, number) for one, number in asked if one.value is not None]
        told = [(decimal_of(one), decimal_of(number)) for one, number in exact]
        pairs = [(clipped(one, number), number) for one, number in told]
        logs = [(signed_log(one), signed_log(number)) for one, number in pairs]
        errors, log_errors = ([distance(one, number) for one, number in every] for every in (pairs, logs))
        places = [_digits(None if one.value is None else decimal_of(one.value), decimal_of(n)) for one, n in asked]
        return cls(
            asked=len(asked),
            exact=sum(one == number for one, number in exact),
            missing=sum(one.missing for one, _ in asked),
            invalid=sum(one.invalid for one, _ in asked),
            clipped=sum(one != other for (one, _), (other, _) in zip(told, pairs, strict=True)),
            digits=sum(count for _, count in places),
            digits_right=sum(count for count, _ in places),
            within={name: sum(close.holds(*pair) for pair in exact) for name, close in TOLERANCES.items()},
            linear=Moments.of(pairs),
            log=Moments.of(logs),
            errors=Sketch.of(errors),
            log_errors=Sketch.of(log_errors),
            own={
                "median_error": median(errors),
                "log_median_error": median(log_errors),
                "spearman": spearman([one for one, _ in exact], [number for _, number in exact]),
            },
        )

    @classmethod
    def of_texts(cls, said: Sequence[str], right: Sequence[str]) -> "NumberScores":
        """Of the last numbers of answers and of right answers. Raises `UserError` for unequally many."""
        if len(said) != len(right):
            raise UserError(f"number_metrics: {len(said)} answers to {len(right)} questions; give one to each")
        return cls.of([last_number(text) for text in said], [last_number(text).value for text in right])

    @classmethod
    def together(cls, several: Iterable["NumberScores"]) -> "NumberScores":
        """All questions of several cells as those of one. The rank correlation is then lost, and medians are right to
        1 %."""
        each = list(several)
        if len(each) == 1:
            return each[0]
        names = dict.fromkeys(name for scores in each for name in scores.within)
        counts = ("asked", "exact", "missing", "invalid", "clipped", "digits", "digits_right")
        return cls(
            **{name: sum(getattr(scores, name) for scores in each) for name in counts},
            within={name: sum(scores.within.get(name, 0) for scores in each) for name in names},
            linear=sum((scores.linear for scores in each), Moments()),
            log=sum((scores.log for scores in each), Moments()),
            errors=sum((scores.errors for scores in each), Sketch()),
            log_errors=sum((scores.log_errors for scores in each), Sketch()),
        )

    def measures(self, penalty: float | None = None) -> dict[str, float | None]:
        """Every metric of `METRICS` by its name; None where there is nothing to measure, or no float holds it.

        With a `penalty`, an answer without a number has this error, and log10(penalty + 1) on the logarithmic scale, in
        `mae`, `mse`, `log_mae` and `log_mse`; without, it is left out of them. It is left out of medians, R² and
        correlations either way. Raises `UserError` for a penalty below 0.
        """
        if penalty is not None and not (isfinite(penalty) and penalty >= 0):
            raise UserError(f"penalty: {penalty} is no error; 0 or more is right, or None to leave such answers out")
        extra = 0 if penalty is None else self.asked - self.linear.count
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
        return count / self.asked if self.asked else None

    # Records ------------------------------------------------------------------------------------------------------

    def record(self) -> dict[str, Any]:
        """What the record of a cell says of numbers: counts, exact sums, and for people the metrics themselves."""
        return {
            "asked": self.asked,
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
        """Of the record of a cell; None for one without numbers. Raises `KeyError`, `TypeError`, `ValueError` or
        `ArithmeticError` for what is no such record."""
        told = record.get("numbers")
        if told is None:
            return None
        answered = int(told["asked"]) - int(told["missing"]) - int(told["invalid"])
        measures = told.get("measures", {})
        return cls(
            asked=int(told["asked"]),
            exact=int(told["exact"]),
            missing=int(told["missing"]),
            invalid=int(told["invalid"]),
            clipped=int(told.get("clipped", 0)),
            digits=int(told["digits"]),
            digits_right=int(told["digits_right"]),
            within={str(name): int(count) for name, count in told["within"].items()},
            linear=Moments.read(answered, told["linear"]),
            log=Moments.read(answered, told["log"]),
            errors=Sketch.read(told["errors"]),
            log_errors=Sketch.read(told["log_errors"]),
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


def _digits(said: Decimal | None, right: Decimal) -> tuple[int, int]:
    """How many digits of the right number stand at the same place of the one said, counted from the point, and how many
    it has. Zeros in front, and behind the point at the end, are no digits; 0 has one. A number of the other sign has
    the same digits."""
    places = _places(right)
    if said is None:
        return 0, len(places)
    there = _places(said)
    highest = max(0, *there)
    return sum(place <= highest and there.get(place, 0) == digit for place, digit in places.items()), len(places)


def _places(value: Decimal) -> dict[int, int]:
    """The digits of a number by their power of ten."""
    _, digits, exponent = value.normalize(WIDE).as_tuple()
    assert isinstance(exponent, int)
    found = {exponent + place: digit for place, digit in enumerate(reversed(digits))}
    return found | dict.fromkeys(range(exponent), 0) if exponent > 0 and value else found
