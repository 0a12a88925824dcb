"""A kind of evaluation: which cells are evaluated, and how answers are scored."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from numerate.batch import Model
from numerate.config import Span, Spec
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EvaluationData, num_cell_questions
from numerate.evaluation.evaluator import CellRequest, Evaluation, Method
from numerate.evaluation.exact_match import Predictions
from numerate.evaluation.grid import Cell, Grid, cell_region
from numerate.evaluation.prompts import PromptProcessor, QuestionPrompts
from numerate.tasks.questions import Questions

Spans = Mapping[str, Span]


class EvaluationKind(Spec, ABC):
    """Which cells are evaluated (`cells`), how each is scored (`score`), and what is predicted in it (`predict`).

    A frozen dataclass, found by its name (`Task.evaluation_kind`). `numerate.results.summary` merges its sums.
    """

    columns: ClassVar[Mapping[str, str]] = {}
    """The scores that its records add, each from 0 to 1, with their meanings. They are shown beside exact match."""

    unit: ClassVar[str] = "questions"
    """What `count` counts."""

    loss_breaks_ties: ClassVar[bool] = False
    """Whether the validation loss decides between checkpoints of the same accuracy."""

    validates_likelihood: ClassVar[bool] = False
    """Whether training validates the likelihood of text, every token of which is a target, rather than answers, and the
    best checkpoint is by default that of the lowest loss."""

    extra_tokens: ClassVar[int] = 0
    """Number of tokens by which a decoded answer may be longer than the longest correct answer of its batch."""

    keeps_predictions: ClassVar[bool] = False
    """Whether each prediction is kept as it is made, in a `PredictionLog` that `score` and `predict` take as well."""

    def default_count(self, evaluation: Evaluation) -> int:
        return evaluation.examples_per_cell

    def cells(self, evaluation_data: EvaluationData, grid: Grid, count: int) -> list[Cell]:
        """The cells to score, each with its own record."""
        return grid.cells()

    def num_questions(self, evaluation_data: EvaluationData, cell: Cell, count: int) -> int:
        """The number of questions of a cell if `count` are requested."""
        return num_cell_questions(evaluation_data.task, dict(cell), count)

    def region(self, cell: Mapping[str, int], training: Spans, ood_validation: Spans | None) -> str:
        return cell_region(cell, training, ood_validation)

    def sample_cells(self, cells: Mapping[Cell, str]) -> list[Cell]:
        """The cells, given with their regions, of which a few answers are shown in reports."""
        return []

    def resolve_method(self, evaluation_data: EvaluationData, requested: Method) -> Method:
        """How answers are scored if a method is requested. Raises `UserError` for one that it does not have."""
        if requested != "one pass":
            raise UserError(f"method: must be 'one pass' for {type(self).__name__}, not {requested!r}")
        return requested

    def check_causal(self, model: Model, evaluation_data: EvaluationData) -> str | None:
        """Why the model is not causal; None if it is. Raises `UserError` if it would have to decode token by token, as
        its predictions for a prefix differ from those for the whole row."""
        if (reason := model.non_causal_reason()) is not None:
            raise UserError(
                f"model: {reason}, so it cannot generate token by token; "
                "use layout=MaskedLM, or a task with a label per token"
            )
        return None

    def check_request(self, model: Model, evaluation_data: EvaluationData, request: CellRequest) -> Any:
        """Raises `UserError` for a cell that the model cannot be asked, before any work; the model has no weights."""

    @abstractmethod
    def score(self, model: Model, evaluation_data: EvaluationData, request: CellRequest) -> dict[str, Any]:
        """The record of a cell: a function of the weights and of the arguments alone. It has at least `cell`, `count`,
        `position_offset`, `method` and `overlaps_training`."""

    @abstractmethod
    def predict(self, model: Model, evaluation_data: EvaluationData, request: CellRequest) -> list[dict[str, Any]]:
        """The lines of predictions.jsonl: one per question of a cell."""

    def validation_method(self, evaluation_data: EvaluationData) -> Method:
        """How validation questions are answered."""
        return "one pass"

    def validation_scorer(self, evaluation_data: EvaluationData, questions: Questions) -> Any:
        """The scorer of the answers to validation questions; None if they are only counted."""
        return None

    def validation_counts(self, evaluation_data: EvaluationData, predictions: Predictions) -> dict[str, int]:
        """Counts of a part of a validation split, which are summed over all parts and processes."""
        matches = predictions.match_counts
        return {
            "correct": int(matches.correct.sum()),
            "count": len(matches.correct),
            "digits": matches.num_digits,
            "correct_digits": matches.num_correct_digits,
        }

    def validation_metrics(self, counts: Mapping[str, int]) -> dict[str, float]:
        """Metrics of a split besides exact match. The best checkpoint is selected by `accuracy`, if it is one of them,
        otherwise by the first of `columns`, or by exact match if there are none."""
        return {}

    def prompt_processor(self, evaluation_data: EvaluationData) -> PromptProcessor:
        """Tokenizes prompts for generation. Raises `UserError` if the layout is not autoregressive."""
        if not evaluation_data.layout.is_autoregressive:
            raise UserError(
                f"layout: {type(evaluation_data.layout).__name__} cannot generate token by token; "
                "`numerate ask` shows the predictions"
            )
        return QuestionPrompts(evaluation_data)

    def context_length(self, evaluation_data: EvaluationData) -> int:
        """The largest number of tokens in a training row."""
        return int(evaluation_data.longest_rows(evaluation_data.task).lengths.max())

    @classmethod
    def name_entry(cls) -> dict[str, str]:
        """The entry `kind` of its records; {} for the kinds of numerate, whose records are known by their entries."""
        return {} if cls.__module__.startswith("numerate.") else {"kind": cls.__name__}
