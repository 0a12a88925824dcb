"""How quickly many small transformers are trained when several are stacked into one model, beside one after the other.

    python benchmarks/stacking.py [--repetitions 5] [--runs 64] [--steps 1000] [--only loop]

One JSON line per measurement. The tiny one is a decoder of 2 layers, width 16, 2 heads and learned Abacus places (8,128
weights) that learns additions of 1 to 3 digits in batches of 16; wider ones have 4 heads.

- `loop`: what a step of one run takes in the loop of training (data, placing, forward, backward, clipping, AdamW,
  sums) on one core, alone and in stacks of several sizes. Alone and stacked take turns; `ratio` is the median over
  repetitions of processor times, which other programs disturb less than the clock on the wall.
- `whole`: so many runs on two cores, with their folders, logs, evaluations and checkpoints: two processes of one thread
  that train theirs one after the other, against the same two with theirs in stacks. Libraries are loaded before.
  `ratio` is of processor times too; `seconds` are those on the wall.

What was expected before it was measured: a step of the tiny one is 5.7 million operations, 0.1 ms of arithmetic, and
takes 2.9 ms, so nearly all of it is overhead: some 250 calls of torch forwards and backwards, the data, the optimiser.
Stacked, these are paid once for all. What stays with each run is not arithmetic either: attention is a loop over rows x
heads of matrices of 11 x 8 numbers (0.25 ms, a third of a stacked step), each of about 100 operations reads and writes
10 to 50 kB (0.3 ms), and each run draws, spells and cuts examples of its own (0.07 ms). With the overhead of a stacked
step, 6 to 8 ms, that is 0.8 ms a run in stacks of 32, 3.5 times as quick, and 1.5 ms, twice as quick, in stacks of 8.

What stays grows with rows and width, and the overhead does not: at 64 rows a step of the tiny one has 2.5 ms that no
stack saves, and stacks of 16 are 1.5 times as quick. Beyond 0.1 GFLOP a step (width 64 with 16 rows, width 32 with 64)
little is won, and from 0.5 GFLOP on nothing; such steps are made in goes of few models or one (`MAX_STACKED_FLOPS`), so
that nothing is lost either.
"""

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from numerate.api import recipe
from numerate.experiments.stacked import train_stacked
from numerate.experiments.train import train
from numerate.stacking.stacked_trainer import StackedTrainer
from numerate.training.distributed import World
from numerate.training.recipe import Recipe
from numerate.training.stopping import Stop
from numerate.training.trainer import Trainer

TINY = (16, 16)
"""Width and batch of the tiny one."""
WIDER = ((16, 64), (32, 16), (32, 64), (64, 16), (64, 64), (128, 64))
STEPS = 128
"""Of a run in the loop: two windows of data."""

Times = tuple[float, float]
"""Seconds of processor time, and by the wall."""


def sized(width: int, batch: int, seed: int, *more: str) -> Recipe:
    return recipe(
        "addition_abacus",
        "task.digits=1:3",
        f"model.hidden_size={width}",
        f"model.mixer.num_heads={2 if width == 16 else 4}",
        f"training.batch_size={batch}",
        f"seed={seed}",
        "device=cpu",
        "training.threads=1",
        *more,
    )


def timed(work: Callable[[], object]) -> Times:
    processor, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - processor, time.perf_counter() - wall


# The loop -------------------------------------------------------------------------------------------------------------


def trainers(width: int, batch: int, count: int, first: int) -> list[Trainer]:
    """Runs in memory that only step and sum."""
    only = (f"training.steps={STEPS}", f"training.evaluate_every={STEPS}", "evaluation.validation_examples=1")
    return [Trainer(sized(width, batch, first + seed, *only), World.join("cpu")) for seed in range(count)]


def alone(width: int, batch: int, count: int, first: int) -> Times:
    made = trainers(width, batch, count, first)
    return timed(lambda: [trainer.train() for trainer in made])


def stacked(width: int, batch: int, count: int, first: int) -> Times:
    made = trainers(width, batch, count, first)
    return timed(lambda: StackedTrainer(made).train(Stop()))


def loop(width: int, batch: int, sizes: Sequence[int], repetitions: int, targets: dict[int, float]) -> None:
    """A line per size of stack, with the median over repetitions of the ratio to training alone in the same one."""
    few = 4
    singles: list[Times] = []
    stacks: dict[int, list[Times]] = {size: [] for size in sizes}
    alone(width, batch, 1, 0)
    for repetition in range(repetitions):
        single = alone(width, batch, few, 1000 * repetition)
        singles.append((single[0] / few, single[1] / few))
        for size in sizes:
            times = stacked(width, batch, size, 1000 * repetition)
            stacks[size].append((times[0] / size, times[1] / size))
    for size, found in stacks.items():
        ratios = [[one[clock] / other[clock] for one, other in zip(singles, found, strict=True)] for clock in (0, 1)]
        line: dict[str, object] = {
            "benchmark": "stacking",
            "what": "loop",
            "width": width,
            "batch": batch,
            "stack": size,
            "milliseconds_per_step": round(statistics.median(times[0] for times in found) / STEPS * 1e3, 2),
            "alone": round(statistics.median(times[0] for times in singles) / STEPS * 1e3, 2),
            "ratio": round(statistics.median(ratios[0]), 2),
            "spread": [round(min(ratios[0]), 2), round(max(ratios[0]), 2)],
            "ratio_by_the_wall": round(statistics.median(ratios[1]), 2),
        }
        if size in targets:
            line["at_least"] = targets[size]
        print(json.dumps(line), flush=True)


# Whole runs -----------------------------------------------------------------------------------------------------------


def share(given: tuple[Sequence[int], int, int]) -> float:
    """Trains the runs of these seeds in a folder of its own, in stacks of a size (1: alone). Processor time."""
    seeds, steps, size = given
    torch.set_num_threads(1)
    recipes = [sized(*TINY, seed, f"training.steps={steps}") for seed in seeds]
    with tempfile.TemporaryDirectory() as runs:
        began = time.process_time()
        for first in range(0, len(recipes), size):
            chosen = recipes[first : first + size]
            if size == 1:
                train(chosen[0], runs_dir=runs, quiet=True)
            else:
                wrong = [one for one in train_stacked(chosen, runs_dir=runs) if isinstance(one, Exception)]
                assert not wrong, wrong
        return time.process_time() - began


def whole(pool: Any, runs: int, steps: int, sizes: Sequence[int]) -> None:
    """A line per size of stack, all against the same runs one after the other."""
    found: dict[int, Times] = {}
    for size in (1, *sizes):
        began = time.perf_counter()
        halves = [range(half, runs, 2) for half in (0, 1)]
        processor = sum(pool.map(share, [(half, steps, size) for half in halves], chunksize=1))
        found[size] = (processor, time.perf_counter() - began)
    for size in sizes:
        line = {
            "benchmark": "stacking",
            "what": "whole",
            "runs": runs,
            "steps": steps,
            "stack": size,
            "seconds": round(found[size][1], 1),
            "alone": round(found[1][1], 1),
            "ratio": round(found[1][0] / found[size][0], 2),
            "ratio_by_the_wall": round(found[1][1] / found[size][1], 2),
        }
        print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--runs", type=int, default=64)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--only", choices=("loop", "whole"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.only != "whole":
        loop(*TINY, (4, 8, 16, 32), given.repetitions, {32: 3.0})
        for width, batch in WIDER:
            loop(width, batch, (16,), given.repetitions, {})
    if given.only == "loop":
        return
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(share, [([0], 2, 1), ([1], 2, 1)], chunksize=1)
        whole(pool, given.runs, given.steps, (8, 32))
        pool.close()
        pool.join()


if __name__ == "__main__":
    main()
