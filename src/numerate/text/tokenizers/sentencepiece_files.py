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
from pathlib import Path
from typing import Any

from numerate.text.tasks.input_errors import file_error
from numerate.text.tokenizers.fast_tokenizers import TokenizerFile

SPACE_SYMBOL = "\u2581"
"""Stands for a space in pieces."""

BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")
"""A piece that is one byte of UTF-8."""

WORD_PATTERN = f"{SPACE_SYMBOL}*[^{SPACE_SYMBOL}]+|{SPACE_SYMBOL}+"
"""A word with its leading spaces. Pieces of common models do not cross its end."""

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_UNIGRAM, _BPE = 1, 2


@dataclass(frozen=True)
class _SentencePieceModel:
    """The needed parts of a model: pieces with score and type, model type, and normalization."""

    pieces: tuple[tuple[str, float, int], ...]
    model_type: int
    byte_fallback: bool
    special_ids: tuple[tuple[str, int], ...]
    precompiled_charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool


def is_sentencepiece(path: Path) -> bool:
    """Whether a file starts like a SentencePiece model: with a first, short piece."""
    with open(path, "rb") as file:
        header = file.read(3)
    return len(header) == 3 and header[0] == 0x0A and header[1] < 128 and header[2] == 0x0A


def load_sentencepiece(path: Path) -> TokenizerFile:
    """The fast tokenizer of a SentencePiece model; its ids are the model's.

    With Mistral's first one `Once upon a time,` is `▁Once ▁upon ▁a ▁time ,` and `42` is `▁ 4 2`. `<s>` in a text is
    plain text, as in SentencePiece. Raises `UserError` for a file that is no such model, or of a type that the library
    tokenizers does not support.
    """
    try:
        model = _parse_model(path.read_bytes())
    except (ValueError, IndexError, TypeError, struct.error) as error:
        raise file_error(path, f"is no whole SentencePiece model ({error}); fetch it anew") from error
    if model.model_type not in (_UNIGRAM, _BPE):
        raise file_error(path, "must be a SentencePiece model of type BPE or Unigram")
    if any(kind == _USER_DEFINED for _, _, kind in model.pieces):
        raise file_error(path, "has user-defined pieces; use the tokenizer.json of the same model")
    names = [name for name, _, _ in model.pieces]
    special_tokens = tuple(sorted((role, names[i]) for role, i in model.special_ids if 0 <= i < len(names)))
    controls = tuple(name for name, _, kind in model.pieces if kind == _CONTROL)
    return TokenizerFile(json.dumps(_to_tokenizers_json(model), ensure_ascii=False), special_tokens, controls)


def _to_tokenizers_json(model: _SentencePieceModel) -> dict[str, Any]:
    """The JSON of the library tokenizers."""
    names = [name for name, _, _ in model.pieces]
    unknown_id = next((i for i, (_, _, kind) in enumerate(model.pieces) if kind == _UNKNOWN), None)
    normal_pieces = [(name, score) for name, score, kind in model.pieces if kind == _NORMAL]
    has_pieces_across_words = any(re.search(f"[^{SPACE_SYMBOL}]{SPACE_SYMBOL}", name) for name, _ in normal_pieces)
    if model.model_type == _BPE:
        model_config: dict[str, Any] = {
            "type": "BPE",
            "unk_token": None if unknown_id is None else names[unknown_id],
            "fuse_unk": True,
            "byte_fallback": model.byte_fallback,
            "vocab": {name: i for i, name in enumerate(names)},
            "merges": build_merges(normal_pieces),
        }
    else:
        lowest_score = (
            min((score for _, score in normal_pieces), default=0.0) - 100.0
        )  # nothing but a text's own pieces is taken
        model_config = {
            "type": "Unigram",
            "unk_id": unknown_id,
            "byte_fallback": model.byte_fallback,
            "vocab": [[name, score if kind == _NORMAL else lowest_score] for name, score, kind in model.pieces],
        }
    return build_tokenizer_config(
        model_config,
        add_dummy_prefix=model.add_dummy_prefix,
        remove_extra_whitespaces=model.remove_extra_whitespaces,
        precompiled_charsmap=model.precompiled_charsmap,
        split_words=not has_pieces_across_words,
    )


def build_tokenizer_config(
    model: dict[str, Any],
    *,
    add_dummy_prefix: bool = True,
    remove_extra_whitespaces: bool = False,
    precompiled_charsmap: bytes = b"",
    split_words: bool = True,
) -> dict[str, Any]:
    """A SentencePiece-like tokenizer around a model of the library tokenizers.

    `add_dummy_prefix`: add a space before every text. `remove_extra_whitespaces`: strip and merge spaces.
    `precompiled_charsmap`: SentencePiece's compiled character normalization. `split_words`: whether no piece crosses a
    word boundary, so that a text may be split there, which is faster.
    """
    import base64

    normalizers: list[dict[str, Any]] = []
    if precompiled_charsmap:
        normalizers.append(
            {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(precompiled_charsmap).decode()}
        )
    if remove_extra_whitespaces:
        normalizers.append({"type": "Strip", "strip_left": True, "strip_right": True})
        normalizers.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if add_dummy_prefix:
        normalizers.append({"type": "Prepend", "prepend": SPACE_SYMBOL})
    normalizers.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE_SYMBOL})
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE_SYMBOL}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if add_dummy_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": WORD_PATTERN}, "behavior": "Isolated", "invert": False}
        if split_words
        else None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }


def build_merges(pieces: Sequence[tuple[str, float]]) -> list[list[str]]:
    """All pairs of pieces that merge into another, highest score first."""
    rank = {name: place for place, (name, _) in enumerate(pieces)}
    merges = []
    for name, _ in sorted(pieces, key=lambda piece: -piece[1]):
        splits = [(name[:at], name[at:]) for at in range(1, len(name)) if name[:at] in rank and name[at:] in rank]
        merges += [list(way) for way in sorted(splits, key=lambda way: (rank[way[0]], rank[way[1]]))]
    return merges


# The protocol buffer -------------------------------------------------------------------------------------------------


def _parse_model(content: bytes) -> _SentencePieceModel:
    pieces: list[tuple[str, float, int]] = []
    trainer_fields: dict[int, Any] = {}
    normalizer_fields: dict[int, Any] = {}
    for field, value in _parse_fields(content):
        if field == 1:
            fields = dict(_parse_fields(value))
            score = struct.unpack("<f", fields[2])[0] if 2 in fields else 0.0
            pieces.append((fields.get(1, b"").decode(), score, fields.get(3, _NORMAL)))
        elif field == 2:
            trainer_fields = dict(_parse_fields(value))
        elif field == 3:
            normalizer_fields = dict(_parse_fields(value))
    if not pieces:
        raise ValueError("it has no pieces")
    special_ids = {role: trainer_fields.get(field, usual) for role, field, usual in _SPECIAL_ID_FIELDS}
    return _SentencePieceModel(
        tuple(pieces),
        trainer_fields.get(3, _UNIGRAM),
        bool(trainer_fields.get(35, False)) or any(kind == _BYTE for _, _, kind in pieces),
        tuple((role, _to_signed(i)) for role, i in special_ids.items()),
        normalizer_fields.get(2, b""),
        bool(normalizer_fields.get(3, True)),
        bool(normalizer_fields.get(4, True)),
    )


_SPECIAL_ID_FIELDS = (("unk", 40, 0), ("bos", 41, 1), ("eos", 42, 2), ("pad", 43, -1))


def _to_signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _parse_fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message: numbers as `int`, all else as `bytes`."""
    offset = 0
    while offset < len(content):
        tag, offset = _parse_varint(content, offset)
        field, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            value, offset = _parse_varint(content, offset)
            yield field, value
            continue
        size = {1: 8, 5: 4}.get(wire_type)
        if wire_type == 2:
            size, offset = _parse_varint(content, offset)
        if size is None or offset + size > len(content):
            raise ValueError(f"broken off at byte {offset:,}")
        yield field, content[offset : offset + size]
        offset += size


def _parse_varint(content: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[offset]
        value |= (byte & 127) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 128:
            return value, offset
        if shift > 63:
            raise ValueError(f"no number at byte {offset:,}")
