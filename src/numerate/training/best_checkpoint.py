"""Which step of a run is its best: by accuracy, or by the validation loss."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from numerate.evaluation.evaluation_data import EvaluationData

BestMetric = Literal["accuracy", "loss"]


class ValidationScore(NamedTuple):
    """The score of a step: its `value` on `split`, and the validation `loss` where that decides among equals."""

    metric: BestMetric
    split: str
    value: float
    loss: float | None = None


@dataclass(frozen=True)
class BestStepRule:
    """How the best step is chosen: the highest accuracy, or the lowest validation loss; of equals the later step.

    Accuracy is that of OOD validation where there is one. With `loss_breaks_ties` the lower validation loss decides
    between steps of the same accuracy before the later one does.
    """

    metric: BestMetric
    loss_breaks_ties: bool = False

    @classmethod
    def from_metric(cls, best_metric: BestMetric | None, evaluation_data: EvaluationData) -> "BestStepRule":
        """As set; by default by the loss for answers with numbers beside their tokens, which are hardly ever
        an exact match, and for language modeling; else by accuracy, with ties for answers that are texts."""
        metric: BestMetric = best_metric or (
            "loss" if evaluation_data.has_number_tokens or evaluation_data.is_language_modeling else "accuracy"
        )
        return cls(metric, metric == "accuracy" and (best_metric is not None or evaluation_data.has_text_answers))

    @property
    def needs_loss(self) -> bool:
        """Whether it needs the validation loss."""
        return self.metric == "loss" or self.loss_breaks_ties

    def score(self, accuracy: Mapping[str, float], loss: float | None) -> ValidationScore:
        """The score of a step. A loss that is not finite is the worst."""
        finite_loss = None if loss is None else loss if math.isfinite(loss) else sys.float_info.max
        if self.metric == "loss":
            assert finite_loss is not None, "the loss must be computed"
            return ValidationScore("loss", "validation", finite_loss)
        split = "ood_validation" if "ood_validation" in accuracy else "validation"
        return ValidationScore("accuracy", split, accuracy[split], finite_loss if self.loss_breaks_ties else None)

    def is_improvement(self, new: ValidationScore, best: ValidationScore | None) -> bool:
        """Whether a later step replaces the best one known; a score by another criterion is always replaced."""
        if best is None or best.metric != self.metric:
            return True
        if self.metric == "loss":
            return new.value <= best.value
        if new.value != best.value or new.loss is None or best.loss is None:
            return new.value >= best.value
        return new.loss <= best.loss
