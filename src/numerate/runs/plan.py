"""The plan of an evaluation: its cells, models and method, checked before any work."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from numerate.batch import Model
from numerate.config import expand_sweep
from numerate.errors import UserError, check_choice, check_positive
from numerate.evaluation.evaluation_data import MAX_TOKENS_PER_BATCH
from numerate.evaluation.evaluator import METHODS, CellRequest, Method, resolve_grid
from numerate.evaluation.grid import STRATUM, Cell, Grid, cell_entries, deal_by_size, parse_shard
from numerate.records.kinds import EVALUATION, PREDICTIONS
from numerate.records.schema import RUN_ID_KEY, Schema
from numerate.runs.engines.memory import explained_out_of_memory
from numerate.runs.store import EvaluationStore, RecordKey, StoredPredictions, with_checksum
from numerate.tasks.task import Task
from numerate.training.disk import json_line
from numerate.training.opened_run import OpenedRun


class CellTask(NamedTuple):
    """A cell to evaluate at a position offset, with the run (a choice of settings) and the checkpoint of these indices
    in the plan."""

    run: int
    checkpoint: int
    cell: Cell
    position_offset: int


class EvaluationPlan:
    """What an evaluation goes through: every checkpoint with every choice of settings, at every position offset, on
    every cell; what is recorded of it is in its `store`. `runs` has one run for each choice of settings, `checkpoints`
    has labels with steps. With `predictions` the answer to every question is recorded: by `predict`, or when it is
    scored by a kind that `keeps_predictions`. Raises `UserError` for an evaluation that cannot be done."""

    def __init__(
        self,
        run: OpenedRun,
        grid: str | None = None,
        *,
        count: int | None = None,
        checkpoint: str = "final",
        method: Method = "one pass",
        predictions: bool = False,
        settings: Sequence[str] = (),
    ) -> None:
        run.check_data_unchanged()
        self.runs = [run.with_settings(*choice) for choice in expand_sweep(settings)]
        data, evaluation = self.runs[0].evaluation_data, run.recipe.evaluation
        check_choice("method", method, METHODS)
        check_positive("count", count)
        self.kind, self.seed = data.kind, self.runs[0].recipe.evaluation.seed
        self.count = count or data.kind.default_count(evaluation)
        self.grid = resolve_grid(self.runs[0].recipe.task, grid or evaluation.grid)
        self.method = data.kind.resolve_method(data, method)
        for one in self.runs:
            _check_grid(one, self.grid)
        self.checkpoints = [
            (checkpoint if checkpoint in ("final", "best") else f"step {found.step}", found)
            for found in run.checkpoints(checkpoint)
        ]
        self.records_predictions = predictions or self.kind.keeps_predictions
        self.predicts = predictions and not self.kind.keeps_predictions
        self._counts: dict[tuple[int, Cell], int] = {}
        self.__setstate__({})

    def __getstate__(self) -> dict[str, Any]:
        """What a worker needs, which reads by itself what is recorded."""
        checkpoints = [(label, replace(found, path=found.path.absolute())) for label, found in self.checkpoints]
        return self.__dict__ | {"checkpoints": checkpoints, "store": None, "_models": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._models: dict[tuple[int, int], Model] = {}
        self.store = EvaluationStore(self.runs[0].folder, {label: found.step for label, found in self.checkpoints})

    # Cells --------------------------------------------------------------------------------------------------------

    def read(self) -> "EvaluationPlan":
        """Reads what is recorded by now, and returns the plan."""
        self.store.read()
        if self.records_predictions:
            self.store.read_predictions()
        return self

    def tasks(self, shard_text: str | None = None) -> list[CellTask]:
        """Every cell of every model, in the order of results: of the grid, or of one shard of it (`2/4`). Shards have
        about equal cost."""
        cells: list[Cell] = self.kind.cells(self.runs[0].evaluation_data, self.grid, self.count)
        if shard_text is not None:
            number, num_shards = parse_shard(shard_text)
            chosen = {*deal_by_size(cells, num_shards, lambda cell: self.size(CellTask(0, 0, cell, 0)))[number - 1]}
            cells = [cell for cell in cells if cell in chosen]
        return [
            CellTask(run, checkpoint, cell, position_offset)
            for run in range(len(self.runs))
            for checkpoint in range(len(self.checkpoints))
            for position_offset in range(self.runs[run].untrained_model.num_position_offsets())
            for cell in cells
        ]

    def missing(self, tasks: Iterable[CellTask]) -> list[CellTask]:
        """The tasks of which something is missing; of those with equal settings the first. What was recorded under
        another name of the same step is taken over."""
        distinct: dict[RecordKey, CellTask] = {}
        for task in tasks:
            distinct.setdefault(self.key(task), task)
            self.store.take_over(self.key(task))
        records = self.store.records
        return [task for key, task in distinct.items() if key not in records or self.lacks_predictions(task)]

    def lacks_predictions(self, task: CellTask) -> bool:
        """Whether answers of a cell are still to be recorded."""
        recorded = self.store.predictions.get(self.key(task), ())
        return self.records_predictions and len(recorded) < self.num_questions(task)

    def key(self, task: CellTask) -> RecordKey:
        """The key of the record of a cell."""
        return RecordKey.of(self._entries(task))

    def num_questions(self, task: CellTask) -> int:
        """The number of questions of a cell."""
        place = task.run, task.cell
        if place not in self._counts:
            data = self.runs[task.run].evaluation_data
            self._counts[place] = self.kind.num_questions(data, task.cell, self.count)
        return self._counts[place]

    def num_left(self, task: CellTask) -> int:
        """The number of questions of a cell of which something is missing, without answers that are kept one by one."""
        kept = self.store.predictions.get(self.key(task), ()) if self.kind.keeps_predictions else ()
        return self.num_questions(task) - len(kept)

    def size(self, task: CellTask) -> int:
        """What the cost of a cell grows with: its number of questions times their sizes."""
        return self.num_questions(task) * (1 + sum(size for _, size in task.cell if isinstance(size, int)))

    def region(self, run: int, cell: Cell) -> str:
        """The region of a cell."""
        training, ood_validation = self._spans[run]
        name: str = self.kind.region(cell_entries(cell)["cell"], training, ood_validation)
        return name

    @cached_property
    def _spans(self) -> list[tuple[Mapping[str, Any], Mapping[str, Any] | None]]:
        """The sizes of training and of OOD validation of each run."""
        ood_tasks = [run.recipe.task.ood_validation_task() for run in self.runs]
        ood_spans = [None if task is None else task.training_spans() for task in ood_tasks]
        return list(zip([run.training_task.training_spans() for run in self.runs], ood_spans, strict=True))

    # Work ---------------------------------------------------------------------------------------------------------

    def check(self, tasks: Iterable[CellTask]) -> None:
        """Raises `UserError` for a cell that its model cannot be asked, before any work."""
        for task in tasks:
            run = self.runs[task.run]
            self.kind.check_request(run.untrained_model, run.evaluation_data, self._request(task))

    def perform(self, task: CellTask, advance: Callable[[int], None] = lambda count: None) -> None:
        """Evaluates what a cell needs, and adds it to the store. `advance` is called with the number of questions done,
        of answers that are generated freely after each batch."""
        key, lacks_predictions = self.key(task), self.lacks_predictions(task)
        if self.kind.keeps_predictions:
            self.store.add(key, self.score(task, StoredPredictions(self.store, key, self._entries(task), advance)))
        elif key not in self.store.records:
            self.store.add(key, self.score(task))
        if self.predicts and lacks_predictions:
            self.store.add_predictions(key, self.predict(task))
        if not self.kind.keeps_predictions:
            advance(self.num_questions(task))

    def score(self, task: CellTask, *logs: StoredPredictions) -> dict[str, Any]:
        """The record of one cell; a kind that `keeps_predictions` takes the log of the cell."""
        run, checkpoint = self.runs[task.run], self.checkpoints[task.checkpoint][1]
        record = self._evaluate(self.kind.score, task, self.num_questions(task), *logs)
        trained_spans = self._spans[task.run][0]
        longest = max((span.high for span in trained_spans.values()), default=0)
        sizes = [size for axis, size in task.cell if axis in trained_spans]
        is_beyond = STRATUM in dict(task.cell) and max(sizes, default=0) > longest  # so its questions are new
        reads_training_examples = not checkpoint.is_pretrained or bool(run.evaluation_data.few_shot_examples)
        may_be_trained = reads_training_examples and not is_beyond
        found: dict[str, Any] = record | {
            **self._entries(task),
            "seed": run.recipe.seed,
            "region": self.region(task.run, task.cell),
            "overlaps_training": record["overlaps_training"] and may_be_trained,
            **self.kind.name_entry(),
        }
        return self._checked(EVALUATION, "score", found)

    def predict(self, task: CellTask) -> list[dict[str, Any]]:
        """The model's answer to each question of a cell. Raises `UserError` for a kind of evaluation that returns
        another number of lines."""
        count = self.num_questions(task)
        lines = self._evaluate(self.kind.predict, task, count)
        if len(lines) != count:
            raise UserError(f"{type(self.kind).__name__}.predict: must return {count} lines, not {len(lines)}")
        entries = self._entries(task)
        lines = [with_checksum({**line, "row": row, **entries}) for row, line in enumerate(lines)]
        return [self._checked(PREDICTIONS, "predict", line) for line in lines]

    def try_out(self, task: CellTask, count: int) -> None:
        """Evaluates so many questions of a cell, of which nothing is kept."""
        for function in (self.kind.score, self.kind.predict)[: 1 + self.predicts]:
            self._evaluate(function, task, count)

    def _entries(self, task: CellTask) -> dict[str, Any]:
        """The entries that say what a record, or a prediction, is of."""
        label, checkpoint = self.checkpoints[task.checkpoint]
        settings = self.runs[task.run].changed_settings
        return {
            **cell_entries(task.cell),
            "checkpoint": label,
            "step": checkpoint.step,
            "position_offset": task.position_offset,
            "count": self.num_questions(task),
            "evaluation_seed": self.seed,
            "method": self.method,
            **({"settings": settings} if settings else {}),
            RUN_ID_KEY: self.runs[task.run].folder.run_id,
        }

    def _checked(self, schema: Schema, function: str, record: dict[str, Any]) -> dict[str, Any]:
        """A record. Raises `UserError` for one of a kind outside numerate that could not be read again."""
        if self.kind.name_entry() and (problem := schema.find_violation(json.loads(json_line(record)))):
            raise UserError(f"{type(self.kind).__name__}.{function}: {problem} (docs/adding.md)")
        return record

    def _evaluate(self, function: Callable[..., Any], task: CellTask, count: int, *logs: StoredPredictions) -> Any:
        """What `score` or `predict` of the kind of evaluation finds in a cell."""
        at_once = f"up to {MAX_TOKENS_PER_BATCH:,} tokens are evaluated at a time"
        advice = "a smaller count= needs less, or device=cpu, which resumes this evaluation"
        with explained_out_of_memory(f"{at_once}; {advice}"):
            return function(self.model(task), self.runs[task.run].evaluation_data, self._request(task, count), *logs)

    def _request(self, task: CellTask, count: int | None = None) -> CellRequest:
        num_questions = count or self.num_questions(task)
        return CellRequest(dict(task.cell), num_questions, self.seed, task.position_offset, self.method)

    def model(self, task: CellTask) -> Model:
        """The model of a task; the last one stays loaded."""
        model_id = task.run, task.checkpoint
        if model_id not in self._models:
            self._models.clear()  # free its memory before loading the next one
            self._models[model_id] = self.runs[task.run].load_model(self.checkpoints[task.checkpoint][1])
        return self._models[model_id]


def _check_grid(run: OpenedRun, grid: Grid) -> None:
    """Raises `UserError` for a cell that the task or the model lacks; warns of positions beyond training."""
    warnings: list[str] = []
    try:
        _check_cells_exist(run.recipe.task, grid)
        longest_trained = run.evaluation_data.longest_rows(run.training_task)
        for corner in grid.corners():
            tokens = run.evaluation_data.longest_rows(run.recipe.task.at_cell(**dict(corner)), split="test")
            warnings += run.untrained_model.check_tokens(tokens, longest_trained)
    except UserError as error:
        raise UserError(f"grid: {grid}: {error}") from error
    for warning in dict.fromkeys(warnings):
        run.warn(warning)


def _check_cells_exist(task: Task, grid: Grid) -> None:
    existing = None if (cells := task.cells()) is None else set(cells)
    for cell in grid.cells():
        task.at_cell(**dict(cell))
        if existing is not None and tuple(value for _, value in cell) not in existing:
            cell_text = ", ".join(f"{axis}={value}" for axis, value in cell)
            parts = str(Grid.from_points(sorted(existing), task.axes())).split("+")
            more = " and more" if len(parts) > 12 else ""
            raise UserError(f"no question has {cell_text}; the task has {'+'.join(parts[:12])}{more}")
