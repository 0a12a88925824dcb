"""`numerate maps RUN [PROMPT]`: attention maps, as an interactive page and a few lines of text."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from numerate.commands.words import check_no_more_words, parse_bool, parse_options, require_word, split_settings
from numerate.config import expand_sweep
from numerate.errors import UserError
from numerate.experiments.maps import save_maps
from numerate.experiments.run import load
from numerate.reports.attention_maps import (
    MAX_CHARACTERS,
    HeadSummary,
    count_characters,
    digit_order_note,
    maps_page,
    shorten_text,
    summarize_heads,
)
from numerate.reports.map_records import FOLDER
from numerate.reports.page import write_atomically

MAX_LINES = 48
"""Heads shown in the terminal."""


def command(args: argparse.Namespace) -> int:
    address = require_word(args.words, "the run", "numerate maps latest '321+654='")
    parsers: dict[str, Callable[[str], Any]] = {
        "runs_dir": str,
        "checkpoint": str,
        "device": str,
        "layer": _parse_ints,
        "out": str,
        "answer": parse_bool,
        "max_tokens": int,
    }
    words, option_values = parse_options(args.words[1:], parsers)
    words, changes = split_settings(words, "model.")
    prompts, more = words[:1], words[1:]
    if more:
        check_no_more_words(more, list(parsers))
    if option_values.get("max_tokens", 1) < 1:
        raise UserError(f"max_tokens: must be at least 1, not {option_values['max_tokens']}")
    setting_choices = expand_sweep(changes)
    if len(setting_choices) > 1:
        raise UserError("settings: each setting must have one value")
    run = load(address, option_values.get("runs_dir"), option_values.get("device")).with_settings(*setting_choices[0])
    map_options = {
        name: option_values[name] for name in ("checkpoint", "answer", "max_tokens") if name in option_values
    }
    maps = run.maps(prompts[0] if prompts else "", layers=option_values.get("layer"), **map_options)
    record = maps.record()
    if count_characters(record) > MAX_CHARACTERS:
        raise UserError(
            f"layer: {count_characters(record) // 2:,} weights are too many for a page; select fewer layers, such as "
            f"layer={maps.layers[0].layer}, or shorten the prompt"
        )
    save_maps(run, maps)
    out = Path(option_values.get("out") or run.path / FOLDER / f"{maps.file_stem}.html")
    _print_summary(record, summarize_heads(record))
    print(write_atomically(out, maps_page(record, run.folder.recipe_name)))
    return 0


def _parse_ints(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _print_summary(record: Mapping[str, Any], heads: Sequence[HeadSummary]) -> None:
    answer = record["answer_start"]
    tokens_text = f"{len(record['tokens'])} tokens" + (f", the answer from token {answer} on" if answer else "")
    print(f"{shorten_text(record['prompt']) or 'the beginning of a document'}: {tokens_text}, step {record['step']:,}")
    if words := digit_order_note(record):
        print(f"  {words}.")
    layer_width = max(len(head.layer) for head in heads)
    type_width = max(len(look.map_type) for look in heads)
    for look in heads[:MAX_LINES]:
        spread = f"attends to {look.effective_keys:5.1f}" if look.effective_keys is not None else " " * 14
        last = ", ".join(f"{name} {share:.2f}" for name, share in look.top_keys)
        print(
            f"  {look.layer:<{layer_width}}  {look.map_type:<{type_width}}  {look.head:>2}   {spread}   last token: "
            f"{last}"
        )
    if len(heads) > MAX_LINES:
        print(f"  ... {len(heads) - MAX_LINES} more heads; layer={record['layers'][-1]['layer']} shows those of one")
