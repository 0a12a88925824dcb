"""`numerate search RECIPE`: hyperparameter search on a validation score."""

import argparse
import os
import sys
from typing import Any

from numerate.commands.arguments import parse_executor
from numerate.commands.words import parse_options, require_word
from numerate.errors import UserError
from numerate.executors.executor import Executor
from numerate.searches.search import search
from numerate.studies.naming import load_recipe


def command(args: argparse.Namespace) -> int:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("search: starts its own processes; run it without torchrun")
    name, settings, executor, option_values = parse_search(args)
    run_options = [f"runs_dir={option_values['runs_dir']}"] if "runs_dir" in option_values else []
    run_options += [word for path in args.parts for word in ("--parts", path)]
    result = search(load_recipe(name), settings, executor=executor, command_words=[name, *run_options], **option_values)
    print(result)
    if args.traceback:
        for trial in result.trials:
            print(trial.results.get("traceback", ""), end="", file=sys.stderr)
    none_complete = not result.num_left and not result.ranked_trials
    return result.exit_status or int(none_complete)


def parse_search(args: argparse.Namespace) -> tuple[str, list[str], Executor, dict[str, Any]]:
    """Parses recipe name, settings, executor and the options of the command."""
    name = require_word(
        args.words, "the recipe", "numerate search addition_abacus 'optimizer.learning_rate=log(1e-4,1e-2)'"
    )
    words, executor = parse_executor(args.words[1:])
    numbers = dict.fromkeys(("trials", "seed", "seeds"), int)
    texts = dict.fromkeys(("metric", "sampler", "pruner", "name", "runs_dir"), str)
    settings, option_values = parse_options(words, {**numbers, **texts})
    return name, settings, executor, option_values
