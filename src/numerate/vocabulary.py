"""Vocabularies: the text, kind and value of each token id. Imports only numpy, so that commands start quickly."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

PAD, UNK, BOS, EOS = 0, 1, 2, 3
"""Ids of the special tokens, the same in every vocabulary (and in the published arithmetic one)."""

SPECIAL, DIGIT, NUMBER, SIGN, POINT, TEXT, HELPER = range(7)
"""Kinds of tokens: special; one decimal digit; an integer; a sign; a decimal point; any other text; a helper."""

HELPER_TOKENS = ("<pad>", "<blk>")
"""Helper tokens, which add positions, as in the published counting tasks (https://arxiv.org/abs/2405.20131): `a <pad> a
<pad>`. Position ids may give them the position of the next other token."""

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[BOS]", "[EOS]")
"""The special tokens in the order of their ids."""

_GREEK = "βΓΔδεζηθκΛλμΞξΠπΣςτΦφχΨψΩω"

INDEX_HINTS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwyz!@£#$%^&*()~?.,<>{}[]:;/|" + _GREEK
"""The 102 characters used cyclically as index hints. `x` is missing, since it is an operator."""

ITEM_LABELS = "".join(character for character in INDEX_HINTS if character not in "D,:")
"""The 99 characters used cyclically as labels of list items: the hints without those with another id in the published
vocabulary for sorting (`,` and `:` separate items)."""

PUBLISHED_SYMBOLS: dict[str, tuple[str, ...]] = {
    "pad": (*"+-x= ",),
    "index": (*"+-x= ", *INDEX_HINTS),
    "sort": (*"D,:= ", *ITEM_LABELS),
}
"""The tokens after the special tokens and the ten digits in the vocabularies of the published arithmetic system
(https://github.com/mcleish7/arithmetic): 19, 121 and 118 ids."""


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Per token id: `tokens` (text), `token_kinds` (int8, see `DIGIT` ...), `number_values` (float64, NaN where there
    is none).

    `exponents` (int64) is the power of ten of a token, as in the `_5_2_` tokens of the Regression Transformer; -1000 if
    it has none (an ordinary digit's depends on its position). `pretrained_ids` (int64) is each token's id in a Hugging
    Face tokenizer, -1 if it has none, which indexes pretrained embeddings; None without such a tokenizer.

    >>> vocabulary = Vocabulary.with_digits(["+", "="])
    >>> vocabulary.tokens[:6], vocabulary.size
    (('[PAD]', '[UNK]', '[BOS]', '[EOS]', '0', '1'), 16)
    """

    tokens: tuple[str, ...]
    token_kinds: NDArray[np.int8]
    number_values: NDArray[np.float64]
    exponents: NDArray[np.int64]
    pretrained_ids: NDArray[np.int64] | None = None

    @classmethod
    def from_words(cls, texts: Sequence[str]) -> "Vocabulary":
        """The four special tokens, then the unique `texts` in order. A text of digits is one number.

        >>> vocabulary = Vocabulary.from_words(["10", "a", "<pad>"])
        >>> vocabulary.tokens[4:], vocabulary.number_values[4:].tolist()
        (('10', 'a', '<pad>'), [10.0, nan, nan])
        >>> vocabulary.token_kinds[4:].tolist() == [NUMBER, TEXT, HELPER]
        True
        """
        words = [text for text in dict.fromkeys(texts) if text not in SPECIAL_TOKENS]
        is_number_flags = [text.isascii() and text.isdigit() for text in words]
        token_kinds = [
            NUMBER if is_number else HELPER if text in HELPER_TOKENS else TEXT
            for text, is_number in zip(words, is_number_flags, strict=True)
        ]
        number_values = [
            float(text) if is_number else np.nan for text, is_number in zip(words, is_number_flags, strict=True)
        ]
        return cls._from_columns((*SPECIAL_TOKENS, *words), [SPECIAL] * 4 + token_kinds, [np.nan] * 4 + number_values)

    @classmethod
    def with_digits(cls, texts: Sequence[str]) -> "Vocabulary":
        """The four special tokens, the ten digits, then the unique `texts` in order."""
        other_texts = [text for text in dict.fromkeys(texts) if text not in set("0123456789")]
        return cls._from_digits_and(other_texts, {"-": SIGN, ".": POINT})

    @classmethod
    def from_published(cls, name: str) -> "Vocabulary":
        """One of `PUBLISHED_SYMBOLS`, with the published ids. The point is a hint or a label there, not a decimal
        point.

        >>> Vocabulary.from_published("index").size, Vocabulary.from_published("sort").token_to_id["A"]
        (121, 19)
        """
        return cls._from_digits_and(PUBLISHED_SYMBOLS[name], {"-": SIGN})

    @classmethod
    def _from_digits_and(cls, texts: Sequence[str], kind_of_text: Mapping[str, int]) -> "Vocabulary":
        tokens = (*SPECIAL_TOKENS, *"0123456789", *texts)
        token_kinds = [SPECIAL] * 4 + [DIGIT] * 10 + [kind_of_text.get(text, TEXT) for text in texts]
        number_values = [np.nan] * 4 + [float(d) for d in range(10)] + [np.nan] * len(texts)
        return cls._from_columns(tokens, token_kinds, number_values)

    @classmethod
    def _from_columns(
        cls, tokens: tuple[str, ...], token_kinds: Sequence[int], number_values: Sequence[float]
    ) -> "Vocabulary":
        return cls(
            tokens,
            np.array(token_kinds, dtype=np.int8),
            np.array(number_values, dtype=np.float64),
            np.full(len(tokens), -1000, dtype=np.int64),
        )

    @property
    def size(self) -> int:
        return len(self.tokens)

    @cached_property
    def token_to_id(self) -> dict[str, int]:
        """From symbol to id."""
        return {symbol: i for i, symbol in enumerate(self.tokens)}

    def number_ids(self, which: Literal["digits", "numbers"] = "digits") -> list[int]:
        """The ids of the digits, or of all tokens with a finite value, which `digits` also selects if there are no
        digits."""
        only_digits = which == "digits" and bool((self.token_kinds == DIGIT).any())
        wanted = (DIGIT,) if only_digits else (DIGIT, NUMBER)
        ids: list[int] = np.flatnonzero(np.isin(self.token_kinds, wanted) & np.isfinite(self.number_values)).tolist()
        return ids

    @cached_property
    def is_digit(self) -> NDArray[np.bool_]:
        """Per id: whether it is one decimal digit."""
        mask: NDArray[np.bool_] = self.token_kinds == DIGIT
        return mask
