"""The plan of an evaluation: its cells, models and method, checked before any work."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from numerate.batch import Model
from numerate.config import expand_sweep
from numerate.errors import UserError, check_choice, check_positive
from numerate.evaluation.evaluation_data import MAX_TOKENS_PER_BATCH
from numerate.evaluation.evaluator import (
    METHODS,
    CellRequest,
    Method,
    PredictionLog,
    parse_grid,
    resolve_grid,
    warn_replaced_grid,
)
from numerate.evaluation.grid import STRATUM, Cell, Grid, cell_entries, parse_shard, shard
from numerate.records.schema import RUN_ID_KEY
from numerate.reports.records import settings_key
from numerate.runs.out_of_memory import explained_out_of_memory
from numerate.runs.row_memory import check_row_fits
from numerate.runs.store import EvaluationStore, RecordKey, StoredPredictions, with_checksum
from numerate.runs.stored_run import StoredRun
from numerate.tasks.task import Task
from numerate.training.checkpoint import Checkpoint

CELL_OVERHEAD_FLOPS = 2.5e8
"""Overhead of a cell besides its forward passes (sampling and tokenizing questions, Python), in the floating-point
operations that a core does in that time: 5 ms at 50 GFLOP/s, measured for additions of up to 100 + 100 digits."""

DECODING_STEP_OVERHEAD_FLOPS = 1e8
"""Overhead of a decoded token in the same unit: 2 ms, for two layers on a core."""

ProgressCallback = Callable[[int, int], None]
"""Called with the number of cells done and of all cells."""


class Cost(NamedTuple):
    """Cost of a cell in floating-point operations: to `score` it and to `predict` (generate) its answers, each with
    overhead (only ratios matter); and one `forward` pass of all its questions."""

    score: float
    predict: float
    forward: float


class CellTask(NamedTuple):
    """A cell to evaluate at a position offset, with the run (a choice of settings) and the checkpoint of these indices
    in the plan: whether it is to be scored, and whether its predictions are to be recorded."""

    run: int
    checkpoint: int
    cell: Cell
    position_offset: int
    needs_score: bool
    needs_predictions: bool

    @property
    def num_units(self) -> int:
        return self.needs_score + self.needs_predictions

    def cost(self, cost: Cost) -> float:
        return cost.score * self.needs_score + cost.predict * self.needs_predictions


class EvaluationPlan:
    """What an evaluation goes through: every checkpoint with every choice of settings, at every position offset, on
    every cell. `runs` has one run for each choice of settings, `checkpoints` has labels with steps."""

    def __init__(
        self,
        runs: Sequence[StoredRun],
        checkpoints: Sequence[tuple[str, Checkpoint]],
        grid: Grid,
        count: int,
        method: Method,
    ) -> None:
        self.runs, self.checkpoints = tuple(runs), tuple(checkpoints)
        self.grid, self.count, self.method = grid, count, method
        self.kind, self.seed = runs[0].evaluation_data.kind, runs[0].recipe.evaluation.seed
        self._counts: dict[tuple[int, Cell], int] = {}
        self._models: dict[tuple[int, int], Model] = {}

    @classmethod
    def from_run(
        cls,
        run: StoredRun,
        grid: str | None,
        count: int | None,
        method: Method,
        checkpoint: str,
        settings: Sequence[str],
    ) -> "EvaluationPlan":
        """Raises `UserError` for an evaluation that cannot be done, before any work."""
        run.check_data_unchanged()
        runs = [run.with_settings(*choice) for choice in expand_sweep(settings)]
        task, evaluation, kind = runs[0].recipe.task, run.recipe.evaluation, runs[0].evaluation_data.kind
        if grid is None and (warning := warn_replaced_grid(task, evaluation.grid)) is not None:
            run.warn(warning)
        check_choice("method", method, METHODS)
        check_positive("count", count)
        resolved_grid = parse_grid(task, grid) if grid else resolve_grid(task, evaluation.grid)
        resolved_method = kind.resolve_method(runs[0].evaluation_data, method)
        for run_with_settings in runs:
            _check_grid(run_with_settings, resolved_grid)
        label = checkpoint if checkpoint in ("final", "best") else None
        checkpoints = [(label or f"step {found.step}", found) for found in run.checkpoints(checkpoint)]
        return cls(runs, checkpoints, resolved_grid, count or kind.default_count(evaluation), resolved_method)

    def with_questions(self, task: CellTask, count: int) -> "EvaluationPlan":
        """The same plan and models with another number of questions for this cell."""
        plan = EvaluationPlan(self.runs, self.checkpoints, self.grid, count, self.method)
        plan._counts, plan._models = {(task.run, task.cell): count}, self._models
        return plan

    def steps_by_label(self) -> dict[str, int]:
        """The step of each label."""
        return {label: checkpoint.step for label, checkpoint in self.checkpoints}

    # Cells --------------------------------------------------------------------------------------------------------

    def cells(self, shard_text: str | None = None) -> list[Cell]:
        """The cells of the grid, or of one shard of it (`2/4`); shards have about equal cost."""
        cells: list[Cell] = self.kind.cells(self.runs[0].evaluation_data, self.grid, self.count)
        if shard_text is None:
            return cells
        costs = self.costs(0, cells)
        return shard(cells, *parse_shard(shard_text), lambda cell: costs[cell].score)

    def tasks(self, cells: Sequence[Cell], predictions: bool = False) -> list[CellTask]:
        """Every cell of every model, in the order of results."""
        return [
            CellTask(run, checkpoint, cell, position_offset, True, predictions)
            for run in range(len(self.runs))
            for checkpoint in range(len(self.checkpoints))
            for position_offset in range(self.runs[run].untrained_model.num_position_offsets())
            for cell in cells
        ]

    def missing(self, tasks: Iterable[CellTask], store: EvaluationStore) -> list[CellTask]:
        """The tasks not recorded yet. Records under another name of the same step are reused."""
        missing: dict[RecordKey, CellTask] = {}
        for task in tasks:
            key = self.key(task)
            if key not in store.records and (equivalent := store.find_same_weights(key)) is not None:
                store.records[key] = equivalent | {"checkpoint": key[0]}
            needs_score = task.needs_score and key not in store.records
            needs_predictions = task.needs_predictions and not store.has_predictions(key)
            missing.setdefault(key, task._replace(needs_score=needs_score, needs_predictions=needs_predictions))
        return [task for task in missing.values() if task.num_units]

    def key(self, task: CellTask) -> RecordKey:
        """The key of the record of a cell."""
        label, checkpoint = self.checkpoints[task.checkpoint]
        count = self.num_questions(task)
        settings = self._settings_keys[task.run]
        return (label, checkpoint.step, settings, task.cell, task.position_offset, count, self.seed, self.method)

    @cached_property
    def _settings_keys(self) -> list[tuple[tuple[str, float, str], ...]]:
        return [settings_key(run.changed_settings) for run in self.runs]

    def num_questions(self, task: CellTask) -> int:
        """The number of questions of a cell."""
        place = task.run, task.cell
        if place not in self._counts:
            evaluation_data = self.runs[task.run].evaluation_data
            self._counts[place] = self.kind.num_questions(evaluation_data, task.cell, self.count)
        return self._counts[place]

    def costs(self, run: int, cells: Sequence[Cell]) -> dict[Cell, Cost]:
        """The cost of each cell: forward passes of all its rows, padded to the longest (including loop iterations and
        the quadratic part of attention), and a constant. It depends only on the recipe and the cells."""
        flops = lru_cache(maxsize=None)(self.runs[run].untrained_model.flops)
        costs = {}
        for cell, (time, num_generated) in self.kind.row_sizes(self.runs[run].evaluation_data, cells).items():
            forward = flops(self.num_questions(CellTask(run, 0, cell, 0, True, False)), round(time))
            decoding = forward + DECODING_STEP_OVERHEAD_FLOPS * num_generated
            score = CELL_OVERHEAD_FLOPS + (forward if self.method == "one pass" else decoding)
            costs[cell] = Cost(score, CELL_OVERHEAD_FLOPS + decoding, forward)
        return costs

    def regions(self, run: int, cells: Iterable[Cell]) -> dict[Cell, str]:
        """The region of each cell."""
        training, ood_validation = self._spans[run]
        return {cell: self.kind.region(cell_entries(cell)["cell"], training, ood_validation) for cell in cells}

    @cached_property
    def _spans(self) -> list[tuple[Mapping[str, Any], Mapping[str, Any] | None]]:
        """The sizes of training and of OOD validation of each run."""
        ood_tasks = [run.recipe.task.ood_validation_task() for run in self.runs]
        return [
            (run.training_task.training_spans(), None if ood_task is None else ood_task.training_spans())
            for run, ood_task in zip(self.runs, ood_tasks, strict=True)
        ]

    # Work ---------------------------------------------------------------------------------------------------------

    def check(self, tasks: Iterable[CellTask]) -> None:
        """Raises `UserError` for a cell that its model cannot be asked, before any work."""
        for task in tasks:
            run = self.runs[task.run]
            self.kind.check_request(run.untrained_model, run.evaluation_data, self._request(task))

    def prediction_log(self, task: CellTask, store: EvaluationStore | None = None) -> StoredPredictions:
        """The predictions of a cell of a kind that `keeps_predictions`; without a store they are kept in memory."""
        return StoredPredictions(store, self.key(task), self._log_entries(task))

    def predictions_record(self, task: CellTask, *logs: PredictionLog) -> dict[str, Any]:
        """The answers to all questions of a cell as one record, in `lines`; `logs` as in `score`."""
        return cell_entries(task.cell) | self._log_entries(task) | {"lines": self.predict(task, *logs)}

    def _log_entries(self, task: CellTask) -> dict[str, Any]:
        return {"count": self.num_questions(task), "evaluation_seed": self.seed, **self._prediction_entries(task)}

    def score(self, task: CellTask, *logs: PredictionLog) -> dict[str, Any]:
        """The record of one cell; a kind that `keeps_predictions` takes its `prediction_log`."""
        run, (label, checkpoint) = self.runs[task.run], self.checkpoints[task.checkpoint]
        reads_training_examples = not checkpoint.is_pretrained or bool(run.evaluation_data.few_shot_examples)
        record: dict[str, Any] = self._evaluate(self.kind.score, task, *logs)
        may_be_trained = reads_training_examples and not self._is_beyond_training(task)
        return record | {
            **_stratum_entries(task.cell),
            "seed": run.recipe.seed,
            "checkpoint": label,
            "step": checkpoint.step,
            "evaluation_seed": self.seed,
            "region": self.regions(task.run, [task.cell])[task.cell],
            "overlaps_training": record["overlaps_training"] and may_be_trained,
            **self.kind.name_entry(),
            **self._settings_entry(task),
            RUN_ID_KEY: run.folder.run_id,
        }

    def _is_beyond_training(self, task: CellTask) -> bool:
        """Whether a cell of a stratum is longer than all of training, so that its questions are new, however few."""
        training, _ = self._spans[task.run]
        sizes = [size for axis, size in task.cell if axis in training]
        longest = max((span.high for span in training.values()), default=0)
        return STRATUM in dict(task.cell) and max(sizes, default=0) > longest

    def predict(self, task: CellTask, *logs: PredictionLog) -> list[dict[str, Any]]:
        """The model's answer to each question of a cell; `logs` as in `score`."""
        lines: list[dict[str, Any]] = self._evaluate(self.kind.predict, task, *logs)
        return [with_checksum(line | self._prediction_entries(task)) for line in lines]

    def _prediction_entries(self, task: CellTask) -> dict[str, Any]:
        """The entries that all predictions of a cell share."""
        label, checkpoint = self.checkpoints[task.checkpoint]
        return {
            **_stratum_entries(task.cell),
            "checkpoint": label,
            "step": checkpoint.step,
            "position_offset": task.position_offset,
            "method": self.method,
            **self._settings_entry(task),
            RUN_ID_KEY: self.runs[task.run].folder.run_id,
        }

    def _evaluate(self, function: Callable[..., Any], task: CellTask, *logs: PredictionLog) -> Any:
        """What `score` or `predict` of the kind of evaluation finds in a cell."""
        model, at_once = self.model(task), f"up to {MAX_TOKENS_PER_BATCH:,} tokens are evaluated at a time"
        advice = f"{at_once}; a smaller count= needs less, or device=cpu, which resumes this evaluation"
        with explained_out_of_memory(next(model.parameters()).device, advice):
            return function(model, self.runs[task.run].evaluation_data, self._request(task), *logs)

    def _request(self, task: CellTask) -> CellRequest:
        return CellRequest(dict(task.cell), self.num_questions(task), self.seed, task.position_offset, self.method)

    def _settings_entry(self, task: CellTask) -> dict[str, Any]:
        """The entry `settings` of a record; {} as trained."""
        settings = self.runs[task.run].changed_settings
        return {"settings": dict(settings)} if settings else {}

    def model(self, task: CellTask) -> Model:
        """The model of a task; the last one stays loaded."""
        model_id = task.run, task.checkpoint
        if model_id not in self._models:
            self._models.clear()  # free its memory before loading the next one
            self._models[model_id] = self.runs[task.run].load_model(self.checkpoints[task.checkpoint][1])
        return self._models[model_id]


def _stratum_entries(cell: Cell) -> dict[str, Any]:
    """The entries of a record or prediction that name a cell of a stratum; {} for others."""
    return cell_entries(cell) if STRATUM in dict(cell) else {}


def _check_grid(run: StoredRun, grid: Grid) -> None:
    """Raises `UserError` for a cell that the task or the model lacks, or whose rows do not fit into memory; warns of
    positions beyond training."""
    _check_cells_exist(run.recipe.task, grid)
    longest_trained = run.evaluation_data.longest_rows(run.training_task)
    warnings: list[str] = []
    for corner in grid.corners():
        tokens = run.evaluation_data.longest_rows(run.recipe.task.at_cell(**dict(corner)), split="test")
        try:
            check_row_fits(run, tokens, {axis: size for axis, size in corner if axis in grid.axes})
            warnings += run.untrained_model.check_tokens(tokens, longest_trained)
        except UserError as error:
            raise UserError(f"grid: {grid}: {error}") from error
    for warning in dict.fromkeys(warnings):
        run.warn(warning)


def _check_cells_exist(task: Task, grid: Grid) -> None:
    existing = None if (cells := task.cells()) is None else set(cells)
    for cell in grid.cells():
        try:
            task.at_cell(**dict(cell))
        except UserError as error:
            raise UserError(f"grid: {grid}: {error}") from error
        if existing is not None and tuple(value for _, value in cell) not in existing:
            cell_text = ", ".join(f"{axis}={value}" for axis, value in cell)
            parts = str(Grid.from_points(sorted(existing), task.axes())).split("+")
            more = " and more" if len(parts) > 12 else ""
            raise UserError(f"grid: {grid}: no question has {cell_text}; the task has {'+'.join(parts[:12])}{more}")


class ProgressReporter:
    """Reports progress: of `total` cells, or questions, all but `num_missing` are done at the start."""

    def __init__(self, on_progress: ProgressCallback | None, total: int, num_missing: int) -> None:
        self._on_progress, self._num_done = on_progress, 0
        self._total, self._num_done_before = total, total - num_missing
        self.set_done(0)

    def increment(self, count: int = 1) -> None:
        """Counts that many more as done."""
        self.set_done(self._num_done + count)

    def set_done(self, done: int) -> None:
        """Sets the number done since the start."""
        if self._on_progress is not None and (done > self._num_done or not done):
            self._on_progress(min(self._num_done_before + done, self._total), self._total)
        self._num_done = max(done, self._num_done)
