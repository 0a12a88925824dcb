"""Hugging Face fast tokenizers with a number format: texts to ids and back.

All numbers of a batch of texts are found at once, and each is replaced by a single `0`, which is a token of its own, so
that the text around it is tokenized as around a digit. Each `0` is then replaced by the symbols of its number.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import chain, compress, zip_longest
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from numerate.errors import UserError
from numerate.text.tokenizers import number_spans as found_numbers
from numerate.text.tokenizers.fast_tokenizers import TokenizerFile, build_tokenizer, encode_texts, rename_special_tokens
from numerate.text.tokenizers.text_number_formats import (
    NUMBER_TOKEN,
    NumberSymbols,
    TextNumberFormat,
    concatenated_digits,
    parse_floats,
    text_lengths,
)
from numerate.tokenizers.number_formats import Ids, id_dtype
from numerate.vocabulary import (
    BOS,
    DIGIT,
    EOS,
    NUMBER,
    PAD,
    POINT,
    SIGN,
    SPECIAL,
    SPECIAL_TOKENS,
    TEXT,
    UNK,
    Vocabulary,
)

_PLACEHOLDER = "0"
"""Stands for a number in a text while that is encoded."""

_PRIVATE_CHARACTER = "\ue000"
_TEXT_PLACEHOLDER = f"{_PRIVATE_CHARACTER}put in\ue001"
"""A placeholder for a text that is inserted after decoding; no sequence of ordinary tokens decodes to it."""

_SPECIAL_IDS = {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS}
_NUMBER_PATTERN = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)")
_SPACE_CHARACTERS = " \u2581\u0120"  # a space, that of SentencePiece, and that of byte-level tokenizers
_TEXT_SEPARATOR = "\0"


def split_digits(tokenizer: Any) -> Any:
    """A copy of a `tokenizers.Tokenizer` in which every digit is a token of its own.

    The rule follows the tokenizer's own pre-tokenizer, so that other text is split as before: `▁a12b` is `▁a 1 2 b`.
    """
    from tokenizers import Regex, Tokenizer, pre_tokenizers

    copy = Tokenizer.from_str(tokenizer.to_str())
    digit_splitter = pre_tokenizers.Split(Regex("[0-9]"), "isolated")
    pre_tokenizer = copy.pre_tokenizer
    copy.pre_tokenizer = (
        digit_splitter if pre_tokenizer is None else pre_tokenizers.Sequence([pre_tokenizer, digit_splitter])
    )
    return copy


def _spell_unrepresentable_numbers(
    numbers: Sequence[str], symbols: NumberSymbols, unrepresentable_mask: NDArray[np.bool_]
) -> tuple[list[str], NumberSymbols]:
    """The mark of each number, and all numbers as symbols. Numbers `unrepresentable_mask` the format keep their
    characters: each run of their digits becomes a number that is written digit by digit."""
    placeholders = [_PLACEHOLDER] * len(numbers)
    digit_runs: list[str] = []
    num_entries = np.ones(len(numbers), dtype=np.int64)
    for i in np.flatnonzero(unrepresentable_mask).tolist():
        runs_of_number = found_numbers.DIGIT_RUN.findall(numbers[i])
        digit_runs += runs_of_number
        num_entries[i] = len(runs_of_number)
        placeholders[i] = found_numbers.DIGIT_RUN.sub(_PLACEHOLDER, numbers[i])
    is_digit_run = np.repeat(unrepresentable_mask, num_entries)
    num_symbols = np.empty(len(is_digit_run), dtype=np.int64)
    num_symbols[is_digit_run], num_symbols[~is_digit_run] = (
        text_lengths(digit_runs),
        symbols.num_symbols[~unrepresentable_mask],
    )
    digit_run_mask = np.repeat(is_digit_run, num_symbols)
    symbol_indices = np.empty(len(digit_run_mask), dtype=np.int64)
    symbol_indices[digit_run_mask], symbol_indices[~digit_run_mask] = (
        concatenated_digits(digit_runs),
        symbols.symbol_indices[np.repeat(~unrepresentable_mask, symbols.num_symbols)],
    )
    if symbols.number_values is None:
        return placeholders, NumberSymbols(symbol_indices, num_symbols)
    number_values = np.ones(len(is_digit_run), dtype=np.float32)
    number_values[~is_digit_run] = symbols.number_values[~unrepresentable_mask]
    return placeholders, NumberSymbols(symbol_indices, num_symbols, number_values)


class EncodedTexts(NamedTuple):
    """Token ids of texts, concatenated: `ids` `[tokens]`, `lengths` int64 `[texts]`, `number_values` float32
    `[tokens]`, 1 for tokens that are no numbers; None if tokens carry no values."""

    ids: Ids
    lengths: NDArray[np.int64]
    number_values: NDArray[np.float32] | None


@lru_cache(maxsize=8)
def load_fast_tokenizer(
    file: TokenizerFile, number_format: TextNumberFormat, parse_special_tokens: bool = False
) -> "FastTokenizer":
    """The tokenizer of a file with a number format, cached."""
    return FastTokenizer(file, number_format, parse_special_tokens)


class FastTokenizer:
    """A fast tokenizer with a number format. `vocabulary` has all tokens that it can produce. With
    `parse_special_tokens`, as a chat template needs, the name of a special token in a text is that token."""

    def __init__(
        self, file: TokenizerFile, number_format: TextNumberFormat, parse_special_tokens: bool = False
    ) -> None:
        self.file, self.number_format = file, number_format
        original_ids = build_tokenizer(file.json_text).get_vocab(with_added_tokens=True)
        ids, last = {*original_ids.values()}, max(original_ids.values())
        # With a gap, the placeholder of `decode` may have the id of a token.
        if len(ids) < len(original_ids) or (len(ids) <= last and self.decoder.token_to_id(_TEXT_PLACEHOLDER) in ids):
            problem = f"{len(original_ids):,} tokens have {len(ids):,} ids from 0 to {last:,}"
            raise UserError(f"tokenizer: {problem}; one token may stand twice in its tokenizer.json")
        hf_tokenizer = build_tokenizer(file.json_text if parse_special_tokens else rename_special_tokens(file))
        self.vocabulary = _build_vocabulary(original_ids, dict(file.special_tokens), number_format)
        self.hf_tokenizer = hf_tokenizer
        if number_format.pattern is not None:
            self._prepare_numbers(hf_tokenizer)
        self.id_table = _build_id_table(self.hf_tokenizer.get_vocab(with_added_tokens=True), self.vocabulary)
        if parse_special_tokens:
            special_tokens = dict(file.special_tokens)
            for role in ("pad", "unk", "eos", "bos"):  # of roles that share a token, the last one stands in prompts
                if role in special_tokens:
                    self.id_table[original_ids[special_tokens[role]]] = _SPECIAL_IDS[role]

    def _prepare_numbers(self, hf_tokenizer: Any) -> None:
        for digit in "0123456789":
            if hf_tokenizer.token_to_id(digit) is None:
                raise UserError(
                    f"tokenizer: it has no token {digit!r}, which every number format but AsIs needs; "
                    "use a tokenizer with the ten digits, or number_format=AsIs"
                )
        assert self.number_format.pattern is not None
        self.number_splitter = re.compile(f"({self.number_format.pattern.pattern})")
        self.hf_tokenizer = split_digits(hf_tokenizer)
        self.placeholder_id = self.hf_tokenizer.token_to_id(_PLACEHOLDER)
        self.symbol_ids = np.array(
            [self.vocabulary.token_to_id[symbol] for symbol in self.number_format.symbols()], dtype=np.int64
        )
        added_tokens = [added.content for added in hf_tokenizer.get_added_tokens_decoder().values()]
        with_digits = [re.escape(name) for name in added_tokens if re.search("[0-9]", name)]
        self.added_tokens_with_digits = re.compile("|".join(with_digits)) if with_digits else None
        self.ascii_digits: dict[str, str | None] = {}

    @cached_property
    def decoder(self) -> Any:
        from tokenizers import AddedToken, Tokenizer

        tokenizer = Tokenizer.from_str(self.file.json_text)
        tokenizer.add_special_tokens([*self.file.other_special_tokens])
        tokenizer.add_tokens([AddedToken(_TEXT_PLACEHOLDER, normalized=False, special=False)])
        return tokenizer

    def encode(self, texts: Sequence[str]) -> EncodedTexts:
        """The ids of texts in `vocabulary`, without added special tokens. The name of a special token such as `</s>` in
        a text is plain text, unless special tokens are parsed."""
        if self.number_format.pattern is None:
            hf_ids, lengths = self._encode_with_hf(texts)
            return EncodedTexts(self.id_table[hf_ids], lengths, None)
        texts_with_placeholders, symbols = self._replace_numbers(texts)
        hf_ids, lengths = self._encode_with_hf(texts_with_placeholders)
        placeholder_mask = hf_ids == self.placeholder_id
        num_ids = np.ones(len(hf_ids), dtype=np.int64)
        if np.count_nonzero(placeholder_mask) != len(symbols.num_symbols):
            raise UserError(
                f"tokenizer: of {len(symbols.num_symbols)} numbers it keeps {np.count_nonzero(placeholder_mask)} "
                "apart; number_format=AsIs leaves them to it"
            )
        num_ids[placeholder_mask] = symbols.num_symbols
        number_mask = np.repeat(placeholder_mask, num_ids)
        ids = np.repeat(self.id_table[hf_ids], num_ids)
        ids[number_mask] = self.symbol_ids[symbols.symbol_indices]
        ends = np.concatenate([[0], num_ids.cumsum()])[lengths.cumsum()]
        if symbols.number_values is None:
            return EncodedTexts(ids, np.diff(ends, prepend=0), None)
        number_values = np.ones(len(ids), dtype=np.float32)
        number_values[number_mask] = np.repeat(symbols.number_values, symbols.num_symbols)
        return EncodedTexts(ids, np.diff(ends, prepend=0), number_values)

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> EncodedTexts:
        """The ids of questions and answers, in turn. `AsIs(number_answers=true)` makes numbers of the latter [NUM]."""
        texts = [text for pair in pairs for text in pair]
        if self.number_format.pattern is not None or not self.number_format.has_number_values:
            return self.encode(texts)
        is_number = np.zeros(len(texts), dtype=np.bool_)
        is_number[1::2] = [found_numbers.SIGNED_NUMBER.fullmatch(one.strip()) is not None for _, one in pairs]
        values = parse_floats([text.strip() for text in compress(texts, is_number)])[0]
        is_number[is_number], values = np.isfinite(values), values[np.isfinite(values)]
        encoded = self.encode(["" if number else text for text, number in zip(texts, is_number, strict=True)])
        places = encoded.lengths.cumsum()[is_number]
        ids = np.insert(encoded.ids, places, self.vocabulary.token_to_id[NUMBER_TOKEN])
        number_values = np.insert(np.ones(len(encoded.ids), np.float32), places, values)
        return EncodedTexts(ids, encoded.lengths + is_number, number_values)

    def _encode_with_hf(self, texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The ids of the tokenizer itself."""
        try:
            return encode_texts(self.hf_tokenizer, texts)
        except ValueError as error:
            raise UserError(f"tokenizer: a text {error}; its file must be UTF-8") from error

    def _replace_numbers(self, texts: Sequence[str]) -> tuple[list[str], NumberSymbols]:
        """The texts with a mark for each number, and all their numbers as symbols."""
        if not texts:
            return [], self.number_format.format_numbers([])
        joined = _TEXT_SEPARATOR.join(texts)
        if joined.count(_TEXT_SEPARATOR) != len(texts) - 1:
            joined = _TEXT_SEPARATOR.join(text.replace(_TEXT_SEPARATOR, "\ufffd") for text in texts)
        if not joined.isascii():
            joined = self._normalize_digits(joined.replace(_PRIVATE_CHARACTER, "\ufffd"))
        parts = self.number_splitter.split(joined)
        if self.added_tokens_with_digits is not None and self.added_tokens_with_digits.search(joined):
            parts = self._split_outside_added_tokens(joined)
        if not joined.isascii():
            parts[1::2] = [numbers.replace(found_numbers.MINUS, "-") for numbers in parts[1::2]]
        found = parts[1::2]
        symbols = self.number_format.format_numbers(found)
        if symbols.unrepresentable_mask is not None and bool(symbols.unrepresentable_mask.any()):
            parts[1::2], symbols = _spell_unrepresentable_numbers(found, symbols, symbols.unrepresentable_mask)
            joined_placeholders = "".join(parts)
        else:
            joined_placeholders = _PLACEHOLDER.join(parts[0::2])
        normalized = self.number_format.normalize_separators(joined_placeholders, _PLACEHOLDER)
        return normalized.split(_TEXT_SEPARATOR), symbols

    def _split_outside_added_tokens(self, joined: str) -> list[str]:
        """Alternating texts and numbers, where digits of the tokenizer's added tokens count as text."""
        assert self.added_tokens_with_digits is not None
        parts = [""]
        for text, name in zip_longest(
            self.added_tokens_with_digits.split(joined), self.added_tokens_with_digits.findall(joined), fillvalue=""
        ):
            first, *rest = self.number_splitter.split(text)
            parts[-1] += first
            parts += rest
            parts[-1] += name
        return parts

    def _normalize_digits(self, joined: str) -> str:
        """The text with those characters replaced that the tokenizer's normalizer turns into ASCII digits."""
        if self.hf_tokenizer.normalizer is None:
            return joined
        for character in set(joined) - set(self.ascii_digits):
            self.ascii_digits[character] = None
            nfkc = unicodedata.normalize("NFKC", character)
            if not character.isascii() and re.search("[0-9]", nfkc):
                normalized = self.hf_tokenizer.normalizer.normalize_str(character).strip(_SPACE_CHARACTERS)
                self.ascii_digits[character] = normalized if re.search("[0-9]", normalized) else None
        table = {ord(character): made for character, made in self.ascii_digits.items() if made is not None}
        return joined.translate(table) if table else joined

    def decode(self, ids: Sequence[int], vocabulary: Vocabulary, number_values: Sequence[float] | None = None) -> str:
        """The text of ids of a subset of our vocabulary, without special tokens but [UNK], with the numbers that tokens
        carry."""
        assert vocabulary.pretrained_ids is not None
        placeholder_id = self.decoder.token_to_id(_TEXT_PLACEHOLDER)
        hf_ids: list[int] = []
        inserted_texts: list[str] = []
        symbol_positions: list[int] = []

        def flush_symbols() -> None:
            if symbol_positions:
                run_values = None if number_values is None else [number_values[place] for place in symbol_positions]
                inserted_texts.append(
                    self.number_format.decode_symbols(
                        [vocabulary.tokens[ids[place]] for place in symbol_positions], run_values
                    )
                )
                hf_ids.append(placeholder_id)
                symbol_positions.clear()

        for position, i in enumerate(ids):
            if i in (PAD, BOS, EOS):
                continue
            if i != UNK and vocabulary.pretrained_ids[i] < 0:
                symbol_positions.append(position)
                continue
            flush_symbols()
            if i == UNK:
                inserted_texts.append(SPECIAL_TOKENS[UNK])
            hf_ids.append(placeholder_id if i == UNK else int(vocabulary.pretrained_ids[i]))
        flush_symbols()
        texts_between = self.decoder.decode(hf_ids, skip_special_tokens=True).split(_TEXT_PLACEHOLDER)
        return "".join(chain.from_iterable(zip(texts_between, [*inserted_texts, ""], strict=True)))


def _build_vocabulary(
    original_ids: Mapping[str, int], special_tokens: Mapping[str, str], number_format: TextNumberFormat
) -> Vocabulary:
    """All tokens of a tokenizer and a number format."""
    by_id = sorted(original_ids.items(), key=lambda item: item[1])
    special_names = {*special_tokens.values(), *SPECIAL_TOKENS}
    ordinary_tokens = [(name, i) for name, i in by_id if name not in special_names]
    new_symbols = [symbol for symbol in number_format.symbols() if symbol not in original_ids]
    symbols = (*SPECIAL_TOKENS, *(name for name, _ in ordinary_tokens), *new_symbols)
    hf_ids = np.full(len(symbols), -1, dtype=np.int64)
    hf_ids[4 : 4 + len(ordinary_tokens)] = [i for _, i in ordinary_tokens]
    for role, name in special_tokens.items():
        hf_ids[_SPECIAL_IDS[role]] = original_ids[name]
    number_symbols = frozenset(number_format.symbols())
    symbol_infos = [(SPECIAL, np.nan, -1000)] * 4 + [
        _symbol_info(symbol, number_format, number_symbols) for symbol in symbols[4:]
    ]
    token_kinds, values, significance = zip(*symbol_infos, strict=True)
    return Vocabulary(
        symbols,
        np.array(token_kinds, dtype=np.int8),
        np.array(values, dtype=np.float64),
        np.array(significance, dtype=np.int64),
        hf_ids,
    )


def _build_id_table(original_ids: Mapping[str, int], vocabulary: Vocabulary) -> Ids:
    """Maps a tokenizer's ids to ids of a vocabulary. No text becomes a special token."""
    id_table = np.full(max(original_ids.values()) + 1, UNK, dtype=id_dtype(vocabulary))
    for name, i in original_ids.items():
        if name not in SPECIAL_TOKENS:
            id_table[i] = vocabulary.token_to_id.get(name, UNK)
    return id_table


def _symbol_info(
    symbol: str, number_format: TextNumberFormat, number_symbols: frozenset[str]
) -> tuple[int, float, int]:
    """Kind, value and power of ten of a token."""
    if symbol in number_symbols:
        return number_format.symbol_info(symbol)
    stripped_symbol = symbol.lstrip(_SPACE_CHARACTERS)
    if stripped_symbol in ("+", "-"):
        return SIGN, np.nan, -1000
    if stripped_symbol == ".":
        return POINT, np.nan, -1000
    if number_format.pattern is not None or not _NUMBER_PATTERN.fullmatch(stripped_symbol):
        return TEXT, np.nan, -1000
    return DIGIT if len(stripped_symbol) == 1 else NUMBER, float(stripped_symbol), -1000


def restrict_vocabulary(vocabulary: Vocabulary, kept_ids: NDArray[np.int64]) -> Vocabulary:
    """The vocabulary restricted to these ids, in their order."""
    assert vocabulary.pretrained_ids is not None
    return replace(
        vocabulary,
        tokens=tuple(vocabulary.tokens[i] for i in kept_ids.tolist()),
        token_kinds=vocabulary.token_kinds[kept_ids],
        number_values=vocabulary.number_values[kept_ids],
        exponents=vocabulary.exponents[kept_ids],
        pretrained_ids=vocabulary.pretrained_ids[kept_ids],
    )
