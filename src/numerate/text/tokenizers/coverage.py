"""The fraction of the digits of texts that is in number tokens."""

import math
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Coverage:
    """How many digit characters of a sample are in number tokens; `str` gives a sentence.

    `other_tokens` are the other tokens with digits and their counts, the most frequent first.

    >>> str(Coverage(num_digits=500, num_covered_digits=486))
    '97.2 % of the digit characters of this sample are in number tokens'
    """

    num_digits: int
    num_covered_digits: int
    other_tokens: tuple[tuple[str, int], ...] = ()

    @classmethod
    def from_token_ids(
        cls,
        texts: Iterable[str],
        token_ids: Iterable[Sequence[int]],
        token_texts: Sequence[str],
        number_token_ids: Container[int],
    ) -> "Coverage":
        """From texts and their tokens: `token_ids` are the ids of each text, `token_texts` the text of each id,
        `number_token_ids` the ids of number tokens.

        >>> coverage = Coverage.from_token_ids(["7 + 12"], [[0, 2, 1]], ["7", " 12", " +"], {0})
        >>> round(coverage.covered_fraction, 3), coverage.other_tokens
        (0.333, ((' 12', 1),))
        """
        digits_per_token = [sum(character.isdecimal() for character in piece) for piece in token_texts]
        num_digits = num_covered_digits = 0
        other_tokens: Counter[str] = Counter()
        for text, ids in zip(texts, token_ids, strict=True):
            num_token_digits = 0
            for i in ids:
                num_token_digits += digits_per_token[i]
                if i in number_token_ids:
                    num_covered_digits += digits_per_token[i]
                elif digits_per_token[i]:
                    other_tokens[token_texts[i]] += 1
            # A digit may be unknown to the tokenizer, and normalization may turn one character into several.
            num_digits += max(num_token_digits, sum(character.isdecimal() for character in text))
        return cls(num_digits, num_covered_digits, tuple(other_tokens.most_common()))

    @property
    def covered_fraction(self) -> float:
        """From 0 to 1; NaN for a sample without a digit."""
        return self.num_covered_digits / self.num_digits if self.num_digits else math.nan

    def __str__(self) -> str:
        if not self.num_digits:
            return "this sample has no digit characters"
        text = f"{100 * self.covered_fraction:.1f} % of the digit characters of this sample are in number tokens"
        uncovered = ", ".join(f"{piece!r} ({count}x)" for piece, count in self.other_tokens[:4])
        return f"{text}; not those of {uncovered}" if uncovered else text
