"""The settings of an evaluation, its grid, and the record of one cell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, get_args

from numerate.batch import Model
from numerate.config import Spec, setting
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.evaluation.generation_settings import Generation
from numerate.evaluation.grid import Grid
from numerate.tasks.task import Task

Method = Literal["one pass", "decoding", "beams"]
"""How answers are scored: in one forward pass, by greedy decoding, or by beam search with the beam width of the
published evaluation."""

METHODS: tuple[Method, ...] = get_args(Method)


@dataclass(frozen=True)
class Evaluation(Spec):
    """The default evaluation of a run."""

    grid: str | None = setting(
        None,
        "sizes (digits, counts, module numbers): 1:12x1:12 all pairs (cells), diagonal:1:18 equal ones only; "
        "cascade:18, uneven:18, carries:18 questions that random ones rarely are (strata); null: those of training and "
        "as many larger sizes as it has",
        in_run_id=False,
    )
    examples_per_cell: int = setting(
        100,
        "examples per cell of the grid (one combination of sizes); for files at most their number of rows",
        at_least=1,
        in_run_id=False,
    )
    seed: int = setting(0, "seed of the test examples; the same for all runs to be compared", in_run_id=False)
    validation_examples: int = setting(
        256, "examples of each validation split per evaluation during training", at_least=1
    )
    validation_batches: int | None = setting(
        None,
        "language modeling: batches per evaluation during training; null: validation_examples contexts of text",
        at_least=1,
    )
    chunks: int | None = setting(
        None,
        "language modeling: chunks (contexts of text) of the final evaluation; null: all",
        at_least=1,
        in_run_id=False,
    )
    generation: Generation | None = setting(
        None, "how answers are generated freely; null: compared token by token with the correct ones"
    )


class PredictionLog(Protocol):
    """The predictions of a cell: those kept so far, by row, and a place for others as they are made."""

    @property
    def lines(self) -> Mapping[int, Mapping[str, Any]]: ...

    def add(self, lines: Sequence[Mapping[str, Any]]) -> None: ...


class CellRequest(NamedTuple):
    """`num_questions` questions of a split in a cell (its `stratum` is one of its entries), evaluated at one
    of the model's fixed position offsets (`PositionIds`; 0 shifts nothing), and by which method."""

    cell: Mapping[str, Any]
    num_questions: int
    seed: int = 0
    position_offset: int = 0
    method: Method = "one pass"
    split: str = "test"


def evaluate_cell(
    model: Model, evaluation_data: EvaluationData, cell: Mapping[str, Any], *, count: int, **options: Any
) -> dict[str, Any]:
    """The record of one cell, a function of the weights and the arguments (`CellRequest`):

        evaluate_cell(model, evaluation_data, {"first_digits": 3, "second_digits": 4}, count=100)
        {"cell": {"first_digits": 3, "second_digits": 4}, "correct": 98, "count": 100, "low": 0.93, "high": 0.994, ...}

    Raises `UserError` for a cell that the task does not have, and if a non-causal model would have to decode.
    """
    record: dict[str, Any] = evaluation_data.kind.score(model, evaluation_data, CellRequest(cell, count, **options))
    return record


def resolve_grid(task: Task, text: str | None) -> Grid:
    """The grid of a text, by the axes and strata of a task; without one the trained sizes and as many larger ones.

    For a task that enumerates its cells, the default grid has those; for a file of rows, the trained ones among them.
    Raises `UserError` for a text that is no grid of the task, and for a task without axes.

    >>> from numerate.tasks import Arithmetic
    >>> str(resolve_grid(Arithmetic(digits=5), None)), str(resolve_grid(Arithmetic(), "1:12"))
    ('5:10x5:10', '1:12x1:12')
    """
    if text is not None:
        return Grid.parse(text, task.axes(), task)
    spans = task.training_spans()
    if not spans:
        raise UserError(f"grid: {type(task).__name__} has no axes, so no grid can be made; axes() must name a field")
    default = "x".join(f"{span.low}:{(1 + task.has_ood_sizes) * span.high}" for span in spans.values())
    grid, points = Grid.parse(default, tuple(spans)), task.cells()
    if points is not None and task.default_grid_in_distribution:
        points = [*({*points} & {tuple(size for _, size in cell) for cell in grid.cells()})]
    return grid if points is None or len(points) == len(grid.cells()) else Grid.from_points(points, tuple(spans))
