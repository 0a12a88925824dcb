"""Writes the generated test sets of `numerate bench v1`, which are never changed again: `python tools/bench_v1.py OUT`.

Every number is taken from a hash of its set, cell and row, so that no library of random numbers matters. Sums,
differences, products and lists are of those that numerate's own tasks hold out for tests, where their size has enough.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.sorting import Sorting
from numerate.tasks.task import SPLITS, Task

Question = tuple[str, str, str]
"""As a question in words, as numerate's own tasks write it ("" where none has it), and its answer."""

EXAMPLES_PER_SET = 4


class Draw:
    """Numbers of one row of a set."""

    def __init__(self, *key: object) -> None:
        self.key, self.count = " ".join(map(str, ("numerate bench v1", *key))), 0

    def below(self, bound: int) -> int:
        self.count += 1
        return int.from_bytes(hashlib.sha256(f"{self.key} {self.count}".encode()).digest(), "big") % bound

    def between(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)

    def of_digits(self, digits: int) -> int:
        return self.between(10 ** (digits - 1), 10**digits - 1)


def sum_of(a: int, b: int) -> Question:
    return f"What is {a} + {b}?", f"{a}+{b}=", str(a + b)


def addition(draw: Draw, digits: int) -> Question:
    return sum_of(draw.of_digits(digits), draw.of_digits(digits))


def nines_plus_one(draw: Draw, digits: int) -> Question:
    nines, small = 10**digits - 1, draw.between(1, 9)
    return sum_of(nines, small) if draw.below(2) else sum_of(small, nines)


def complement(draw: Draw, digits: int) -> Question:
    first = draw.of_digits(digits)
    return sum_of(first, 10**digits - first)


def long_chain(draw: Draw, digits: int) -> Question:
    """One carry from the lowest digit to the highest: all others add up to nine."""
    first = int("".join(str(draw.between(1, 8)) for _ in range(digits - 1)) + str(draw.between(5, 9)))
    return sum_of(first, 10**digits - 1 - first + draw.between(1, 4))


def no_carry(draw: Draw, digits: int) -> Question:
    pairs = [(first := draw.between(1, 8), draw.between(1, 9 - first)) for _ in range(digits)]
    first, second = (int("".join(str(pair[i]) for pair in pairs)) for i in (0, 1))
    return sum_of(first, second)


def uneven(draw: Draw, digits: int) -> Question:
    first, second = draw.of_digits(digits), draw.of_digits(draw.between(1, digits // 2))
    return sum_of(first, second) if draw.below(2) else sum_of(second, first)


def subtraction(draw: Draw, digits: int) -> Question:
    second, first = sorted((draw.of_digits(digits), draw.of_digits(digits)))
    return f"What is {first} - {second}?", f"{first}-{second}=", str(first - second)


def multiplication(draw: Draw, digits: tuple[int, int]) -> Question:
    first, second = map(draw.of_digits, digits)
    return f"What is {first} * {second}?", f"{first}x{second}=", str(first * second)


def division(draw: Draw, digits: tuple[int, int]) -> Question:
    quotient, divisor = draw.of_digits(digits[0]), max(2, draw.of_digits(digits[1]))
    return f"What is {quotient * divisor} divided by {divisor}?", "", str(quotient)


def comparison(draw: Draw, places: tuple[int, int]) -> Question:
    """Two decimals with the same whole number; that with fewer decimal places is often the larger one."""
    whole, (few, many) = draw.between(1, 99), places
    short = draw.between(2, 9) * 10 ** (few - 1) + (draw.below(10 ** (few - 1)) if few > 1 else 0)
    long = draw.of_digits(many - 1) * 10 + draw.between(1, 9)
    texts = [f"{whole}.{short}", f"{whole}.{long}"]
    is_first = short * 10**many > long * 10**few
    if draw.below(2):
        return f"Which is larger, {texts[0]} or {texts[1]}?", "", texts[not is_first]
    return f"Which is larger, {texts[1]} or {texts[0]}?", "", texts[not is_first]


def sorting(draw: Draw, items: int) -> Question:
    numbers: list[int] = []
    while len(numbers) < items:
        number = draw.of_digits(draw.between(1, 4))
        numbers += [number] * (number not in numbers)
    labels = "ABCEFGHIJKLMNOPQ"[:items]  # numerate's own lists have no D
    listed = [f"{label}:{number}" for label, number in zip(labels, numbers, strict=True)]
    answer = ",".join(label for _, label in sorted(zip(numbers, labels, strict=True)))
    question = f"List the labels in the order of their numbers, smallest first: {', '.join(listed)}"
    return question, ",".join(listed) + "=", answer


def counting(draw: Draw, length: int) -> Question:
    letters = [draw.below(3) for _ in range(length)]
    row = " ".join("abc"[letter] for letter in letters)
    wanted = draw.below(3)
    return f"How many times is the letter {'abc'[wanted]} in this row? {row}", "", str(letters.count(wanted))


def modular_counting(draw: Draw, decade: int) -> Question:
    length, modulus = draw.between(10 * decade + 1, 10 * decade + 10), draw.between(3, 10)
    question = (
        f"A row has one letter for each step: {' '.join('a' * length)}. What is the number of steps modulo {modulus}?"
    )
    return question, "", str(length % modulus)


def digits(count: int) -> str:
    return f"{count} digit{'s' * (count != 1)}"


SETS: dict[str, list[tuple[str, Callable[..., Question], object, int]]] = {
    "addition": [(digits(n), addition, n, 15) for n in (1, 2, 3, 4, 6, 8, 12, 16, 20)],
    "addition-strata": [
        (f"{name}, {n} digits", kind, n, 10)
        for name, kind in (
            ("no carry", no_carry),
            ("one carry through all digits", long_chain),
            ("nines and a digit", nines_plus_one),
            ("up to a power of ten", complement),
            ("uneven lengths", uneven),
        )
        for n in (4, 8, 16)
    ],
    "subtraction": [(digits(n), subtraction, n, 15) for n in (1, 2, 3, 4, 6, 8, 12, 16, 20)],
    "multiplication": [
        (f"{n} x {m} digits", multiplication, (n, m), 15)
        for n, m in ((1, 1), (2, 1), (2, 2), (4, 1), (3, 3), (8, 1), (4, 4), (6, 6))
    ],
    "division": [
        (f"quotient of {digits(n)}, divisor of {digits(m)}", division, (n, m), 15)
        for n, m in ((1, 1), (2, 1), (4, 1), (2, 2), (8, 1), (4, 4))
    ],
    "comparison": [
        (f"{n} and {m} decimal places", comparison, (n, m), 25) for n, m in ((1, 2), (2, 3), (1, 4), (3, 4))
    ],
    "sorting": [(f"{n} numbers", sorting, n, 15) for n in (2, 3, 5, 7, 10, 15)],
    "counting": [(f"{n} letters", counting, n, 15) for n in (5, 10, 20, 30, 50, 75)],
    "modular-counting": [(f"{10 * n + 1} to {10 * n + 10} steps", modular_counting, n, 20) for n in range(5)],
}


TASKS: dict[str, Task] = {
    "addition": Arithmetic(),
    "addition-strata": Arithmetic(),
    "subtraction": Arithmetic(operator="-"),
    "multiplication": Arithmetic(operator="x"),
    "sorting": Sorting(),
}


def is_for_tests(name: str, plain: str) -> bool:
    """Whether no task of numerate trains on a question, or all may, since its size has too few."""
    return bool(TASKS[name]._in_split(TASKS[name].parse_question(plain), *SPLITS["test"])[0])


def rows(name: str) -> Iterator[Mapping[str, object]]:
    """The lines of a set: its few-shot examples, of the first cells in turn, and its questions; none twice."""
    cells, seen = SETS[name], set()

    def unseen(draw: Callable[..., Question], size: object, *key: object) -> Question:
        for attempt in range(1_000):
            question = draw(Draw(name, *key, attempt), size)
            may_be_held_out = name in TASKS and "999" not in question[1] and attempt < 900
            if question[0] not in seen and (not may_be_held_out or is_for_tests(name, question[1])):
                seen.add(question[0])
                return question
        raise ValueError(f"{name}: too few questions")

    for i in range(EXAMPLES_PER_SET):
        _, draw, size, _ = cells[min(i, len(cells) - 1)]
        words, _, answer = unseen(draw, size, "example", i)
        yield {"question": words, "answer": answer, "example": True}
    for cell, draw, size, count in cells:
        for i in range(count):
            words, plain, answer = unseen(draw, size, cell, i)
            yield {"question": words, "answer": answer, "cell": cell} | ({"plain": plain} if plain else {})


def main(folder: Path) -> None:
    for name in SETS:
        content = "".join(json.dumps(row) + "\n" for row in rows(name)).encode()
        (folder / f"{name}.jsonl").write_bytes(content)
        print(f"{name:<20}{content.count(b'cell'):>5} questions  {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
