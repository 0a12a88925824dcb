"""`numerate report RUN`: writes the HTML report of a run."""

import argparse

from numerate.commands.words import first, no_more, options
from numerate.experiments.run import load


def command(given: argparse.Namespace) -> int:
    address = first(given.words, "the run", "numerate report latest")
    words, own = options(given.words[1:], {"runs_dir": str})
    no_more(words, ["runs_dir"])
    print(load(address, own.get("runs_dir")).report())
    return 0
