"""`numerate train RECIPE`: trains or resumes."""

import argparse
import os

from numerate.commands.recipes import Wanted
from numerate.experiments.train import dry_run, train


def command(options: argparse.Namespace) -> int:
    wanted = Wanted.of(options, "numerate train addition_abacus")
    for recipe in wanted.recipes():
        first = os.environ.get("RANK", "0") == "0"
        if options.dry_run:
            estimate = dry_run(recipe)
            if first:
                print(f"{recipe.title} seed={recipe.seed}\n{estimate}")
            continue
        trained = train(recipe, runs_dir=wanted.runs_dir)
        if first:
            print(trained.run.path)
        if trained.status:
            return trained.status
    return 0
