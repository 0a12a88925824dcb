"""`numerate report RUN`: writes the HTML report of a run."""

import argparse

from numerate.commands.words import check_no_more_words, parse_options, require_word
from numerate.experiments.run import load


def command(args: argparse.Namespace) -> int:
    address = require_word(args.words, "the run", "numerate report latest")
    words, option_values = parse_options(args.words[1:], {"runs_dir": str})
    check_no_more_words(words, ["runs_dir"])
    print(load(address, option_values.get("runs_dir")).report())
    return 0
