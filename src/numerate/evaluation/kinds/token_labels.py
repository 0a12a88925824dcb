"""The kind of evaluation of tasks with a label per token, as in counting."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numerate.batch import Batch, Model
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.evaluation.evaluator import Method
from numerate.evaluation.exact_match import Predictions
from numerate.evaluation.kinds.answers import AnswerKind
from numerate.evaluation.labels import LabelCounts
from numerate.tasks.questions import Questions


@dataclass(frozen=True)
class TokenLabels(AnswerKind):
    """A label per token: exact match of rows, and metrics of labels by position with their baselines."""

    def check_causal(self, model: Model, evaluation_data: EvaluationData) -> str | None:
        return model.non_causal_reason()  # nothing is decoded, so a model that is not is no error

    def cell_scorer(self, evaluation_data: EvaluationData, questions: Questions, method: Method) -> Any:
        return _LabelScorer(evaluation_data)

    def validation_counts(self, evaluation_data: EvaluationData, predictions: Predictions) -> dict[str, int]:
        """With counts of labels, in total and beyond the trained positions: exact match stays 0 as long as every row of
        OOD validation has a wrong label."""
        targets, correct = predictions.match_counts.target_mask, predictions.match_counts.token_correct
        trained = evaluation_data.task.max_training_labels()
        ood = slice(targets.shape[1] if trained is None else trained, None)
        return super().validation_counts(evaluation_data, predictions) | {
            "labels": int(targets.sum()),
            "correct_labels": int(correct.sum()),
            "ood_labels": int(targets[:, ood].sum()),
            "correct_ood_labels": int(correct[:, ood].sum()),
        }

    def validation_metrics(self, counts: Mapping[str, int]) -> dict[str, float]:
        found = {"accuracy": ("correct_labels", "labels"), "ood_accuracy": ("correct_ood_labels", "ood_labels")}
        return {name: counts[part] / counts[whole] for name, (part, whole) in found.items() if counts[whole]}


class _LabelScorer:
    """Counts the labels of a cell by position."""

    def __init__(self, evaluation_data: EvaluationData) -> None:
        self.evaluation_data = evaluation_data
        self.parts: list[LabelCounts] = []

    def add(self, model: Model, batch: Batch, predictions: Predictions, position_offset: int) -> None:
        matches = predictions.match_counts
        self.parts.append(
            LabelCounts.from_arrays(
                matches.token_correct.cpu().numpy(),
                matches.target_mask.cpu().numpy(),
                self.evaluation_data.symbols[batch.target_ids.clamp(min=0).cpu().numpy()],
                self.evaluation_data.task.max_training_labels(),
            )
        )

    def record(self) -> dict[str, Any]:
        return {"labels": LabelCounts.merge(self.parts).record()}
