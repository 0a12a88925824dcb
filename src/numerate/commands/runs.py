"""`numerate evaluate RUN`: exact match on a grid, or the language modeling loss, with the trained or with changed
settings."""

import argparse
from collections.abc import Callable
from typing import Any

from numerate.commands.arguments import has_executor_option, parse_executor
from numerate.commands.showing import show_evaluation
from numerate.commands.words import check_no_more_words, parse_bool, parse_options, require_word, split_settings
from numerate.errors import UserError
from numerate.experiments.run import load
from numerate.experiments.shards import check_no_shard
from numerate.experiments.tracking import track_results
from numerate.training.progress import ProgressBar


def command(args: argparse.Namespace) -> int:
    address = require_word(args.words, "the run", "numerate evaluate latest grid=1:12x1:12")
    parsers: dict[str, Callable[[str], Any]] = {
        "grid": str,
        "count": int,
        "checkpoint": str,
        "method": lambda text: text.replace("-", " ").replace("_", " "),
        "shard": str,
        "predictions": parse_bool,
        "runs_dir": str,
        "device": str,
    }
    words, option_values = parse_options(args.words[1:], parsers)
    with_executor = has_executor_option(words)
    words, executor = parse_executor(words)
    words, changes = split_settings(words)
    check_no_more_words(words, [*parsers, "executor", "workers", "timeout"])
    run = load(address, option_values.pop("runs_dir", None), option_values.pop("device", None))
    if option_values.get("count", 1) < 1:
        raise UserError(
            f"count: must be at least 1, not {option_values['count']}; 100 questions give +-10 points at 50 %"
        )
    if args.dry_run:
        if with_executor:
            check_no_shard(executor, option_values.pop("shard", None))
        print(
            run.script(executor, **option_values, settings=changes)
            if with_executor
            else run.estimate(**option_values, settings=changes)
        )
        return 0
    progress: list[ProgressBar] = []

    def on_progress(done: int, of: int) -> None:
        if not progress:
            progress.append(ProgressBar(of, label="evaluate"))
        progress[0].step(done)
        if done == of:
            progress.pop().close()

    try:
        results = run.evaluate(
            **option_values, settings=changes, on_progress=on_progress, executor=executor if with_executor else None
        )
    finally:
        for bar in progress:
            bar.close()
    print(f"{run.path}")
    show_evaluation(results)
    if "shard" in option_values:
        print(f"\nshard {option_values['shard']}; `numerate evaluate` without shard= merges all finished shards")
    else:
        track_results(run)
    return 0
