"""Estimated cost of an evaluation on this machine, from a short sample of it."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from numerate.errors import pluralize
from numerate.evaluation.evaluator import Method
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
    """Estimated cost of an evaluation, printed by `numerate evaluate ... --dry-run`.

    `num_cells` of the `num_grid_cells` cells are to be evaluated, each `evaluations_per_cell` times (position offsets,
    checkpoints, settings); `num_remaining` of these are not recorded yet. `num_questions` (in `unit`, such as chunks of
    text), `flops` (floating-point operations of their forward passes) and `seconds` are for the remaining evaluations;
    the time is estimated from `num_sampled_cells` cells.
    """

    num_cells: int
    num_grid_cells: int
    evaluations_per_cell: int
    num_remaining: int
    num_questions: int
    flops: int
    seconds: float
    num_sampled_cells: int
    method: Method
    unit: str

    def __str__(self) -> str:
        total, repeats = self.num_cells * self.evaluations_per_cell, self.evaluations_per_cell
        each = f", each {repeats} times (position offsets, checkpoints, settings)" if repeats > 1 else ""
        lines = [
            f"cells       {self.num_cells:,} of {self.num_grid_cells:,} of the grid{each}",
            f"remaining   {self.num_remaining:,} of {total:,}; {total - self.num_remaining:,} are recorded",
        ]
        if self.num_remaining:
            prefix = "at least " if self.method == "beams" else ""
            lines += [
                f"{self.unit:<11} {self.num_questions:,}, method {self.method}",
                f"compute     {prefix}{format_flops(self.flops)}",
                f"time        about {format_duration(math.ceil(self.seconds))} here, estimated from a sample of "
                f"{pluralize(self.num_sampled_cells, 'cell')}",
            ]
        return "\n".join(lines)


def estimate(plan: EvaluationPlan, tasks: Sequence[CellTask], store: EvaluationStore) -> EvaluationEstimate:
    """Estimates the cost of these cells of a grid by evaluating a few of them in memory; writes nothing."""
    cells = list(dict.fromkeys(task.cell for task in tasks))
    missing = plan.missing(tasks, store)
    cell_costs = [plan.costs(run, cells) for run in range(len(plan.runs))]
    costs = {task: task.cost(cell_costs[task.run][task.cell]) for task in missing}
    missing.sort(key=lambda task: (task.run, task.checkpoint, costs[task]))
    ranges = split_by_cost([costs[task] for task in missing], MAX_SAMPLED_CELLS) if missing else []
    seconds, warm_model = 0.0, None
    for cost_range in ranges:
        task = missing[cost_range[len(cost_range) // 2]]
        fraction = MAX_SAMPLE_FLOPS / max(MAX_SAMPLE_FLOPS, cell_costs[task.run][task.cell].score)
        small = plan.with_questions(task, max(1, int(plan.num_questions(task) * fraction)))
        if warm_model != (task.run, task.checkpoint):
            _evaluate_once(small, task)  # warm-up: the first forward pass of a model is slower
            warm_model = task.run, task.checkpoint
        start_time = time.perf_counter()
        _evaluate_once(small, task)
        elapsed = time.perf_counter() - start_time
        sample_cost = task.cost(small.costs(task.run, [task.cell])[task.cell])
        seconds += elapsed / sample_cost * sum(costs[missing[at]] for at in cost_range)
    return EvaluationEstimate(
        num_cells=len(cells),
        num_grid_cells=len(plan.cells()),
        evaluations_per_cell=len(tasks) // max(1, len(cells)),
        num_remaining=len(missing),
        num_questions=sum(plan.num_questions(task) for task in missing),
        flops=round(sum(cell_costs[task.run][task.cell].forward * task.num_units for task in missing)),
        seconds=seconds,
        num_sampled_cells=len(ranges),
        method=plan.method,
        unit=plan.kind.unit,
    )


def _evaluate_once(plan: EvaluationPlan, task: CellTask) -> None:
    if task.needs_score:
        plan.score(task)
    if task.needs_predictions:
        plan.predict(task)
