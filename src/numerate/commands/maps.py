"""`numerate maps RUN [PROMPT]`: attention maps, as an interactive page and a few lines of text."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from numerate.commands.words import first, no_more, options, settings, truth
from numerate.config import expand
from numerate.errors import UserError
from numerate.experiments.maps import keep
from numerate.experiments.run import load
from numerate.reports.attention_maps import MOST_LETTERS, HeadSummary, letters, looks, maps_page, order_words, shortened
from numerate.reports.map_records import FOLDER
from numerate.reports.page import write_text

MOST_LINES = 48
"""Heads shown in the terminal."""


def command(given: argparse.Namespace) -> int:
    address = first(given.words, "the run", "numerate maps latest '321+654='")
    own: dict[str, Callable[[str], Any]] = {
        "runs_dir": str,
        "checkpoint": str,
        "device": str,
        "layer": _numbers,
        "out": str,
        "answer": truth,
        "max_tokens": int,
    }
    words, chosen = options(given.words[1:], own)
    words, changes = settings(words, "model.")
    prompts, more = words[:1], words[1:]
    if more:
        no_more(more, list(own))
    if chosen.get("max_tokens", 1) < 1:
        raise UserError(f"max_tokens: {chosen['max_tokens']} tokens are none; 1 or more is right")
    ways = expand(changes)
    if len(ways) > 1:
        raise UserError("settings: maps are of one way to run a model; one value for each setting is right")
    run = load(address, chosen.get("runs_dir"), chosen.get("device")).with_settings(*ways[0])
    shape = {name: chosen[name] for name in ("checkpoint", "answer", "max_tokens") if name in chosen}
    maps = run.maps(prompts[0] if prompts else "", layers=chosen.get("layer"), **shape)
    record = maps.record()
    if letters(record) > MOST_LETTERS:
        raise UserError(
            f"layer: {letters(record) // 2:,} numbers are too many for a page; fewer layers, such as "
            f"layer={maps.layers[0].layer}, or a shorter prompt is right"
        )
    keep(run, maps)
    out = Path(chosen.get("out") or run.path / FOLDER / f"{maps.name}.html")
    _print_summary(record, looks(record))
    print(write_text(out, maps_page(record, run.folder.recipe_name)))
    return 0


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _print_summary(record: Mapping[str, Any], heads: Sequence[HeadSummary]) -> None:
    answer = record["answered"]
    read = f"{len(record['tokens'])} tokens" + (f", the answer from token {answer} on" if answer else "")
    print(f"{shortened(record['prompt']) or 'the beginning of a document'}: {read}, step {record['step']:,}")
    if words := order_words(record):
        print(f"  {words}.")
    layers = max(len(look.layer) for look in heads)
    sorts = max(len(look.sort) for look in heads)
    for look in heads[:MOST_LINES]:
        spread = f"looks at {look.spread:5.1f}" if look.spread is not None else " " * 14
        last = ", ".join(f"{name} {share:.2f}" for name, share in look.last)
        print(f"  {look.layer:<{layers}}  {look.sort:<{sorts}}  {look.head:>2}   {spread}   last token: {last}")
    if len(heads) > MOST_LINES:
        print(f"  ... {len(heads) - MOST_LINES} more heads; layer={record['layers'][-1]['layer']} shows those of one")
