"""`numerate evaluate RUN`: exact match on a grid, or the loss of running text, as trained or with settings changed."""

import argparse
from collections.abc import Callable
from typing import Any

from numerate.commands.executing import executor_of, executor_requested
from numerate.commands.showing import show_evaluation
from numerate.commands.words import first, no_more, options, settings, truth
from numerate.errors import UserError
from numerate.experiments.run import load
from numerate.experiments.shards import refuse_shard
from numerate.experiments.tracking import track_results
from numerate.training.progress import ProgressBar


def command(given: argparse.Namespace) -> int:
    address = first(given.words, "the run", "numerate evaluate latest grid=1:12x1:12")
    kinds: dict[str, Callable[[str], Any]] = {
        "grid": str,
        "count": int,
        "checkpoint": str,
        "method": lambda text: text.replace("-", " ").replace("_", " "),
        "shard": str,
        "predictions": truth,
        "runs_dir": str,
        "device": str,
    }
    words, own = options(given.words[1:], kinds)
    with_executor = executor_requested(words)
    words, executor = executor_of(words)
    words, changes = settings(words)
    no_more(words, [*kinds, "executor", "workers", "timeout"])
    run = load(address, own.pop("runs_dir", None), own.pop("device", None))
    if own.get("count", 1) < 1:
        raise UserError(
            f"count: {own['count']} questions, or chunks of running text, measure nothing; 100 questions give +-10 "
            "points at 50 %"
        )
    if given.dry_run:
        if with_executor:
            refuse_shard(executor, own.pop("shard", None))
        print(run.script(executor, **own, settings=changes) if with_executor else run.estimate(**own, settings=changes))
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
            **own, settings=changes, on_progress=on_progress, executor=executor if with_executor else None
        )
    finally:
        for bar in progress:
            bar.close()
    print(f"{run.path}")
    show_evaluation(results)
    if "shard" in own:
        print(f"\nshard {own['shard']}; `numerate evaluate` without shard= gathers all shards once they are there")
    else:
        track_results(run)
    return 0
