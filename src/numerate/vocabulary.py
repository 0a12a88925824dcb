"""Vocabularies: the symbol, kind and value of each token id. Imports numpy only, so that commands start quickly."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

PAD, UNKNOWN, BEGIN, END = 0, 1, 2, 3
"""Ids of the special tokens, the same in every vocabulary (and in the published arithmetic one)."""

SPECIAL, DIGIT, NUMBER, SIGN, POINT, TEXT, HELPER = range(7)
"""Kinds of tokens: special; one decimal digit; a whole number; a sign; a decimal point; any other text; a helper."""

HELPERS = ("<pad>", "<blk>")
"""Helper tokens, which give a model extra positions, as in the published counting tasks
(https://arxiv.org/abs/2405.20131): `a <pad> a <pad>`. Position ids may give them that of the next real token."""

SPECIALS = ("[PAD]", "[UNK]", "[BOS]", "[EOS]")
"""The special tokens in the order of their ids."""

_GREEK = "βΓΔδεζηθκΛλμΞξΠπΣςτΦφχΨψΩω"

HINTS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwyz!@£#$%^&*()~?.,<>{}[]:;/|" + _GREEK
"""The 102 characters that index hints are taken from, in a circle. There is no `x`, which is an operator."""

LABELS = "".join(character for character in HINTS if character not in "D,:")
"""The 99 characters that items of a list are labelled with, in a circle: the hints without those that the published
vocabulary for sorting has another id for (`,` and `:` stand between the items)."""

PUBLISHED: dict[str, tuple[str, ...]] = {
    "pad": (*"+-x= ",),
    "index": (*"+-x= ", *HINTS),
    "sort": (*"D,:= ", *LABELS),
}
"""What follows the special tokens and the ten digits in the vocabularies of the published arithmetic system
(https://github.com/mcleish7/arithmetic): 19, 121 and 118 ids."""


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Per token id: `symbols` (text), `kinds` (int8, see `DIGIT` ...), `values` (float64, NaN where there is none).

    `significance` (int64) is the power of ten of a token, as in the `_5_2_` tokens of the Regression Transformer; -1000
    if it has none (an ordinary digit's depends on its position). `foreign` (int64) is each token's id in a Hugging Face
    tokenizer, -1 if it has none, which indexes pretrained embeddings; None without such a tokenizer.

    >>> v = Vocabulary.of(["+", "="])
    >>> v.symbols[:6], v.size
    (('[PAD]', '[UNK]', '[BOS]', '[EOS]', '0', '1'), 16)
    """

    symbols: tuple[str, ...]
    kinds: NDArray[np.int8]
    values: NDArray[np.float64]
    significance: NDArray[np.int64]
    foreign: NDArray[np.int64] | None = None

    @classmethod
    def of_words(cls, texts: Sequence[str]) -> "Vocabulary":
        """The four special tokens, then the unique `texts` in order. A text of digits is one number.

        >>> v = Vocabulary.of_words(["10", "a", "<pad>"])
        >>> v.symbols[4:], v.values[4:].tolist(), v.kinds[4:].tolist() == [NUMBER, TEXT, HELPER]
        (('10', 'a', '<pad>'), [10.0, nan, nan], True)
        """
        rest = [text for text in dict.fromkeys(texts) if text not in SPECIALS]
        number = [text.isascii() and text.isdigit() for text in rest]
        kinds = [
            NUMBER if is_number else HELPER if text in HELPERS else TEXT
            for text, is_number in zip(rest, number, strict=True)
        ]
        values = [float(text) if is_number else np.nan for text, is_number in zip(rest, number, strict=True)]
        return cls._of((*SPECIALS, *rest), [SPECIAL] * 4 + kinds, [np.nan] * 4 + values)

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Vocabulary":
        """The four special tokens, the ten digits, then the unique `texts` in order."""
        rest = [text for text in dict.fromkeys(texts) if text not in set("0123456789")]
        return cls._made(rest, {"-": SIGN, ".": POINT})

    @classmethod
    def published(cls, name: str) -> "Vocabulary":
        """One of `PUBLISHED`, id for id. The point is a hint or a label there, and no decimal point.

        >>> Vocabulary.published("index").size, Vocabulary.published("sort").ids["A"]
        (121, 19)
        """
        return cls._made(PUBLISHED[name], {"-": SIGN})

    @classmethod
    def _made(cls, rest: Sequence[str], sort: Mapping[str, int]) -> "Vocabulary":
        symbols = (*SPECIALS, *"0123456789", *rest)
        kinds = [SPECIAL] * 4 + [DIGIT] * 10 + [sort.get(text, TEXT) for text in rest]
        values = [np.nan] * 4 + [float(d) for d in range(10)] + [np.nan] * len(rest)
        return cls._of(symbols, kinds, values)

    @classmethod
    def _of(cls, symbols: tuple[str, ...], kinds: Sequence[int], values: Sequence[float]) -> "Vocabulary":
        return cls(
            symbols,
            np.array(kinds, dtype=np.int8),
            np.array(values, dtype=np.float64),
            np.full(len(symbols), -1000, dtype=np.int64),
        )

    @property
    def size(self) -> int:
        return len(self.symbols)

    @cached_property
    def ids(self) -> dict[str, int]:
        """From symbol to id."""
        return {symbol: i for i, symbol in enumerate(self.symbols)}

    def number_ids(self, which: Literal["digits", "numbers"] = "digits") -> list[int]:
        """The ids of its digits, or of all tokens with a finite value; `digits` takes all where none is a digit."""
        only_digits = which == "digits" and bool((self.kinds == DIGIT).any())
        wanted = (DIGIT,) if only_digits else (DIGIT, NUMBER)
        ids: list[int] = np.flatnonzero(np.isin(self.kinds, wanted) & np.isfinite(self.values)).tolist()
        return ids

    @cached_property
    def is_digit(self) -> NDArray[np.bool_]:
        """Per id: whether it is one decimal digit."""
        found: NDArray[np.bool_] = self.kinds == DIGIT
        return found
