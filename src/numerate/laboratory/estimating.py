"""What an evaluation would take on this machine, by a short sample of it."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from numerate.batch import Model
from numerate.evaluation.evaluator import Method
from numerate.evaluation.grid import Cell, cut
from numerate.laboratory.plan import Asking, Cost, EvaluatedModel, EvaluationPlan, EvaluationRequest, Missing
from numerate.laboratory.store import Store
from numerate.training.budget import flop_text
from numerate.training.progress import duration

SAMPLES = 6
"""Cells that are tried: the time of a cell does not quite go with its operations, so small and large ones are."""

SAMPLED = 1e10
"""Floating-point operations of a cell that is tried, a fraction of a second of a core: of larger ones some of their
questions are."""


@dataclass(frozen=True)
class EvaluationEstimate:
    """What an evaluation would take: printed by `numerate evaluate ... --dry-run`.

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
        asked = self.cells * self.times
        each = f", each {self.times} times (placements, checkpoints, settings)" if self.times > 1 else ""
        lines = [
            f"cells       {self.cells:,} of {self.grid:,} of the grid{each}",
            f"left        {self.left:,} of {asked:,}; {asked - self.left:,} are recorded",
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


def estimate(inquiry: EvaluationRequest, cells: Sequence[Cell], store: Store, *, said: bool) -> EvaluationEstimate:
    """What the evaluation of these cells of a grid would take. Evaluates a few of them in memory; writes nothing."""
    missing = inquiry.missing(cells, store, said)
    told = {number: plan.costs(run, cells) for number, (run, plan) in enumerate(inquiry.plans)}
    left = [(way, one) for way, asked in missing for one in asked]
    seconds, samples = _seconds(missing, told)
    return EvaluationEstimate(
        cells=len(cells),
        grid=len(inquiry.cells()),
        times=sum(way.plan.position_offsets for way in inquiry.ways),
        left=len(left),
        questions=sum(way.plan.count_of(way.run, one.cell) for way, one in left),
        flops=round(sum(told[way.number][one.cell].forward * (one.score + one.say) for way, one in left)),
        seconds=seconds,
        samples=samples,
        method=inquiry.plans[0][1].method,
        running=inquiry.plans[0][0].exam.running,
    )


def _seconds(missing: Missing, told: Mapping[int, Mapping[Cell, Cost]]) -> tuple[float, int]:
    """How long it would take, and by how many samples: what is missing is put in order of cost and cut into stretches
    of equal cost, and of each the cell in the middle is tried."""
    every = [(way, one, _cost(told[way.number][one.cell], one)) for way, asked in missing for one in asked]
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


def _cost(cost: Cost, asked: Asking) -> float:
    return cost.score * asked.score + cost.say * asked.say


def _small(way: EvaluatedModel, cell: Cell) -> EvaluatedModel:
    """The same with so few questions of a cell that it is tried in a fraction of a second."""
    plan: EvaluationPlan = way.plan
    count = plan.count_of(way.run, cell)
    share = SAMPLED / max(SAMPLED, plan.costs(way.run, [cell])[cell].score)
    few = max(1, int(count * share))
    return replace(way, plan=replace(plan, count=few, counts={cell: few}))


def _try(way: EvaluatedModel, model: Model, asked: Asking) -> None:
    if asked.score:
        way.score(model, asked.cell, asked.position_offset)
    if asked.say:
        way.say(model, asked.cell, asked.position_offset)
