"""How many bytes of text each token of a stored tokenizer is: by them losses of different tokenizers are compared."""

import json
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from numerate.tokens.pieces import Pieces
from numerate.tokens.sentencepiece_files import BYTE, SPACE


@dataclass(frozen=True, eq=False)
class TokenBytes:
    """Bytes of UTF-8 by token id.

    `whole` int64 `[size]`: of the token within a text, the space in front of a word included; special tokens have none.
    `first` int64 `[size]`: of the token where it begins a document, in front of which many put a space nobody wrote.
    `begin`: the id in front of every document; None where a tokenizer has none.

    >>> TokenBytes.of(pieces("mistral")).of_targets(ids[:, :-1], ids[:, 1:])  # bytes of each token of a row
    """

    whole: NDArray[np.int64]
    first: NDArray[np.int64]
    begin: int | None

    @classmethod
    def of(cls, pieces: Pieces) -> "TokenBytes":
        """Of a tokenizer of bytes (GPT-2) from its pieces, of one of SentencePiece too, of any other by decoding."""
        stored = json.loads(pieces.file.text)
        texts = _pieces_of(stored)
        whole = np.zeros(pieces.size, dtype=np.int64)
        kinds = _decoders(stored.get("decoder"))
        special = {token["id"] for token in stored.get("added_tokens", []) if token.get("special")}
        special |= set(pieces.roles.values())
        added = {token["id"] for token in stored.get("added_tokens", [])}
        spaced = "Metaspace" in kinds or "Replace" in kinds
        for number, text in texts.items():
            if number in special:
                continue
            if number in added:
                whole[number] = len(text.encode())
            elif "ByteLevel" in kinds:
                whole[number] = len(text)
            elif spaced:
                whole[number] = 1 if BYTE.fullmatch(text) else len(text.replace(SPACE, " ").encode())
            else:
                anchor = next(iter(texts))
                both = len(pieces.decode([anchor, number]).encode())
                whole[number] = both - len(pieces.decode([anchor]).encode())
        first = whole.copy()
        if spaced and _strips(pieces, texts, special):
            first -= np.array([texts.get(i, "").startswith(SPACE) for i in range(pieces.size)], dtype=np.int64)
        roles = pieces.roles
        return cls(whole, first, roles.get("bos", roles.get("eos")))

    def of_targets(self, read: NDArray[np.int64], said: NDArray[np.int64]) -> NDArray[np.int64]:
        """The bytes of each token of `said`, where `read` is the token in front of it; both of one shape."""
        if self.begin is None:
            return self.whole[said]
        return np.where(read == self.begin, self.first[said], self.whole[said])


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


def _strips(pieces: Pieces, texts: dict[int, str], special: set[int]) -> bool:
    """Whether the space of a first word is left out when ids become text."""
    words = (i for i, text in texts.items() if i not in special and re.match(f"{SPACE}[A-Za-z]", text))
    one = next(words, None)
    return one is not None and not pieces.decode([one]).startswith(" ")
