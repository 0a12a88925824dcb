"""Tokenizers with their own ids, for tokenized corpora, and the bytes of their tokens."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerate.errors import UserError
from numerate.text.tokenizers.fast_tokenizers import (
    TokenizerFile,
    build_tokenizer,
    concatenate_ids,
    encode_texts,
    rename_special_tokens,
)
from numerate.text.tokenizers.sentencepiece_files import BYTE_PIECE, SPACE_SYMBOL, WORD_PATTERN, build_tokenizer_config
from numerate.text.tokenizers.tokenizer_files import load_tokenizer_file


def load_tokenizer(name: str) -> "PretrainedTokenizer":
    """The tokenizer of a name, as `load_tokenizer_file` finds it, with its own ids; opened once per process as long as
    its file does not change. Raises `UserError` as that does."""
    return open_tokenizer(load_tokenizer_file(name))


@lru_cache(maxsize=4)
def open_tokenizer(file: TokenizerFile) -> "PretrainedTokenizer":
    """The tokenizer of a file, opened once per process."""
    return PretrainedTokenizer(file)


class PretrainedTokenizer:
    """A tokenizer with its own ids.

    With Mistral's first one `document_start_id` is 1 (`<s>`), `size` 32,000, and `encode(["Once upon"])` gives the ids
    of `▁Once` and `▁upon`. Names of special tokens in a text are plain text. Raises `UserError` for one that cannot be
    read.
    """

    def __init__(self, file: TokenizerFile) -> None:
        self.file = file
        self._hf_tokenizer = build_tokenizer(file.json_text)
        self._text_tokenizer = build_tokenizer(rename_special_tokens(file))
        self._word_cache = _WordCache.from_tokenizer(self._text_tokenizer)
        self._id_of_token: dict[str, int] = self._hf_tokenizer.get_vocab(with_added_tokens=True)
        self.size = max(self._id_of_token.values()) + 1
        """Vocabulary size: ids are smaller."""

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The text of each piece in the tokenizer's notation (`▁Once`); `[no piece 7]` for an id without a piece."""
        symbols = [f"[no piece {i}]" for i in range(self.size)]
        for name, i in self._id_of_token.items():
            symbols[i] = name
        return tuple(symbols)

    @cached_property
    def special_token_ids(self) -> dict[str, int]:
        """The ids of `bos`, `eos`, `unk` and `pad`, as far as they exist."""
        return {role: self._id_of_token[name] for role, name in self.file.special_tokens if name in self._id_of_token}

    @cached_property
    def document_start_id(self) -> int:
        """The id before every document: BOS, else EOS (GPT-2 has one for both).

        Raises `UserError` for a tokenizer without either.
        """
        token_id = self.special_token_ids.get("bos", self.special_token_ids.get("eos"))
        if token_id is None:
            raise UserError(
                "tokenizer: it has no token that begins a text (<s>, <bos>, <|endoftext|> ...), and documents would "
                "run together; bos_token in a tokenizer_config.json beside it names one"
            )
        return token_id

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the mapping from ids to pieces, the same for a SentencePiece model and its tokenizer.json."""
        parts = [sorted((i, name) for name, i in self._id_of_token.items()), sorted(self.special_token_ids.items())]
        return hashlib.blake2b(json.dumps(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def encode(self, texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The ids of texts, concatenated, without special tokens, and the length of each.

        Raises `ValueError` for invalid text (half of a surrogate pair).
        """
        if self._word_cache is None:
            return encode_texts(self._text_tokenizer, texts)
        try:
            return self._word_cache.encode(texts)
        except (TypeError, UnicodeError) as error:
            raise ValueError("contains an unpaired surrogate") from error

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """The text of ids without special tokens."""
        kept = [int(i) for i in ids if int(i) not in self._special_ids]
        text: str = self._hf_tokenizer.decode(kept, skip_special_tokens=True)
        return text

    @cached_property
    def _special_ids(self) -> frozenset[int | None]:
        return frozenset(
            (*self.special_token_ids.values(), *map(self._id_of_token.get, self.file.other_special_tokens))
        )

    def split_documents(self, ids: NDArray[np.integer]) -> list[NDArray[np.integer]]:
        """Splits ids into documents at every `document_start_id`, which is dropped; ids before the first one are a
        document too."""
        starts = np.flatnonzero(ids == self.document_start_id)
        return [part[part != self.document_start_id] for part in np.split(ids, starts) if len(part)]

    def can_reproduce(self, ids: NDArray[np.integer]) -> bool:
        """Whether decoding and encoding reproduces the ids of at least half of the complete documents, so that this may
        be the tokenizer of a corpus."""
        documents = [one for one in self.split_documents(ids)[:-1] if len(one)][-_MAX_COMPARED_DOCUMENTS:]
        if not documents:  # a single document, perhaps cut off
            documents = [one for one in self.split_documents(ids) if len(one)]
        new_ids, lengths = self.encode([self.decode(one) for one in documents])
        new_documents = np.split(new_ids, lengths.cumsum()[:-1])
        num_equal = sum(_are_equal_except_ends(one, other) for one, other in zip(documents, new_documents, strict=True))
        return num_equal * 2 >= len(documents)


class _WordCache:
    """A word cache for a SentencePiece-like tokenizer whose pieces do not cross word boundaries.

    Stories have few different words, and a lookup is some ten times as fast as tokenizing.
    """

    def __init__(self, tokenizer: Any, prefix: str) -> None:
        self._tokenizer, self._prefix = tokenizer, prefix
        self._ids_of_word: dict[str, tuple[int, ...]] = {}

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> "_WordCache | None":
        """For a tokenizer of `build_tokenizer_config` without character normalization; None for any other."""
        from tokenizers import Tokenizer

        tokenizer_config = json.loads(tokenizer.to_str())
        for prefix in ("", SPACE_SYMBOL):
            expected_config = build_tokenizer_config({}, add_dummy_prefix=bool(prefix))
            if all(tokenizer_config[part] == expected_config[part] for part in ("normalizer", "pre_tokenizer")):
                word_tokenizer = Tokenizer.from_str(
                    json.dumps(tokenizer_config | {"normalizer": None, "pre_tokenizer": None})
                )
                return cls(word_tokenizer, prefix)
        return None

    def encode(self, texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if len(self._ids_of_word) > _MAX_CACHED_WORDS:
            self._ids_of_word.clear()
        words_of_texts = [
            _WORD.findall((self._prefix + text).replace(" ", SPACE_SYMBOL) if text else "") for text in texts
        ]
        new_words = list(set(chain.from_iterable(words_of_texts)) - self._ids_of_word.keys())
        for word, one in zip(
            new_words, self._tokenizer.encode_batch_fast(new_words, add_special_tokens=False), strict=True
        ):
            self._ids_of_word[word] = tuple(one.ids)
        ids_of_texts = [[*chain.from_iterable(map(self._ids_of_word.__getitem__, words))] for words in words_of_texts]
        return concatenate_ids(ids_of_texts)


_WORD = re.compile(WORD_PATTERN)
_MAX_CACHED_WORDS = 200_000
_MAX_COMPARED_DOCUMENTS = 16
_MAX_DIFFERENT_AT_ENDS = 4


def _are_equal_except_ends(first: NDArray[np.integer], second: NDArray[np.integer]) -> bool:
    """Whether two sequences are equal except for a few ids at their ends, where a document may have been cut."""
    for offset in range(-_MAX_DIFFERENT_AT_ENDS, _MAX_DIFFERENT_AT_ENDS + 1):
        first_part, second_part = first[max(offset, 0) :], second[max(-offset, 0) :]
        common_length = min(len(first_part), len(second_part))
        if abs(len(first_part) - len(second_part)) <= _MAX_DIFFERENT_AT_ENDS and np.array_equal(
            first_part[_MAX_DIFFERENT_AT_ENDS : common_length - _MAX_DIFFERENT_AT_ENDS],
            second_part[_MAX_DIFFERENT_AT_ENDS : common_length - _MAX_DIFFERENT_AT_ENDS],
        ):
            return True
    return False


# Bytes of each token -------------------------------------------------------------------------------------------------

_BYTE_SPACE = "Ġ"
"""The space as tokenizers of bytes (GPT-2) write it."""


@dataclass(frozen=True, eq=False)
class TokenBytes:
    """Bytes of UTF-8 by token id.

    `byte_counts` int64 `[size]`: of the token within a text, the space in front of a word included; special tokens have
    none. `initial_byte_counts` int64 `[size]`: of the token at the start of a document, where many tokenizers add a
    space. `begin_id`: the id in front of every document; None where a tokenizer has none.

        token_bytes = TokenBytes.from_tokenizer(load_tokenizer("mistral"))
        token_bytes.target_byte_counts(ids[:, :-1], ids[:, 1:])  # bytes of each token of a row
    """

    byte_counts: NDArray[np.int64]
    initial_byte_counts: NDArray[np.int64]
    begin_id: int | None

    @classmethod
    def from_tokenizer(cls, tokenizer: PretrainedTokenizer) -> "TokenBytes":
        """From the token texts of a byte-level (GPT-2) or SentencePiece tokenizer; by decoding for any other."""
        stored = json.loads(tokenizer.file.json_text)
        texts, decoder_types = _token_texts(stored), _decoder_types(stored.get("decoder"))
        added = {token["id"]: token for token in stored.get("added_tokens", [])}
        special = {number for number, token in added.items() if token.get("special")}
        texts = {n: text for n, text in texts.items() if n not in special | {*tokenizer.special_token_ids.values()}}
        regular_ids = [number for number in texts if number not in added]
        byte_counts = np.zeros(tokenizer.size, dtype=np.int64)
        for number in added.keys() & texts.keys():
            byte_counts[number] = len(texts[number].encode())
        initial_byte_counts = byte_counts.copy()
        if "ByteLevel" in decoder_types or decoder_types & {"Metaspace", "Replace"}:
            space = _BYTE_SPACE if "ByteLevel" in decoder_types else SPACE_SYMBOL
            adds_space = _adds_leading_space(tokenizer, texts, space)
            for number in regular_ids:
                byte_counts[number] = _num_bytes(texts[number], space)
                initial_byte_counts[number] = byte_counts[number] - (adds_space and texts[number].startswith(space))
        else:
            context_id = next(iter(regular_ids), 0)
            context_bytes = len(tokenizer.decode([context_id]).encode())
            for number in regular_ids:
                byte_counts[number] = len(tokenizer.decode([context_id, number]).encode()) - context_bytes
                initial_byte_counts[number] = len(tokenizer.decode([number]).encode())
        roles = tokenizer.special_token_ids
        return cls(byte_counts, initial_byte_counts, roles.get("bos", roles.get("eos")))

    def target_byte_counts(self, previous_ids: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The bytes of each token of `ids`, where `previous_ids` is the token in front of it; both of one shape."""
        if self.begin_id is None:
            return self.byte_counts[ids]
        return np.where(previous_ids == self.begin_id, self.initial_byte_counts[ids], self.byte_counts[ids])


def _num_bytes(text: str, space: str) -> int:
    """The bytes of a token of a byte-level tokenizer, or of one of SentencePiece, by the space that it writes."""
    if space == _BYTE_SPACE:  # a character for each byte
        return len(text)
    return 1 if BYTE_PIECE.fullmatch(text) else len(text.replace(SPACE_SYMBOL, " ").encode())


def _token_texts(stored: dict[str, object]) -> dict[int, str]:
    """The text of every id of a tokenizer.json."""
    model = stored["model"]
    assert isinstance(model, dict)
    vocabulary = model["vocab"]
    named = vocabulary.items() if isinstance(vocabulary, dict) else ((v[0], i) for i, v in enumerate(vocabulary))
    texts = {int(number): str(text) for text, number in named}
    added = stored.get("added_tokens") or []
    assert isinstance(added, list)
    return texts | {int(token["id"]): str(token["content"]) for token in added}


def _decoder_types(decoder: object) -> set[str]:
    """The kinds of decoder that there are, those of a sequence each by itself."""
    if not isinstance(decoder, dict):
        return set()
    return {str(decoder["type"])}.union(*map(_decoder_types, decoder.get("decoders", [])))


def _adds_leading_space(tokenizer: PretrainedTokenizer, texts: dict[int, str], space: str) -> bool:
    """Whether the tokenizer adds a space in front of the first word of a text."""
    ids, _ = tokenizer.encode(["a"])
    return len(ids) > 0 and texts.get(int(ids[0]), "").startswith(space)
