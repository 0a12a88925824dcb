"""Estimated cost of an evaluation on this machine, from a short sample of it."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from numerate.batch import Model
from numerate.evaluation.evaluator import Method
from numerate.evaluation.grid import Cell, cut
from numerate.experiments.plan import CellRequest, Cost, EvaluatedModel, EvaluationPlan, EvaluationRequest, Missing
from numerate.experiments.store import Store
from numerate.training.budget import flop_text
from numerate.training.progress import duration

SAMPLES = 6
"""Sampled cells: the time of a cell is not quite proportional to its operations, so small and large ones are timed."""

SAMPLED = 1e10
"""Floating-point operations of a sampled cell, a fraction of a second on a core; larger cells use fewer questions."""


@dataclass(frozen=True)
class EvaluationEstimate:
    """Estimated cost of an evaluation, printed by `numerate evaluate ... --dry-run`.

    `cells` of the `grid` cells are to be evaluated, each `times` times (placements, checkpoints, settings); `left` of
    these are not recorded yet. `questions` (of running text chunks), `flops` (floating-point operations of their
    forwards) and `seconds` are those of what is left; `samples` cells were tried for it.
    """

    cells: int
    grid: int
    times: int
    left: int
    questions: int
    flops: int
    seconds: float
    samples: int
    method: Method
    running: bool

    def __str__(self) -> str:
        total = self.cells * self.times
        each = f", each {self.times} times (placements, checkpoints, settings)" if self.times > 1 else ""
        lines = [
            f"cells       {self.cells:,} of {self.grid:,} of the grid{each}",
            f"left        {self.left:,} of {total:,}; {total - self.left:,} are recorded",
        ]
        if self.left:
            least = "at least " if self.method == "beams" else ""
            about = duration(math.ceil(self.seconds))
            lines += [
                f"{'chunks' if self.running else 'questions':<11} {self.questions:,}, method {self.method}",
                f"arithmetic  {least}{flop_text(self.flops)}",
                f"time        about {about} here, by a sample of {self.samples} cell{'s' * (self.samples != 1)}",
            ]
        return "\n".join(lines)


def estimate(
    inquiry: EvaluationRequest, cells: Sequence[Cell], store: Store, *, predictions: bool
) -> EvaluationEstimate:
    """Estimates the cost of these cells of a grid by evaluating a few of them in memory; writes nothing."""
    missing = inquiry.missing(cells, store, predictions)
    cell_costs = {number: plan.costs(run, cells) for number, (run, plan) in enumerate(inquiry.plans)}
    left = [(way, one) for way, pending in missing for one in pending]
    seconds, samples = _seconds(missing, cell_costs)
    return EvaluationEstimate(
        cells=len(cells),
        grid=len(inquiry.cells()),
        times=sum(way.plan.position_offsets for way in inquiry.ways),
        left=len(left),
        questions=sum(way.plan.count_of(way.run, one.cell) for way, one in left),
        flops=round(sum(cell_costs[way.number][one.cell].forward * (one.score + one.say) for way, one in left)),
        seconds=seconds,
        samples=samples,
        method=inquiry.plans[0][1].method,
        running=inquiry.plans[0][0].exam.running,
    )


def _seconds(missing: Missing, cell_costs: Mapping[int, Mapping[Cell, Cost]]) -> tuple[float, int]:
    """Estimated seconds and the number of samples: missing cells are sorted by cost and cut into stretches of equal
    cost; the middle cell of each is timed."""
    every = [(way, one, _cost(cell_costs[way.number][one.cell], one)) for way, pending in missing for one in pending]
    every.sort(key=lambda each: (each[0].name, each[2]))
    costs = [cost for _, _, cost in every]
    seconds, tried = 0.0, None
    model: Model | None = None
    stretches = cut(costs, SAMPLES) if every else []
    for stretch in stretches:
        way, one, _ = every[stretch[len(stretch) // 2]]
        small = _small(way, one.cell)
        if tried != way.name:
            model = None  # its memory is free before the next one takes some
            model, tried = way.run.model(way.found), way.name
            _try(small, model, one)  # the first forward of a model takes longer than the others
        assert model is not None
        began = time.perf_counter()
        _try(small, model, one)
        taken = time.perf_counter() - began
        seconds += (
            taken
            / _cost(small.plan.costs(way.run, [one.cell])[one.cell], one)
            * sum(costs[stretch.start : stretch.stop])
        )
    return seconds, len(stretches)


def _cost(cost: Cost, request: CellRequest) -> float:
    return cost.score * request.score + cost.say * request.say


def _small(way: EvaluatedModel, cell: Cell) -> EvaluatedModel:
    """The same with so few questions per cell that it runs in a fraction of a second."""
    plan: EvaluationPlan = way.plan
    count = plan.count_of(way.run, cell)
    share = SAMPLED / max(SAMPLED, plan.costs(way.run, [cell])[cell].score)
    few = max(1, int(count * share))
    return replace(way, plan=replace(plan, count=few, counts={cell: few}))


def _try(way: EvaluatedModel, model: Model, request: CellRequest) -> None:
    if request.score:
        way.score(model, request.cell, request.position_offset)
    if request.say:
        way.say(model, request.cell, request.position_offset)
