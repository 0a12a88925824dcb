"""`numerate run RECIPE|STUDY`: train, evaluate, report."""

import argparse
import os
import sys

from numerate.commands.recipes import Wanted
from numerate.commands.showing import summary
from numerate.errors import Mistake
from numerate.studies.study import run_study


def command(given: argparse.Namespace) -> int:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise Mistake("run: starts processes of its own; under torchrun, `numerate train` is right, then `evaluate`")
    wanted = Wanted.of(given, "numerate run quickstart")
    study = wanted.study()
    print(f"{study.title}: {study.question}")
    page, done = run_study(study, runs_dir=wanted.runs_dir, workers=wanted.workers)
    for one in done:
        if one.error is not None:
            print(f"numerate: {one.label}: {one.error}", file=sys.stderr)
        if one.trace is not None and given.traceback:
            print(one.trace, file=sys.stderr)
    folders = [one.path for one in done if one.path is not None and one.error is None]
    if folders:
        print(summary(folders, study.labels))
        print(f"\nreport: {page}")
    return max((one.status for one in done), default=0)
