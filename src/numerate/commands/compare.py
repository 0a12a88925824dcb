"""`numerate compare RUN|STUDY ...`: compares runs side by side."""

import argparse

from numerate.commands.addresses import runs_meant
from numerate.commands.showing import summary
from numerate.commands.words import options
from numerate.errors import UserError
from numerate.reports.compare import write_comparison, write_figure
from numerate.reports.missing import missing_words


def command(given: argparse.Namespace) -> int:
    words, own = options(given.words, {"runs_dir": str, "out": str, "baseline": str, "metric": str})
    if not words:
        raise UserError(
            "the runs are missing; for example: numerate compare runs/addition_abacus/* runs/addition_rotary/*"
        )
    if own.get("out") == "":
        raise UserError("out: the file is missing; for example: out=compare.html")
    meant = runs_meant(words, own.get("runs_dir"))
    folders, labels, failed, absent = meant.folders, meant.labels, meant.missing.failed, meant.missing.absent
    out = own.get("out", "compare.html")
    if out.lower().endswith((".png", ".svg", ".pdf")):
        page = write_figure(folders, out, labels=labels, metric=own.get("metric"))
    else:
        page = write_comparison(
            folders,
            out,
            labels=labels,
            baseline=own.get("baseline"),
            failed=failed,
            absent=absent,
            metric=own.get("metric"),
        )
    if warning := missing_words(len(folders), failed, absent):
        print(f"{warning}\n")
    print(summary(folders, labels, own.get("metric")))
    print(f"\n{page}")
    return 0
