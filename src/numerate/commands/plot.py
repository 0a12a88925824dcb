"""`numerate plot KIND RUN|STUDY ...`: plots a figure from the records of runs."""

import argparse

from numerate.commands.addresses import resolve_runs
from numerate.commands.words import parse_options, require_word
from numerate.errors import UserError
from numerate.reports.missing import missing_runs_note
from numerate.reports.plots import FIGURES, write_plot


def command(args: argparse.Namespace) -> int:
    kind = require_word(
        args.words, f"the kind of plot ({', '.join(FIGURES)})", "numerate plot grid latest out=grid.png"
    )
    words, option_values = parse_options(
        args.words[1:], {"runs_dir": str, "out": str, "checkpoint": str, "labels": str, "metric": str}
    )
    if option_values.get("out") == "":
        raise UserError(f"out: the file is missing; for example: out={kind}.png")
    if option_values.get("checkpoint") not in (None, "final", "best"):
        raise UserError(f"checkpoint: {option_values['checkpoint']!r} must be final or best")
    labels = [label.strip() for label in option_values["labels"].split(",")] if option_values.get("labels") else []
    resolved = resolve_runs(words if kind in FIGURES else [], option_values.get("runs_dir"))
    out = option_values.get("out", f"{kind}.png")
    plot_options = {"checkpoint": option_values.get("checkpoint"), "metric": option_values.get("metric")}
    print(write_plot(kind, resolved.folders, out, labels=labels, labels_by_recipe=resolved.labels, **plot_options))
    if warning := missing_runs_note(
        len(resolved.folders), resolved.missing.failed, resolved.missing.missing_variants, "drawn"
    ):
        print(warning)
    return 0
