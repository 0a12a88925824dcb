"""Estimated cost of an evaluation on this machine, from a short sample of it."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from numerate.errors import pluralize
from numerate.evaluation.grid import split_by_cost
from numerate.runs.plan import CellTask, EvaluationPlan
from numerate.runs.store import EvaluationStore
from numerate.training.budget import format_flops
from numerate.training.progress import format_duration

MAX_SAMPLED_CELLS = 6
"""Sampled cells: the time of a cell is not quite proportional to its operations, so small and large ones are timed."""

MAX_SAMPLE_FLOPS = 1e10
"""Floating-point operations of a sampled cell, a fraction of a second on a core; larger cells use fewer questions."""


@dataclass(frozen=True)
class EvaluationEstimate:
    """Estimated seconds of the cells of an evaluation that are not recorded yet, and what `numerate evaluate ...
    --dry-run` prints."""

    seconds: float
    text: str

    def __str__(self) -> str:
        return self.text


def estimate(plan: EvaluationPlan, tasks: Sequence[CellTask], store: EvaluationStore) -> EvaluationEstimate:
    """Estimates the cost of these cells of a grid by evaluating a few of them in memory; writes nothing."""
    missing, num_cells, seconds = plan.missing(tasks, store), len({task.cell for task in tasks}), 0.0
    costs, warm_model = plan.costs(missing, store), None
    missing.sort(key=lambda task: (task.run, task.checkpoint, costs[task][0]))
    ranges = split_by_cost([costs[task][0] for task in missing], MAX_SAMPLED_CELLS) if missing else []
    for cost_range in ranges:
        task = missing[cost_range[len(cost_range) // 2]]
        fraction = MAX_SAMPLE_FLOPS / max(MAX_SAMPLE_FLOPS, costs[task][0])
        small = plan.with_questions(task, max(1, int(plan.num_questions(task) * fraction)))
        if warm_model != (task.run, task.checkpoint):
            _evaluate_once(small, task)  # warm-up: the first forward pass of a model is slower
            warm_model = task.run, task.checkpoint
        start_time = time.perf_counter()
        _evaluate_once(small, task)
        elapsed, nothing = time.perf_counter() - start_time, EvaluationStore(store.folder)
        sample_cost = small.costs([task], nothing)[task][0]
        seconds += elapsed / sample_cost * sum(costs[missing[at]][0] for at in cost_range)
    questions, flops = sum(map(plan.num_questions, missing)), round(sum(flops for _, flops in costs.values()))
    repeats = len(tasks) // max(1, num_cells)
    each = f", each {repeats} times (position offsets, checkpoints, settings)" if repeats > 1 else ""
    num_recorded = len(tasks) - len(missing)
    lines = [
        f"cells       {num_cells:,} of {len(plan.cells()):,} of the grid{each}",
        f"remaining   {len(missing):,} of {len(tasks):,}; {num_recorded:,} are recorded",
    ]
    if missing:
        prefix, sample = "at least " if plan.method == "beams" else "", pluralize(len(ranges), "cell")
        lines += [
            f"{plan.kind.unit:<11} {questions:,}, method {plan.method}",
            f"compute     {prefix}{format_flops(flops)}",
            f"time        about {format_duration(math.ceil(seconds))} here, estimated from a sample of {sample}",
        ]
    return EvaluationEstimate(seconds, "\n".join(lines))


def _evaluate_once(plan: EvaluationPlan, task: CellTask) -> None:
    plan.score(task)
    if plan.predicts:
        plan.predict(task)
