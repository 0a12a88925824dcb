"""Evaluation of a grid in shards of equal cost by the workers of an executor; each worker writes its own files."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from numerate.errors import OperationalError, UserError, pluralize
from numerate.evaluation.evaluator import Method, parse_grid
from numerate.evaluation.grid import cell_entries, interleave_by_cost, split_by_cost
from numerate.executors.executor import Executor, Failure, Work, WorkerContext
from numerate.runs.plan import CellTask, EvaluationPlan, ProgressReporter
from numerate.runs.store import PREDICTIONS_FILE, RECORDS_FILE, EvaluationStore, RecordWriter, worker_directory
from numerate.runs.stored_run import StoredRun
from numerate.training import checkpoint
from numerate.training.lock import Lock
from numerate.training.run_folder import RunFolder
from numerate.training.stopping import Stop

SHARDS_PER_WORKER = 6
"""Shards per worker: if one worker is slower than the others, they wait for at most a sixth of the time."""

MIN_SHARD_FLOPS = 2e10
"""Minimum floating-point operations of a shard: half a second of a core. Smaller ones are not worth distributing."""


@dataclass(frozen=True)
class GridShard:
    """A unit of work: `number` (from 1) of `total` shards of an evaluation, and the steps of its checkpoints.

    `remaining` are the tasks not recorded yet. It is excluded from comparison and `repr`, so that jobs submitted by an
    earlier run of the same command are recognized.
    """

    number: int
    total: int
    tasks: tuple[CellTask, ...]
    steps: tuple[int, ...]
    remaining: tuple[CellTask, ...] = field(compare=False, repr=False)

    def __str__(self) -> str:
        steps = ", ".join(str(self.steps[index]) for index in dict.fromkeys(task.checkpoint for task in self.remaining))
        all_cells = sorted({task.cell for task in self.remaining})
        more = ", ..." if len(all_cells) > 4 else ""
        shown = ", ".join("x".join(str(size) for _, size in cell) for cell in all_cells[:4]) + more
        cells = pluralize(len(self.remaining), "cell")
        return f"shard {self.number} of {self.total} ({cells}: {shown} at step {steps})"


def make_shards(
    plan: EvaluationPlan, tasks: Sequence[CellTask], missing: Sequence[CellTask], workers: int
) -> list[GridShard]:
    """Splits an evaluation into shards of about equal cost, and returns those with missing cells.

    There are `SHARDS_PER_WORKER` shards per worker, or one per worker and model if those are more; fewer if they would
    become very small. The cells of a model are mixed, so that shards take equally long even where some costs are
    overestimated. Shards follow the order of models, so that each needs few of them.

    The split depends on the tasks and on `workers`, not on the cells recorded already.
    """
    cells = list(dict.fromkeys(task.cell for task in tasks))
    cell_costs = [plan.costs(run, cells) for run in range(len(plan.runs))]
    tasks_by_model: dict[tuple[int, int], list[CellTask]] = {}
    for task in tasks:
        tasks_by_model.setdefault((task.run, task.checkpoint), []).append(task)

    def cost(task: CellTask) -> float:
        return task.cost(cell_costs[task.run][task.cell])

    ordered = [task for same_model in tasks_by_model.values() for task in interleave_by_cost(same_model, cost)]
    costs = list(map(cost, ordered))
    num_shards = min(workers * max(SHARDS_PER_WORKER, len(tasks_by_model)), round(sum(costs) / MIN_SHARD_FLOPS))
    ranges = split_by_cost(costs, max(1, num_shards))
    missing_by_place = {task[:4]: task for task in missing}
    shards = []
    for number, cost_range in enumerate(ranges, 1):
        own = tuple(ordered[cost_range.start : cost_range.stop])
        remaining = tuple(missing_by_place[task[:4]] for task in own if task[:4] in missing_by_place)
        steps = tuple(found.step for _, found in plan.checkpoints)
        shards += [GridShard(number, len(ranges), own, steps, remaining)] if remaining else []
    return shards


def check_no_shard(executor: Executor | None, shard: str | None) -> None:
    """Raises `UserError` if a grid would be split twice."""
    if executor is not None and shard is not None:
        raise UserError("shard: an executor splits the grid into shards itself; give either shard= or an executor")


@dataclass(frozen=True)
class Measuring(Work):
    """Evaluates shards of a grid for the run at `path`: for each choice of settings (`changes`), checkpoints by label
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
    def from_plan(cls, plan: EvaluationPlan) -> "Measuring":
        run = plan.runs[0]
        checkpoints = tuple((label, found.step) for label, found in plan.checkpoints)
        changes = tuple(one.changes for one in plan.runs)
        path = str(run.path.absolute())
        return cls(path, run.device, changes, checkpoints, str(plan.grid), plan.count, plan.method)

    def open(self, context: WorkerContext) -> Callable[[GridShard], int]:
        return _ShardWorker(self, context).evaluate

    def item_name(self, item: GridShard) -> str:
        return str(item)


class _ShardWorker:
    """The state of a worker: its plan with the loaded model, and the keys of the cells recorded when it started."""

    def __init__(self, work: Measuring, context: WorkerContext) -> None:
        folder, self.stop = RunFolder.open(Path(work.path)), context.stop
        runs = [StoredRun(folder, device=work.device, changes=changes) for changes in work.changes]
        checkpoints = [
            (label, checkpoint.read_checkpoint(folder.checkpoints / checkpoint.step_folder(step)))
            for label, step in work.checkpoints
        ]
        grid = parse_grid(runs[0].recipe.task, work.grid)
        self.plan = EvaluationPlan(runs, checkpoints, grid, work.count, work.method)
        self.directory = worker_directory(folder, context.worker)
        store = EvaluationStore(folder, None)
        store.load_worker_records()
        self.scored_keys, self.predicted_keys = set(store.records), set(store.predictions)

    def evaluate(self, grid_shard: GridShard) -> int:
        """Evaluates all cells of a shard and returns their number. Raises `KeyboardInterrupt` if a stop is requested.

        Cells recorded before are not computed again: Slurm may requeue a shard on another worker.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        with (
            Lock(self.directory / "lock").hold("evaluation"),
            RecordWriter(self.directory / RECORDS_FILE) as records,
            RecordWriter(self.directory / PREDICTIONS_FILE) as predictions,
        ):
            for task in grid_shard.remaining:
                if self.stop.requested:
                    raise KeyboardInterrupt
                key = self.plan.key(task)
                logs = [self.plan.prediction_log(task)] if self.plan.kind.keeps_predictions else []
                if task.needs_score and key not in self.scored_keys:
                    records.add(self.plan.score(task, *logs))
                if task.needs_predictions and key not in self.predicted_keys:
                    label, step, _, _, position_offset, count, seed, method = key
                    # All answers of a cell are one record, so that it is written completely or not at all.
                    record = {
                        **cell_entries(task.cell),
                        "checkpoint": label,
                        "step": step,
                        "position_offset": position_offset,
                        "count": count,
                        "evaluation_seed": seed,
                        "method": method,
                        **self.plan.settings_entry(task),
                    }
                    predictions.add(record | {"lines": self.plan.predict(task, *logs)})
        return len(grid_shard.remaining)


def evaluate_shards(
    plan: EvaluationPlan,
    tasks: Sequence[CellTask],
    missing: Sequence[CellTask],
    store: EvaluationStore,
    progress: ProgressReporter,
    executor: Executor,
) -> None:
    """Evaluates the missing cells with the workers of an executor, and collects their records.

    If a shard fails, raises `UserError` or `OperationalError` that names it after all others are done. A signal is
    re-raised after the workers have stopped. In both cases, the records so far are written in order first.
    """
    if not missing:
        return
    shards = make_shards(plan, tasks, missing, executor.num_workers)
    num_new_lines = _LineCounter(store)
    failed: list[tuple[GridShard, Failure]] = []
    with Stop() as stop:
        outcomes = executor.run(
            Measuring.from_plan(plan),
            shards,
            folder=jobs_folder(store),
            stop=stop,
            on_tick=lambda: progress.set_done(num_new_lines()),
        )
        for outcome in outcomes:
            if outcome.failure is not None:
                failed.append((shards[outcome.index], outcome.failure))
            progress.set_done(num_new_lines())
    store.load_worker_records()
    if failed:
        store.finalize()
        if stop.signal is not None:
            signal.raise_signal(stop.signal)
            raise KeyboardInterrupt
        raise _failed_shards_error(failed, plan, store)
    for grid_shard in shards:
        if plan.missing(grid_shard.remaining, store):
            raise OperationalError(
                f"{grid_shard}: its worker finished, but {store.folder.path / 'pieces'} lacks the records that it "
                "wrote; all workers must share this folder"
            )


def jobs_folder(store: EvaluationStore) -> Path:
    """The folder for files of the executor."""
    return store.folder.path / "pieces" / "jobs"


def _failed_shards_error(
    failed: Sequence[tuple[GridShard, Failure]], plan: EvaluationPlan, store: EvaluationStore
) -> UserError | OperationalError:
    grid_shard, failure = min(failed, key=lambda one: (one[1].is_transient, one[0].number))
    resume = "; the same command resumes"
    others = f"; {pluralize(len(failed) - 1, 'more shard')} failed" if len(failed) > 1 else ""
    num_cells = len(grid_shard.remaining)
    num_recorded = num_cells - len(plan.missing(grid_shard.remaining, store))
    text = (
        f"{grid_shard}: {failure.text.removesuffix(resume)}{others}. {num_recorded:,} of "
        f"its {pluralize(num_cells, 'cell')} are kept, and so are the records of the other shards{resume}"
    )
    return failure.to_error(text)


class _LineCounter:
    """Counts the lines that workers have added to their files since it was constructed."""

    def __init__(self, store: EvaluationStore) -> None:
        self.store = store
        self._read_bytes = {path: path.stat().st_size for path in store.worker_files()}
        self._num_lines = 0

    def __call__(self) -> int:
        for path in self.store.worker_files():
            with open(path, "rb") as file:
                file.seek(self._read_bytes.get(path, 0))
                new_bytes = file.read()
            self._num_lines += new_bytes.count(b"\n")
            self._read_bytes[path] = self._read_bytes.get(path, 0) + len(new_bytes)
        return self._num_lines
