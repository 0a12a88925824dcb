"""Somebody else's fast tokenizer with our spelling of numbers: texts to ids and back.

Numbers are found in all texts at once, and each is marked by a single `0`, a token of its own; what the tokenizer makes
of the text around it is what it makes of the text around a digit. Then each mark becomes the symbols of its number. So
a number costs nothing but its own symbols, whatever its spelling.
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
from numerate.tokens import found_numbers
from numerate.tokens.numbers import Ids, id_type
from numerate.tokens.text_spellings import NumberSymbols, TextNumberFormat, digits_of, sizes_of
from numerate.tokens.tokenizer_files import TokenizerFile
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
"""A character of nobody's (private use) that stands for a number in a text."""

_PUT_IN = f"{MARK}put in\ue001"
"""What stands for a text that is put in after decoding; a text that no tokens say by accident."""

_HIDDEN = "\ue002"
_FIRST_HIDDEN = 0xF0000
"""What special tokens are called while texts are read: two characters of nobody's."""

_ROLES = {"pad": PAD, "unk": UNKNOWN, "bos": BEGIN, "eos": END}
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)")
_SPACES = " \u2581\u0120"  # a space, that of SentencePiece, and that of byte-level tokenizers
_APART = "\0"


def per_digit(tokenizer: Any) -> Any:
    """A copy of a `tokenizers.Tokenizer` that gives every digit a token of its own, and is else the same.

    The rule comes behind the tokenizer's own, so that no other text is cut differently: `▁a12b` is `▁a 1 2 b`.
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
    """The mark of each number, and all numbers as symbols, where those `beyond` a spelling keep their characters: each
    run of their digits is then a number that is written digit by digit."""
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
    """A copy of a tokenizer that keeps a mark apart as a token of its own, and the mark.

    In general it is the digit 0 under the rule of one token a digit. A Unigram model takes the mark into its vocabulary
    instead: no other piece has this character, so that it cuts a text where the rule would, in less time.
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
    """The JSON of a tokenizer whose special tokens have names that no text has: what stands in a text is text, even
    `</s>`. All ids stay as they are."""
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
    """Texts as ids, one behind the other: `ids` `[tokens]`, `lengths` int64 `[texts]`, `values` float32 `[tokens]`, 1
    where no number is; None where tokens carry none."""

    ids: Ids
    lengths: NDArray[np.int64]
    values: NDArray[np.float32] | None


@lru_cache(maxsize=8)
def speller(file: TokenizerFile, number_format: TextNumberFormat) -> "Speller":
    """A tokenizer with a spelling, made once."""
    return Speller(file, number_format)


class Speller:
    """A tokenizer with a spelling of numbers. `vocabulary` has all that it can write."""

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
                    f"tokenizer: it has no token {digit!r}, which every spelling of numbers but AsIs needs; "
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
        """The ids of texts in `vocabulary`, without special tokens around them. The name of one that stands in a text,
        such as `</s>`, is text like any other."""
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
        """What the tokenizer itself says, with its own ids."""
        try:
            each = [one.ids for one in self.own.encode_batch_fast(list(texts), add_special_tokens=False)]
        except (TypeError, UnicodeError) as error:
            raise UserError(
                "tokenizer: a text is not Unicode (half of a surrogate pair); its file is not UTF-8"
            ) from error
        lengths = np.fromiter(map(len, each), np.int64, len(each))
        return np.fromiter(chain.from_iterable(each), np.int64, int(lengths.sum())), lengths

    def _marked(self, texts: Sequence[str]) -> tuple[list[str], NumberSymbols]:
        """The texts with a 0 for each number, and the numbers of all of them as symbols."""
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
        """Texts and numbers in turn, where digits of tokens that the tokenizer takes as a whole are text."""
        assert self.named is not None
        parts = [""]
        for text, name in zip_longest(self.named.split(joined), self.named.findall(joined), fillvalue=""):
            first, *rest = self.around.split(text)
            parts[-1] += first
            parts += rest
            parts[-1] += name
        return parts

    def _with_digits_folded(self, joined: str) -> str:
        """The text with those characters rewritten that the tokenizer's normaliser makes into ASCII digits."""
        if self.own.normalizer is None:
            return joined
        for character in set(joined) - set(self.folded):
            self.folded[character] = None
            compatible = unicodedata.normalize("NFKC", character)
            if not character.isascii() and re.search("[0-9]", compatible):
                made = self.own.normalizer.normalize_str(character).strip(_SPACES)
                self.folded[character] = made if re.search("[0-9]", made) else None
        told = {ord(character): made for character, made in self.folded.items() if made is not None}
        return joined.translate(told) if told else joined

    def decode(self, ids: Sequence[int], vocabulary: Vocabulary, values: Sequence[float] | None = None) -> str:
        """The text of ids of a vocabulary cut from ours, with the numbers that tokens carry."""
        assert vocabulary.foreign is not None
        mark = self.decoder.token_to_id(_PUT_IN)
        pieces: list[int] = []
        texts: list[str] = []
        run: list[int] = []

        def close() -> None:
            if run:
                said = None if values is None else [values[place] for place in run]
                texts.append(self.number_format.read([vocabulary.symbols[ids[place]] for place in run], said))
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
    """All that a tokenizer and a spelling write."""
    by_id = sorted(theirs.items(), key=lambda item: item[1])
    special = {*roles.values(), *SPECIALS}
    own = [(name, i) for name, i in by_id if name not in special]
    new = [symbol for symbol in number_format.symbols() if symbol not in theirs]
    symbols = (*SPECIALS, *(name for name, _ in own), *new)
    foreign = np.full(len(symbols), -1, dtype=np.int64)
    foreign[4 : 4 + len(own)] = [i for _, i in own]
    for role, name in roles.items():
        foreign[_ROLES[role]] = theirs[name]
    spelled = frozenset(number_format.symbols())
    meant = [(SPECIAL, np.nan, -1000)] * 4 + [_meaning(symbol, number_format, spelled) for symbol in symbols[4:]]
    kinds, values, significance = zip(*meant, strict=True)
    return Vocabulary(
        symbols,
        np.array(kinds, dtype=np.int8),
        np.array(values, dtype=np.float64),
        np.array(significance, dtype=np.int64),
        foreign,
    )


def _ours(theirs: Mapping[str, int], vocabulary: Vocabulary) -> Ids:
    """The id in a vocabulary of each of a tokenizer's ids. No text is a special token, whatever stands in it."""
    ours = np.full(max(theirs.values()) + 1, UNKNOWN, dtype=id_type(vocabulary))
    for name, i in theirs.items():
        if name not in SPECIALS:
            ours[i] = vocabulary.ids.get(name, UNKNOWN)
    return ours


def _meaning(symbol: str, number_format: TextNumberFormat, spelled: frozenset[str]) -> tuple[int, float, int]:
    """Kind, value and power of ten of a token."""
    if symbol in spelled:
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
    """The vocabulary of only these ids, in their order."""
    assert vocabulary.foreign is not None
    return replace(
        vocabulary,
        symbols=tuple(vocabulary.symbols[i] for i in kept.tolist()),
        kinds=vocabulary.kinds[kept],
        values=vocabulary.values[kept],
        significance=vocabulary.significance[kept],
        foreign=vocabulary.foreign[kept],
    )
