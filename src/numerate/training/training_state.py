"""The training state, apart from tensors, with the best step of a run by accuracy or by validation loss."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from numerate.evaluation.evaluation_data import EvaluationData

BestMetric = Literal["accuracy", "loss"]


class ValidationScore(NamedTuple):
    """The score of a step: its `value` on `split`, and the validation `loss` if that breaks ties."""

    metric: BestMetric
    split: str
    value: float
    loss: float | None = None


@dataclass(frozen=True)
class BestStepRule:
    """How the best step is chosen: by the highest accuracy or the lowest validation loss; of equals the later step.

    Accuracy is that of OOD validation if there is one. With `loss_breaks_ties`, the lower validation loss decides
    between steps of the same accuracy.
    """

    metric: BestMetric
    loss_breaks_ties: bool = False

    @classmethod
    def from_metric(cls, best_metric: BestMetric | None, evaluation_data: EvaluationData) -> "BestStepRule":
        """The rule for a metric: by default that of the kind of evaluation, and the loss for tokens with numeric
        values, which are hardly ever an exact match."""
        kind = evaluation_data.kind
        prefers_loss = evaluation_data.has_number_tokens or kind.validates_likelihood
        metric = best_metric or ("loss" if prefers_loss else "accuracy")
        return cls(metric, metric == "accuracy" and (best_metric is not None or kind.loss_breaks_ties))

    @property
    def needs_loss(self) -> bool:
        """Whether the validation loss is needed."""
        return self.metric == "loss" or self.loss_breaks_ties

    def score(self, accuracy: Mapping[str, float], loss: float | None) -> ValidationScore:
        """The score of a step. A non-finite loss is the worst."""
        finite_loss = None if loss is None else loss if math.isfinite(loss) else sys.float_info.max
        if self.metric == "loss":
            assert finite_loss is not None, "the loss must be computed"
            return ValidationScore("loss", "validation", finite_loss)
        split = "ood_validation" if "ood_validation" in accuracy else "validation"
        return ValidationScore("accuracy", split, accuracy[split], finite_loss if self.loss_breaks_ties else None)

    def is_improvement(self, new: ValidationScore, best: ValidationScore | None) -> bool:
        """Whether a later step replaces the best one; a score by another metric is always replaced."""
        if best is None or best.metric != self.metric:
            return True
        if self.metric == "loss":
            return new.value <= best.value
        if new.value != best.value or new.loss is None or best.loss is None:
            return new.value >= best.value
        return new.loss <= best.loss


@dataclass
class TrainingState:
    """Everything that a checkpoint holds besides tensors.

    `best` is the best step so far, by `best_score` on `best_split`, and by `best_loss` if that breaks ties. `pending`
    is what an interruption left to do at this step: its evaluation (and samples), or its samples. `exact_match` and
    `schedule_state` are those of the last validation.
    """

    step: int = 0
    examples: int = 0
    tokens: int = 0
    flops: int = 0
    best: int | None = None
    best_score: float = -1.0
    best_split: str | None = None
    best_metric: BestMetric = "accuracy"
    best_loss: float | None = None
    sums: dict[str, float] = field(default_factory=dict)
    scaler: dict[str, Any] = field(default_factory=dict)
    exact_match: float = 0.0
    schedule_state: dict[str, float] = field(default_factory=dict)
    pending: Literal["", "evaluation", "samples"] = ""

    @property
    def best_step_score(self) -> ValidationScore | None:
        """The score of the best step."""
        if self.best is None:
            return None
        return ValidationScore(self.best_metric, self.best_split or "validation", self.best_score, self.best_loss)
