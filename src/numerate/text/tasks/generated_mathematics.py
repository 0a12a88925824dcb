"""Generated arithmetic questions like those of the mathematics dataset, without its files."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from string import ascii_letters
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span, setting
from numerate.errors import UserError
from numerate.tasks.counter_rng import CounterRNG
from numerate.tasks.questions import Example, Questions
from numerate.tasks.task import Task
from numerate.tasks.texts import Listed
from numerate.text.tasks.text_task import as_question, refuse_unknown

Kind = Literal["add_or_sub", "mul", "place_value", "round_number"]

KINDS: tuple[Kind, ...] = ("add_or_sub", "mul", "place_value", "round_number")

_PLACES = (
    "units",
    "tens",
    "hundreds",
    *("thousands", "ten thousands", "hundred thousands"),
    *("millions", "ten millions", "hundred millions"),
    *("billions", "ten billions", "hundred billions"),
)


@dataclass(frozen=True)
class GeneratedMathematics(Task):
    """A generated stand-in for `Mathematics`, `What is 3.7 - 120?`, for trying it without its files.

    Four kinds of question like those of four modules of the dataset: sums and differences (with decimals), products,
    digits by place, rounding. The distribution differs from the dataset's, and so do results. Parts 1 to 4 are the
    trained kinds; the same kinds with longer numbers are OOD test, like the extrapolation test.

    >>> GeneratedMathematics().cell_name("module", 6)
    'mul_big'
    """

    endless: ClassVar[bool] = False

    kinds: tuple[Literal["add_or_sub", "mul", "place_value", "round_number"], ...] = setting(
        KINDS, "the kinds of question"
    )
    digits: int | Span = setting(Span(1, 4), "number of digits, those after the decimal point included")
    ood_digits: int | Span = setting(Span(5, 6), "number of digits in the OOD test")
    module: int | Span | None = setting(None, "the number of a part: kinds first, then big ones; null: all trained")

    def __post_init__(self) -> None:
        refuse_unknown("kinds", self.kinds, KINDS)
        if not self.kinds:
            raise UserError("kinds: none is named, so there is nothing to ask")
        for name in ("digits", "ood_digits"):
            span = Span.of(getattr(self, name))
            if span.low < 1 or span.high > len(_PLACES):
                raise UserError(f"{name}: {span} are not digits of a number here; 1 to {len(_PLACES)} are")
        parts = 2 * len(self.kinds)
        if self.module is not None and not 1 <= Span.of(self.module).low <= Span.of(self.module).high <= parts:
            raise UserError(f"module: there is no {self.module}; parts have the numbers 1 to {parts}")

    @property
    def _parts(self) -> Span:
        return Span(1, len(self.kinds)) if self.module is None else Span.of(self.module)

    def draw(self, draws: CounterRNG, index: NDArray[np.int64]) -> Questions:
        part = index % len(self._parts) + self._parts.low
        seeds = draws.words(len(index)).tolist()
        drawn = [self._question(number, random.Random(seed)) for number, seed in zip(part.tolist(), seeds, strict=True)]
        return Questions.of_source(Listed(tuple(drawn)), np.arange(len(drawn)), {"module": part.astype(np.int64)})

    def examples(self, split: str, seed: int, start: int, count: int) -> Questions:
        return super().examples(split, seed, start, count).in_pieces()

    def _question(self, part: int, rng: random.Random) -> Example:
        big, kind = divmod(part - 1, len(self.kinds))
        return _ASK[self.kinds[kind]](rng, Span.of(self.ood_digits if big else self.digits))

    def read(self, text: str) -> Questions:
        """Any text as a question, with a training answer as a placeholder."""
        return as_question(text, self._question(self._parts.low, random.Random(0)).answer)

    def axes(self) -> tuple[str, ...]:
        return ("module",)

    def trained(self) -> dict[str, Span]:
        return {"module": self._parts}

    def cells(self) -> list[tuple[int, ...]]:
        return [(number,) for number in (Span(1, 2 * len(self.kinds)) if self.module is None else self._parts)]

    def cell_name(self, axis: str, size: int) -> str:
        big, kind = divmod(size - 1, len(self.kinds))
        return self.kinds[kind] + "_big" * big if axis == "module" and big in (0, 1) else str(size)

    def alphabet(self) -> tuple[str, ...]:
        return tuple(sorted({*ascii_letters, *"0123456789.-+*? "}))


def _number(rng: random.Random, span: Span, *, decimal: bool = True, signed: bool = True) -> Decimal:
    """A number with so many digits, half of them with some behind the point, a third below zero."""
    digits = rng.choice([*span])
    whole = rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)
    behind = rng.randrange(1, digits) if decimal and digits > 1 and rng.random() < 0.5 else 0
    found = Decimal(whole).scaleb(-behind)
    return -found if signed and rng.random() < 1 / 3 else found


def _text(number: Decimal) -> str:
    text = f"{number:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("-0", "") else text


def _add_or_sub(rng: random.Random, span: Span) -> Example:
    one, other = _number(rng, span), _number(rng, span)
    first, second = _text(one), _text(other)
    if rng.random() < 0.5:
        shape = rng.choice(("What is {} + {}?", "Add {} and {}.", "Calculate {} + {}.", "Work out {} + {}."))
        return Example(shape.format(first, second), _text(one + other))
    if rng.random() < 0.3:
        return Example(f"Subtract {second} from {first}.", _text(one - other))
    shape = rng.choice(("What is {} - {}?", "Calculate {} - {}.", "Work out {} - {}."))
    return Example(shape.format(first, second), _text(one - other))


def _mul(rng: random.Random, span: Span) -> Example:
    # As many digits in both factors together as a sum has in one of its numbers, and at least one in each.
    digits = max(2, rng.choice([*span]))
    first = rng.randrange(1, digits)
    one, other = _number(rng, Span(first, first)), _number(rng, Span(digits - first, digits - first))
    shape = rng.choice(("What is {} times {}?", "Calculate {}*{}.", "Multiply {} and {}.", "Product of {} and {}."))
    return Example(shape.format(_text(one), _text(other)), _text(one * other))


def _place_value(rng: random.Random, span: Span) -> Example:
    text = _text(_number(rng, span, decimal=False, signed=False))
    place = rng.randrange(len(text))
    return Example(f"What is the {_PLACES[place]} digit of {text}?", text[::-1][place])


def _round_number(rng: random.Random, span: Span) -> Example:
    number = _number(rng, span)
    behind = max(0, -int(number.as_tuple().exponent))
    if behind and rng.random() < 0.7:
        places = rng.randrange(1, behind + 1)
        to = f"{('one', 'two', 'three')[places - 1] if places < 4 else places} decimal place" + "s" * (places > 1)
        unit = Decimal(1).scaleb(-places)
    else:
        power = rng.randrange(0 if behind else 1, 3)
        to, unit = f"the nearest {('integer', 'ten', 'hundred')[power]}", Decimal(1).scaleb(power)
    rounded = (number / unit).quantize(Decimal(1), rounding=ROUND_HALF_UP) * unit
    return Example(f"Round {_text(number)} to {to}.", _text(rounded))


_ASK: dict[str, Callable[[random.Random, Span], Example]] = {
    "add_or_sub": _add_or_sub,
    "mul": _mul,
    "place_value": _place_value,
    "round_number": _round_number,
}
