"""`numerate train RECIPE`: trains or resumes."""

import argparse
import os

from numerate.commands.recipes import RecipeRequest
from numerate.experiments.train import dry_run, train


def command(args: argparse.Namespace) -> int:
    request = RecipeRequest.from_args(args, "numerate train addition_abacus")
    for recipe in request.recipes():
        is_main_process = os.environ.get("RANK", "0") == "0"
        if args.dry_run:
            estimate = dry_run(recipe)
            if is_main_process:
                print(f"{recipe.title} seed={recipe.seed}\n{estimate}")
            continue
        trained = train(recipe, runs_dir=request.runs_dir)
        if is_main_process:
            print(trained.run.path)
        if trained.exit_status:
            return trained.exit_status
    return 0
