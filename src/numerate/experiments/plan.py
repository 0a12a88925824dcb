"""The plan of an evaluation, validated before any work."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from numerate.batch import Model
from numerate.config import expand_sweep
from numerate.errors import UserError
from numerate.evaluation.costs import RowSize, row_sizes
from numerate.evaluation.evaluation_data import cell_questions, num_cell_questions
from numerate.evaluation.evaluator import (
    METHODS,
    Method,
    evaluate_cell,
    resolve_grid,
    resolve_method,
    warn_replaced_grid,
)
from numerate.evaluation.grid import Cell, Grid, cell_region, parse_shard, shard
from numerate.evaluation.language_modeling import (
    compute_portion_losses,
    context_region,
    evaluate_portion,
    evaluation_portions,
)
from numerate.evaluation.likelihoods import CHUNK_AXIS
from numerate.evaluation.samples import sample_answers
from numerate.experiments.changes import TASK_PATH
from numerate.experiments.store import EvaluationStore, RecordKey
from numerate.experiments.stored_run import StoredRun
from numerate.reports.records import settings_key
from numerate.tasks.task import Task
from numerate.training.checkpoint import Checkpoint
from numerate.training.recipe import Recipe

CELL_OVERHEAD_FLOPS = 2.5e8
"""Overhead of a cell besides its forwards (sampling and tokenizing questions, Python), in the floating-point
operations that a core does in that time: 5 ms at 50 GFLOP/s, measured for additions of up to 100 + 100 digits."""

DECODING_STEP_OVERHEAD_FLOPS = 1e8
"""Overhead of a decoded token in the same unit: 2 ms, for two layers on a core."""


ALL_CHUNKS = 2**62
"""More chunks than any corpus has: all of them."""


def default_count(recipe: Recipe) -> int:
    """Default number of questions per cell; for language modeling, of chunks."""
    return (
        (recipe.evaluation.chunks or ALL_CHUNKS)
        if recipe.task.is_language_modeling
        else recipe.evaluation.examples_per_cell
    )


class Cost(NamedTuple):
    """Cost of a cell in floating-point operations: to `score` it and to `predict` (generate) its answers, each with
    overhead, of which only ratios matter; and one `forward` of all its questions."""

    score: float
    predict: float
    forward: float


@dataclass(frozen=True)
class EvaluationPlan:
    """The cells to evaluate, their questions, and the method."""

    grid: Grid
    count: int
    seed: int
    method: Method
    position_offsets: int
    training_spans: Mapping[str, Any]
    ood_validation_spans: Mapping[str, Any] | None
    settings: Mapping[str, Any]
    cell_counts: dict[Cell, int] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def from_run(cls, run: StoredRun, grid: str | None, count: int | None, method: Method) -> "EvaluationPlan":
        recipe, task = run.recipe, run.recipe.task
        if method not in METHODS:
            raise UserError(f"method: {method!r} must be one of: {', '.join(METHODS)}")
        if count is not None and count < 1:
            raise UserError(f"count: must be at least 1, not {count}; 100 questions give +-10 points at 50 %")
        trained_task = run.trained_recipe.task if TASK_PATH in run.changed_settings else task
        ood_task = task.ood_validation_task()
        return cls(
            Grid.parse(grid, task.axes()) if grid else resolve_grid(task, recipe.evaluation.grid),
            count or default_count(recipe),
            recipe.evaluation.seed,
            resolve_method(run.evaluation_data, method),
            run.untrained_model.num_position_offsets(),
            trained_task.training_spans(),
            ood_task.training_spans() if ood_task is not None else None,
            run.changed_settings,
        )

    def check(self, run: StoredRun) -> None:
        """Raises `UserError` for a cell that the task lacks or that is beyond the model; warns of positions that no
        training example had."""
        self._check_cells_exist(run.recipe.task)
        trained_task = run.trained_recipe.task if TASK_PATH in run.changed_settings else run.recipe.task
        longest_trained = run.evaluation_data.longest_rows(trained_task)
        warnings: list[str] = []
        for corner in self.grid.corners():
            tokens = run.evaluation_data.longest_rows(run.recipe.task.at_cell(**dict(corner)), split="test")
            try:
                warnings += run.untrained_model.check_tokens(tokens, longest_trained)
            except UserError as error:
                raise UserError(f"grid: {self.grid}: {error}") from error
        for warning in dict.fromkeys(warnings):
            run.warn(warning)

    def _check_cells_exist(self, task: Task) -> None:
        task_cells = task.cells()
        existing_cells = None if task_cells is None else set(task_cells)
        for cell in self.grid.cells():
            try:
                task.at_cell(**dict(cell))
            except UserError as error:
                raise UserError(f"grid: {self.grid}: {error}") from error
            if existing_cells is not None and tuple(value for _, value in cell) not in existing_cells:
                cell_text = ", ".join(f"{axis}={value}" for axis, value in cell)
                existing_parts = str(Grid.from_points(sorted(existing_cells), task.axes())).split("+")
                more = " and more" if len(existing_parts) > 12 else ""
                parts = "+".join(existing_parts[:12])
                raise UserError(f"grid: {self.grid}: no question has {cell_text}; the task has {parts}{more}")

    def cells(self, run: StoredRun, shard_spec: str | None) -> list[Cell]:
        """The cells of the grid, or those of one shard of it (`2/4`), shards having about equal cost. A context length
        in language modeling is a cell for each portion of its chunks."""
        cells = self.grid.cells()
        if run.recipe.task.is_language_modeling:
            cells = [part for cell in cells for part in self._portions(run, cell)]
        if shard_spec is None:
            return cells
        shard_number, num_shards = parse_shard(shard_spec)
        return shard(
            cells,
            shard_number,
            num_shards,
            {cell: cost.score for cell, cost in self.costs(run, cells).items()}.__getitem__,
        )

    def _portions(self, run: StoredRun, cell: Cell) -> list[Cell]:
        """The portions of a corpus: the cell with the index of the first chunk of each."""
        task = run.recipe.task.at_cell(**dict(cell))
        found = [((*cell, (CHUNK_AXIS, first)), count) for first, count in evaluation_portions(task, self.count)]
        self.cell_counts.update(found)
        return [one for one, _ in found]

    def costs(self, run: StoredRun, cells: Sequence[Cell]) -> dict[Cell, Cost]:
        """The cost of each cell: the forwards of all its rows padded to the longest (iterations of a loop and the
        quadratic part of attention included), and a fixed part. A function of the recipe and the cells alone."""
        flops = lru_cache(maxsize=None)(run.untrained_model.flops)
        cell_costs = {}
        is_language_modeling = run.recipe.task.is_language_modeling
        sizes = (
            {cell: RowSize(float(dict(cell)["context_length"]), 0.0) for cell in cells}
            if is_language_modeling
            else None
        )
        for cell, (time, num_generated) in (sizes or row_sizes(run.evaluation_data, cells)).items():
            rows = self.num_questions(run, cell)
            forward_flops = flops(rows, round(time))
            decoding_flops = forward_flops + DECODING_STEP_OVERHEAD_FLOPS * num_generated
            cell_costs[cell] = Cost(
                CELL_OVERHEAD_FLOPS + (forward_flops if self.method == "one pass" else decoding_flops),
                CELL_OVERHEAD_FLOPS + decoding_flops,
                forward_flops,
            )
        return cell_costs

    def num_questions(self, run: StoredRun, cell: Cell) -> int:
        """The number of questions of a cell."""
        if cell not in self.cell_counts and run.recipe.task.is_language_modeling:
            self._portions(run, tuple(part for part in cell if part[0] != CHUNK_AXIS))
        if cell not in self.cell_counts:
            self.cell_counts[cell] = num_cell_questions(run.evaluation_data.task, dict(cell), self.count)
        return self.cell_counts[cell]

    @cached_property
    def settings_id(self) -> tuple[tuple[str, float, str], ...]:
        """The settings, as part of a key."""
        return settings_key(self.settings)

    def region(self, cell: Cell) -> str:
        if dict(cell).get(CHUNK_AXIS) is not None:
            return context_region(dict(cell), self.training_spans)
        return cell_region(dict(cell), self.training_spans, self.ood_validation_spans)

    def representative_cells(self, recipe: Recipe) -> list[Cell]:
        """Representative cells: the largest in distribution, then the smallest, middle and largest out of
        distribution."""
        cells_by_region: dict[str, list[Cell]] = {}
        for cell in self.grid.cells():
            if len({value for _, value in cell}) == 1:
                cells_by_region.setdefault(self.region(cell), []).append(cell)
        trained = cells_by_region.get("in_distribution", [])
        ood_cells = [cell for name in ("ood_validation", "ood_test", "100+") for cell in cells_by_region.get(name, [])]
        selected = (
            trained[-1:] + ood_cells[:1] + ood_cells[len(ood_cells) // 2 : len(ood_cells) // 2 + 1] + ood_cells[-1:]
        )
        return list(dict.fromkeys(selected)) or self.grid.cells()[:1]


class CellRequest(NamedTuple):
    """A cell at a position offset: whether to `needs_score` it, and whether to `needs_predictions` (record) its
    predictions."""

    cell: Cell
    position_offset: int
    needs_score: bool
    needs_predictions: bool


@dataclass(frozen=True)
class EvaluatedModel:
    """One model of an evaluation: the weights of a checkpoint under its label, run by the plan of this number."""

    run: StoredRun
    plan: EvaluationPlan
    plan_index: int
    label: str
    checkpoint: Checkpoint

    @property
    def step(self) -> int:
        return self.checkpoint.step

    @property
    def model_id(self) -> tuple[int, str]:
        """Identifies it among the models of an evaluation."""
        return self.plan_index, self.label

    def cells_with_offsets(self, cells: Sequence[Cell]) -> list[tuple[Cell, int]]:
        """Each cell at each position offset, in the order of results."""
        return [(cell, position_offset) for position_offset in range(self.plan.position_offsets) for cell in cells]

    def key(self, cell: Cell, position_offset: int) -> RecordKey:
        """The key of the record of a cell."""
        plan = self.plan
        count = plan.num_questions(self.run, cell)
        return (self.label, self.step, plan.settings_id, cell, position_offset, count, plan.seed, plan.method)

    def keys(self, cells: Sequence[Cell]) -> list[RecordKey]:
        return [self.key(cell, position_offset) for cell, position_offset in self.cells_with_offsets(cells)]

    def score(self, model: Model, cell: Cell, position_offset: int) -> dict[str, Any]:
        """The record of one cell."""
        plan, run = self.plan, self.run
        if run.evaluation_data.is_language_modeling:
            count = plan.num_questions(run, cell)
            record = evaluate_portion(
                model, run.evaluation_data, dict(cell), count=count, position_offset=position_offset
            )
        else:
            record = evaluate_cell(
                model,
                run.evaluation_data,
                dict(cell),
                count=plan.count,
                seed=plan.seed,
                position_offset=position_offset,
                method=plan.method,
            )
        return record | {
            "seed": run.recipe.seed,
            "checkpoint": self.label,
            "step": self.step,
            "evaluation_seed": plan.seed,
            "region": plan.region(cell),
            **({"settings": dict(plan.settings)} if plan.settings else {}),
        }

    def predict(self, model: Model, cell: Cell, position_offset: int) -> list[dict[str, Any]]:
        """The model's answer to each question of a cell."""
        plan, run = self.plan, self.run
        shared: dict[str, Any] = {"checkpoint": self.label, "step": self.step, "position_offset": position_offset}
        shared["method"] = plan.method
        shared |= {"settings": dict(plan.settings)} if plan.settings else {}
        if run.evaluation_data.is_language_modeling:
            count = plan.num_questions(run, cell)
            portion = compute_portion_losses(
                model, run.evaluation_data, dict(cell), count=count, position_offset=position_offset
            )
            return [line | shared for line in portion.records(dict(cell))]
        questions = cell_questions(run.evaluation_data.task, dict(cell), count=plan.count, seed=plan.seed)
        samples = sample_answers(model, run.evaluation_data, questions, position_offset, method=plan.method)
        return [sample.record(dict(cell)) | shared for sample in samples]


MissingRequests = Sequence[tuple[EvaluatedModel, Sequence[CellRequest]]]
"""What an evaluation still has to compute, by model."""

ProgressCallback = Callable[[int, int], None]
"""Called with the number of cells done and of all cells."""


class ProgressReporter:
    """Reports progress: of `total` cells, all but the missing ones are done at the start."""

    def __init__(self, on_progress: ProgressCallback | None, total: int, missing: MissingRequests) -> None:
        num_remaining = sum(one.needs_score + one.needs_predictions for _, pending in missing for one in pending)
        self._on_progress, self._total, self._num_done_before, self._num_done = (
            on_progress,
            total,
            total - num_remaining,
            0,
        )
        self.set_done(0)

    def increment(self) -> None:
        """One more is done."""
        self.set_done(self._num_done + 1)

    def set_done(self, done: int) -> None:
        """So many are done since the beginning."""
        if self._on_progress is not None and (done > self._num_done or not done):
            self._on_progress(min(self._num_done_before + done, self._total), self._total)
        self._num_done = max(done, self._num_done)


@dataclass(frozen=True)
class EvaluationRequest:
    """A requested evaluation: a plan for each setting of the run, and a model for each plan and checkpoint."""

    plans: tuple[tuple[StoredRun, EvaluationPlan], ...]
    checkpoints: tuple[Checkpoint, ...]
    models: tuple[EvaluatedModel, ...]

    @classmethod
    def from_run(
        cls,
        run: StoredRun,
        grid: str | None,
        count: int | None,
        method: Method,
        checkpoint: str,
        settings: Sequence[str],
    ) -> "EvaluationRequest":
        """Raises `UserError` for what cannot be evaluated, before any work."""
        run.check_data_unchanged()
        runs = [run.with_settings(*choice) for choice in expand_sweep(settings)]
        if (
            grid is None
            and (grid_warning := warn_replaced_grid(runs[0].recipe.task, run.recipe.evaluation.grid)) is not None
        ):
            run.warn(grid_warning)
        plans = [
            (run_with_settings, EvaluationPlan.from_run(run_with_settings, grid, count, method))
            for run_with_settings in runs
        ]
        for one, plan in plans:
            plan.check(one)
        checkpoints = run.checkpoints(checkpoint)
        label = checkpoint if checkpoint in ("final", "best") else None
        models = [
            EvaluatedModel(one, plan, plan_index, label or f"step {stored_checkpoint.step}", stored_checkpoint)
            for plan_index, (one, plan) in enumerate(plans)
            for stored_checkpoint in checkpoints
        ]
        return cls(tuple(plans), tuple(checkpoints), tuple(models))

    def steps_by_label(self) -> dict[str, int]:
        """Which step each label means."""
        return {way.label: way.step for way in self.models}

    def cells(self, shard_spec: str | None = None) -> list[Cell]:
        run, plan = self.plans[0]
        return plan.cells(run, shard_spec)

    def missing_requests(self, cells: Sequence[Cell], store: EvaluationStore, predictions: bool) -> MissingRequests:
        """What is not recorded yet. Records under another name of the same step are reused."""
        pending_by_model = []
        requested_keys: set[RecordKey] = set()
        for evaluated_model in self.models:
            pending = []
            for key, (cell, position_offset) in zip(
                evaluated_model.keys(cells), evaluated_model.cells_with_offsets(cells), strict=True
            ):
                if key not in store.records and (equivalent := store.find_same_weights(key)) is not None:
                    store.records[key] = equivalent | {"checkpoint": evaluated_model.label}
                needs_score, needs_predictions = (
                    key not in store.records,
                    predictions and not store.has_predictions(key),
                )
                if (needs_score or needs_predictions) and key not in requested_keys:
                    pending.append(CellRequest(cell, position_offset, needs_score, needs_predictions))
                requested_keys.add(key)
            pending_by_model.append((evaluated_model, pending))
        return [(way, pending) for way, pending in pending_by_model if pending]

    def num_work_units(self, cells: Sequence[Cell], predictions: bool) -> int:
        """Number of all work units: cells to score, and to answer."""
        return sum(len(way.cells_with_offsets(cells)) for way in self.models) * (1 + predictions)

    def score_missing(self, missing: MissingRequests, store: EvaluationStore, progress: ProgressReporter) -> None:
        """Scores what is missing, in this process."""
        for evaluated_model, pending in missing:
            model: Model | None = None
            for cell, position_offset, needs_score, _ in pending:
                if needs_score:
                    model = model or evaluated_model.run.load_model(evaluated_model.checkpoint)
                    store.add(
                        evaluated_model.key(cell, position_offset), evaluated_model.score(model, cell, position_offset)
                    )
                    progress.increment()
