"""A grid of the published small Abacus model: in one process, and split into shards for two workers.

    python benchmarks/grid.py [--grid 1:100x1:100] [--count 10] [--workers 2] [--run runs/addition_small_abacus/ID]

One JSON line each. The model is the recipe `addition_small_abacus` (2 layers, width 128), trained for a minute so
that it has weights, unless a run is given; its folder is copied for each way, so nothing of it changes. Each way is a
process of its own with one thread, its workers too.

- `seconds` by the wall, from the call to the results, with the start of workers; `processor_seconds` of all processes.
- `ratio` to one process, by the wall; `work` is the processor time, as a multiple of what one process took.
- `balance` is the slowest shard over the mean one, by the processor time that each took in its worker.
- `megabytes` is the largest resident size of the process, `megabytes_of_a_worker` of the largest worker.
- `same_bytes`: whether cells.jsonl is that of one process.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from numerate.recipes import addition_small_abacus
from numerate.runs.engines.engine import Engine, Outcome
from numerate.runs.engines.local import Local
from numerate.runs.run import load
from numerate.runs.train import train
from numerate.training.stopping import Stop

BALANCE_AT_MOST = 1.1


@dataclass(frozen=True)
class Clocked:
    """The same function; a result is beside the processor time that it took."""

    inner: Callable[[Any], Any]

    def __call__(self, item: Any) -> tuple[float, Any]:
        began = time.process_time()
        result = self.inner(item)
        return time.process_time() - began, result


@dataclass(frozen=True)
class Watched(Engine):
    """Local workers, with the time of each shard and the memory of workers."""

    # Of the class: a process makes one, and a setting of a spec cannot change.
    by_processor: ClassVar[list[float]] = []
    megabytes: ClassVar[list[float]] = [0.0]

    def _map(
        self, function: Any, items: Sequence[Any], folder: Path | None, stop: Stop, on_tick: Callable[[], None]
    ) -> Iterator[Outcome]:
        def watched() -> None:
            sizes = [largest_megabytes(child.pid) for child in multiprocessing.active_children()]
            self.megabytes[0] = max([self.megabytes[0], *sizes])
            on_tick()

        for one in Local(self.workers).map(Clocked(function), items, folder=folder, stop=stop, on_tick=watched):
            if one.failure is None:
                taken, result = one.result
                self.by_processor.append(taken)
                one = replace(one, result=result)
            yield one


def largest_megabytes(process: int | str | None = "self") -> float:
    """The largest resident size of a process so far."""
    try:
        return int(Path(f"/proc/{process}/status").read_text().split("VmHWM:")[1].split()[0]) / 2**10
    except (OSError, IndexError):
        if process != "self":
            return 0.0
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def processor_seconds() -> float:
    """Of this process and of its workers that have ended."""
    every = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in every)


def evaluated(path: Path, grid: str, count: int, workers: int) -> dict[str, Any]:
    """Evaluates the run at `path`, in this process (`workers=0`) or by workers."""
    torch.set_num_threads(1)
    run = load(path)
    run.untrained_model(run.evaluation_data.longest_rows(run.evaluation_data.task))  # warm
    engine = Watched(workers) if workers else None
    began, processor = time.perf_counter(), processor_seconds()
    found = run.evaluate(grid, count=count, engine=engine)
    line: dict[str, Any] = {
        "benchmark": f"grid {grid}, {count} sums a cell",
        "contender": f"{workers} local workers" if workers else "one process",
        "cells": len(found),
        "seconds": round(time.perf_counter() - began, 2),
        "processor_seconds": round(processor_seconds() - processor, 2),
        "megabytes": round(largest_megabytes()),
        "digest": hashlib.sha256((path / "cells.jsonl").read_bytes()).hexdigest(),
    }
    if engine is not None:
        line |= {
            "megabytes_of_a_worker": round(engine.megabytes[0]),
            "shards": len(engine.by_processor),
            "balance": _slowest_over_mean(engine.by_processor),
        }
    return line


def _slowest_over_mean(seconds: Sequence[float]) -> float:
    return round(max(seconds) / statistics.fmean(seconds), 3)


def in_a_process(run: Path, place: Path, chosen: argparse.Namespace, workers: int) -> dict[str, Any]:
    """`evaluated` for a copy of the run, in a process of its own."""
    copy = place / f"workers-{workers}" / run.parent.name / run.name
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("cells.jsonl", "predictions.jsonl"))
    words = [sys.executable, os.path.abspath(__file__), "--run", str(copy), "--way", str(workers)]
    words += ["--grid", chosen.grid, "--count", str(chosen.count)]
    said = subprocess.run(
        words, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    found: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    return found


def trained(place: Path, steps: int) -> Path:
    recipe = addition_small_abacus()
    training = replace(recipe.training, steps=steps, evaluate_every=steps, checkpoint_every=steps)
    return train(replace(recipe, training=training), runs_dir=place / "runs", quiet=True).run.path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", default="1:100x1:100")
    parser.add_argument("--count", type=int, default=10, help="sums per cell")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--run", type=Path, help="the folder of a run; one is trained if none is given")
    parser.add_argument("--steps", type=int, default=400, help="of that training")
    parser.add_argument("--way", type=int, help="only evaluate the run, with so many workers (0: in this process)")
    chosen = parser.parse_args()
    if chosen.way is not None:
        print(json.dumps(evaluated(chosen.run, chosen.grid, chosen.count, chosen.way)))
        return
    with tempfile.TemporaryDirectory() as place:
        run = chosen.run or trained(Path(place), chosen.steps)
        one = in_a_process(run, Path(place), chosen, 0)
        digest = one.pop("digest")
        print(json.dumps(one), flush=True)
        several = in_a_process(run, Path(place), chosen, chosen.workers)
        several |= {
            "ratio": round(one["seconds"] / several["seconds"], 2),
            "work": round(several["processor_seconds"] / one["processor_seconds"], 2),
            "same_bytes": several.pop("digest") == digest,
            "balance_at_most": BALANCE_AT_MOST,
            "reached": several["balance"] <= BALANCE_AT_MOST,
        }
        print(json.dumps(several), flush=True)


if __name__ == "__main__":
    main()
