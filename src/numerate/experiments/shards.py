"""Evaluation of a grid in shards of equal cost by the workers of an executor; each worker writes its own files."""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from numerate.batch import Model
from numerate.errors import OperationalError, UserError
from numerate.evaluation.grid import Cell, interleave_by_cost, split_by_cost
from numerate.executors.executor import Executor, Failure, Work, WorkerContext
from numerate.experiments.plan import (
    CellRequest,
    EvaluatedModel,
    EvaluationPlan,
    EvaluationRequest,
    MissingRequests,
    ProgressReporter,
)
from numerate.experiments.store import PREDICTIONS_FILE, RECORDS_FILE, EvaluationStore, RecordWriter, worker_directory
from numerate.experiments.stored_run import StoredRun
from numerate.training import checkpoint
from numerate.training.lock import Lock
from numerate.training.run_folder import RunFolder
from numerate.training.stopping import Stop

SHARDS_PER_WORKER = 6
"""Shards per worker: if one worker is slower than the others, they wait for at most a sixth of the time."""

MIN_SHARD_FLOPS = 2e10
"""Minimum floating-point operations of a shard: half a second of a core. Smaller ones are not worth distributing."""

DEFAULT_NUM_WORKERS = 64
"""Assumed number of workers if it is unknown: more shards than needed cost little."""


@dataclass(frozen=True)
class ModelShare:
    """The cells of one model in a shard: the index of its plan, and a checkpoint by its label and step.

    `remaining` are those not recorded yet. It is excluded from comparison, so that jobs submitted by an earlier run of
    the same command are recognized.
    """

    plan: int
    label: str
    step: int
    cells: tuple[tuple[Cell, int], ...]
    remaining: tuple[CellRequest, ...] = field(compare=False)


@dataclass(frozen=True)
class GridShard:
    """A unit of work: `number` (from 1) of `total` shards; with `needs_predictions`, predictions are recorded too."""

    number: int
    total: int
    needs_predictions: bool
    shares: tuple[ModelShare, ...]

    def __str__(self) -> str:
        remaining = [(request.cell, share.step) for share in self.shares for request in share.remaining]
        steps = ", ".join(map(str, dict.fromkeys(step for _, step in remaining)))
        all_sizes = sorted({tuple(size for _, size in cell) for cell, _ in remaining})
        shown = ", ".join("x".join(map(str, sizes)) for sizes in all_sizes[:4]) + (
            ", ..." if len(all_sizes) > 4 else ""
        )
        return f"shard {self.number} of {self.total} ({_pluralize(len(remaining), 'cell')}: {shown} at step {steps})"


def make_shards(
    request: EvaluationRequest, cells: Sequence[Cell], missing: MissingRequests, workers: int, predictions: bool
) -> list[GridShard]:
    """Splits an evaluation into shards of about equal cost, and returns those with missing cells.

    There are `SHARDS_PER_WORKER` shards per worker, or one per worker and model if those are more; fewer if they would
    become very small. The cells of a model are mixed, so that shards take equally long even where some costs are
    overestimated. Shards follow the order of models, so that each needs few of them.

    The split depends on the request and on `workers`, not on the cells recorded already.
    """
    model_cells: list[tuple[EvaluatedModel, tuple[Cell, int]]] = []
    costs: list[float] = []
    cell_costs = {
        evaluated_model.plan_index: evaluated_model.plan.costs(evaluated_model.run, cells)
        for evaluated_model in request.models[:: len(request.checkpoints)]
    }
    for evaluated_model in request.models:
        costs_by_cell = {
            cell: cost.score + cost.predict * predictions
            for cell, cost in cell_costs[evaluated_model.plan_index].items()
        }
        for cell, position_offset in interleave_by_cost(
            evaluated_model.cells_with_offsets(cells),
            lambda cell_with_offset, costs=costs_by_cell: costs[cell_with_offset[0]],  # type: ignore[misc]
        ):
            model_cells.append((evaluated_model, (cell, position_offset)))
            costs.append(costs_by_cell[cell])
    num_shards = min(workers * max(SHARDS_PER_WORKER, len(request.models)), round(sum(costs) / MIN_SHARD_FLOPS))
    ranges = split_by_cost(costs, max(1, num_shards))
    requests_by_key = {
        (*evaluated_model.model_id, cell_request.cell, cell_request.position_offset): cell_request
        for evaluated_model, cell_requests in missing
        for cell_request in cell_requests
    }
    shards = [
        GridShard(
            number,
            len(ranges),
            predictions,
            tuple(_group_by_model(model_cells[cost_range.start : cost_range.stop], requests_by_key)),
        )
        for number, cost_range in enumerate(ranges, 1)
    ]
    return [grid_shard for grid_shard in shards if any(share.remaining for share in grid_shard.shares)]


def _group_by_model(
    model_cells: Sequence[tuple[EvaluatedModel, tuple[Cell, int]]],
    requests_by_key: Mapping[tuple[int, str, Cell, int], CellRequest],
) -> Iterator[ModelShare]:
    for (plan, label), group in groupby(model_cells, lambda model_cell: model_cell[0].model_id):
        models, cells = zip(*group, strict=True)
        pending = tuple(requests_by_key[key] for cell in cells if (key := (plan, label, *cell)) in requests_by_key)
        yield ModelShare(plan, label, models[0].step, cells, pending)


def check_no_shard(executor: Executor | None, shard: str | None) -> None:
    """Raises `UserError` if a grid would be split twice."""
    if executor is not None and shard is not None:
        raise UserError("shard: an executor splits the grid into shards itself; give either shard= or an executor")


def num_workers(executor: Executor) -> int:
    """The number of concurrent workers of an executor, or a guess if it is unknown before they start."""
    from numerate.executors.local import Local, num_available_cpus
    from numerate.executors.slurm import Slurm

    if isinstance(executor, Slurm):
        return executor.array_tasks * (executor.pool.workers or 1) if executor.array_tasks else DEFAULT_NUM_WORKERS
    if isinstance(executor, Local):
        return executor.workers or max(1, num_available_cpus() // executor.threads)
    return executor.workers or DEFAULT_NUM_WORKERS


@dataclass(frozen=True)
class Measuring(Work):
    """Evaluates shards of a grid for the run at `path`: by each plan, with its changed settings.

    A worker writes to its own folder below `pieces/` in the run folder, which it locks meanwhile. The last model used
    stays loaded.
    """

    path: str
    device: str | None
    plans: tuple[tuple[tuple[str, ...], EvaluationPlan], ...]

    @classmethod
    def from_request(cls, request: EvaluationRequest) -> "Measuring":
        run, _ = request.plans[0]
        plans = tuple((run.changes, replace(plan, cell_counts={})) for run, plan in request.plans)
        return cls(str(run.path.absolute()), run.device, plans)

    def open(self, context: WorkerContext) -> Callable[[GridShard], int]:
        return _ShardWorker(self, context).evaluate

    def item_name(self, item: GridShard) -> str:
        return str(item)


class _ShardWorker:
    """The state of a worker: the loaded model, and the keys of the cells recorded when it started."""

    def __init__(self, work: Measuring, context: WorkerContext) -> None:
        self.folder, self.stop = RunFolder.open(Path(work.path)), context.stop
        runs = [StoredRun(self.folder, device=work.device, changes=changes) for changes, _ in work.plans]
        self.plans = [(run, plan) for run, (_, plan) in zip(runs, work.plans, strict=True)]
        self.directory = worker_directory(self.folder, context.worker)
        store = EvaluationStore(self.folder, None)
        store.load_worker_records()
        self.scored_keys, self.predicted_keys = set(store.records), set(store.predictions)
        self._loaded: tuple[tuple[int, int], Model] | None = None

    def evaluate(self, grid_shard: GridShard) -> int:
        """Evaluates all cells of a shard and returns their number. Raises `KeyboardInterrupt` if a stop is requested.

        Cells recorded before are not computed again: Slurm may requeue a shard on another worker.
        """
        done = 0
        self.directory.mkdir(parents=True, exist_ok=True)
        with (
            Lock(self.directory / "lock").hold("evaluation"),
            RecordWriter(self.directory / RECORDS_FILE) as records,
            RecordWriter(self.directory / PREDICTIONS_FILE) as predictions,
        ):
            for model_cells in grid_shard.shares:
                evaluated_model = self._evaluated_model(model_cells)
                for cell, position_offset, needs_score, needs_predictions in model_cells.remaining:
                    if self.stop.requested:
                        raise KeyboardInterrupt
                    key = evaluated_model.key(cell, position_offset)
                    if needs_score and key not in self.scored_keys:
                        records.add(evaluated_model.score(self._model(evaluated_model), cell, position_offset))
                    if needs_predictions and key not in self.predicted_keys:
                        predictions.add(self._predictions_record(evaluated_model, cell, position_offset))
                    done += 1
        return done

    def _evaluated_model(self, model_cells: ModelShare) -> EvaluatedModel:
        stored_checkpoint = checkpoint.read_checkpoint(
            self.folder.checkpoints / checkpoint.step_folder(model_cells.step)
        )
        return EvaluatedModel(*self.plans[model_cells.plan], model_cells.plan, model_cells.label, stored_checkpoint)

    def _model(self, evaluated_model: EvaluatedModel) -> Model:
        model_id = evaluated_model.plan_index, evaluated_model.step
        if self._loaded is None or self._loaded[0] != model_id:
            self._loaded = None  # free its memory before loading the next one
            self._loaded = model_id, evaluated_model.run.load_model(evaluated_model.checkpoint)
        return self._loaded[1]

    def _predictions_record(self, evaluated_model: EvaluatedModel, cell: Cell, position_offset: int) -> dict[str, Any]:
        """All answers of a cell as one record, so that it is written completely or not at all."""
        label, step, _, _, _, count, seed, method = evaluated_model.key(cell, position_offset)
        record = {
            "cell": dict(cell),
            "checkpoint": label,
            "step": step,
            "position_offset": position_offset,
            "count": count,
            "evaluation_seed": seed,
            "method": method,
            **({"settings": dict(evaluated_model.plan.settings)} if evaluated_model.plan.settings else {}),
        }
        return record | {"lines": evaluated_model.predict(self._model(evaluated_model), cell, position_offset)}


def evaluate_shards(
    request: EvaluationRequest,
    cells: Sequence[Cell],
    missing: MissingRequests,
    store: EvaluationStore,
    progress: ProgressReporter,
    executor: Executor,
    *,
    predictions: bool,
) -> None:
    """Evaluates the missing cells with the workers of an executor, and collects their records.

    If a shard fails, raises `UserError` or `OperationalError` that names it after all others are done. A signal is
    re-raised after the workers have stopped. In both cases, the records so far are written in order first.
    """
    if not missing:
        return
    shards = make_shards(request, cells, missing, num_workers(executor), predictions)
    num_new_lines = _LineCounter(store)
    failed: list[tuple[GridShard, Failure]] = []
    with Stop() as stop:
        outcomes = executor.run(
            Measuring.from_request(request),
            shards,
            folder=_jobs_folder(store),
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
        raise _failed_shards_error(failed, request, store)
    for grid_shard in shards:
        if _num_recorded(grid_shard, request, store) < _num_cells(grid_shard):
            raise OperationalError(
                f"{grid_shard}: its worker finished, but {store.folder.path / 'pieces'} lacks the records that it "
                "wrote; all workers must share this folder"
            )


def script(
    request: EvaluationRequest,
    cells: Sequence[Cell],
    missing: MissingRequests,
    store: EvaluationStore,
    executor: Executor,
    *,
    predictions: bool,
) -> str:
    """The script that `evaluate_shards` would submit."""
    shards = make_shards(request, cells, missing, num_workers(executor), predictions)
    return executor.script(Measuring.from_request(request), shards, _jobs_folder(store))


def _jobs_folder(store: EvaluationStore) -> Path:
    """The folder for files of the executor."""
    return store.folder.path / "pieces" / "jobs"


def _failed_shards_error(
    failed: Sequence[tuple[GridShard, Failure]], request: EvaluationRequest, store: EvaluationStore
) -> UserError | OperationalError:
    grid_shard, failure = min(
        failed, key=lambda shard_failure: (shard_failure[1].is_transient, shard_failure[0].number)
    )
    resume = "; the same command resumes"
    others = f"; {_pluralize(len(failed) - 1, 'more shard')} failed" if len(failed) > 1 else ""
    text = (
        f"{grid_shard}: {failure.text.removesuffix(resume)}{others}. {_num_recorded(grid_shard, request, store):,} of "
        f"its {_pluralize(_num_cells(grid_shard), 'cell')} are kept, and so are the records of the other shards{resume}"
    )
    error = UserError(text) if failure.kind == "user error" else OperationalError(text)
    if failure.traceback is not None:
        error.add_note(failure.traceback)
    return error


def _num_cells(grid_shard: GridShard) -> int:
    return sum(len(share.remaining) for share in grid_shard.shares)


def _num_recorded(grid_shard: GridShard, request: EvaluationRequest, store: EvaluationStore) -> int:
    """The number of cells of a shard that are recorded."""
    models_by_id = {evaluated_model.model_id: evaluated_model for evaluated_model in request.models}
    num_recorded = 0
    for share in grid_shard.shares:
        for cell, position_offset, needs_score, needs_predictions in share.remaining:
            key = models_by_id[share.plan, share.label].key(cell, position_offset)
            num_recorded += (key in store.records or not needs_score) and (
                store.has_predictions(key) or not needs_predictions
            )
    return num_recorded


def _pluralize(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


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
