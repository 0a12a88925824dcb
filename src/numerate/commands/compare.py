"""`numerate compare RUN|STUDY ...`: compares runs side by side."""

import argparse

from numerate.commands.addresses import resolve_runs
from numerate.commands.showing import comparison_summary
from numerate.commands.words import parse_options
from numerate.errors import UserError
from numerate.reports.compare import write_comparison, write_comparison_figure
from numerate.reports.missing import missing_runs_note


def command(args: argparse.Namespace) -> int:
    words, option_values = parse_options(args.words, {"runs_dir": str, "out": str, "baseline": str, "metric": str})
    if not words:
        raise UserError(
            "the runs are missing; for example: numerate compare runs/addition_abacus/* runs/addition_rotary/*"
        )
    if option_values.get("out") == "":
        raise UserError("out: the file is missing; for example: out=compare.html")
    resolved = resolve_runs(words, option_values.get("runs_dir"))
    folders, labels, failed, missing_variants = (
        resolved.folders,
        resolved.labels,
        resolved.missing.failed,
        resolved.missing.missing_variants,
    )
    out = option_values.get("out", "compare.html")
    if out.lower().endswith((".png", ".svg", ".pdf")):
        page = write_comparison_figure(folders, out, labels=labels, metric=option_values.get("metric"))
    else:
        page = write_comparison(
            folders,
            out,
            labels=labels,
            baseline=option_values.get("baseline"),
            failed_runs=failed,
            missing_variants=missing_variants,
            metric=option_values.get("metric"),
        )
    if warning := missing_runs_note(len(folders), failed, missing_variants):
        print(f"{warning}\n")
    print(comparison_summary(folders, labels, option_values.get("metric")))
    print(f"\n{page}")
    return 0
