"""Evaluation of a grid in shards of equal cost by the workers of an engine; each worker writes its own files."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from numerate.errors import OperationalError, UserError, pluralize
from numerate.evaluation.grid import interleave_by_cost, split_by_cost
from numerate.runs.engines.engine import Engine, Failure
from numerate.runs.engines.worker import current_stop, worker_name
from numerate.runs.plan import CellTask, EvaluationPlan
from numerate.runs.store import WORKER_PREFIX, EvaluationStore
from numerate.training.run_folder import folder_name
from numerate.training.stopping import Stop

SHARDS_PER_WORKER = 6
"""Shards per worker: if one worker is slower than the others, they wait for at most a sixth of the time."""

MIN_SHARD_FLOPS = 2e10
"""Minimum floating-point operations of a shard: half a second of a core. Smaller ones are not worth distributing."""


@dataclass(frozen=True)
class GridShard:
    """An item of work: `number` (from 1) of `total` shards of the missing cells, and the steps of the checkpoints."""

    number: int
    total: int
    tasks: tuple[CellTask, ...]
    steps: tuple[int, ...]

    def __str__(self) -> str:
        steps = ", ".join(str(self.steps[index]) for index in dict.fromkeys(task.checkpoint for task in self.tasks))
        return f"shard {self.number} of {self.total} ({pluralize(len(self.tasks), 'cell')} at step {steps})"


def make_shards(
    plan: EvaluationPlan, missing: Sequence[CellTask], store: EvaluationStore, workers: int
) -> list[GridShard]:
    """Splits the missing cells of an evaluation into shards of about equal cost.

    There are `SHARDS_PER_WORKER` shards per worker, or one per worker and model if those are more; fewer if they would
    become very small. The cells of a model are mixed, so that shards take equally long even where some costs are
    overestimated. Shards follow the order of models, so that each needs few of them.
    """
    if not missing:
        return []
    costs = {task: cost for task, (cost, _) in plan.costs(missing, store).items()}
    tasks_by_model: dict[tuple[int, int], list[CellTask]] = {}
    for task in missing:
        tasks_by_model.setdefault((task.run, task.checkpoint), []).append(task)
    ordered = [
        task for same_model in tasks_by_model.values() for task in interleave_by_cost(same_model, costs.__getitem__)
    ]
    num_shards = min(
        workers * max(SHARDS_PER_WORKER, len(tasks_by_model)), round(sum(costs.values()) / MIN_SHARD_FLOPS)
    )
    ranges = split_by_cost([costs[task] for task in ordered], max(1, num_shards))
    steps = tuple(found.step for _, found in plan.checkpoints)
    return [
        GridShard(number, len(ranges), tuple(ordered[one.start : one.stop]), steps)
        for number, one in enumerate(ranges, 1)
    ]


def check_no_shard(engine: Engine | None, shard: str | None) -> None:
    """Raises `UserError` if a grid would be split twice."""
    if engine is not None and shard is not None:
        raise UserError("shard: an engine splits the grid into shards itself; give either shard= or an engine")


@dataclass(frozen=True)
class EvaluateShard:
    """Evaluates a shard of the grid of a plan. A worker writes to its own folder below `pieces/` in the run folder,
    which it locks meanwhile. The last model used stays loaded."""

    plan: EvaluationPlan

    def name_of(self, shard: GridShard) -> str:
        return str(shard)

    def done(self, shard: GridShard) -> bool:
        """Whether all cells of a shard are recorded."""
        path = self.plan.runs[0].folder.path
        stats = {file: file.stat() for file in (*path.glob("*.jsonl"), *path.glob("pieces/*/*.jsonl"))}
        versions = frozenset((file, stat.st_size, stat.st_mtime_ns) for file, stat in stats.items())
        return not self.plan.missing(shard.tasks, _read(self.plan, versions))

    def __call__(self, shard: GridShard) -> int:
        """Evaluates all cells of a shard that are not recorded, and returns their number. Raises `KeyboardInterrupt` if
        a stop is requested."""
        plan, worker = self.plan, folder_name(WORKER_PREFIX + worker_name())
        store = EvaluationStore(plan.runs[0].folder, worker, plan.steps)
        store.read()
        is_begun = plan.kind.keeps_predictions or any(plan.key(task) in store.records for task in shard.tasks)
        if plan.records_predictions and is_begun:  # predictions, which are long, follow the records
            store.read(predictions=True)
        missing = plan.missing(shard.tasks, store)
        with store.lock():
            for task in missing:
                if current_stop().requested:
                    raise KeyboardInterrupt
                plan.perform(task, store)
        return len(missing)


@lru_cache(maxsize=1)
def _read(plan: EvaluationPlan, versions: object) -> EvaluationStore:
    """What is recorded for a plan in these versions of its files: read once, and not for each shard."""
    store = EvaluationStore(plan.runs[0].folder, None, plan.steps)
    store.read(predictions=plan.records_predictions)
    return store


def evaluate_shards(
    plan: EvaluationPlan,
    missing: Sequence[CellTask],
    store: EvaluationStore,
    on_done: Callable[[int], None],
    engine: Engine,
) -> None:
    """Evaluates the missing cells with the workers of an engine, and collects their records. `on_done` is called with
    the number of cells recorded since.

    If a shard fails, raises `UserError` or `OperationalError` that names it after all others are done. A signal is
    re-raised after the workers have stopped. In both cases, the records so far are written in order first.
    """
    shards, num_before = make_shards(plan, missing, store, engine.num_workers), store.num_worker_records()
    failed: list[tuple[GridShard, Failure]] = []

    def count() -> None:
        on_done(store.num_worker_records() - num_before)

    with Stop() as stop:
        for outcome in engine.map(EvaluateShard(plan), shards, folder=store.pieces / "jobs", stop=stop, on_tick=count):
            if outcome.failure is not None:
                failed.append((shards[outcome.index], outcome.failure))
            count()
    store.read(predictions=plan.records_predictions)
    if failed:
        store.finalize()
        if stop.signal is not None:
            signal.raise_signal(stop.signal)
            raise KeyboardInterrupt
        shard, failure = min(failed, key=lambda one: (one[1].is_transient, not one[1].status, one[0].number))
        if not failure.status:  # a job does it, and nobody waits
            raise failure.to_error(f"{failure.text}; the same command collects its records")
        resume = "; the same command resumes"
        others = f"; {pluralize(len(failed) - 1, 'more shard')} failed" if len(failed) > 1 else ""
        num_recorded = len(shard.tasks) - len(plan.missing(shard.tasks, store))
        raise failure.to_error(
            f"{shard}: {failure.text.removesuffix(resume)}{others}. {num_recorded:,} of its "
            f"{pluralize(len(shard.tasks), 'cell')} are kept, and so are the records of the other shards{resume}"
        )
    if lacking := next((shard for shard in shards if plan.missing(shard.tasks, store)), None):
        raise OperationalError(
            f"{lacking}: its worker finished, but {store.pieces} lacks the records that it wrote; all workers must "
            "share this folder"
        )
