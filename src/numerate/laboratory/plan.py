"""What an evaluation is to measure, checked before any work."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numerate.errors import Mistake
from numerate.evaluation.evaluator import Method, cost, default_grid, method_for, size_of
from numerate.evaluation.grid import Cell, Grid, parse_shard, region, shard
from numerate.laboratory.store import Key
from numerate.reports.records import settings_key
from numerate.tasks.task import Task
from numerate.training.recipe import Recipe

if TYPE_CHECKING:
    from numerate.laboratory.run import Run


@dataclass(frozen=True)
class Plan:
    """Which cells are asked what, and in which way."""

    grid: Grid
    count: int
    seed: int
    method: Method
    placements: int
    trained: Mapping[str, Any]
    band: Mapping[str, Any] | None
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, run: "Run", grid: str | None, count: int | None, method: Method) -> "Plan":
        recipe, task = run.recipe, run.recipe.task
        text = grid or recipe.evaluation.grid
        if method not in ("one pass", "decoding"):
            raise Mistake(f"method: {method!r} is neither 'one pass' nor 'decoding'")
        if count is not None and count < 1:
            raise Mistake(f"count: {count} questions measure nothing; 100 give +-10 points at 50 %")
        beyond = task.beyond()
        return cls(
            Grid.parse(text, task.axes()) if text else default_grid(task),
            count or recipe.evaluation.count,
            recipe.evaluation.seed,
            method_for(run.exam, method),
            run.blank.placements(),
            task.trained(),
            beyond.trained() if beyond is not None else None,
            run.settings,
        )

    def check(self, run: "Run") -> None:
        """Raises `Mistake` for a cell that the task has not or that is beyond the model; warns of places that no
        training example had."""
        self._refuse_missing(run.recipe.task)
        longest = run.exam.longest(run.recipe.task)
        warnings: list[str] = []
        for corner in self.grid.corners():
            tokens = run.exam.longest(run.recipe.task.pinned(**dict(corner)), split="test")
            try:
                warnings += run.blank.check(tokens, longest)
            except Mistake as mistake:
                raise Mistake(f"grid: {self.grid}: {mistake}") from mistake
        for warning in dict.fromkeys(warnings):
            run.warn(warning)

    def _refuse_missing(self, task: Task) -> None:
        known = task.cells()
        there = None if known is None else set(known)
        for cell in self.grid.cells():
            try:
                task.pinned(**dict(cell))
            except Mistake as mistake:
                raise Mistake(f"grid: {self.grid}: {mistake}") from mistake
            if there is not None and tuple(value for _, value in cell) not in there:
                what = ", ".join(f"{axis}={value}" for axis, value in cell)
                near = Grid.of(sorted(there)[:12], task.axes())
                more = " and more" if len(there) > 12 else ""
                raise Mistake(f"grid: {self.grid}: there is no question with {what}; there are {near}{more}")

    def cells(self, run: "Run", piece: str | None) -> list[Cell]:
        """The cells of the grid, or those of one piece of it (`2/4`), the pieces of about equal cost."""
        cells = self.grid.cells()
        if piece is None:
            return cells
        number, of = parse_shard(piece)
        costs = {cell: cost(run.exam, cell, size_of(run.exam.task, dict(cell), self.count)) for cell in cells}
        return shard(cells, number, of, costs.__getitem__)

    def key(self, run: "Run", label: str, step: int, cell: Cell, placement: int) -> Key:
        """What the record of a cell is known by."""
        count = size_of(run.exam.task, dict(cell), self.count)
        return (label, step, settings_key(self.settings), cell, placement, count, self.seed, self.method)

    def region(self, cell: Cell) -> str:
        return region(dict(cell), self.trained, self.band)

    def telling(self, recipe: Recipe) -> list[Cell]:
        """Cells worth reading: the largest trained one, the next ones, the largest of the grid."""
        sides: dict[str, list[Cell]] = {}
        for cell in self.grid.cells():
            if len({value for _, value in cell}) == 1:
                sides.setdefault(self.region(cell), []).append(cell)
        trained = sides.get("trained", [])
        beyond = [cell for name in ("band", "beyond", "100+") for cell in sides.get(name, [])]
        chosen = trained[-1:] + beyond[:1] + beyond[len(beyond) // 2 : len(beyond) // 2 + 1] + beyond[-1:]
        return list(dict.fromkeys(chosen)) or self.grid.cells()[:1]
