"""Runs with models of the same shape, trained together as one model, each in its own folder."""

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from numerate.config import identity
from numerate.errors import UserError
from numerate.evaluation.evaluator import Evaluation
from numerate.experiments.train import TrainedRun, TrainingSession
from numerate.losses.wrapped import WrappedLoss
from numerate.models.decoder import Decoder
from numerate.models.initialization import FanIn
from numerate.models.wrapped import WrappedModelSpec
from numerate.stacking.stacked_trainer import StackedTrainer
from numerate.text.models.hugging_face import HuggingFaceSpec
from numerate.text.models.numformer import Numformer
from numerate.text.tokenizers.subwords import Subwords
from numerate.tokenizers.layout import TokenClassification
from numerate.training import provenance
from numerate.training.distributed import World
from numerate.training.optimizer import AdamW
from numerate.training.recipe import Recipe, Training
from numerate.training.run_folder import resolve_runs_dir
from numerate.training.schedule import Constant
from numerate.training.stopping import Stop
from numerate.training.trainer import TrainingResult

SHARED_SETTINGS = ("batch_size", "precision", "threads")
"""Settings of `training` that all runs of a stack share."""


def stack_key(recipe: Recipe) -> Hashable | None:
    """A key that runs share if they can be trained together; None for a run that cannot be stacked.

    They may differ in seed, initialization, optimizer, schedule, budget, logging, evaluation and checkpoint intervals,
    and in their names.
    """
    if why_not_stacked(recipe) is not None:
        return None
    model = recipe.model
    if isinstance(model, Decoder):
        model = replace(model, initialization=FanIn())
    shared_training = Training(**{name: getattr(recipe.training, name) for name in SHARED_SETTINGS})
    shared_recipe = replace(
        recipe,
        seed=0,
        model=model,
        optimizer=AdamW(),
        schedule=Constant(),
        training=shared_training,
        evaluation=Evaluation(),
        init_from=None,
        paper=None,
    )
    return identity(shared_recipe), recipe.device, recipe.training.threads, recipe.training.precision


def why_not_stacked(recipe: Recipe) -> str | None:
    """Why a run cannot be trained in a stack, in words; None for one that can."""
    training = recipe.training
    if type(recipe.optimizer) is not AdamW:
        return f"optimizer: {type(recipe.optimizer).__name__} has no stacked step; must be AdamW"
    if training.compile:
        return "training.compile: a stack is not compiled"
    if training.precision == "fp16":
        return "training.precision: each model would need its own loss scale; must be fp32 or bf16"
    if recipe.optimizer.decay_parameters != "by_module":
        return "optimizer.decay_parameters: all models of a stack must use the same weight decay rule, 'by_module'"
    if training.tf32:
        return "training.tf32: matrix products of a stack are computed in float32"
    if training.log_layer_grad_norms:
        return "training.log_layer_grad_norms: a stack has no gradient norms per layer of one model"
    if training.gradient_accumulation_steps > 1 or training.micro_batch_size is not None:
        return "training.gradient_accumulation_steps: a stack uses full batches; must be 1, without micro-batches"
    if training.initial_batch_size is not None:
        return "training.initial_batch_size: batch size warmup is not supported in a stack"
    if recipe.trackers:
        return "trackers: a tracker follows one run of a process at a time"
    if recipe.device == "mps":
        return "device: must be cpu or cuda for a stack"
    if isinstance(recipe.layout, TokenClassification) and recipe.layout.blocked_tokens:
        return "layout.blocked_tokens: blocked keys are not supported in a stack"
    if isinstance(recipe.tokenizer, Subwords) and recipe.tokenizer.number_format.has_number_values:
        return "tokenizer.number_format: number values are not supported in a stack"
    if (dropout_path := _find_dropout(recipe, "")) is not None:
        return f"{dropout_path}: dropout is not supported in a stack; must be 0"
    if isinstance(getattr(recipe.objective, "loss", None), WrappedLoss):
        return "objective.loss: a function is not supported in a stack; derive from Loss"
    if isinstance(recipe.model, Decoder):
        return recipe.model.mixer.why_not_stacked()
    if isinstance(recipe.model, HuggingFaceSpec | Numformer | WrappedModelSpec):
        return f"model: a {type(recipe.model).__name__} is not supported in a stack; must be a Decoder"
    return None


def train_stacked(
    recipes: Sequence[Recipe],
    *,
    runs_dir: str | Path | None = None,
    on_record: Callable[[int, str, Mapping[str, Any]], None] | None = None,
    on_message: Callable[[str], None] | None = None,
    stop: Stop | None = None,
    command: str | None = None,
) -> list[TrainedRun | Exception]:
    """Trains recipes with the same `stack_key` as one model. Returns for each the result of `train`, or its error.

    Every run has its own folder and lock, as if it were trained alone, and can be resumed by `train` and vice versa. An
    error of one run (a locked folder, a non-finite loss) ends only that run. `on_record` is called with the index of
    the run. Raises `UserError` for recipes that cannot be stacked, and any error of the common training step.
    """
    if not recipes:
        return []
    _check_stackable(recipes)
    runs, stop = resolve_runs_dir(runs_dir), stop or Stop()
    outcomes: dict[int, TrainedRun | Exception] = {}
    with World.connect(recipes[0].device) as world, contextlib.ExitStack() as resources:
        if world.size > 1:
            raise UserError("stack: a stack must be trained by one process, not by torchrun")
        provenance_info = provenance.provenance()
        sessions: dict[int, TrainingSession] = {}
        for index, recipe in enumerate(recipes):
            with _capture_error(outcomes, index):
                session = TrainingSession(
                    recipe,
                    world,
                    runs,
                    show_progress=False,
                    on_record=None if on_record is None else functools.partial(on_record, index),
                    on_message=on_message,
                    command=command,
                    provenance_info=provenance_info,
                )
                sessions[index] = resources.enter_context(session)
        running = [index for index, session in sessions.items() if _start_run(index, session, outcomes)]

        def on_finished(position: int, outcome: TrainingResult | Exception) -> None:
            index = running[position]
            if isinstance(outcome, Exception):
                outcomes[index] = outcome
                sessions[index].__exit__()
                return
            with _capture_error(outcomes, index):
                outcomes[index] = sessions[index].finish(outcome)

        if running:
            with stop:
                StackedTrainer([sessions[index].trainer for index in running]).train(stop, on_finished)
    return [outcomes[index] for index in range(len(recipes))]


def _check_stackable(recipes: Sequence[Recipe]) -> None:
    for recipe in recipes:
        if (reason := why_not_stacked(recipe)) is not None:
            raise UserError(f"stack: {reason}")
    if len({stack_key(recipe) for recipe in recipes}) > 1:
        raise UserError("stack: the runs may only differ in seed, optimizer, schedule, initialization and budget")


def _start_run(index: int, session: TrainingSession, outcomes: dict[int, TrainedRun | Exception]) -> bool:
    """Starts a run; returns False if there is nothing left to train, or if it failed."""
    with _capture_error(outcomes, index):
        if session.start():
            return True
        outcomes[index] = session.finish_untrained()
    return False


@contextlib.contextmanager
def _capture_error(outcomes: dict[int, TrainedRun | Exception], index: int) -> Iterator[None]:
    """Stores the error of one run as its outcome."""
    try:
        yield
    except Exception as error:
        outcomes[index] = error


def _find_dropout(spec: Any, path: str) -> str | None:
    """The path of the first setting `...dropout` above 0, or None."""
    for field in fields(spec):
        value, setting_path = getattr(spec, field.name), f"{path}{field.name}"
        if field.name.endswith("dropout") and value:
            return setting_path
        if is_dataclass(value) and (dropout_path := _find_dropout(value, f"{setting_path}.")) is not None:
            return dropout_path
    return None
