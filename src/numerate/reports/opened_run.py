"""What evaluations, maps and exports need of a run, which is `numerate.Run`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from numerate.batch import Model
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.tasks.task import Task
from numerate.training.checkpoint import Checkpoint
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder


class OpenedRun(Protocol):
    """A run with its recipe, data and checkpoints, as `numerate.load` opens it."""

    folder: RunFolder
    device: str | None

    @property
    def path(self) -> Path: ...
    @property
    def recipe(self) -> Recipe: ...
    @property
    def training_task(self) -> Task: ...
    @property
    def untrained_model(self) -> Model: ...
    @property
    def evaluation_data(self) -> EvaluationData: ...
    @property
    def changed_settings(self) -> Mapping[str, Any]: ...
    def with_settings(self, *settings: str) -> Self: ...
    def check_data_unchanged(self) -> None: ...
    def checkpoints(self, name: str = "final") -> list[Checkpoint]: ...
    def load_model(self, checkpoint_name: str | Checkpoint = "final") -> Model: ...
    def warn(self, text: str) -> None: ...
