"""What a study of many short runs takes beside the runs themselves, on each engine of one machine.

    pip install -c constraints.txt -e ".[ray]"
    python benchmarks/studies.py [--runs 200] [--seconds 2] [--workers 2] [--alone 5] [--engines local ray]

One JSON line per engine. The runs are small decoders on sums, trained for about so many seconds each, evaluated at
their final and their best checkpoint, with a page each: all that `numerate run` does. A first run in this process pays
for importing; a second finds how many steps fill the seconds; then `alone` is the median time of `--alone` more, before
and after each study, with `workers` of them at once in processes of their own, since cores that share memory and clock
are slower together. `ideal` is alone x runs / workers: workers that never wait and start in no time. `ratio` is the
wall time of the whole study to that, workers' start, plan, gathering, report and figure included; at most 1.15 is
claimed for local and 1.3 for Ray. `overhead_ms` is the time of a worker above the ideal, per run.
"""

import argparse
import json
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import torch

from numerate.recipes import addition_rotary
from numerate.recipes.study import Study
from numerate.runs.engines.engine import Engine
from numerate.runs.engines.local import Local
from numerate.runs.study import run_study
from numerate.runs.train import train
from numerate.training.recipe import Recipe

AT_MOST = {"local": 1.15, "ray": 1.3}


def tiny(steps: int) -> Recipe:
    one: Recipe = addition_rotary()
    training = replace(
        one.training,
        steps=steps,
        batch_size=16,
        shuffle_window=16,
        threads=1,
        log_every=100,
        evaluate_every=steps,
        target_accuracy=None,
    )
    evaluation = replace(one.evaluation, grid="1:4x1:4", examples_per_cell=20, validation_examples=32)
    return replace(
        one, model=replace(one.model, hidden_size=16), training=training, evaluation=evaluation, title="tiny"
    )


def seconds_of(recipe: Recipe, runs: Path) -> float:
    """One whole run in this process, as a worker of a study does it."""
    began = time.perf_counter()
    run = train(recipe, runs_dir=runs, quiet=True, on_message=lambda text: None).run
    for checkpoint in ("best", "final"):
        run.evaluate(checkpoint=checkpoint)
    run.report()
    return time.perf_counter() - began


def alone(steps: int, count: int) -> list[float]:
    """Times of so many runs in a process that has done one before."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        times = [seconds_of(replace(tiny(steps), seed=seed), Path(folder)) for seed in range(1 + count)]
    return times[1:]


def alone_together(steps: int, workers: int, count: int) -> list[float]:
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return [one for times in pool.map(alone, [steps] * workers, [count] * workers) for one in times]


def study_seconds(recipe: Recipe, runs: int, engine: Engine) -> float:
    study = Study(
        "many", "How long do many short runs take?", tuple(replace(recipe, seed=seed) for seed in range(runs))
    )
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        _, done = run_study(study, runs_dir=folder, engine=engine)
        took = time.perf_counter() - began
    failed = [one.error for one in done if one.error is not None]
    assert not failed, failed[0]
    return took


def engine_called(name: str, workers: int) -> Engine:
    if name == "ray":
        from numerate.runs.engines.ray import Ray

        return Ray(workers=workers)
    return Local(workers=workers)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--alone", type=int, default=5)
    parser.add_argument("--engines", "--executors", nargs="+", default=["local", "ray"], choices=["local", "ray"])
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        seconds_of(tiny(50), Path(folder) / "first")
        short, long = (seconds_of(tiny(steps), Path(folder) / str(steps)) for steps in (50, 150))
    each = max((long - short) / 100, 1e-4)
    steps = max(50, round(50 + (given.seconds - short) / each))
    known = alone_together(steps, given.workers, given.alone)
    for name in given.engines:
        took = study_seconds(tiny(steps), given.runs, engine_called(name, given.workers))
        after = alone_together(steps, given.workers, given.alone)
        run = statistics.median(known + after)
        known, ideal = after, run * given.runs / given.workers
        line = {
            "benchmark": "study",
            "engine": name,
            "runs": given.runs,
            "workers": given.workers,
            "steps": steps,
            "alone": round(run, 3),
            "ideal": round(ideal, 1),
            "seconds": round(took, 1),
            "overhead_ms": round(1000 * (took * given.workers / given.runs - run), 1),
            "ratio": round(took / ideal, 3),
            "at_most": AT_MOST[name],
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
