"""`numerate export RUN out=FOLDER`: exports a run to Hugging Face format."""

import argparse
from collections.abc import Callable
from typing import Any

from numerate.commands.words import first, no_more, options, truth
from numerate.errors import UserError
from numerate.experiments.exporting import export
from numerate.experiments.run import load

_EXAMPLE = "numerate export latest out=exported"


def command(given: argparse.Namespace) -> int:
    address = first(given.words, "the run", _EXAMPLE)
    kinds: dict[str, Callable[[str], Any]] = {"out": str, "checkpoint": str, "tokenizer": truth, "runs_dir": str}
    words, own = options(given.words[1:], kinds)
    no_more(words, [*kinds])
    if "out" not in own:
        raise UserError(f"out: the folder to write is missing; for example: {_EXAMPLE}")
    run = load(address, own.get("runs_dir"), "cpu")
    folder = export(run, own["out"], name=own.get("checkpoint", "final"), tokenizer=own.get("tokenizer", True))
    print(folder)
    return 0
