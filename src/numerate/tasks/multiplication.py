"""Multiplication questions in words."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span, setting
from numerate.tasks.arithmetic import MAX_DIGITS, Arithmetic, OperandTask
from numerate.tasks.counter_rng import CounterRNG
from numerate.tasks.questions import Questions
from numerate.tasks.task import match_question

ALPHABET = ("What is ", " times ", "?")
_SYMBOLS = np.array([0, -1, 1, -2, 2, -3], dtype=np.int16)


@dataclass(frozen=True)
class Multiplication(OperandTask):
    """Multiplication in words, `What is 12 times 34?` is 408: the task of Zausinger et al. (2024).

    https://arxiv.org/abs/2411.02083: factors of 1 to 5 digits, tested up to 6. All pairs of lengths are equally
    frequent. A question and its mirror image (3 times 4, 4 times 3) belong to the same split; cells with fewer than
    4,000 questions are not held out. `numerate data write multiplication --as published` writes the published files,
    which have only products of two three-digit factors.

    The numbers are number slots, written in the number format of a character tokenizer.
    """

    digits: int | Span = setting(Span(1, 5), "number of digits of the factors", at_least=1, at_most=MAX_DIGITS)
    first_digits: int | Span | None = setting(
        None, "number of digits of the first factor; null: digits", at_least=1, at_most=MAX_DIGITS
    )
    second_digits: int | Span | None = setting(
        None, "number of digits of the second factor; null: digits", at_least=1, at_most=MAX_DIGITS
    )
    stratum: Literal["nines_times_nine", "nine_times_nines", "nines_times_nines"] | None = setting(
        None, "only products of this kind, such as 99...9 x 9 for the longer length of factors", key_name=""
    )

    @property
    def _arithmetic(self) -> Arithmetic:
        return Arithmetic("x", self.digits, self.first_digits, self.second_digits, stratum=self.stratum)

    def draw(self, rng: CounterRNG, indices: NDArray[np.int64]) -> Questions:
        return products_to_words(self._arithmetic.draw(rng, indices))

    def longest_questions(self) -> Questions | None:
        questions = self._arithmetic.longest_questions()
        return None if questions is None else products_to_words(questions)

    def question_hashes(self, questions: Questions) -> NDArray[np.uint64]:
        """A hash of the two factors, independent of their order: the same as for `12x34=`."""
        return self._arithmetic.question_hashes(questions)

    def strata(self, size: int) -> dict[str, list[dict[str, Any]]]:
        return self._arithmetic.strata(size)

    def question_facts(self, questions: Questions) -> dict[str, NDArray[np.int64]]:
        return self._arithmetic.question_facts(questions)

    def all_questions(self, split: str = "test") -> Questions | None:
        questions = self._arithmetic.all_questions(split)
        return None if questions is None else products_to_words(questions)

    def num_questions(self) -> int | None:
        return self._arithmetic.num_questions()

    def is_held_out(self, split: str) -> bool:
        return self._arithmetic.is_held_out(split)

    def splittable_mask(self, questions: Questions) -> NDArray[np.bool_]:
        return self._arithmetic.splittable_mask(questions)

    def alphabet(self) -> tuple[str, ...]:
        return ALPHABET

    def parse_question(self, text: str) -> Questions:
        pattern = r"(?i)\s*(?:what is\s+)?([0-9]+)\s*(?:times|x|\*)\s*([0-9]+)\s*[?=]?\s*"
        match = match_question(pattern, text, "What is 12 times 34?")
        return products_to_words(self._arithmetic.parse_question(f"{match[1]}x{match[2]}="))


def products_to_words(products: Questions) -> Questions:
    """Products as questions in words: `12x34=` becomes `What is 12 times 34?`."""
    rows = len(products)
    return replace(
        products,
        alphabet=ALPHABET,
        symbols=np.broadcast_to(_SYMBOLS, (rows, len(_SYMBOLS))),
        prompt_lengths=np.broadcast_to(np.int64(5), (rows,)),
    )
