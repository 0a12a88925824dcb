"""The plan of an evaluation, validated before any work."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from numerate.batch import Model
from numerate.config import expand
from numerate.errors import UserError
from numerate.evaluation.costs import RowSize, readings
from numerate.evaluation.evaluation_data import questions_of, size_of
from numerate.evaluation.evaluator import METHODS, Method, evaluate_cell, grid_of, method_for, replaced_grid
from numerate.evaluation.grid import Cell, Grid, parse_shard, region, shard
from numerate.evaluation.language_modeling import context_region, evaluate_portion, portions_of, read_portion
from numerate.evaluation.likelihoods import FIRST
from numerate.evaluation.samples import answers
from numerate.experiments.changes import FILE
from numerate.experiments.store import Key, Store
from numerate.experiments.stored_run import StoredRun
from numerate.reports.records import settings_key
from numerate.tasks.task import Task
from numerate.training.checkpoint import Checkpoint
from numerate.training.recipe import Recipe

FIXED = 2.5e8
"""Overhead of a cell besides its forwards (sampling and tokenizing questions, Python), in the floating-point
operations that a core does in that time: 5 ms at 50 GFLOP/s, measured for additions of up to 100 + 100 digits."""

STEP = 1e8
"""Overhead of a decoded token in the same unit: 2 ms, for two layers on a core."""


ALL = 2**62
"""More chunks than any running text has: all of it."""


def usual_count(recipe: Recipe) -> int:
    """Default number of questions per cell; of running text, of chunks."""
    return (recipe.evaluation.chunks or ALL) if recipe.task.running else recipe.evaluation.examples_per_cell


class Cost(NamedTuple):
    """Cost of a cell in floating-point operations: to `score` it and to `say` (generate) its answers, each with
    overhead, of which only ratios matter; and one `forward` of all its questions."""

    score: float
    say: float
    forward: float


@dataclass(frozen=True)
class EvaluationPlan:
    """The cells to evaluate, their questions, and the method."""

    grid: Grid
    count: int
    seed: int
    method: Method
    position_offsets: int
    trained: Mapping[str, Any]
    ood_validation: Mapping[str, Any] | None
    settings: Mapping[str, Any]
    counts: dict[Cell, int] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, run: StoredRun, grid: str | None, count: int | None, method: Method) -> "EvaluationPlan":
        recipe, task = run.recipe, run.recipe.task
        if method not in METHODS:
            raise UserError(f"method: {method!r} is none of: {', '.join(METHODS)}")
        if count is not None and count < 1:
            raise UserError(f"count: {count} questions measure nothing; 100 give +-10 points at 50 %")
        learned = run.trained_recipe.task if FILE in run.settings else task
        beyond = task.beyond()
        return cls(
            Grid.parse(grid, task.axes()) if grid else grid_of(task, recipe.evaluation.grid),
            count or usual_count(recipe),
            recipe.evaluation.seed,
            method_for(run.exam, method),
            run.blank.position_offsets(),
            learned.trained(),
            beyond.trained() if beyond is not None else None,
            run.settings,
        )

    def check(self, run: StoredRun) -> None:
        """Raises `UserError` for a cell that the task lacks or that is beyond the model; warns of positions that no
        training example had."""
        self._refuse_missing(run.recipe.task)
        learned = run.trained_recipe.task if FILE in run.settings else run.recipe.task
        longest = run.exam.longest(learned)
        warnings: list[str] = []
        for corner in self.grid.corners():
            tokens = run.exam.longest(run.recipe.task.pinned(**dict(corner)), split="test")
            try:
                warnings += run.blank.check(tokens, longest)
            except UserError as error:
                raise UserError(f"grid: {self.grid}: {error}") from error
        for warning in dict.fromkeys(warnings):
            run.warn(warning)

    def _refuse_missing(self, task: Task) -> None:
        known = task.cells()
        there = None if known is None else set(known)
        for cell in self.grid.cells():
            try:
                task.pinned(**dict(cell))
            except UserError as error:
                raise UserError(f"grid: {self.grid}: {error}") from error
            if there is not None and tuple(value for _, value in cell) not in there:
                what = ", ".join(f"{axis}={value}" for axis, value in cell)
                near = str(Grid.of(sorted(there), task.axes())).split("+")
                more = " and more" if len(near) > 12 else ""
                parts = "+".join(near[:12])
                raise UserError(f"grid: {self.grid}: there is no question with {what}; there are {parts}{more}")

    def cells(self, run: StoredRun, piece: str | None) -> list[Cell]:
        """The cells of the grid, or those of one piece of it (`2/4`), the pieces of about equal cost. A context of
        running text is a cell for each portion of its chunks."""
        cells = self.grid.cells()
        if run.recipe.task.running:
            cells = [part for cell in cells for part in self._portions(run, cell)]
        if piece is None:
            return cells
        number, of = parse_shard(piece)
        return shard(cells, number, of, {cell: cost.score for cell, cost in self.costs(run, cells).items()}.__getitem__)

    def _portions(self, run: StoredRun, cell: Cell) -> list[Cell]:
        """Running text in portions: of each the first chunk, beside the context."""
        task = run.recipe.task.pinned(**dict(cell))
        found = [((*cell, (FIRST, first)), count) for first, count in portions_of(task, self.count)]
        self.counts.update(found)
        return [one for one, _ in found]

    def costs(self, run: StoredRun, cells: Sequence[Cell]) -> dict[Cell, Cost]:
        """The cost of each cell: the forwards of all its rows padded to the longest (iterations of a loop and the
        quadratic part of attention included), and a fixed part. A function of the recipe and the cells alone."""
        flops = lru_cache(maxsize=None)(run.blank.flops)
        found = {}
        running = run.recipe.task.running
        read_of = {cell: RowSize(float(dict(cell)["context_length"]), 0.0) for cell in cells} if running else None
        for cell, (time, generated) in (read_of or readings(run.exam, cells)).items():
            rows = self.count_of(run, cell)
            read = flops(rows, round(time))
            decoded = read + STEP * generated
            found[cell] = Cost(FIXED + (read if self.method == "one pass" else decoded), FIXED + decoded, read)
        return found

    def count_of(self, run: StoredRun, cell: Cell) -> int:
        """The number of questions of a cell."""
        if cell not in self.counts and run.recipe.task.running:
            self._portions(run, tuple(part for part in cell if part[0] != FIRST))
        if cell not in self.counts:
            self.counts[cell] = size_of(run.exam.task, dict(cell), self.count)
        return self.counts[cell]

    @cached_property
    def changed(self) -> tuple[tuple[str, float, str], ...]:
        """The settings, as part of a key."""
        return settings_key(self.settings)

    def region(self, cell: Cell) -> str:
        if dict(cell).get(FIRST) is not None:
            return context_region(dict(cell), self.trained)
        return region(dict(cell), self.trained, self.ood_validation)

    def telling(self, recipe: Recipe) -> list[Cell]:
        """Cells to show: the largest trained one, the next ones, the largest of the grid."""
        sides: dict[str, list[Cell]] = {}
        for cell in self.grid.cells():
            if len({value for _, value in cell}) == 1:
                sides.setdefault(self.region(cell), []).append(cell)
        trained = sides.get("in_distribution", [])
        beyond = [cell for name in ("ood_validation", "ood_test", "100+") for cell in sides.get(name, [])]
        chosen = trained[-1:] + beyond[:1] + beyond[len(beyond) // 2 : len(beyond) // 2 + 1] + beyond[-1:]
        return list(dict.fromkeys(chosen)) or self.grid.cells()[:1]


class CellRequest(NamedTuple):
    """A cell at a position offset: whether to `score` it, and whether to `say` (record) its predictions."""

    cell: Cell
    position_offset: int
    score: bool
    say: bool


@dataclass(frozen=True)
class EvaluatedModel:
    """One model of an evaluation: the weights of a checkpoint under its label, run by the plan of this number."""

    run: StoredRun
    plan: EvaluationPlan
    number: int
    label: str
    found: Checkpoint

    @property
    def step(self) -> int:
        return self.found.step

    @property
    def name(self) -> tuple[int, str]:
        """Identifies it among the models of an evaluation."""
        return self.number, self.label

    def placements(self, cells: Sequence[Cell]) -> list[tuple[Cell, int]]:
        """Each cell at each position offset, in the order of results."""
        return [(cell, position_offset) for position_offset in range(self.plan.position_offsets) for cell in cells]

    def key(self, cell: Cell, position_offset: int) -> Key:
        """The key of the record of a cell."""
        plan = self.plan
        count = plan.count_of(self.run, cell)
        return (self.label, self.step, plan.changed, cell, position_offset, count, plan.seed, plan.method)

    def keys(self, cells: Sequence[Cell]) -> list[Key]:
        return [self.key(cell, position_offset) for cell, position_offset in self.placements(cells)]

    def score(self, model: Model, cell: Cell, position_offset: int) -> dict[str, Any]:
        """The record of one cell."""
        plan, run = self.plan, self.run
        if run.exam.running:
            count = plan.count_of(run, cell)
            record = evaluate_portion(model, run.exam, dict(cell), count=count, position_offset=position_offset)
        else:
            record = evaluate_cell(
                model,
                run.exam,
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
            "questions": plan.seed,
            "region": plan.region(cell),
            **({"settings": dict(plan.settings)} if plan.settings else {}),
        }

    def say(self, model: Model, cell: Cell, position_offset: int) -> list[dict[str, Any]]:
        """The model's answer to each question of a cell."""
        plan, run = self.plan, self.run
        shared: dict[str, Any] = {"checkpoint": self.label, "step": self.step, "position_offset": position_offset}
        shared["method"] = plan.method
        shared |= {"settings": dict(plan.settings)} if plan.settings else {}
        if run.exam.running:
            count = plan.count_of(run, cell)
            read = read_portion(model, run.exam, dict(cell), count=count, position_offset=position_offset)
            return [line | shared for line in read.lines(dict(cell))]
        questions = questions_of(run.exam.task, dict(cell), count=plan.count, seed=plan.seed)
        found = answers(model, run.exam, questions, position_offset, method=plan.method)
        return [sample.record(dict(cell)) | shared for sample in found]


Missing = Sequence[tuple[EvaluatedModel, Sequence[CellRequest]]]
"""What an evaluation still has to compute, by model."""

ProgressCallback = Callable[[int, int], None]
"""Called with the number of cells done and of all cells."""


class ProgressMessage:
    """Reports progress: of `of` cells, all but the missing ones are done at the start."""

    def __init__(self, on_progress: ProgressCallback | None, of: int, missing: Missing) -> None:
        left = sum(one.score + one.say for _, pending in missing for one in pending)
        self._on_progress, self._of, self._before, self._done = on_progress, of, of - left, 0
        self.new(0)

    def one(self) -> None:
        """One more is done."""
        self.new(self._done + 1)

    def new(self, done: int) -> None:
        """So many are done since the beginning."""
        if self._on_progress is not None and (done > self._done or not done):
            self._on_progress(min(self._before + done, self._of), self._of)
        self._done = max(done, self._done)


@dataclass(frozen=True)
class EvaluationRequest:
    """A requested evaluation: a plan for each setting of the run, and a model for each plan and checkpoint."""

    plans: tuple[tuple[StoredRun, EvaluationPlan], ...]
    checkpoints: tuple[Checkpoint, ...]
    ways: tuple[EvaluatedModel, ...]

    @classmethod
    def of(
        cls,
        run: StoredRun,
        grid: str | None,
        count: int | None,
        method: Method,
        checkpoint: str,
        settings: Sequence[str],
    ) -> "EvaluationRequest":
        """Raises `UserError` for what cannot be evaluated, before any work."""
        run.refuse_other_contents()
        runs = [run.with_settings(*choice) for choice in expand(settings)]
        if grid is None and (replaced := replaced_grid(runs[0].recipe.task, run.recipe.evaluation.grid)) is not None:
            run.warn(replaced)
        plans = [(one, EvaluationPlan.of(one, grid, count, method)) for one in runs]
        for one, plan in plans:
            plan.check(one)
        found = run.checkpoints(checkpoint)
        label = checkpoint if checkpoint in ("final", "best") else None
        ways = [
            EvaluatedModel(one, plan, number, label or f"step {each.step}", each)
            for number, (one, plan) in enumerate(plans)
            for each in found
        ]
        return cls(tuple(plans), tuple(found), tuple(ways))

    def steps(self) -> dict[str, int]:
        """Which step each label means."""
        return {way.label: way.step for way in self.ways}

    def cells(self, piece: str | None = None) -> list[Cell]:
        run, plan = self.plans[0]
        return plan.cells(run, piece)

    def missing(self, cells: Sequence[Cell], store: Store, predictions: bool) -> Missing:
        """What is not recorded yet. Records under another name of the same step are reused."""
        found = []
        met: set[Key] = set()
        for way in self.ways:
            pending = []
            for key, (cell, position_offset) in zip(way.keys(cells), way.placements(cells), strict=True):
                if key not in store.known and (same := store.same_weights(key)) is not None:
                    store.known[key] = same | {"checkpoint": way.label}
                score, say = key not in store.known, predictions and not store.has_predictions(key)
                if (score or say) and key not in met:
                    pending.append(CellRequest(cell, position_offset, score, say))
                met.add(key)
            found.append((way, pending))
        return [(way, pending) for way, pending in found if pending]

    def count(self, cells: Sequence[Cell], predictions: bool) -> int:
        """Number of all work units: cells to score, and to answer."""
        return sum(len(way.placements(cells)) for way in self.ways) * (1 + predictions)

    def score(self, missing: Missing, store: Store, progress: ProgressMessage) -> None:
        """Scores what is missing, in this process."""
        for way, pending in missing:
            model: Model | None = None
            for cell, position_offset, score, _ in pending:
                if score:
                    model = model or way.run.model(way.found)
                    store.add(way.key(cell, position_offset), way.score(model, cell, position_offset))
                    progress.one()
