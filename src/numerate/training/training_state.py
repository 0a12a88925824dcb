"""The training state, apart from tensors."""

from dataclasses import dataclass, field
from typing import Any, Literal

from numerate.training.best_checkpoint import ValidationScore


@dataclass
class TrainingState:
    """Everything that a checkpoint holds besides tensors.

    `best_score` is the accuracy, or the validation loss where the best step is chosen `best_metric` that; `best_loss`
    is the loss where it decides among equal accuracies. Runs from before there was a choice are by accuracy, without
    it. `pending` is what a stop left to do at this step, before the next one: its evaluation (and samples), or its
    samples. `exact_match` is that of the last validation; `schedule_state` is what the schedule knows of validations.
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
