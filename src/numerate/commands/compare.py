"""`numerate compare RUN RUN ...`: several runs side by side."""

import argparse

from numerate.commands.showing import summary
from numerate.commands.words import options
from numerate.config import load_user_parts
from numerate.errors import Mistake
from numerate.laboratory.run import load
from numerate.reports.compare import write_comparison, write_figure


def command(given: argparse.Namespace) -> int:
    for path in given.parts:
        load_user_parts(path)
    words, own = options(given.words, {"runs_dir": str, "out": str, "baseline": str})
    if not words:
        raise Mistake(
            "the runs are missing; for example: numerate compare runs/addition_abacus/* runs/addition_rotary/*"
        )
    if own.get("out") == "":
        raise Mistake("out: the file is missing; for example: out=compare.html")
    folders = [load(word, own.get("runs_dir")).path for word in words]
    out = own.get("out", "compare.html")
    figure = out.lower().endswith((".png", ".svg", ".pdf"))
    page = write_figure(folders, out) if figure else write_comparison(folders, out, baseline=own.get("baseline"))
    print(summary(folders))
    print(f"\n{page}")
    return 0
