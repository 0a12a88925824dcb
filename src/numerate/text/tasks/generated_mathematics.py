"""Generated arithmetic questions like those of the mathematics dataset, without its files."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from string import ascii_letters
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span, setting
from numerate.tasks.counter_rng import CounterRNG
from numerate.tasks.questions import Example, Questions
from numerate.tasks.task import Task
from numerate.tasks.texts import InMemorySource
from numerate.text.tasks.input_errors import duplicate_names
from numerate.text.tasks.text_task import question_from_text

_PLACE_NAMES = (
    "units",
    "tens",
    "hundreds",
    *("thousands", "ten thousands", "hundred thousands"),
    *("millions", "ten millions", "hundred millions"),
    *("billions", "ten billions", "hundred billions"),
)


@dataclass(frozen=True)
class GeneratedMathematics(Task):
    """A generated stand-in for `Mathematics`, `What is 3.7 - 120?`, to try the task without downloading its files.

    Four kinds of question like those of four modules of the dataset: sums and differences (with decimals), products,
    digits by place, rounding. The distribution differs from the dataset's, and so do results. Parts 1 to 4 are the
    trained kinds; the same kinds with longer numbers are OOD test, like the extrapolation test.

    >>> GeneratedMathematics().cell_name("module", 6)
    'mul_big'
    """

    has_ood_sizes: ClassVar[bool] = False

    kinds: tuple[Literal["add_or_sub", "mul", "place_value", "round_number"], ...] = setting(
        ("add_or_sub", "mul", "place_value", "round_number"), "the kinds of question"
    )
    digits: int | Span = setting(
        Span(1, 4), "number of digits, those after the decimal point included", at_least=1, at_most=len(_PLACE_NAMES)
    )
    ood_digits: int | Span = setting(
        Span(5, 6), "number of digits in the out-of-distribution (OOD) test", at_least=1, at_most=len(_PLACE_NAMES)
    )
    module: int | Span | None = setting(
        None,
        "number of a kind: 1, 2, ... in the order of `kinds`, then those with OOD digits; null: all with `digits`",
        at_least=1,
    )

    def conflicts(self) -> Iterator[str]:
        yield from duplicate_names("kinds", self.kinds)
        parts = 2 * len(self.kinds)
        if not parts or (self.module is not None and Span.from_value(self.module).high > parts):
            yield f"module: there is no {self.module}; `kinds` has {len(self.kinds)}, so there are {parts} parts"

    @property
    def _part_span(self) -> Span:
        return Span(1, len(self.kinds)) if self.module is None else Span.from_value(self.module)

    def draw(self, rng: CounterRNG, indices: NDArray[np.int64]) -> Questions:
        part_numbers = indices % len(self._part_span) + self._part_span.low
        seeds = rng.random_words(len(indices)).tolist()
        examples = [
            self._draw_example(number, random.Random(seed))
            for number, seed in zip(part_numbers.tolist(), seeds, strict=True)
        ]
        return Questions.from_source(
            InMemorySource(tuple(examples)), np.arange(len(examples)), {"module": part_numbers.astype(np.int64)}
        )

    def examples(self, split: str, seed: int, start: int, count: int) -> Questions:
        return super().examples(split, seed, start, count).split_into_characters()

    def _draw_example(self, part: int, rng: random.Random) -> Example:
        is_ood, kind = divmod(part - 1, len(self.kinds))
        return _GENERATORS[self.kinds[kind]](rng, Span.from_value(self.ood_digits if is_ood else self.digits))

    def parse_question(self, text: str) -> Questions:
        """Any text as a question, with a training answer as a placeholder."""
        return question_from_text(text, self._draw_example(self._part_span.low, random.Random(0)).answer)

    def axes(self) -> tuple[str, ...]:
        return ("module",)

    def training_spans(self) -> dict[str, Span]:
        return {"module": self._part_span}

    def cells(self) -> list[tuple[int, ...]]:
        return [(number,) for number in (Span(1, 2 * len(self.kinds)) if self.module is None else self._part_span)]

    def cell_name(self, axis: str, size: int) -> str:
        is_ood, kind = divmod(size - 1, len(self.kinds))
        return self.kinds[kind] + "_big" * is_ood if axis == "module" and is_ood in (0, 1) else str(size)

    def alphabet(self) -> tuple[str, ...]:
        return tuple(sorted({*ascii_letters, *"0123456789.-+*? "}))


def _draw_number(
    rng: random.Random, span: Span, *, allow_decimals: bool = True, allow_negative: bool = True
) -> Decimal:
    """A number with so many digits, half of them with some behind the point, a third below zero."""
    digits = rng.choice([*span])
    digits_as_integer = rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)
    num_decimals = rng.randrange(1, digits) if allow_decimals and digits > 1 and rng.random() < 0.5 else 0
    number = Decimal(digits_as_integer).scaleb(-num_decimals)
    return -number if allow_negative and rng.random() < 1 / 3 else number


def _format_number(number: Decimal) -> str:
    text = f"{number:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("-0", "") else text


def _add_or_sub(rng: random.Random, span: Span) -> Example:
    one, other = _draw_number(rng, span), _draw_number(rng, span)
    first, second = _format_number(one), _format_number(other)
    if rng.random() < 0.5:
        template = rng.choice(("What is {} + {}?", "Add {} and {}.", "Calculate {} + {}.", "Work out {} + {}."))
        return Example(template.format(first, second), _format_number(one + other))
    if rng.random() < 0.3:
        return Example(f"Subtract {second} from {first}.", _format_number(one - other))
    template = rng.choice(("What is {} - {}?", "Calculate {} - {}.", "Work out {} - {}."))
    return Example(template.format(first, second), _format_number(one - other))


def _mul(rng: random.Random, span: Span) -> Example:
    # As many digits in both factors together as a sum has in one of its numbers, and at least one in each.
    digits = max(2, rng.choice([*span]))
    first = rng.randrange(1, digits)
    one, other = _draw_number(rng, Span(first, first)), _draw_number(rng, Span(digits - first, digits - first))
    template = rng.choice(("What is {} times {}?", "Calculate {}*{}.", "Multiply {} and {}.", "Product of {} and {}."))
    return Example(template.format(_format_number(one), _format_number(other)), _format_number(one * other))


def _place_value(rng: random.Random, span: Span) -> Example:
    text = _format_number(_draw_number(rng, span, allow_decimals=False, allow_negative=False))
    place = rng.randrange(len(text))
    return Example(f"What is the {_PLACE_NAMES[place]} digit of {text}?", text[::-1][place])


def _round_number(rng: random.Random, span: Span) -> Example:
    number = _draw_number(rng, span)
    num_decimals = max(0, -int(number.as_tuple().exponent))
    if num_decimals and rng.random() < 0.7:
        places = rng.randrange(1, num_decimals + 1)
        target = f"{('one', 'two', 'three')[places - 1] if places < 4 else places} decimal place" + "s" * (places > 1)
        unit = Decimal(1).scaleb(-places)
    else:
        power = rng.randrange(0 if num_decimals else 1, 3)
        target, unit = f"the nearest {('integer', 'ten', 'hundred')[power]}", Decimal(1).scaleb(power)
    rounded = (number / unit).quantize(Decimal(1), rounding=ROUND_HALF_UP) * unit
    return Example(f"Round {_format_number(number)} to {target}.", _format_number(rounded))


_GENERATORS: dict[str, Callable[[random.Random, Span], Example]] = {
    "add_or_sub": _add_or_sub,
    "mul": _mul,
    "place_value": _place_value,
    "round_number": _round_number,
}
