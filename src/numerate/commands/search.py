"""`numerate search RECIPE`: hyperparameter search on a validation score."""

import argparse
import os
import sys
from typing import Any

from numerate.commands.executing import executor_of
from numerate.commands.words import first, options
from numerate.errors import UserError
from numerate.executors.executor import Executor
from numerate.searches.search import search
from numerate.studies.naming import named_recipe


def command(given: argparse.Namespace) -> int:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("search: starts processes of its own; `numerate search` without torchrun is right")
    name, settings, executor, own = parse(given)
    options_of_run = [f"runs_dir={own['runs_dir']}"] if "runs_dir" in own else []
    options_of_run += [word for path in given.parts for word in ("--parts", path)]
    found = search(named_recipe(name), settings, executor=executor, called=[name, *options_of_run], **own)
    print(found)
    if given.traceback:
        for trial in found.trials:
            print(trial.found.get("trace", ""), end="", file=sys.stderr)
    none_complete = not found.left and not found.ranked
    return found.status or int(none_complete)


def parse(given: argparse.Namespace) -> tuple[str, list[str], Executor, dict[str, Any]]:
    """Parses recipe name, settings, executor and own options."""
    name = first(given.words, "the recipe", "numerate search addition_abacus 'optimizer.learning_rate=log(1e-4,1e-2)'")
    words, executor = executor_of(given.words[1:])
    numbers = dict.fromkeys(("trials", "seed", "seeds"), int)
    texts = dict.fromkeys(("metric", "sampler", "pruner", "name", "runs_dir"), str)
    settings, own = options(words, {**numbers, **texts})
    return name, settings, executor, own
