"""Records of attention maps in the `maps/` folder of a run, rounded to four digits."""

import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerate.errors import OperationalError

FOLDER = "maps"
"""Folder of the records inside a run folder, a file for each prompt and checkpoint."""

FORMAT_VERSION = 1
QUANTIZATION_LEVELS = 4094
"""Quantization steps between the extremes of a map; even, so that 0 is exact."""

_BASE64_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def pack_weights(weights: NDArray[np.floating]) -> dict[str, Any]:
    """Maps of several heads (heads x query x key) as plain data.

    Numbers are `low` + (`high` - `low`) n / 4094, each n two letters of base64, 6 bits each, the higher first; they are
    off by at most 1/8188 of the span. Where no query sees a later key (`causal`) only keys up to the query are there.

    >>> pack_weights(np.array([[[1.0, 0.0], [0.5, 0.5]]]))
    {'heads': 1, 'rows': 2, 'columns': 2, 'causal': True, 'low': 0.0, 'high': 1.0, 'data': '/+f/f/'}
    """
    heads, rows, columns = weights.shape
    max_magnitude = float(np.abs(weights).max(initial=0.0)) or 1.0
    low = -max_magnitude if weights.min(initial=0.0) < 0 else 0.0
    causal = rows == columns and not np.triu(weights, 1).any()
    mask = np.broadcast_to(_visible(rows, columns, causal), weights.shape)
    steps = np.rint((weights[mask].astype(np.float64) - low) / (max_magnitude - low) * QUANTIZATION_LEVELS).astype(
        np.int64
    )
    alphabet = np.frombuffer(_BASE64_ALPHABET.encode(), dtype=np.uint8)
    data = alphabet[np.stack([steps >> 6, steps & 63], axis=-1)].tobytes().decode()
    sizes: dict[str, Any] = {"heads": heads, "rows": rows, "columns": columns, "causal": causal}
    return {**sizes, "low": low, "high": max_magnitude, "data": data}


def unpack_weights(packed_map: Mapping[str, Any]) -> NDArray[np.float32]:
    """The inverse of `packed`: heads x query x key. Raises `ValueError` for invalid data."""
    shape = (int(packed_map["heads"]), int(packed_map["rows"]), int(packed_map["columns"]))
    mask = np.broadcast_to(_visible(shape[1], shape[2], bool(packed_map["causal"])), shape)
    text = str(packed_map["data"])
    if len(text) != 2 * int(mask.sum()):
        raise ValueError(f"{len(text)} letters are not the numbers of {shape[0]} heads, {shape[1]} x {shape[2]} each")
    # Two letters hold 12 bits, and four of them three bytes.
    raw = np.frombuffer(b64decode(text + "A" * (-len(text) % 4), validate=True), dtype=np.uint8).reshape(-1, 3)
    integers = raw.astype(np.int64)
    steps = np.stack(
        [integers[:, 0] << 4 | integers[:, 1] >> 4, (integers[:, 1] & 15) << 8 | integers[:, 2]], axis=-1
    ).reshape(-1)
    low, high = float(packed_map["low"]), float(packed_map["high"])
    found = np.zeros(shape, dtype=np.float32)
    found[mask] = low + (high - low) * steps[: len(text) // 2] / QUANTIZATION_LEVELS
    return found


def _visible(rows: int, columns: int, causal: bool) -> NDArray[np.bool_]:
    """Whether a query (row) may see a key (column)."""
    return np.tri(rows, columns, 0 if causal else columns, dtype=bool)


@dataclass(frozen=True)
class AttentionMap:
    """One kind of map in one layer of a record: `weights` (heads x query x key) with labels of queries and keys."""

    layer: str
    map_type: str
    weights: NDArray[np.float32]
    queries: Sequence[str]
    keys: Sequence[str]


def read_attention_maps(record: Mapping[str, Any]) -> list[AttentionMap]:
    """All maps of a record, in its order. Raises `ValueError` or `KeyError` for a damaged one."""
    found = []
    for layer in record["layers"]:
        for part in layer["maps"]:
            queries, keys = map_labels(record, layer, part)
            found.append(AttentionMap(str(layer["name"]), str(part["map_type"]), unpack_weights(part), queries, keys))
    return found


def map_labels(
    record: Mapping[str, Any], layer: Mapping[str, Any], packed_map: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """The labels of the queries and of the keys of a map."""
    tokens = [token_label(token) for token in record["tokens"]]
    source = [token_label(token) for token in record.get("source") or ()]
    queries = source if layer["component"] == "encoder" else tokens
    if packed_map["map_type"] == "symbols":
        return queries, [f"symbol {i}" for i in range(int(packed_map["columns"]))]
    return queries, source if packed_map["map_type"] == "cross attention" else queries


_VISIBLE_WHITESPACE = str.maketrans({" ": "␣", "\u2581": "␣", "\u0120": "␣", "\n": "↵", "\u010a": "↵", "\t": "⇥"})


def token_label(token: str) -> str:
    """A token as a label with visible whitespace, also where tokenizers write it as ▁, Ġ and Ċ."""
    return token.translate(_VISIBLE_WHITESPACE) or "∅"


def read_maps(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The records of a run folder, sorted by file name, and messages about unreadable ones."""
    records, errors = [], []
    for path in sorted((folder / FOLDER).glob("*.json")):
        try:
            records.append(read_map(path))
        except OperationalError as fault:
            errors.append(str(fault))
    return records, errors


def read_map(path: Path) -> dict[str, Any]:
    """One record. Raises `OperationalError` if it is damaged, or of a later format."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict) or record.get("format") != FORMAT_VERSION:
            raise ValueError(f"format must be {FORMAT_VERSION}")
        read_attention_maps(record)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OperationalError(
            f"{path.parent.name}/{path.name}: cannot be read ({type(error).__name__}: {error}); `numerate maps` writes "
            "it again"
        ) from error
    return record
