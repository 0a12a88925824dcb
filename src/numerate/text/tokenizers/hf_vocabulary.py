"""Hugging Face fast tokenizers with a number format of ours: texts to ids and back.

All numbers of a batch of texts are found at once, and each is replaced by a single `0`, which is a token of its own, so
that the text around it is tokenized as around a digit. Each `0` is then replaced by the symbols of its number.
"""

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from numerate.errors import UserError
from numerate.text.tokenizers import number_spans as found_numbers
from numerate.text.tokenizers.text_number_formats import NumberSymbols, TextNumberFormat, digits_of, sizes_of
from numerate.text.tokenizers.tokenizer_files import TokenizerFile
from numerate.tokenizers.number_formats import Ids, id_type
from numerate.vocabulary import (
    BEGIN,
    DIGIT,
    END,
    NUMBER,
    PAD,
    POINT,
    SIGN,
    SPECIAL,
    SPECIALS,
    TEXT,
    UNKNOWN,
    Vocabulary,
)

MARK = "\ue000"
"""A private-use character that stands for a number in a text."""

_PUT_IN = f"{MARK}put in\ue001"
"""A placeholder for a text that is inserted after decoding; no tokens decode to it by accident."""

_HIDDEN = "\ue002"
_FIRST_HIDDEN = 0xF0000
"""Special tokens are renamed to two private-use characters while texts are encoded."""

_ROLES = {"pad": PAD, "unk": UNKNOWN, "bos": BEGIN, "eos": END}
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)")
_SPACES = " \u2581\u0120"  # a space, that of SentencePiece, and that of byte-level tokenizers
_APART = "\0"


def per_digit(tokenizer: Any) -> Any:
    """A copy of a `tokenizers.Tokenizer` in which every digit is a token of its own.

    The rule follows the tokenizer's own pre-tokenizer, so that other text is split as before: `▁a12b` is `▁a 1 2 b`.
    """
    from tokenizers import Regex, Tokenizer, pre_tokenizers

    copy = Tokenizer.from_str(tokenizer.to_str())
    rule = pre_tokenizers.Split(Regex("[0-9]"), "isolated")
    own = copy.pre_tokenizer
    copy.pre_tokenizer = rule if own is None else pre_tokenizers.Sequence([own, rule])
    return copy


def _keeping(
    found: Sequence[str], written: NumberSymbols, beyond: NDArray[np.bool_], mark: str
) -> tuple[list[str], NumberSymbols]:
    """The mark of each number, and all numbers as symbols. Numbers `beyond` the format keep their characters: each run
    of their digits becomes a number that is written digit by digit."""
    marks = [mark] * len(found)
    runs: list[str] = []
    entries = np.ones(len(found), dtype=np.int64)
    for place in np.flatnonzero(beyond).tolist():
        own = found_numbers.DIGITS.findall(found[place])
        runs += own
        entries[place] = len(own)
        marks[place] = found_numbers.DIGITS.sub(mark, found[place])
    kept = np.repeat(beyond, entries)
    counts = np.empty(len(kept), dtype=np.int64)
    counts[kept], counts[~kept] = sizes_of(runs), written.counts[~beyond]
    inside = np.repeat(kept, counts)
    codes = np.empty(len(inside), dtype=np.int64)
    codes[inside], codes[~inside] = digits_of(runs), written.codes[np.repeat(~beyond, written.counts)]
    if written.values is None:
        return marks, NumberSymbols(codes, counts)
    values = np.ones(len(kept), dtype=np.float32)
    values[~kept] = written.values[~beyond]
    return marks, NumberSymbols(codes, counts, values)


def _marking(own: Any, text: str) -> tuple[Any, str]:
    """A copy of a tokenizer that keeps a mark as a token of its own, and the mark.

    The mark is the digit 0 with one token per digit. A Unigram model gets `MARK` in its vocabulary instead, which
    splits texts in the same way but faster, as no other piece has this character.
    """
    from tokenizers import Tokenizer

    stored = json.loads(text)
    if stored["model"].get("type") == "Unigram" or ("unk_id" in stored["model"] and "merges" not in stored["model"]):
        stored["model"]["vocab"].append([MARK, 0.0])
        made = Tokenizer.from_str(json.dumps(stored))
        made.no_truncation()
        made.no_padding()
        if made.encode(f"a{MARK}{MARK}b", add_special_tokens=False).tokens.count(MARK) == 2:
            return made, MARK
    return per_digit(own), "0"


def without_control(file: TokenizerFile) -> str:
    """The JSON of a tokenizer whose special tokens are renamed so that none occurs in a text: `</s>` in a text is plain
    text. Ids do not change."""
    stored = json.loads(file.text)
    added = stored.get("added_tokens") or []
    model = stored["model"]
    names = {*(token["content"] for token in added if token.get("special")), *dict(file.roles).values(), *SPECIALS}
    pieces = {
        part for merge in model.get("merges") or () for part in (merge.split() if isinstance(merge, str) else merge)
    }
    hidden = {name: f"{_HIDDEN}{chr(_FIRST_HIDDEN + i)}" for i, name in enumerate(sorted(names - pieces))}
    for token in added:
        token["content"] = hidden.get(token["content"], token["content"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {hidden.get(name, name): i for name, i in model["vocab"].items()}
    else:
        model["vocab"] = [[hidden.get(name, name), *score] for name, *score in model["vocab"]]
    if model.get("unk_token") in hidden:
        model["unk_token"] = hidden[model["unk_token"]]
    stored["post_processor"] = None
    return json.dumps(stored)


class Encoded(NamedTuple):
    """Token ids of texts, concatenated: `ids` `[tokens]`, `lengths` int64 `[texts]`, `values` float32 `[tokens]`, 1
    for tokens that are no numbers; None if tokens carry no values."""

    ids: Ids
    lengths: NDArray[np.int64]
    values: NDArray[np.float32] | None


@lru_cache(maxsize=8)
def speller(file: TokenizerFile, number_format: TextNumberFormat) -> "Speller":
    """The tokenizer of a file with a number format, cached."""
    return Speller(file, number_format)


class Speller:
    """A fast tokenizer with a number format. `vocabulary` has all tokens that it can produce."""

    def __init__(self, file: TokenizerFile, number_format: TextNumberFormat) -> None:
        from tokenizers import Tokenizer

        self.file, self.number_format = file, number_format
        try:
            theirs = Tokenizer.from_str(file.text).get_vocab(with_added_tokens=True)
            self.text = without_control(file)
            own = Tokenizer.from_str(self.text)
        except Exception as error:  # what the library raises is an Exception
            raise UserError(f"tokenizer: the library tokenizers cannot read it: {error}") from error
        own.no_truncation()
        own.no_padding()
        self.vocabulary = _vocabulary(theirs, dict(file.roles), number_format)
        self.own, self.mark = own, ""
        if number_format.pattern is not None:
            self._prepare(own)
        self.ours = _ours(self.own.get_vocab(with_added_tokens=True), self.vocabulary)

    def _prepare(self, own: Any) -> None:
        for digit in "0123456789":
            if own.token_to_id(digit) is None:
                raise UserError(
                    f"tokenizer: it has no token {digit!r}, which every number format but AsIs needs; "
                    "a tokenizer with the ten digits, or number_format=AsIs, is right"
                )
        assert self.number_format.pattern is not None
        self.around = re.compile(f"({self.number_format.pattern.pattern})")
        self.own, self.mark = _marking(own, self.text)
        self.marked = self.own.token_to_id(self.mark)
        self.codes = np.array([self.vocabulary.ids[symbol] for symbol in self.number_format.symbols()], dtype=np.int64)
        named = [added.content for added in own.get_added_tokens_decoder().values()]
        with_digits = [re.escape(name) for name in named if re.search("[0-9]", name)]
        self.named = re.compile("|".join(with_digits)) if with_digits else None
        self.folded: dict[str, str | None] = {}

    @cached_property
    def decoder(self) -> Any:
        from tokenizers import AddedToken, Tokenizer

        made = Tokenizer.from_str(self.file.text)
        made.add_tokens([AddedToken(_PUT_IN, normalized=False, special=False)])
        return made

    def encode(self, texts: Sequence[str]) -> Encoded:
        """The ids of texts in `vocabulary`, without added special tokens. The name of a special token such as `</s>` in
        a text is plain text."""
        if self.number_format.pattern is None:
            flat, lengths = self._ids(texts)
            return Encoded(self.ours[flat], lengths, None)
        marked, written = self._marked(texts)
        flat, lengths = self._ids(marked)
        mark = flat == self.marked
        counts = np.ones(len(flat), dtype=np.int64)
        if np.count_nonzero(mark) != len(written.counts):
            raise UserError(
                f"tokenizer: of {len(written.counts)} numbers it keeps {np.count_nonzero(mark)} apart; "
                "number_format=AsIs leaves them to it"
            )
        counts[mark] = written.counts
        inside = np.repeat(mark, counts)
        ids = np.repeat(self.ours[flat], counts)
        ids[inside] = self.codes[written.codes]
        ends = np.concatenate([[0], counts.cumsum()])[lengths.cumsum()]
        if written.values is None:
            return Encoded(ids, np.diff(ends, prepend=0), None)
        values = np.ones(len(ids), dtype=np.float32)
        values[inside] = np.repeat(written.values, written.counts)
        return Encoded(ids, np.diff(ends, prepend=0), values)

    def _ids(self, texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The ids of the tokenizer itself."""
        try:
            each = [one.ids for one in self.own.encode_batch_fast(list(texts), add_special_tokens=False)]
        except (TypeError, UnicodeError) as error:
            raise UserError(
                "tokenizer: a text is not Unicode (half of a surrogate pair); its file is not UTF-8"
            ) from error
        lengths = np.fromiter(map(len, each), np.int64, len(each))
        return np.fromiter(chain.from_iterable(each), np.int64, int(lengths.sum())), lengths

    def _marked(self, texts: Sequence[str]) -> tuple[list[str], NumberSymbols]:
        """The texts with a mark for each number, and all their numbers as symbols."""
        if not texts:
            return [], self.number_format.write([])
        joined = _APART.join(texts)
        if joined.count(_APART) != len(texts) - 1:
            joined = _APART.join(text.replace(_APART, "\ufffd") for text in texts)
        if not joined.isascii():
            joined = self._with_digits_folded(joined.replace(MARK, "\ufffd"))
        parts = self.around.split(joined)
        if self.named is not None and self.named.search(joined):
            parts = self._without_names(joined)
        if not joined.isascii():
            parts[1::2] = [found.replace(found_numbers.MINUS, "-") for found in parts[1::2]]
        found = parts[1::2]
        written = self.number_format.write(found)
        if written.beyond is not None and bool(written.beyond.any()):
            parts[1::2], written = _keeping(found, written, written.beyond, self.mark)
            marked = "".join(parts)
        else:
            marked = self.mark.join(parts[0::2])
        return self.number_format.between(marked, self.mark).split(_APART), written

    def _without_names(self, joined: str) -> list[str]:
        """Alternating texts and numbers, where digits of the tokenizer's added tokens count as text."""
        assert self.named is not None
        parts = [""]
        for text, name in zip_longest(self.named.split(joined), self.named.findall(joined), fillvalue=""):
            first, *rest = self.around.split(text)
            parts[-1] += first
            parts += rest
            parts[-1] += name
        return parts

    def _with_digits_folded(self, joined: str) -> str:
        """The text with those characters replaced that the tokenizer's normalizer turns into ASCII digits."""
        if self.own.normalizer is None:
            return joined
        for character in set(joined) - set(self.folded):
            self.folded[character] = None
            compatible = unicodedata.normalize("NFKC", character)
            if not character.isascii() and re.search("[0-9]", compatible):
                made = self.own.normalizer.normalize_str(character).strip(_SPACES)
                self.folded[character] = made if re.search("[0-9]", made) else None
        table = {ord(character): made for character, made in self.folded.items() if made is not None}
        return joined.translate(table) if table else joined

    def decode(self, ids: Sequence[int], vocabulary: Vocabulary, values: Sequence[float] | None = None) -> str:
        """The text of ids of a subset of our vocabulary, with the numbers that tokens carry."""
        assert vocabulary.foreign is not None
        mark = self.decoder.token_to_id(_PUT_IN)
        pieces: list[int] = []
        texts: list[str] = []
        run: list[int] = []

        def close() -> None:
            if run:
                run_values = None if values is None else [values[place] for place in run]
                texts.append(self.number_format.read([vocabulary.symbols[ids[place]] for place in run], run_values))
                pieces.append(mark)
                run.clear()

        for place, i in enumerate(ids):
            if i in (PAD, BEGIN, END):
                continue
            if i != UNKNOWN and vocabulary.foreign[i] < 0:
                run.append(place)
                continue
            close()
            if i == UNKNOWN:
                texts.append(SPECIALS[UNKNOWN])
            pieces.append(mark if i == UNKNOWN else int(vocabulary.foreign[i]))
        close()
        between = self.decoder.decode(pieces, skip_special_tokens=False).split(_PUT_IN)
        return "".join(chain.from_iterable(zip(between, [*texts, ""], strict=True)))


def _vocabulary(theirs: Mapping[str, int], roles: Mapping[str, str], number_format: TextNumberFormat) -> Vocabulary:
    """All tokens of a tokenizer and a number format."""
    by_id = sorted(theirs.items(), key=lambda item: item[1])
    special = {*roles.values(), *SPECIALS}
    own = [(name, i) for name, i in by_id if name not in special]
    new = [symbol for symbol in number_format.symbols() if symbol not in theirs]
    symbols = (*SPECIALS, *(name for name, _ in own), *new)
    foreign = np.full(len(symbols), -1, dtype=np.int64)
    foreign[4 : 4 + len(own)] = [i for _, i in own]
    for role, name in roles.items():
        foreign[_ROLES[role]] = theirs[name]
    number_symbols = frozenset(number_format.symbols())
    meant = [(SPECIAL, np.nan, -1000)] * 4 + [_meaning(symbol, number_format, number_symbols) for symbol in symbols[4:]]
    kinds, values, significance = zip(*meant, strict=True)
    return Vocabulary(
        symbols,
        np.array(kinds, dtype=np.int8),
        np.array(values, dtype=np.float64),
        np.array(significance, dtype=np.int64),
        foreign,
    )


def _ours(theirs: Mapping[str, int], vocabulary: Vocabulary) -> Ids:
    """Maps a tokenizer's ids to ids of a vocabulary. No text becomes a special token."""
    ours = np.full(max(theirs.values()) + 1, UNKNOWN, dtype=id_type(vocabulary))
    for name, i in theirs.items():
        if name not in SPECIALS:
            ours[i] = vocabulary.ids.get(name, UNKNOWN)
    return ours


def _meaning(symbol: str, number_format: TextNumberFormat, number_symbols: frozenset[str]) -> tuple[int, float, int]:
    """Kind, value and power of ten of a token."""
    if symbol in number_symbols:
        return number_format.meaning(symbol)
    bare = symbol.lstrip(_SPACES)
    if bare in ("+", "-"):
        return SIGN, np.nan, -1000
    if bare == ".":
        return POINT, np.nan, -1000
    if number_format.pattern is not None or not _NUMBER.fullmatch(bare):
        return TEXT, np.nan, -1000
    return DIGIT if len(bare) == 1 else NUMBER, float(bare), -1000


def cut(vocabulary: Vocabulary, kept: NDArray[np.int64]) -> Vocabulary:
    """The vocabulary restricted to these ids, in their order."""
    assert vocabulary.foreign is not None
    return replace(
        vocabulary,
        symbols=tuple(vocabulary.symbols[i] for i in kept.tolist()),
        kinds=vocabulary.kinds[kept],
        values=vocabulary.values[kept],
        significance=vocabulary.significance[kept],
        foreign=vocabulary.foreign[kept],
    )
