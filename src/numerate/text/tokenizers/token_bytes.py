"""Bytes of text of each token of a stored tokenizer, to compare losses across tokenizers."""

import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from numerate.text.tokenizers.sentencepiece_files import BYTE_PIECE, SPACE_SYMBOL
from numerate.text.tokenizers.stored_tokenizer import PretrainedTokenizer

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
        texts = _token_texts(stored)
        decoder_types = _decoder_types(stored.get("decoder"))
        added = {token["id"]: token for token in stored.get("added_tokens", [])}
        special = {token_id for token_id, token in added.items() if token.get("special")} | set(
            tokenizer.special_token_ids.values()
        )
        text_tokens = {number: text for number, text in texts.items() if number not in special}
        regular_tokens = {number: text for number, text in text_tokens.items() if number not in added}
        byte_counts = np.zeros(tokenizer.size, dtype=np.int64)
        for number in text_tokens.keys() - regular_tokens.keys():
            byte_counts[number] = len(text_tokens[number].encode())
        initial_byte_counts = byte_counts.copy()
        space = (
            _BYTE_SPACE
            if "ByteLevel" in decoder_types
            else SPACE_SYMBOL
            if decoder_types & {"Metaspace", "Replace"}
            else None
        )
        if space is None:
            context_id = next(iter(regular_tokens), 0)
            context_bytes = len(tokenizer.decode([context_id]).encode())
            for number in regular_tokens:
                byte_counts[number] = len(tokenizer.decode([context_id, number]).encode()) - context_bytes
                initial_byte_counts[number] = len(tokenizer.decode([number]).encode())
        else:
            adds_space = _adds_leading_space(tokenizer, text_tokens, space)
            for number, text in regular_tokens.items():
                if space == _BYTE_SPACE:
                    byte_counts[number] = len(text)
                else:
                    byte_counts[number] = (
                        1 if BYTE_PIECE.fullmatch(text) else len(text.replace(SPACE_SYMBOL, " ").encode())
                    )
                initial_byte_counts[number] = byte_counts[number] - (adds_space and text.startswith(space))
        roles = tokenizer.special_token_ids
        return cls(byte_counts, initial_byte_counts, roles.get("bos", roles.get("eos")))

    def target_byte_counts(self, previous_ids: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The bytes of each token of `ids`, where `previous_ids` is the token in front of it; both of one shape."""
        if self.begin_id is None:
            return self.byte_counts[ids]
        return np.where(previous_ids == self.begin_id, self.initial_byte_counts[ids], self.byte_counts[ids])


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
