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

from numerate.errors import UserError
from numerate.text.tokenizers.coverage import Coverage as Coverage
from numerate.vocabulary import DIGIT, NUMBER, POINT, SIGN, SPECIAL, TEXT

Which = Literal["digits", "numbers"]

LOW = 0.95
"""A smaller share of the digit characters in number tokens gives a warning."""

_MARKERS = " \t\n\r▁ĠĊ"
"""What may stand before a number in its token: spaces, and the marks for them where a tokenizer has no decoder."""

_VALUE = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)")


@dataclass(frozen=True, eq=False)
class NumberTokens:
    """The number tokens of a tokenizer: `values` maps the ids that count as numbers to their values.

    Per id of the tokenizer, whether it counts or not: `pieces` is the text that it adds after other text, `kinds`
    (int8) is one of `numerate.vocabulary`'s SPECIAL, DIGIT, NUMBER (further finite ASCII numbers: several digits, a
    sign or a point included), SIGN, POINT, TEXT, and `prefixed` whether a space stands before it.
    """

    values: Mapping[int, float]
    which: Which
    pieces: tuple[str, ...]
    kinds: NDArray[np.int8]
    prefixed: NDArray[np.bool_]
    encode: Callable[[Sequence[str]], list[list[int]]] = field(repr=False)

    @property
    def size(self) -> int:
        """One more than the largest id of the tokenizer. A model's vocabulary is often padded to more."""
        return len(self.pieces)

    def coverage(self, texts: Iterable[str]) -> Coverage:
        """How many digit characters of these texts stand in number tokens; warns where it is less than 95 %.

        >>> str(number_tokens(gpt2).coverage(["5 + 7 = 12"]))
        "50.0 % of the digit characters of this sample stand in number tokens; not those of ' 12' (1x)"
        """
        sample = [texts] if isinstance(texts, str) else list(texts)
        coverage = Coverage.of(sample, self.encode(sample), self.pieces, self.values)
        if coverage.digits and coverage.share < LOW:
            warnings.warn(f"{coverage}. {self._hint()}", stacklevel=2)
        return coverage

    def _hint(self) -> str:
        if self.which == "digits" and (self.kinds == NUMBER).any():
            return (
                "The others get no number loss; which='numbers' counts tokens of several digits too, "
                "and a tokenizer that splits digits needs neither"
            )
        return "The others get no number loss; `override` gives values to further ids"


def number_tokens(
    tokenizer: Any, *, which: Which = "digits", override: Mapping[int, float | None] | None = None
) -> NumberTokens:
    """The number tokens of a tokenizer of transformers (fast or slow) or of `tokenizers`, which is left as it is.

    Each id is read as what it adds to a text before it: decode(text + id) without decode(text). So `▁5` of
    SentencePiece, `Ġ5` of byte-level BPE and a plain `5` are all the digit 5. Numbers are ASCII and finite, with
    digits, perhaps a sign before and one point within: `inf`, `1e5`, `1_000`, full-width and Arabic digits are none.
    Special tokens are none.

    - `which`: "digits" counts tokens of one digit; "numbers" all that are a number, such as `12`, `-5`, `.5`.
    - `override`: values by id that count in place of what is found; None: the id is no number.

    >>> found = number_tokens(AutoTokenizer.from_pretrained("t5-small"))
    >>> len(found.values), found.values[305], found.pieces[305]
    (19, 5.0, ' 5')

    Raises `UserError` for a tokenizer without any, for an override that is no id or no finite value, and for an object
    that is no tokenizer.
    """
    if which not in ("digits", "numbers"):
        raise UserError(f"which: {which!r} is neither 'digits' nor 'numbers'")
    reader = _reader(tokenizer)
    size = max(reader.ids, default=-1) + 1
    kinds = np.full(size, TEXT, dtype=np.int8)
    prefixed = np.zeros(size, dtype=np.bool_)
    pieces = [""] * size
    values: dict[int, float] = {}
    for i, piece in zip(reader.ids, _pieces(reader), strict=True):
        pieces[i] = piece
        text = piece.lstrip(_MARKERS)
        prefixed[i] = len(text) < len(piece)
        kinds[i] = SPECIAL if i in reader.special else _kind(text)
        if kinds[i] == DIGIT or (kinds[i] == NUMBER and which == "numbers"):
            values[i] = float(text)
    for i, value in (override or {}).items():
        if isinstance(i, bool) or not isinstance(i, (int, np.integer)) or i < 0:
            raise UserError(f"override: {i!r} is no id; ids are whole numbers from 0 on")
        if value is None:
            values.pop(int(i), None)
        elif not math.isfinite(value):
            raise UserError(f"override: id {i} has the value {value}; finite numbers are right, None for no number")
        else:
            values[int(i)] = float(value)
    if not values:
        wanted = "a digit" if which == "digits" else "a number"
        several = " (some are numbers of several digits: which='numbers' takes them)" if (kinds == NUMBER).any() else ""
        raise UserError(
            f"tokenizer: none of its {len(reader.ids):,} ids decodes to {wanted}{several}; "
            "take one that has number tokens, or name them by override={id: value}"
        )
    return NumberTokens(dict(sorted(values.items())), which, tuple(pieces), kinds, prefixed, reader.encode)


def _kind(text: str) -> int:
    if len(text) == 1:
        if text in "0123456789":
            return DIGIT
        return SIGN if text in "+-" else POINT if text == "." else TEXT
    return NUMBER if _VALUE.fullmatch(text) and math.isfinite(float(text)) else TEXT


def _pieces(reader: "_Reader") -> list[str]:
    """What each id adds to a text, in the order of the ids. Nothing where it changes the text before it."""
    context = _context(reader)
    [before] = reader.decode([context])
    read = reader.decode([[*context, i] for i in reader.ids])
    return [text[len(before) :] if text.startswith(before) else "" for text in read]


def _context(reader: "_Reader") -> list[int]:
    """An id to stand before others: of a letter, or of any other text where there is no letter."""
    known = (reader.tokens[token] for token in ("a", "▁a", "Ġa", "x") if token in reader.tokens)
    for i in (*known, *reader.ids):
        [text] = reader.decode([[i]])
        if text.strip() and i not in reader.special and not any(character.isdecimal() for character in text):
            return [i]
    return []


@dataclass(frozen=True)
class _Reader:
    """The interface of a tokenizer: its tokens with their ids, which are special, decoding and encoding of many."""

    tokens: Mapping[str, int]
    special: frozenset[int]
    decode: Callable[[list[list[int]]], list[str]]
    encode: Callable[[Sequence[str]], list[list[int]]]

    @cached_property
    def ids(self) -> list[int]:
        """All ids, ascending."""
        return sorted(set(self.tokens.values()))


def _reader(tokenizer: Any) -> _Reader:
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as missing:
        raise UserError(
            "number_tokens reads tokenizers of `transformers` and `tokenizers`; pip install 'numerate[huggingface]'"
        ) from missing
    if isinstance(tokenizer, Tokenizer):
        return _fast(tokenizer, ())
    try:
        from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
    except ModuleNotFoundError:
        kinds: tuple[type, ...] = ()
    else:
        if isinstance(tokenizer, PreTrainedTokenizerFast):
            return _fast(tokenizer.backend_tokenizer, tokenizer.all_special_ids)
        kinds = (PreTrainedTokenizerBase,)
    if isinstance(tokenizer, kinds):
        return _slow(tokenizer)
    raise UserError(
        f"tokenizer: a {type(tokenizer).__name__} is none; one of transformers (AutoTokenizer.from_pretrained) or a "
        "tokenizers.Tokenizer is right"
    )


def _fast(tokenizer: Any, special: Iterable[int]) -> _Reader:
    def encode(texts: Sequence[str]) -> list[list[int]]:
        with _whole(tokenizer):
            try:
                return [found.ids for found in tokenizer.encode_batch(list(texts), add_special_tokens=False)]
            except Exception as error:  # the library raises no narrower one
                raise UserError(f"tokenizer: it does not read this sample: {error}") from error

    def decode(rows: list[list[int]]) -> list[str]:
        texts: list[str] = tokenizer.decode_batch(rows, skip_special_tokens=False)
        return texts

    added = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    tokens = tokenizer.get_vocab(with_added_tokens=True)
    return _Reader(tokens, frozenset(added) | frozenset(special), decode, encode)


@contextmanager
def _whole(tokenizer: Any) -> Iterator[None]:
    """Texts are read whole and unpadded within, and as before after it."""
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


def _slow(tokenizer: Any) -> _Reader:
    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [
            tokenizer(text, add_special_tokens=False, truncation=False, padding=False, verbose=False)["input_ids"]
            for text in texts
        ]

    def decode(rows: list[list[int]]) -> list[str]:
        return [tokenizer.decode(row, skip_special_tokens=False, clean_up_tokenization_spaces=False) for row in rows]

    return _Reader(tokenizer.get_vocab(), frozenset(tokenizer.all_special_ids), decode, encode)
