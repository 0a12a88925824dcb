"""SentencePiece models as fast tokenizers: the file `tokenizer.model` of Llama, Mistral and many others.

The file is a protocol buffer (https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto), of
which a few fields are needed; they are read here, so that the package sentencepiece is not. A model of kind BPE becomes
one of the library tokenizers whose merges are ranked by the score of what they make (Kudo and Richardson, 2018,
https://arxiv.org/abs/1808.06226); one of kind Unigram keeps its scores.
"""

import json
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from numerate.errors import UserError
from numerate.text.tokenizers.tokenizer_files import TokenizerFile

SPACE = "\u2581"
"""Stands for a space in pieces."""

BYTE = re.compile("<0x([0-9A-F]{2})>")
"""A piece that is one byte of UTF-8."""

WORDS = f"{SPACE}*[^{SPACE}]+|{SPACE}+"
"""A word with its leading spaces. Pieces of common models do not cross its end."""

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_UNIGRAM, _BPE = 1, 2


@dataclass(frozen=True)
class _Model:
    """The needed parts of a model: pieces with score and type, model type, and normalization."""

    pieces: tuple[tuple[str, float, int], ...]
    kind: int
    byte_fallback: bool
    special: tuple[tuple[str, int], ...]
    characters: bytes
    prefix: bool
    trims: bool


def is_sentencepiece(path: Path) -> bool:
    """Whether a file starts like a SentencePiece model: with a first, short piece."""
    with open(path, "rb") as file:
        begin = file.read(3)
    return len(begin) == 3 and begin[0] == 0x0A and begin[1] < 128 and begin[2] == 0x0A


def sentencepiece(path: Path) -> TokenizerFile:
    """The fast tokenizer of a SentencePiece model; its ids are the model's.

    With Mistral's first one `Once upon a time,` is `▁Once ▁upon ▁a ▁time ,` and `42` is `▁ 4 2`. `<s>` in a text is
    plain text, as in SentencePiece. Raises `UserError` for a file that is no such model, or of a type that the library
    tokenizers does not support.
    """
    stamp = path.stat()
    return _read(path, stamp.st_mtime_ns, stamp.st_size)


@lru_cache(maxsize=8)
def _read(path: Path, _changed: int, _size: int) -> TokenizerFile:
    try:
        model = _model(path.read_bytes())
    except (ValueError, IndexError, TypeError, struct.error) as error:
        raise UserError(f"tokenizer: {path} is no whole SentencePiece model ({error}); fetch it anew") from error
    if model.kind not in (_UNIGRAM, _BPE):
        raise UserError(f"tokenizer: {path} is a SentencePiece model of words or characters; BPE or Unigram is right")
    if any(kind == _USER_DEFINED for _, _, kind in model.pieces):
        raise UserError(
            f"tokenizer: {path} has pieces that users defined, which are cut by rules of their own; the tokenizer.json "
            "of the same model is right"
        )
    names = [name for name, _, _ in model.pieces]
    roles = tuple(sorted((role, names[i]) for role, i in model.special if 0 <= i < len(names)))
    return TokenizerFile(json.dumps(_stored(model), ensure_ascii=False), roles)


def _stored(model: _Model) -> dict[str, Any]:
    """The JSON of the library tokenizers."""
    names = [name for name, _, _ in model.pieces]
    unknown = next((i for i, (_, _, kind) in enumerate(model.pieces) if kind == _UNKNOWN), None)
    normal = [(name, score) for name, score, kind in model.pieces if kind == _NORMAL]
    crossing = any(re.search(f"[^{SPACE}]{SPACE}", name) for name, _ in normal)
    if model.kind == _BPE:
        inner: dict[str, Any] = {
            "type": "BPE",
            "unk_token": None if unknown is None else names[unknown],
            "fuse_unk": True,
            "byte_fallback": model.byte_fallback,
            "vocab": {name: i for i, name in enumerate(names)},
            "merges": merges_of(normal),
        }
    else:
        lowest = min((score for _, score in normal), default=0.0) - 100.0  # nothing but a text's own pieces is taken
        inner = {
            "type": "Unigram",
            "unk_id": unknown,
            "byte_fallback": model.byte_fallback,
            "vocab": [[name, score if kind == _NORMAL else lowest] for name, score, kind in model.pieces],
        }
    return tokenizer_json(
        inner, prefix=model.prefix, trims=model.trims, characters=model.characters, words=not crossing
    )


def tokenizer_json(
    model: dict[str, Any], *, prefix: bool = True, trims: bool = False, characters: bytes = b"", words: bool = True
) -> dict[str, Any]:
    """A SentencePiece-like tokenizer around a model of the library tokenizers.

    `prefix`: add a space before every text. `trims`: strip and merge spaces. `characters`: SentencePiece's compiled
    character normalization. `words`: whether no piece crosses a word boundary, so that a text may be split there, which
    is faster.
    """
    import base64

    before: list[dict[str, Any]] = []
    if characters:
        before.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(characters).decode()})
    if trims:
        before.append({"type": "Strip", "strip_left": True, "strip_right": True})
        before.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if prefix:
        before.append({"type": "Prepend", "prepend": SPACE})
    before.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})
    after: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        after.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": before},
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": False}
        if words
        else None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": after},
        "model": model,
    }


def merges_of(pieces: Sequence[tuple[str, float]]) -> list[list[str]]:
    """All pairs of pieces that merge into another, highest score first."""
    rank = {name: place for place, (name, _) in enumerate(pieces)}
    found = []
    for name, _ in sorted(pieces, key=lambda piece: -piece[1]):
        ways = [(name[:at], name[at:]) for at in range(1, len(name)) if name[:at] in rank and name[at:] in rank]
        found += [list(way) for way in sorted(ways, key=lambda way: (rank[way[0]], rank[way[1]]))]
    return found


# The protocol buffer -------------------------------------------------------------------------------------------------


def _model(content: bytes) -> _Model:
    pieces: list[tuple[str, float, int]] = []
    trainer: dict[int, Any] = {}
    normaliser: dict[int, Any] = {}
    for field, value in _fields(content):
        if field == 1:
            fields = dict(_fields(value))
            score = struct.unpack("<f", fields[2])[0] if 2 in fields else 0.0
            pieces.append((fields.get(1, b"").decode(), score, fields.get(3, _NORMAL)))
        elif field == 2:
            trainer = dict(_fields(value))
        elif field == 3:
            normaliser = dict(_fields(value))
    if not pieces:
        raise ValueError("it has no pieces")
    special = {role: trainer.get(field, usual) for role, field, usual in _SPECIAL}
    return _Model(
        tuple(pieces),
        trainer.get(3, _UNIGRAM),
        bool(trainer.get(35, False)) or any(kind == _BYTE for _, _, kind in pieces),
        tuple((role, _signed(i)) for role, i in special.items()),
        normaliser.get(2, b""),
        bool(normaliser.get(3, True)),
        bool(normaliser.get(4, True)),
    )


_SPECIAL = (("unk", 40, 0), ("bos", 41, 1), ("eos", 42, 2), ("pad", 43, -1))


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message: numbers as `int`, all else as `bytes`."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        field, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(content, at)
            yield field, value
            continue
        size = {1: 8, 5: 4}.get(wire)
        if wire == 2:
            size, at = _varint(content, at)
        if size is None or at + size > len(content):
            raise ValueError(f"broken off at byte {at:,}")
        yield field, content[at : at + size]
        at += size


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError(f"no number at byte {at:,}")
