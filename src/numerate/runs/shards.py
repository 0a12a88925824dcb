"""Evaluation of a grid in shards of equal cost by the workers of an engine; each worker writes its own files."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from numerate.errors import OperationalError, UserError, pluralize
from numerate.evaluation.evaluator import Method, parse_grid
from numerate.evaluation.grid import interleave_by_cost, split_by_cost
from numerate.runs.engines.engine import Engine, Failure
from numerate.runs.engines.worker import current_stop, worker_name
from numerate.runs.plan import CellTask, EvaluationPlan, ProgressReporter
from numerate.runs.store import EvaluationStore
from numerate.runs.stored_run import StoredRun
from numerate.training import checkpoint
from numerate.training.run_folder import RunFolder
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
        all_cells = sorted({task.cell for task in self.tasks})
        more = ", ..." if len(all_cells) > 4 else ""
        shown = ", ".join("x".join(str(size) for _, size in cell) for cell in all_cells[:4]) + more
        return f"shard {self.number} of {self.total} ({pluralize(len(self.tasks), 'cell')}: {shown} at step {steps})"


def make_shards(plan: EvaluationPlan, missing: Sequence[CellTask], workers: int) -> list[GridShard]:
    """Splits the missing cells of an evaluation into shards of about equal cost.

    There are `SHARDS_PER_WORKER` shards per worker, or one per worker and model if those are more; fewer if they would
    become very small. The cells of a model are mixed, so that shards take equally long even where some costs are
    overestimated. Shards follow the order of models, so that each needs few of them.
    """
    if not missing:
        return []
    cells = list(dict.fromkeys(task.cell for task in missing))
    cell_costs = [plan.costs(run, cells) for run in range(len(plan.runs))]
    tasks_by_model: dict[tuple[int, int], list[CellTask]] = {}
    for task in missing:
        tasks_by_model.setdefault((task.run, task.checkpoint), []).append(task)

    def cost(task: CellTask) -> float:
        return task.cost(cell_costs[task.run][task.cell])

    ordered = [task for same_model in tasks_by_model.values() for task in interleave_by_cost(same_model, cost)]
    costs = list(map(cost, ordered))
    num_shards = min(workers * max(SHARDS_PER_WORKER, len(tasks_by_model)), round(sum(costs) / MIN_SHARD_FLOPS))
    ranges = split_by_cost(costs, max(1, num_shards))
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
    """Evaluates a shard of a grid for the run at `path`: for each choice of settings (`changes`), checkpoints by label
    and step, and the cells of a grid.

    A worker writes to its own folder below `pieces/` in the run folder, which it locks meanwhile. The last model used
    stays loaded.
    """

    path: str
    device: str | None
    changes: tuple[tuple[str, ...], ...]
    checkpoints: tuple[tuple[str, int], ...]
    grid: str
    count: int
    method: Method

    @classmethod
    def from_plan(cls, plan: EvaluationPlan) -> "EvaluateShard":
        run = plan.runs[0]
        checkpoints = tuple((label, found.step) for label, found in plan.checkpoints)
        changes = tuple(one.changes for one in plan.runs)
        path = str(run.path.absolute())
        return cls(path, run.device, changes, checkpoints, str(plan.grid), plan.count, plan.method)

    def name_of(self, shard: GridShard) -> str:
        return str(shard)

    def done(self, shard: GridShard) -> bool:
        """Whether workers have recorded all cells of a shard."""
        return not self._missing(shard)

    def __call__(self, shard: GridShard) -> int:
        """Evaluates all cells of a shard that no worker has recorded, and returns their number. Raises
        `KeyboardInterrupt` if a stop is requested."""
        plan, missing = _open_plan(self), self._missing(shard)
        store = EvaluationStore.of_worker(plan.runs[0].folder, worker_name())
        with store.lock():
            for task in missing:
                if current_stop().requested:
                    raise KeyboardInterrupt
                logs = [plan.prediction_log(task)] if plan.kind.keeps_predictions else []
                if task.needs_score:
                    store.add(plan.key(task), plan.score(task, *logs))
                if task.needs_predictions:
                    store.add_predictions(plan.predictions_record(task, *logs))
        return len(missing)

    def _missing(self, shard: GridShard) -> list[CellTask]:
        plan = _open_plan(self)
        store = EvaluationStore(plan.runs[0].folder, None)
        store.load_worker_records()
        return plan.missing(shard.tasks, store)


@lru_cache(maxsize=1)
def _open_plan(function: EvaluateShard) -> EvaluationPlan:
    folder = RunFolder.open(Path(function.path))
    runs = [StoredRun(folder, device=function.device, changes=changes) for changes in function.changes]
    steps = [(label, folder.checkpoints / checkpoint.step_folder(step)) for label, step in function.checkpoints]
    checkpoints = [(label, checkpoint.read_checkpoint(path)) for label, path in steps]
    grid = parse_grid(runs[0].recipe.task, function.grid)
    return EvaluationPlan(runs, checkpoints, grid, function.count, function.method)


def evaluate_shards(
    plan: EvaluationPlan,
    missing: Sequence[CellTask],
    store: EvaluationStore,
    progress: ProgressReporter,
    engine: Engine,
) -> None:
    """Evaluates the missing cells with the workers of an engine, and collects their records.

    If a shard fails, raises `UserError` or `OperationalError` that names it after all others are done. A signal is
    re-raised after the workers have stopped. In both cases, the records so far are written in order first.
    """
    shards, lines = make_shards(plan, missing, engine.num_workers), _LineCounter(store)
    failed: list[tuple[GridShard, Failure]] = []
    with Stop() as stop:
        function, folder = EvaluateShard.from_plan(plan), store.pieces / "jobs"
        for outcome in engine.map(
            function, shards, folder=folder, stop=stop, on_tick=lambda: progress.set_done(lines.count())
        ):
            if outcome.failure is not None:
                failed.append((shards[outcome.index], outcome.failure))
            progress.set_done(lines.count())
    store.load_worker_records()
    if failed:
        store.finalize()
        if stop.signal is not None:
            signal.raise_signal(stop.signal)
            raise KeyboardInterrupt
        raise _failed_shards_error(failed, plan, store)
    for shard in shards:
        if plan.missing(shard.tasks, store):
            raise OperationalError(
                f"{shard}: its worker finished, but {store.pieces} lacks the records that it wrote; "
                "all workers must share this folder"
            )


def _failed_shards_error(
    failed: Sequence[tuple[GridShard, Failure]], plan: EvaluationPlan, store: EvaluationStore
) -> UserError | OperationalError:
    shard, failure = min(failed, key=lambda one: (one[1].is_transient, one[0].number))
    resume = "; the same command resumes"
    others = f"; {pluralize(len(failed) - 1, 'more shard')} failed" if len(failed) > 1 else ""
    num_recorded = len(shard.tasks) - len(plan.missing(shard.tasks, store))
    return failure.to_error(
        f"{shard}: {failure.text.removesuffix(resume)}{others}. {num_recorded:,} of its "
        f"{pluralize(len(shard.tasks), 'cell')} are kept, and so are the records of the other shards{resume}"
    )


class _LineCounter:
    """Counts the lines that workers have added to their files since it was constructed."""

    def __init__(self, store: EvaluationStore) -> None:
        self._store, self._num_lines = store, 0
        self._read_bytes = {path: path.stat().st_size for path in store.worker_files()}

    def count(self) -> int:
        for path in self._store.worker_files():
            with open(path, "rb") as file:
                file.seek(self._read_bytes.get(path, 0))
                new_bytes = file.read()
            self._num_lines += new_bytes.count(b"\n")
            self._read_bytes[path] = self._read_bytes.get(path, 0) + len(new_bytes)
        return self._num_lines
