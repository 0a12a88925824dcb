"""Attention maps on a page, interactive by prompt, layer, map and head, and as a table."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from numerate.reports.attention_script import SCRIPT, STYLE
from numerate.reports.colour import DARK, LIGHT
from numerate.reports.drawing import folded, table
from numerate.reports.map_records import LEVELS, Seen, read_maps, seen_in, shown
from numerate.reports.sheet import page

BELOW_LIGHT = ("#f6f4ec", "#f4d6bb", "#eba873", "#d97526", "#a84a00", "#5c2600")
"""The colours of numbers below 0 on a light page, from 0 down."""

BELOW_DARK = ("#20242f", "#4a3328", "#7c4a26", "#b8682a", "#e0934f", "#ffd3a1")
"""The same on a dark page."""

MOST_LETTERS = 12_000_000
"""Maximum size of the data of a page in characters."""

MOST_LINES = 60
"""Maximum number of heads in the table of a prompt."""


class HeadSummary(NamedTuple):
    """Summary of one head: its spread over keys (None for relations), and what the last token attends to."""

    layer: str
    sort: str
    head: int
    spread: float | None
    last: tuple[tuple[str, float], ...]


def looks(record: Mapping[str, Any], most: int = 3) -> list[HeadSummary]:
    """The summaries of all heads of a record.

    The spread is exp of the mean entropy of the rows in nats: attending evenly to 2 tokens gives 2. `last` are the keys
    with the highest weights of the last query, as (label and position, weight); for relations by absolute value.
    """
    found = []
    for seen in seen_in(record):
        for number, weights in enumerate(seen.weights):
            row = weights[-1]
            order = np.argsort(-np.abs(row), kind="stable")[:most]
            last = tuple((_named(seen, int(j)), float(row[j])) for j in order if row[j] != 0)
            spread = None if seen.sort == "relations" else _spread(weights)
            found.append(HeadSummary(seen.name, seen.sort, number, spread, last))
    return found


def _spread(weights: NDArray[np.float32]) -> float:
    kept = weights.astype(np.float64)
    kept = kept / np.maximum(kept.sum(-1, keepdims=True), 1e-12)
    entropy = -(kept * np.log(np.maximum(kept, 1e-12))).sum(-1)
    return float(np.exp(entropy.mean()))


def _named(seen: Seen, key: int) -> str:
    return seen.keys[key] if seen.sort == "symbols" else f"{seen.keys[key]} ({key})"


def letters(record: Mapping[str, Any]) -> int:
    """The size of the data of a record in characters."""
    return sum(len(part["data"]) for layer in record["layers"] for part in layer["maps"])


def section(folder: Path) -> str:
    """The attention maps of a run for its page; "" without records."""
    records, left = read_maps(folder)
    kept, total = [], 0
    for record in records:
        total += letters(record)
        if total <= MOST_LETTERS:
            kept.append(record)
    if len(kept) < len(records):
        left.append(f"{len(records) - len(kept)} of {len(records)} prompts are too large for one page")
    note = f'<p class="quiet">Left out: {escape("; ".join(left))}.</p>' if left else ""
    return body(kept) + note if kept else note


def body(records: Sequence[Mapping[str, Any]]) -> str:
    """The interactive maps of these records as HTML; deterministic."""
    answered = any(record["answered"] is not None for record in records)
    orders = "".join(f"{words}. " for words in dict.fromkeys(map(order_words, records)) if words)
    return (
        f'<style>{STYLE}</style><div class="maps" id="maps">'
        "<noscript><p>The maps require JavaScript; the table below does not.</p></noscript></div>"
        f"<figcaption>{escape(CAPTION + orders + ANSWER * answered + KEYS)}</figcaption>"
        f"{_table(records)}"
        f'<script type="application/json" id="maps-data">{_data(records)}</script><script>{SCRIPT}</script>'
    )


CAPTION = (
    "Each row is a query token, each column a key token or a symbol; numbers are the weights of the model, rounded to "
    "four digits. Masked tokens stay empty. "
)
ORDERS = {
    "reversed": "Numbers are read and written with their digits in reverse order, least significant first",
    "answer reversed": "Numbers of the answer are written with their digits in reverse order, least significant first",
}
"""What a tokenizer does to the digits of numbers, by its `order`."""


def order_words(record: Mapping[str, Any]) -> str:
    """A note where the tokens of a record have reversed digits; else ""."""
    return ORDERS.get(record.get("order", "normal"), "")


ANSWER = "The dashed line marks the start of the model's answer. "
KEYS = "With the map in focus: arrow keys move, n and p change the head, N and P the layer."


def fragment(records: Sequence[Mapping[str, Any]]) -> str:
    """The maps for a notebook, in a frame of their own."""
    inside = escape(page("Attention and relations", body(records)))
    return (
        f'<iframe title="Attention and relations" srcdoc="{inside}" style="width:100%;height:860px;border:0"></iframe>'
    )


def maps_page(record: Mapping[str, Any], run: str) -> str:
    """A page about one prompt by itself: no fonts, nothing fetched, one script."""
    where = f"{run} · {record['checkpoint']}, step {record['step']:,}"
    settings = "".join(f" · {name}={value}" for name, value in record["settings"].items())
    title = shortened(record["prompt"] or "the beginning of a document")
    return page(
        f"{title}: attention and relations",
        f'<p class="over">numerate · attention and relations · {escape(where + settings)}</p>'
        f"<h1>{escape(title)}</h1>{body([record])}",
    )


def shortened(text: str, most: int = 90) -> str:
    """A text in one line, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _data(records: Sequence[Mapping[str, Any]]) -> str:
    payload = {
        "levels": LEVELS,
        "light": {"above": LIGHT, "below": BELOW_LIGHT},
        "dark": {"above": DARK, "below": BELOW_DARK},
        "records": [_labelled(record) for record in records],
    }
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    # Escaped, so that no text can close the script element.
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _labelled(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record with its tokens as labels."""
    source = record.get("source")
    return {
        **record,
        "prompt": shortened(record["prompt"], 60),
        "tokens": [shown(token) for token in record["tokens"]],
        "source": None if source is None else [shown(token) for token in source],
    }


def _table(records: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    for record in records:
        found = looks(record)
        rows = [
            [
                escape(look.layer),
                escape(look.sort),
                str(look.head),
                "" if look.spread is None else f"{look.spread:.1f}",
                ", ".join(f"{escape(name)} {share:.2f}" for name, share in look.last),
            ]
            for look in found[:MOST_LINES]
        ]
        drawn = table(["layer", "map", "head", "spread", "the last token attends to"], rows, numbers=(2, 3))
        more = f'<p class="quiet">{len(found) - len(rows)} more heads are in the record.</p>' * (len(found) > len(rows))
        title = f"All heads: {shortened(record['prompt'] or 'the beginning', 40)}"
        parts.append(folded(drawn + more + _READ, 10**6, title))
    return "".join(parts)


_READ = '<p class="quiet">Spread: the effective number of keys, exp of the mean entropy of the rows in nats.</p>'
