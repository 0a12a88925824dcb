"""Estimated cost of an evaluation on this machine, from a short sample of it."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from numerate.batch import Model
from numerate.evaluation.evaluator import Method
from numerate.evaluation.grid import Cell, split_by_cost
from numerate.experiments.plan import (
    CellRequest,
    Cost,
    EvaluatedModel,
    EvaluationPlan,
    EvaluationRequest,
    MissingRequests,
)
from numerate.experiments.store import EvaluationStore
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
    checkpoints, settings); `num_remaining` of these are not recorded yet. `num_questions` (for language modeling,
    chunks), `flops` (floating-point operations of their forwards) and `seconds` are those of what is left;
    `num_sampled_cells` cells were tried for it.
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
    is_language_modeling: bool

    def __str__(self) -> str:
        total = self.num_cells * self.evaluations_per_cell
        each = (
            f", each {self.evaluations_per_cell} times (position offsets, checkpoints, settings)"
            if self.evaluations_per_cell > 1
            else ""
        )
        lines = [
            f"cells       {self.num_cells:,} of {self.num_grid_cells:,} of the grid{each}",
            f"remaining   {self.num_remaining:,} of {total:,}; {total - self.num_remaining:,} are recorded",
        ]
        if self.num_remaining:
            least = "at least " if self.method == "beams" else ""
            about = format_duration(math.ceil(self.seconds))
            lines += [
                f"{'chunks' if self.is_language_modeling else 'questions':<11} {self.num_questions:,}, method "
                f"{self.method}",
                f"compute     {least}{format_flops(self.flops)}",
                f"time        about {about} here, estimated from a sample of {self.num_sampled_cells} "
                f"cell{'s' * (self.num_sampled_cells != 1)}",
            ]
        return "\n".join(lines)


def estimate(
    request: EvaluationRequest, cells: Sequence[Cell], store: EvaluationStore, *, predictions: bool
) -> EvaluationEstimate:
    """Estimates the cost of these cells of a grid by evaluating a few of them in memory; writes nothing."""
    missing = request.missing_requests(cells, store, predictions)
    cell_costs = {number: plan.costs(run, cells) for number, (run, plan) in enumerate(request.plans)}
    remaining = [(evaluated_model, cell_request) for evaluated_model, pending in missing for cell_request in pending]
    seconds, samples = _estimate_seconds(missing, cell_costs)
    return EvaluationEstimate(
        num_cells=len(cells),
        num_grid_cells=len(request.cells()),
        evaluations_per_cell=sum(way.plan.position_offsets for way in request.models),
        num_remaining=len(remaining),
        num_questions=sum(way.plan.num_questions(way.run, one.cell) for way, one in remaining),
        flops=round(
            sum(
                cell_costs[way.plan_index][one.cell].forward * (one.needs_score + one.needs_predictions)
                for way, one in remaining
            )
        ),
        seconds=seconds,
        num_sampled_cells=samples,
        method=request.plans[0][1].method,
        is_language_modeling=request.plans[0][0].evaluation_data.is_language_modeling,
    )


def _estimate_seconds(missing: MissingRequests, cell_costs: Mapping[int, Mapping[Cell, Cost]]) -> tuple[float, int]:
    """Estimated seconds and the number of samples: missing cells are sorted by cost and split into ranges of equal
    cost; the middle cell of each is timed."""
    requests_with_costs = [
        (evaluated_model, cell_request, _cost(cell_costs[evaluated_model.plan_index][cell_request.cell], cell_request))
        for evaluated_model, pending in missing
        for cell_request in pending
    ]
    requests_with_costs.sort(key=lambda each: (each[0].model_id, each[2]))
    costs = [cost for _, _, cost in requests_with_costs]
    seconds, loaded_model_id = 0.0, None
    model: Model | None = None
    ranges = split_by_cost(costs, MAX_SAMPLED_CELLS) if requests_with_costs else []
    for cost_range in ranges:
        way, one, _ = requests_with_costs[cost_range[len(cost_range) // 2]]
        small_model = _with_few_questions(way, one.cell)
        if loaded_model_id != way.model_id:
            model = None  # its memory is free before the next one takes some
            model, loaded_model_id = way.run.load_model(way.checkpoint), way.model_id
            _evaluate_once(small_model, model, one)  # the first forward of a model takes longer than the others
        assert model is not None
        start_time = time.perf_counter()
        _evaluate_once(small_model, model, one)
        elapsed = time.perf_counter() - start_time
        seconds += (
            elapsed
            / _cost(small_model.plan.costs(way.run, [one.cell])[one.cell], one)
            * sum(costs[cost_range.start : cost_range.stop])
        )
    return seconds, len(ranges)


def _cost(cost: Cost, request: CellRequest) -> float:
    return cost.score * request.needs_score + cost.predict * request.needs_predictions


def _with_few_questions(evaluated_model: EvaluatedModel, cell: Cell) -> EvaluatedModel:
    """The same with so few questions per cell that it runs in a fraction of a second."""
    plan: EvaluationPlan = evaluated_model.plan
    count = plan.num_questions(evaluated_model.run, cell)
    fraction = MAX_SAMPLE_FLOPS / max(MAX_SAMPLE_FLOPS, plan.costs(evaluated_model.run, [cell])[cell].score)
    num_questions = max(1, int(count * fraction))
    return replace(evaluated_model, plan=replace(plan, count=num_questions, cell_counts={cell: num_questions}))


def _evaluate_once(evaluated_model: EvaluatedModel, model: Model, request: CellRequest) -> None:
    if request.needs_score:
        evaluated_model.score(model, request.cell, request.position_offset)
    if request.needs_predictions:
        evaluated_model.predict(model, request.cell, request.position_offset)
