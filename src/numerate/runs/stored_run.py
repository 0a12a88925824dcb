"""A trained run in its folder: recipe, checkpoints, and model."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from numerate.batch import Model
from numerate.config import from_tree
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.models.strict_weights import match_state_dict
from numerate.runs.changes import TASK_PATH, diff_settings, override_for_evaluation
from numerate.tasks.task import Task
from numerate.training import checkpoint
from numerate.training.distributed import resolve_device
from numerate.training.finding import select_checkpoints
from numerate.training.preflight import check_same_tokenizer, check_unchanged_files, tokenizer_fingerprint
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder


class StoredRun:
    """A run as stored in its folder, with everything that plans, workers and maps need. The public class is `Run`."""

    def __init__(self, folder: RunFolder, *, device: str | None = None, changes: Sequence[str] = ()) -> None:
        self.folder = folder
        self.device, self.changes = device, tuple(changes)

    @property
    def path(self) -> Path:
        return self.folder.path

    @cached_property
    def trained_recipe(self) -> Recipe:
        """The recipe that it was trained with."""
        found = from_tree(self.folder.metadata()["recipe"], self.folder.file("recipe.yaml"), expected_class=Recipe)
        assert isinstance(found, Recipe)
        return found

    @cached_property
    def recipe(self) -> Recipe:
        """The current recipe: as trained, unless `with_settings` changed it."""
        return override_for_evaluation(self.trained_recipe, self.changes) if self.changes else self.trained_recipe

    @cached_property
    def changed_settings(self) -> dict[str, Any]:
        """Settings that differ from training: {} unless `with_settings` changed something."""
        return diff_settings(self.trained_recipe, self.recipe)

    @property
    def training_task(self) -> Task:
        """The task whose sizes count as trained: that of training, where the evaluation reads another file."""
        return self.trained_recipe.task if TASK_PATH in self.changed_settings else self.recipe.task

    def with_settings(self, *settings: str) -> Self:
        """The same weights with other settings, such as more loop iterations or another scale of the attention logits.

            run.with_settings("model.backbone.num_loops=8").ask("321+654=")

        Raises `UserError` for settings other than the model's, and for those that change the names or shapes of
        weights.
        """
        if not settings:
            return self
        other = type(self)(self.folder, device=self.device, changes=(*self.changes, *settings))
        untrained_model = other.untrained_model
        try:
            match_state_dict(untrained_model, self.untrained_model.state_dict(), "the trained model")
        except UserError as error:
            raise UserError(
                f"{', '.join(settings)}: these settings change the weights ({error}); an evaluation may only change "
                "settings that keep their names and shapes"
            ) from error
        return other

    @cached_property
    def evaluation_data(self) -> EvaluationData:
        return EvaluationData.from_recipe(self.recipe)

    @cached_property
    def untrained_model(self) -> Model:
        """The initialized model on the CPU, or a pretrained one on the meta device, for what needs no trained weights
        (position offsets, tables)."""
        pretrained_config = checkpoint.last_state(self.folder.checkpoints).get("origin")
        model, vocabulary = self.recipe.model, self.evaluation_data.vocabulary
        build = model.rebuild if pretrained_config is None else model.build_on_meta
        return build(vocabulary, self.recipe.seed, pretrained_config)

    def checkpoints(self, name: str = "final") -> list[checkpoint.Checkpoint]:
        """The checkpoints selected by `final`, `best`, `all` or a step."""
        found, warnings = select_checkpoints(self.folder.checkpoints, str(name))
        for text in warnings:
            self.warn(text)
        return found

    def check_data_unchanged(self) -> None:
        """Raises `UserError` if data files have changed since the run was started."""
        check_unchanged_files(self.trained_recipe.task, self.folder.metadata(), self.path)

    def load_model(self, checkpoint_name: str | checkpoint.Checkpoint = "final") -> Model:
        """The model with the weights of a checkpoint, in evaluation mode.

        Raises `UserError` if it was trained with another tokenizer file of the same name, or if its data files have
        changed since."""
        if isinstance(checkpoint_name, checkpoint.Checkpoint):
            stored_checkpoint = checkpoint_name
        else:
            stored_checkpoint = self.checkpoints(checkpoint_name)[0]
        if tokenizer_fingerprint(self.recipe.tokenizer, self.recipe.task) is None:
            self.check_data_unchanged()  # its vocabulary depends on its questions
        check_same_tokenizer(self.recipe.tokenizer, self.recipe.task, stored_checkpoint)
        vocabulary, seed = self.evaluation_data.vocabulary, self.recipe.seed
        if stored_checkpoint.is_pretrained:
            from numerate.recipes.hugging_face import check_unchanged_weights

            check_unchanged_weights(self.recipe.model)
            model = self.recipe.model.build(vocabulary, seed)
        else:
            weights = stored_checkpoint.read(only=["weights"])["weights"]
            model = self.recipe.model.rebuild(vocabulary, seed, stored_checkpoint.state.get("origin"))
            model.load_state_dict(match_state_dict(model, weights, str(stored_checkpoint.path)))
        return model.to(resolve_device(self.device or self.recipe.device)).eval()

    def warn(self, text: str) -> None:
        """Issues a Python warning."""
        import warnings

        warnings.warn(text, stacklevel=3)
