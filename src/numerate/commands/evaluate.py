"""`numerate evaluate RUN`: exact match on a grid, as trained or with settings of the model changed."""

import argparse
from collections.abc import Callable
from typing import Any

from numerate.commands.showing import show_evaluation
from numerate.commands.words import first, no_more, options, settings, truth
from numerate.config import load_user_parts
from numerate.errors import Mistake
from numerate.laboratory.run import load
from numerate.laboratory.tracking import track_results
from numerate.training.progress import Progress


def command(given: argparse.Namespace) -> int:
    for path in given.parts:
        load_user_parts(path)
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
    words, changes = settings(words)
    no_more(words, list(kinds))
    run = load(address, own.get("runs_dir"), own.get("device"))
    if own.get("count", 1) < 1:
        raise Mistake(f"count: {own['count']} questions measure nothing; 100 give +-10 points at 50 %")
    progress: list[Progress] = []

    def heard(done: int, of: int) -> None:
        if not progress:
            progress.append(Progress(of, label="evaluate"))
        progress[0].step(done)
        if done == of:
            progress.pop().close()

    results = run.evaluate(
        own.get("grid"),
        count=own.get("count"),
        checkpoint=own.get("checkpoint", "final"),
        method=own.get("method", "one pass"),
        shard=own.get("shard"),
        predictions=own.get("predictions", False),
        settings=changes,
        heard=heard,
    )
    print(f"{run.path}")
    show_evaluation(results)
    if "shard" in own:
        print(f"\nshard {own['shard']}; `numerate evaluate` without shard= gathers all shards once they are there")
    else:
        track_results(run)
    return 0
