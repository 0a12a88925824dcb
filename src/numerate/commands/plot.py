"""`numerate plot KIND RUN|STUDY ...`: plots a figure from the records of runs."""

import argparse

from numerate.commands.addresses import runs_meant
from numerate.commands.words import first, options
from numerate.errors import UserError
from numerate.reports.missing import missing_words
from numerate.reports.plots import KINDS, write_plot


def command(given: argparse.Namespace) -> int:
    kind = first(given.words, f"what is to be drawn ({', '.join(KINDS)})", "numerate plot grid latest out=grid.png")
    words, own = options(
        given.words[1:], {"runs_dir": str, "out": str, "checkpoint": str, "labels": str, "metric": str}
    )
    if own.get("out") == "":
        raise UserError(f"out: the file is missing; for example: out={kind}.png")
    if own.get("checkpoint") not in (None, "final", "best"):
        raise UserError(f"checkpoint: {own['checkpoint']!r} is neither final nor best")
    labels = [label.strip() for label in own["labels"].split(",")] if own.get("labels") else []
    meant = runs_meant(words if kind in KINDS else [], own.get("runs_dir"))
    out = own.get("out", f"{kind}.png")
    chosen = {"checkpoint": own.get("checkpoint"), "metric": own.get("metric")}
    print(write_plot(kind, meant.folders, out, labels=labels, titles=meant.labels, **chosen))
    if warning := missing_words(len(meant.folders), meant.missing.failed, meant.missing.absent, "drawn"):
        print(warning)
    return 0
