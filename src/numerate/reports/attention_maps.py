"""Attention maps on a page, interactive by prompt, layer, map and head, and as a table."""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from numerate.reports.colour import COLORMAP_DARK, COLORMAP_LIGHT
from numerate.reports.content import Content, Folded, Note
from numerate.reports.html_writer import fill, frame, page, to_html
from numerate.reports.map_records import QUANTIZATION_LEVELS, read_attention_maps, read_maps, token_label
from numerate.reports.table import TextTable

NEGATIVE_LIGHT = ("#f6f4ec", "#f4d6bb", "#eba873", "#d97526", "#a84a00", "#5c2600")
"""The colors of numbers below 0 on a light page, from 0 down."""

NEGATIVE_DARK = ("#20242f", "#4a3328", "#7c4a26", "#b8682a", "#e0934f", "#ffd3a1")
"""The same on a dark page."""

MAX_CHARACTERS = 12_000_000
"""Maximum size of the data of a page in characters."""

MAX_TABLE_ROWS = 60
"""Maximum number of heads in the table of a prompt."""


class HeadSummary(NamedTuple):
    """Summary of one head: its spread over keys (None for relations), and what the last token attends to."""

    layer: str
    map_type: str
    head: int
    effective_keys: float | None
    top_keys: tuple[tuple[str, float], ...]


def summarize_heads(record: Mapping[str, Any], max_keys: int = 3) -> list[HeadSummary]:
    """The summaries of all heads of a record.

    The spread is exp of the mean entropy of the rows in nats: attending evenly to 2 tokens gives 2. `top_keys` are
    the keys with the highest weights of the last query, as (label and position, weight); for relations by absolute
    value.
    """
    found = []
    for seen in read_attention_maps(record):
        labels = seen.keys if seen.map_type == "symbols" else [f"{key} ({j})" for j, key in enumerate(seen.keys)]
        for head, weights in enumerate(seen.weights):
            last = weights[-1]
            order = np.argsort(-np.abs(last), kind="stable")[:max_keys]
            top = tuple((labels[j], float(last[j])) for j in order.tolist() if last[j] != 0)
            spread = None if seen.map_type == "relations" else _effective_num_keys(weights)
            found.append(HeadSummary(seen.layer, seen.map_type, head, spread, top))
    return found


def _effective_num_keys(weights: NDArray[np.float32]) -> float:
    kept = weights.astype(np.float64)
    kept /= np.maximum(kept.sum(-1, keepdims=True), 1e-12)
    return float(np.exp(-(kept * np.log(np.maximum(kept, 1e-12))).sum(-1).mean()))


def count_characters(record: Mapping[str, Any]) -> int:
    """The size of the data of a record in characters."""
    return sum(len(part["data"]) for layer in record["layers"] for part in layer["maps"])


def maps_content(folder: Path) -> Content:
    """The attention maps of a run for its page; empty without records."""
    records, skipped = read_maps(folder)
    sizes = accumulate(map(count_characters, records))
    kept = [record for record, size in zip(records, sizes, strict=True) if size <= MAX_CHARACTERS]
    if len(kept) < len(records):
        skipped.append(f"{len(records) - len(kept)} of {len(records)} prompts are too large for one page")
    note = [Note(f"Left out: {'; '.join(skipped)}.")] * bool(skipped)
    return [maps_html(kept), *note] if kept else note


def maps_html(records: Sequence[Mapping[str, Any]]) -> Markup:
    """The interactive maps of these records as HTML; deterministic."""
    assets = files("numerate.reports").joinpath("assets")
    style, script = (Markup(assets.joinpath(name).read_text(encoding="utf-8")) for name in ("maps.css", "maps.js"))
    has_answer = any(record["answer_start"] is not None for record in records)
    notes = " ".join(f"{text}." for text in dict.fromkeys(map(digit_order_note, records)) if text)
    tables = to_html([_table(record) for record in records])
    data = {"style": style, "script": script, "data": _data(records), "tables": tables}
    return Markup(fill("maps.html", notes=notes, has_answer=has_answer, **data))


DIGIT_ORDER_NOTES = {
    "reversed": "Numbers are read and written with their digits in reverse order, least significant first",
    "answer_reversed": "Numbers of the answer are written with their digits in reverse order, least significant first",
}
"""What a tokenizer does to the digits of numbers, by its `digit_order`."""


def digit_order_note(record: Mapping[str, Any]) -> str:
    """A note if the tokens of a record have reversed digits; otherwise ""."""
    return DIGIT_ORDER_NOTES.get(record.get("digit_order", "normal"), "")


def maps_iframe(records: Sequence[Mapping[str, Any]]) -> str:
    """The maps for a notebook, in a separate frame."""
    return frame(page("Attention and relations", maps_html(records)))


def maps_page(record: Mapping[str, Any], run: str) -> str:
    """A self-contained page about one prompt: no fonts, no requests, one script."""
    settings = [f"{name}={value}" for name, value in record["settings"].items()]
    where = " · ".join([run, f"{record['checkpoint']}, step {record['step']:,}", *settings])
    title = shorten_text(record["prompt"] or "the beginning of a document")
    head = Markup('<p class="over">numerate · attention and relations · {}</p><h1>{}</h1>').format(where, title)
    return page(f"{title}: attention and relations", head + maps_html([record]))


def shorten_text(text: str, max_length: int = 90) -> str:
    """A text in one line, truncated if it is long."""
    line = " ".join(text.split())
    return line if len(line) <= max_length else f"{line[: max_length - 1]}…"


def _data(records: Sequence[Mapping[str, Any]]) -> Markup:
    """The data of the script as JSON in which no text can close the script element; tokens are labels."""
    labeled = []
    for record in records:
        source = record.get("source")
        labels = {
            "tokens": list(map(token_label, record["tokens"])),
            "source": source and list(map(token_label, source)),
        }
        labeled.append({**record, **labels, "prompt": shorten_text(record["prompt"], 60)})
    payload = {
        "levels": QUANTIZATION_LEVELS,
        "light": {"above": COLORMAP_LIGHT, "below": NEGATIVE_LIGHT},
        "dark": {"above": COLORMAP_DARK, "below": NEGATIVE_DARK},
        "records": labeled,
    }
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def _table(record: Mapping[str, Any]) -> Folded:
    """The heads of a record as a table under its prompt."""
    heads = summarize_heads(record)
    rows = [
        [
            head.layer,
            head.map_type,
            str(head.head),
            "" if head.effective_keys is None else f"{head.effective_keys:.1f}",
            ", ".join(f"{name} {share:.2f}" for name, share in head.top_keys),
        ]
        for head in heads[:MAX_TABLE_ROWS]
    ]
    more = f"{len(heads) - len(rows)} more heads are in the record. " if len(heads) > len(rows) else ""
    note = f"{more}Spread: the effective number of keys, exp of the mean entropy of the rows in nats."
    header = ["layer", "map", "head", "spread", "the last token attends to"]
    title = f"All heads: {shorten_text(record['prompt'] or 'the beginning', 40)}"
    return Folded(title, [TextTable(header, rows, caption=note)])
