"""`numerate export RUN out=FOLDER`: exports a run to Hugging Face format."""

import argparse
from collections.abc import Callable
from typing import Any

from numerate.commands.words import check_no_more_words, parse_bool, parse_options, require_word
from numerate.errors import UserError
from numerate.experiments.exporting import export
from numerate.experiments.run import load

_EXAMPLE = "numerate export latest out=exported"


def command(args: argparse.Namespace) -> int:
    address = require_word(args.words, "the run", _EXAMPLE)
    parsers: dict[str, Callable[[str], Any]] = {"out": str, "checkpoint": str, "tokenizer": parse_bool, "runs_dir": str}
    words, option_values = parse_options(args.words[1:], parsers)
    check_no_more_words(words, [*parsers])
    if "out" not in option_values:
        raise UserError(f"out: the folder to write is missing; for example: {_EXAMPLE}")
    run = load(address, option_values.get("runs_dir"), "cpu")
    folder = export(
        run,
        option_values["out"],
        checkpoint_name=option_values.get("checkpoint", "final"),
        tokenizer=option_values.get("tokenizer", True),
    )
    print(folder)
    return 0
