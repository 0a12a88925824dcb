"""Bytes of text of each token of a stored tokenizer, to compare losses across tokenizers."""

import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from numerate.text.tokenizers.sentencepiece_files import BYTE, SPACE
from numerate.text.tokenizers.stored_tokenizer import StoredTokenizer

_BYTE_SPACE = "Ġ"
"""The space as tokenizers of bytes (GPT-2) write it."""


@dataclass(frozen=True, eq=False)
class TokenBytes:
    """Bytes of UTF-8 by token id.

    `whole` int64 `[size]`: of the token within a text, the space in front of a word included; special tokens have none.
    `first` int64 `[size]`: of the token at the start of a document, where many tokenizers add a space.
    `begin`: the id in front of every document; None where a tokenizer has none.

    >>> TokenBytes.of(pieces("mistral")).of_targets(ids[:, :-1], ids[:, 1:])  # bytes of each token of a row
    """

    whole: NDArray[np.int64]
    first: NDArray[np.int64]
    begin: int | None

    @classmethod
    def of(cls, pieces: StoredTokenizer) -> "TokenBytes":
        """Of a tokenizer of bytes (GPT-2) from its pieces, of one of SentencePiece too, of any other by decoding."""
        stored = json.loads(pieces.file.text)
        texts = _pieces_of(stored)
        kinds = _decoders(stored.get("decoder"))
        added = {token["id"]: token for token in stored.get("added_tokens", [])}
        special = {number for number, token in added.items() if token.get("special")} | set(pieces.roles.values())
        ordinary = {number: text for number, text in texts.items() if number not in special}
        spelled = {number: text for number, text in ordinary.items() if number not in added}
        whole = np.zeros(pieces.size, dtype=np.int64)
        for number in ordinary.keys() - spelled.keys():
            whole[number] = len(ordinary[number].encode())
        first = whole.copy()
        space = _BYTE_SPACE if "ByteLevel" in kinds else SPACE if kinds & {"Metaspace", "Replace"} else None
        if space is None:
            anchor = next(iter(spelled), 0)
            before = len(pieces.decode([anchor]).encode())
            for number in spelled:
                whole[number] = len(pieces.decode([anchor, number]).encode()) - before
                first[number] = len(pieces.decode([number]).encode())
        else:
            put = _puts(pieces, ordinary, space)
            for number, text in spelled.items():
                if space == _BYTE_SPACE:
                    whole[number] = len(text)
                else:
                    whole[number] = 1 if BYTE.fullmatch(text) else len(text.replace(SPACE, " ").encode())
                first[number] = whole[number] - (put and text.startswith(space))
        roles = pieces.roles
        return cls(whole, first, roles.get("bos", roles.get("eos")))

    def of_targets(self, read: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The bytes of each token of `ids`, where `read` is the token in front of it; both of one shape."""
        if self.begin is None:
            return self.whole[ids]
        return np.where(read == self.begin, self.first[ids], self.whole[ids])


def _pieces_of(stored: dict[str, object]) -> dict[int, str]:
    """The text of every id of a tokenizer.json."""
    model = stored["model"]
    assert isinstance(model, dict)
    vocabulary = model["vocab"]
    named = vocabulary.items() if isinstance(vocabulary, dict) else ((v[0], i) for i, v in enumerate(vocabulary))
    texts = {int(number): str(text) for text, number in named}
    added = stored.get("added_tokens") or []
    assert isinstance(added, list)
    return texts | {int(token["id"]): str(token["content"]) for token in added}


def _decoders(decoder: object) -> set[str]:
    """The kinds of decoder that there are, those of a sequence each by itself."""
    if not isinstance(decoder, dict):
        return set()
    return {str(decoder["type"])}.union(*map(_decoders, decoder.get("decoders", [])))


def _puts(pieces: StoredTokenizer, texts: dict[int, str], space: str) -> bool:
    """Whether the tokenizer adds a space in front of the first word of a text."""
    ids, _ = pieces.encode(["a"])
    return len(ids) > 0 and texts.get(int(ids[0]), "").startswith(space)
