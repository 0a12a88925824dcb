"""Estimated cost of an evaluation on this machine, from a short sample of it."""

import math
import time

from numerate.errors import pluralize
from numerate.evaluation.grid import split_by_cost
from numerate.runs.plan import EvaluationPlan
from numerate.training.progress import format_duration

MAX_SAMPLED_CELLS = 6
"""Sampled cells: the time of a cell is not quite proportional to its operations, so small and large ones are timed."""

MAX_SAMPLE_FLOPS = 1e10
"""Floating-point operations of a sampled cell, a fraction of a second on a core; larger cells use fewer questions."""


def estimate(plan: EvaluationPlan, shard: str | None = None) -> str:
    """What `numerate evaluate ... --dry-run` prints: the cells of a grid, or of a shard of it, that are not recorded
    yet, and their time, by evaluating a few of them; writes nothing."""
    tasks = plan.tasks(shard)
    missing, warm_model, seconds = plan.missing(tasks), None, 0.0
    costs = plan.costs(missing)
    missing.sort(key=lambda task: (task.run, task.checkpoint, costs[task]))
    ranges = split_by_cost([costs[task] for task in missing], MAX_SAMPLED_CELLS) if missing else []
    for cost_range in ranges:
        task = missing[cost_range[len(cost_range) // 2]]
        count = max(1, int(plan.num_questions(task) * MAX_SAMPLE_FLOPS / max(MAX_SAMPLE_FLOPS, costs[task])))
        if warm_model != (task.run, task.checkpoint):
            plan.try_out(task, count)  # the first forward pass of a model is slower
            warm_model = task.run, task.checkpoint
        start_time = time.perf_counter()
        plan.try_out(task, count)
        elapsed = time.perf_counter() - start_time
        sample_cost = plan.costs([task], count)[task]
        seconds += elapsed / sample_cost * sum(costs[missing[at]] for at in cost_range)
    num_cells, num_grid_cells = (len({task.cell for task in some}) for some in (tasks, plan.tasks()))
    repeats = len(tasks) // max(1, num_cells)
    each = f", each {repeats} times (position offsets, checkpoints, settings)" if repeats > 1 else ""
    lines = [
        f"cells       {num_cells:,} of {num_grid_cells:,} of the grid{each}",
        f"remaining   {len(missing):,} of {len(tasks):,}; {len(tasks) - len(missing):,} are recorded",
    ]
    if missing:
        duration, sample = format_duration(math.ceil(seconds)), pluralize(len(ranges), "cell")
        lines += [
            f"{plan.kind.unit:<11} {sum(map(plan.num_questions, missing)):,}, method {plan.method}",
            f"time        about {duration} here, estimated from a sample of {sample}",
        ]
    return "\n".join(lines)
