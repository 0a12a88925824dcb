"""The training state, apart from tensors."""

from dataclasses import dataclass, field
from typing import Any, Literal

from numerate.training.best_checkpoint import ValidationScore


@dataclass
class TrainingState:
    """Everything that a checkpoint holds besides tensors.

    `best` is the best step so far, `best_score` its accuracy or validation loss (see `best_metric`), and `best_loss`
    its loss if that breaks ties between equal accuracies. `pending` is what an interruption left to do at this step:
    its evaluation (and samples), or its samples. `exact_match` is that of the last validation; `schedule_state` is the
    state of the schedule after the last validation.
    """

    step: int = 0
    examples: int = 0
    tokens: int = 0
    flops: int = 0
    best: int | None = None
    best_score: float = -1.0
    best_split: str | None = None
    best_metric: Literal["accuracy", "loss"] = "accuracy"
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
