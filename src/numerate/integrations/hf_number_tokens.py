"""Which tokens of any tokenizer are numbers, found by decoding their ids. Needs numpy, not torch."""

import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from numerate.errors import UserError, check_choice
from numerate.text.tokenizers.coverage import Coverage as Coverage
from numerate.vocabulary import DIGIT, NUMBER, POINT, SIGN, SPECIAL, TEXT

NumberTokenSelection = Literal["digits", "numbers"]

MIN_COVERAGE = 0.95
"""A smaller fraction of digit characters in number tokens gives a warning."""

_MARKERS = " \t\n\r▁ĠĊ"
"""Allowed prefixes of a number in its token: spaces, and their marks if a tokenizer has no decoder."""

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)")


@dataclass(frozen=True, eq=False)
class NumberTokens:
    """The number tokens of a tokenizer: `values` maps the ids that count as numbers to their values.

    Per id of the tokenizer, whether it counts or not: `token_texts` is the text that it adds after other text,
    `token_kinds` (int8) is one of `numerate.vocabulary`'s SPECIAL, DIGIT, NUMBER (further finite ASCII numbers: several
    digits, a sign or a point included), SIGN, POINT, TEXT, and `has_leading_space` whether a space stands before it.
    """

    values: Mapping[int, float]
    which: NumberTokenSelection
    token_texts: tuple[str, ...]
    token_kinds: NDArray[np.int8]
    has_leading_space: NDArray[np.bool_]
    encode: Callable[[Sequence[str]], list[list[int]]] = field(repr=False)

    @property
    def size(self) -> int:
        """One more than the largest id of the tokenizer. A model's vocabulary is often padded to more."""
        return len(self.token_texts)

    def coverage(self, texts: Iterable[str]) -> Coverage:
        """How many digit characters of these texts are in number tokens; warns if it is less than 95 %.

        For `5 + 7 = 12` and the tokenizer of GPT-2, whose ` 12` is one token, the warning begins with "50.0 % of the
        digit characters of this sample are in number tokens; not those of ' 12' (1x)".
        """
        sample = [texts] if isinstance(texts, str) else list(texts)
        coverage = Coverage.from_token_ids(sample, self.encode(sample), self.token_texts, self.values)
        if coverage.num_digits and coverage.covered_fraction < MIN_COVERAGE:
            warnings.warn(f"{coverage}. {self._hint()}", stacklevel=2)
        return coverage

    def _hint(self) -> str:
        if self.which == "digits" and (self.token_kinds == NUMBER).any():
            return (
                "The others get no number loss; which='numbers' counts tokens of several digits too, "
                "and a tokenizer that splits digits needs neither"
            )
        return "The others get no number loss; `override` gives values to further ids"


def number_tokens(
    tokenizer: Any, *, which: NumberTokenSelection = "digits", override: Mapping[int, float | None] | None = None
) -> NumberTokens:
    """The number tokens of a tokenizer of transformers (fast or slow) or of `tokenizers`, which is left as it is.

    Each id is read as what it adds to a text before it: decode(text + id) without decode(text). So `▁5` of
    SentencePiece, `Ġ5` of byte-level BPE and a plain `5` are all the digit 5. Numbers are ASCII and finite, with
    digits, perhaps a sign before and one point within: `inf`, `1e5`, `1_000`, full-width and Arabic digits are none.
    Special tokens are none.

    - `which`: "digits" counts tokens of one digit; "numbers" all that are a number, such as `12`, `-5`, `.5`.
    - `override`: values by id that count in place of what is found; None: the id is no number.

    >>> from tokenizers import Tokenizer, models
    >>> tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "5": 1, "12": 2, "+": 3}, unk_token="[UNK]"))
    >>> number_tokens(tokenizer).values, number_tokens(tokenizer, which="numbers").values
    ({1: 5.0}, {1: 5.0, 2: 12.0})

    Raises `UserError` for a tokenizer without any, for an override that is no id or no finite value, and for an object
    that is no tokenizer.
    """
    check_choice("which", which, ("digits", "numbers"))
    adapter = _adapt_tokenizer(tokenizer)
    size = max(adapter.ids, default=-1) + 1
    token_kinds = np.full(size, TEXT, dtype=np.int8)
    has_leading_space = np.zeros(size, dtype=np.bool_)
    token_texts = [""] * size
    values: dict[int, float] = {}
    for i, token_text in zip(adapter.ids, _decode_tokens(adapter), strict=True):
        token_texts[i] = token_text
        text = token_text.lstrip(_MARKERS)
        has_leading_space[i] = len(text) < len(token_text)
        token_kinds[i] = SPECIAL if i in adapter.special_ids else _token_kind(text)
        if token_kinds[i] == DIGIT or (token_kinds[i] == NUMBER and which == "numbers"):
            values[i] = float(text)
    for i, value in (override or {}).items():
        if isinstance(i, bool) or not isinstance(i, (int, np.integer)) or i < 0:
            raise UserError(f"override: token ids must be integers of 0 or more, not {i!r}")
        if value is None:
            values.pop(int(i), None)
        elif not math.isfinite(value):
            raise UserError(f"override: the value of id {i} must be finite, or None for no number, not {value}")
        else:
            values[int(i)] = float(value)
    if not values:
        expected = "a digit" if which == "digits" else "a number"
        hint = (
            " (some are numbers of several digits: which='numbers' takes them)" if (token_kinds == NUMBER).any() else ""
        )
        raise UserError(
            f"tokenizer: none of its {len(adapter.ids):,} ids decodes to {expected}{hint}; "
            "take one that has number tokens, or name them by override={id: value}"
        )
    return NumberTokens(
        dict(sorted(values.items())), which, tuple(token_texts), token_kinds, has_leading_space, adapter.encode
    )


def _token_kind(text: str) -> int:
    if len(text) == 1:
        if text in "0123456789":
            return DIGIT
        return SIGN if text in "+-" else POINT if text == "." else TEXT
    return NUMBER if _NUMBER.fullmatch(text) and math.isfinite(float(text)) else TEXT


def _decode_tokens(adapter: "_TokenizerAdapter") -> list[str]:
    """The text that each id adds to preceding text, in the order of the ids; empty if it changes the preceding text."""
    context = _context_ids(adapter)
    [context_text] = adapter.decode([context])
    texts = adapter.decode([[*context, i] for i in adapter.ids])
    return [text[len(context_text) :] if text.startswith(context_text) else "" for text in texts]


def _context_ids(adapter: "_TokenizerAdapter") -> list[int]:
    """An id to stand before others: of a letter, or of any other text where there is no letter."""
    candidates = (adapter.tokens[token] for token in ("a", "▁a", "Ġa", "x") if token in adapter.tokens)
    for i in (*candidates, *adapter.ids):
        [text] = adapter.decode([[i]])
        if text.strip() and i not in adapter.special_ids and not any(character.isdecimal() for character in text):
            return [i]
    return []


@dataclass(frozen=True)
class _TokenizerAdapter:
    """The interface of a tokenizer: its tokens with their ids, which are special, decoding and encoding of many."""

    tokens: Mapping[str, int]
    special_ids: frozenset[int]
    decode: Callable[[list[list[int]]], list[str]]
    encode: Callable[[Sequence[str]], list[list[int]]]

    @cached_property
    def ids(self) -> list[int]:
        """All ids, ascending."""
        return sorted(set(self.tokens.values()))


def _adapt_tokenizer(tokenizer: Any) -> _TokenizerAdapter:
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise UserError(
            "number_tokens reads tokenizers of `transformers` and `tokenizers`; pip install 'numerate[huggingface]'"
        ) from error
    if isinstance(tokenizer, Tokenizer):
        return _adapt_fast(tokenizer, ())
    try:
        from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
    except ModuleNotFoundError:
        slow_classes: tuple[type, ...] = ()
    else:
        if isinstance(tokenizer, PreTrainedTokenizerFast):
            return _adapt_fast(tokenizer.backend_tokenizer, tokenizer.all_special_ids)
        slow_classes = (PreTrainedTokenizerBase,)
    if isinstance(tokenizer, slow_classes):
        return _adapt_slow(tokenizer)
    raise UserError(
        "tokenizer: must be a tokenizer of transformers (AutoTokenizer.from_pretrained) or a tokenizers.Tokenizer, not "
        f"a {type(tokenizer).__name__}"
    )


def _adapt_fast(tokenizer: Any, special_ids: Iterable[int]) -> _TokenizerAdapter:
    def encode(texts: Sequence[str]) -> list[list[int]]:
        with _without_truncation(tokenizer):
            try:
                return [found.ids for found in tokenizer.encode_batch(list(texts), add_special_tokens=False)]
            except Exception as error:  # the library raises no narrower one
                raise UserError(f"tokenizer: it does not read this sample: {error}") from error

    def decode(rows: list[list[int]]) -> list[str]:
        texts: list[str] = tokenizer.decode_batch(rows, skip_special_tokens=False)
        return texts

    added_special_ids = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    tokens = tokenizer.get_vocab(with_added_tokens=True)
    return _TokenizerAdapter(tokens, frozenset(added_special_ids) | frozenset(special_ids), decode, encode)


@contextmanager
def _without_truncation(tokenizer: Any) -> Iterator[None]:
    """Disables truncation and padding, and restores both afterwards."""
    truncation, padding = tokenizer.truncation, tokenizer.padding
    try:
        if truncation is not None:
            tokenizer.no_truncation()
        if padding is not None:
            tokenizer.no_padding()
        yield
    finally:
        if truncation is not None:
            tokenizer.enable_truncation(**truncation)
        if padding is not None:
            tokenizer.enable_padding(**padding)


def _adapt_slow(tokenizer: Any) -> _TokenizerAdapter:
    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [
            tokenizer(text, add_special_tokens=False, truncation=False, padding=False, verbose=False)["input_ids"]
            for text in texts
        ]

    def decode(rows: list[list[int]]) -> list[str]:
        return [tokenizer.decode(row, skip_special_tokens=False, clean_up_tokenization_spaces=False) for row in rows]

    return _TokenizerAdapter(tokenizer.get_vocab(), frozenset(tokenizer.all_special_ids), decode, encode)
