"""Which step of a run is its best: by accuracy, or by the development loss."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from numerate.evaluation.evaluation_data import EvaluationData

By = Literal["accuracy", "loss"]


class Score(NamedTuple):
    """The score of a step: its `value` on `split`, and the development `loss` where that decides among equals."""

    by: By
    split: str
    value: float
    loss: float | None = None


@dataclass(frozen=True)
class Criterion:
    """How the best step is chosen: the highest accuracy, or the lowest development loss; of equals the later step.

    Accuracy is that of OOD validation where there is one. With `ties` the lower development loss decides
    between steps of the same accuracy before the later one does.
    """

    by: By
    ties: bool = False

    @classmethod
    def of(cls, wanted: By | None, exam: EvaluationData) -> "Criterion":
        """As set; by default by the loss for answers with numbers beside their tokens, which are hardly ever
        exactly right, and for running text; else by accuracy, with ties for answers that are texts."""
        by: By = wanted or ("loss" if exam.carries or exam.running else "accuracy")
        return cls(by, by == "accuracy" and (wanted is not None or exam.texts))

    @property
    def measures_loss(self) -> bool:
        """Whether it needs the development loss."""
        return self.by == "loss" or self.ties

    def score(self, accuracy: Mapping[str, float], loss: float | None) -> Score:
        """The score of a step. A loss that is not finite is the worst."""
        finite = None if loss is None else loss if math.isfinite(loss) else sys.float_info.max
        if self.by == "loss":
            assert finite is not None, "it was measured"
            return Score("loss", "development", finite)
        split = "beyond-development" if "beyond-development" in accuracy else "development"
        return Score("accuracy", split, accuracy[split], finite if self.ties else None)

    def prefers(self, new: Score, known: Score | None) -> bool:
        """Whether a later step replaces the best one known; a score by another criterion is always replaced."""
        if known is None or known.by != self.by:
            return True
        if self.by == "loss":
            return new.value <= known.value
        if new.value != known.value or new.loss is None or known.loss is None:
            return new.value >= known.value
        return new.loss <= known.loss
