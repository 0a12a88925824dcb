"""Evaluation of a grid in shards of equal cost by the workers of an engine, which all add to the store of its plan."""

import signal
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from numerate.errors import OperationalError, UserError, pluralize
from numerate.evaluation.grid import deal_by_size
from numerate.runs.engines.engine import Engine, Failure
from numerate.runs.engines.worker import current_stop
from numerate.runs.plan import CellTask, EvaluationPlan
from numerate.training.stopping import Stop

SHARDS_PER_WORKER = 6
"""Shards per worker: if one worker is slower than the others, they wait for at most a sixth of the time."""


class GridShard(NamedTuple):
    """An item of work: `number` (from 1) of `total` shards of the missing cells."""

    number: int
    total: int
    tasks: Sequence[CellTask]

    def __str__(self) -> str:
        return f"shard {self.number} of {self.total} ({pluralize(len(self.tasks), 'cell')})"


def make_shards(plan: EvaluationPlan, missing: Sequence[CellTask], workers: int) -> list[GridShard]:
    """Splits the missing cells of an evaluation into shards of about equal cost: `SHARDS_PER_WORKER` per worker, or one
    per worker and model if those are more. Each has cells of one model, and they follow the order of models."""
    tasks_by_model = defaultdict[tuple[int, int], list[CellTask]](list)
    for task in missing:
        tasks_by_model[task.run, task.checkpoint].append(task)
    most = workers * max(1, round(SHARDS_PER_WORKER / max(1, len(tasks_by_model))))
    dealt = [own for tasks in tasks_by_model.values() for own in deal_by_size(tasks, min(most, len(tasks)), plan.size)]
    return [GridShard(number, len(dealt), own) for number, own in enumerate(dealt, 1)]


def check_no_shard(engine: Engine | None, shard: str | None) -> None:
    if engine is not None and shard is not None:
        raise UserError("shard: an engine splits the grid into shards itself; give either shard= or an engine")


@dataclass(frozen=True)
class EvaluateShard:
    """Evaluates a shard of the grid of a plan. The last model used stays loaded."""

    plan: EvaluationPlan

    def done(self, shard: GridShard) -> bool:
        """Whether all cells of a shard are recorded."""
        return not self.plan.read().missing(shard.tasks)

    def __call__(self, shard: GridShard) -> int:
        """Evaluates all cells of a shard that are not recorded, and returns their number. Raises `KeyboardInterrupt` if
        a stop is requested."""
        plan = self.plan
        with plan.store as store:
            is_begun = plan.kind.keeps_predictions or any(plan.key(task) in store.records for task in shard.tasks)
            if plan.records_predictions and is_begun:  # they are long, and follow the records
                store.read_predictions()
            missing = plan.missing(shard.tasks)
            for task in missing:
                if current_stop().requested:
                    raise KeyboardInterrupt
                plan.perform(task)
        return len(missing)


def evaluate_shards(
    plan: EvaluationPlan, missing: Sequence[CellTask], advance: Callable[[int], None], engine: Engine
) -> None:
    """Evaluates the missing cells with the workers of an engine. `advance` is called with the number of questions that
    were scored since its last call.

    If a shard fails, raises `UserError` or `OperationalError` that names it after all others are done. A signal is
    re-raised after the workers have stopped.
    """
    shards, failed = make_shards(plan, missing, engine.num_workers), list[tuple[GridShard, Failure]]()
    folder, num_known = plan.store.folder.path, len(plan.store.records)

    def count() -> None:
        nonlocal num_known
        plan.store.read()
        new = list(plan.store.records)[num_known:]
        advance(sum(key.num_questions for key in new))
        num_known += len(new)

    with Stop() as stop:
        for outcome in engine.map(EvaluateShard(plan), shards, folder=folder, stop=stop, on_tick=count):
            if outcome.failure is not None:
                failed.append((shards[outcome.index], outcome.failure))
            count()
    plan.read()
    if failed and stop.signal is not None:
        signal.raise_signal(stop.signal)
        raise KeyboardInterrupt
    if failed:
        shard, failure = min(failed, key=lambda one: (one[1].is_transient, not one[1].status, one[0].number))
        if not failure.status:  # a job does it, and nobody waits
            raise failure.to_error(f"{failure.text}; the same command collects its records")
        others = f"; {pluralize(len(failed) - 1, 'more shard')} failed" if len(failed) > 1 else ""
        text = failure.text.removesuffix("; the same command resumes")
        raise failure.to_error(f"{shard}: {text}{others}. What was recorded is kept; the same command resumes")
    if lacking := next((shard for shard in shards if plan.missing(shard.tasks)), None):
        raise OperationalError(
            f"{lacking}: its worker finished, but {folder} lacks the records that it wrote; all workers "
            "must share this folder"
        )
