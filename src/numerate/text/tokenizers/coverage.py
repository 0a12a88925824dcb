"""Which share of the digits of texts is in number tokens."""

import math
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Coverage:
    """How many digit characters of a sample are in number tokens; `str` gives a sentence.

    `others` are the other tokens with digits and their counts, the most frequent first.

    >>> str(Coverage(digits=500, covered=486))
    '97.2 % of the digit characters of this sample stand in number tokens'
    """

    digits: int
    covered: int
    others: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(
        cls, texts: Iterable[str], rows: Iterable[Sequence[int]], pieces: Sequence[str], numbers: Container[int]
    ) -> "Coverage":
        """From texts and their tokens: `rows` are the ids of each text, `pieces` the text of each id, `numbers` the ids
        of number tokens.

        >>> Coverage.of(["7 + 12"], [[0, 2, 1]], ["7", " 12", " +"], {0}).share
        0.3333333333333333
        """
        written = [sum(character.isdecimal() for character in piece) for piece in pieces]
        digits = covered = 0
        others: Counter[str] = Counter()
        for text, ids in zip(texts, rows, strict=True):
            found = 0
            for i in ids:
                found += written[i]
                if i in numbers:
                    covered += written[i]
                elif written[i]:
                    others[pieces[i]] += 1
            # A digit may be unknown to the tokenizer, and normalization may turn one character into several.
            digits += max(found, sum(character.isdecimal() for character in text))
        return cls(digits, covered, tuple(others.most_common()))

    @property
    def share(self) -> float:
        """From 0 to 1; NaN for a sample without a digit."""
        return self.covered / self.digits if self.digits else math.nan

    def __str__(self) -> str:
        if not self.digits:
            return "this sample has no digit characters"
        text = f"{100 * self.share:.1f} % of the digit characters of this sample stand in number tokens"
        missed = ", ".join(f"{piece!r} ({count}x)" for piece, count in self.others[:4])
        return f"{text}; not those of {missed}" if missed else text
