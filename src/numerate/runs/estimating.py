"""Estimated cost of an evaluation on this machine, from a short sample of it."""

import math
import time

from numerate.errors import pluralize
from numerate.runs.plan import EvaluationPlan
from numerate.training.progress import format_duration

MAX_SAMPLED_CELLS = 6
"""Sampled cells: small and large ones are timed."""

MIN_SAMPLE_SECONDS = 0.2
"""A cell is timed with so many of its questions that they take at least this long."""


def estimate(plan: EvaluationPlan, shard: str | None = None) -> str:
    """What `numerate evaluate ... --dry-run` prints: the cells of a grid, or of a shard of it, that are not recorded
    yet, and their time, by evaluating a few of them; writes nothing."""
    tasks = plan.tasks(shard)
    missing, warm_model, seconds = plan.missing(tasks), None, 0.0
    missing.sort(key=lambda task: (task.run, task.checkpoint, plan.size(task)))
    num_samples = min(MAX_SAMPLED_CELLS, len(missing))
    for i in range(num_samples):
        own = missing[len(missing) * i // num_samples : len(missing) * (i + 1) // num_samples]
        task, count, elapsed = own[len(own) // 2], 1, 0.0
        if warm_model != (task.run, task.checkpoint):
            plan.try_out(task, count)  # the first forward pass of a model is slower
            warm_model = task.run, task.checkpoint
        while elapsed < MIN_SAMPLE_SECONDS and count < plan.num_questions(task) * 4:
            start_time = time.perf_counter()
            plan.try_out(task, min(count, plan.num_questions(task)))
            elapsed, count = time.perf_counter() - start_time, 4 * count
        timed = min(count // 4, plan.num_questions(task))
        seconds += elapsed / timed * sum(map(plan.num_questions, own))
    num_cells, num_grid_cells = (len({task.cell for task in some}) for some in (tasks, plan.tasks()))
    repeats = len(tasks) // max(1, num_cells)
    each = f", each {repeats} times (position offsets, checkpoints, settings)" if repeats > 1 else ""
    lines = [
        f"cells       {num_cells:,} of {num_grid_cells:,} of the grid{each}",
        f"remaining   {len(missing):,} of {len(tasks):,}; {len(tasks) - len(missing):,} are recorded",
    ]
    if missing:
        duration, sample = format_duration(math.ceil(seconds)), pluralize(num_samples, "cell")
        lines += [
            f"{plan.kind.unit:<11} {sum(map(plan.num_questions, missing)):,}, method {plan.method}",
            f"time        about {duration} here, estimated from a sample of {sample}",
        ]
    return "\n".join(lines)
