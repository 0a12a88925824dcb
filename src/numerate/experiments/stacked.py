"""Several runs of one shape trained as one model, each in its own folder."""

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from numerate.config import identity
from numerate.errors import UserError
from numerate.evaluation.evaluator import Evaluation
from numerate.experiments.start import Listener, Start, TrainedRun
from numerate.models.decoder import Decoder
from numerate.models.initialization import FanIn
from numerate.stacking.stacked_trainer import StackedTrainer
from numerate.text.models.numformer import Numformer
from numerate.text.models.pretrained import PretrainedDecoder
from numerate.text.models.t5 import T5
from numerate.text.tokenizers.subwords import Subwords
from numerate.tokenizers.layout import TokenClassification
from numerate.training import provenance
from numerate.training.distributed import World
from numerate.training.optimizer import AdamW
from numerate.training.recipe import Recipe, Training
from numerate.training.run_folder import runs_directory
from numerate.training.schedule import Constant
from numerate.training.stopping import Stop
from numerate.training.trainer import Outcome

SHAPE = ("batch_size", "precision", "threads")
"""Of the settings of training, those that runs of one stack have in common."""


def stack_key(recipe: Recipe) -> Hashable | None:
    """What runs that can be trained as one have in common; None for a run that cannot be stacked.

    They may differ in seed, initialisation, optimiser, schedule, budget, what is logged, evaluated and saved when, and
    in their names.
    """
    if why_not_stacked(recipe) is not None:
        return None
    model = recipe.model
    if isinstance(model, Decoder):
        model = replace(model, initialization=FanIn())
    same = Training(**{name: getattr(recipe.training, name) for name in SHAPE})
    plain = replace(
        recipe,
        seed=0,
        model=model,
        optimizer=AdamW(),
        schedule=Constant(),
        training=same,
        evaluation=Evaluation(),
        init_from=None,
        paper=None,
    )
    return identity(plain), recipe.device, recipe.training.threads


def why_not_stacked(recipe: Recipe) -> str | None:
    """Why a run cannot be trained in a stack, in words; None for one that can."""
    training = recipe.training
    if type(recipe.optimizer) is not AdamW:
        return f"optimizer: {type(recipe.optimizer).__name__} has no step for several models at once; AdamW has"
    if training.compile:
        return "training.compile: a stack is not compiled"
    if training.precision == "fp16":
        return "training.precision: each model would need a loss scale of its own; fp32 and bf16 need none"
    if recipe.optimizer.decay_parameters != "parts":
        return "optimizer.decay_parameters: the models of a stack decay in one way"
    if training.tf32:
        return "training.tf32: products of stacks stay in float32"
    if training.log_layer_grad_norms:
        return "training.log_layer_grad_norms: the layers of a stack are those of several models"
    if training.gradient_accumulation_steps > 1 or training.micro_batch_size is not None:
        return "training.gradient_accumulation_steps: a stack holds whole batches of all its models at once"
    if training.initial_batch_size is not None:
        return "training.initial_batch_size: batches that grow would have another size in each run"
    if recipe.trackers:
        return "trackers: a tracker follows one run of a process at a time"
    if recipe.device == "mps":
        return "device: mps is not tried with stacks; cpu and cuda are"
    if isinstance(recipe.layout, TokenClassification) and recipe.layout.blocked_tokens:
        return "layout.blocked_tokens: what is hidden is not stacked"
    if isinstance(recipe.tokenizer, Subwords) and recipe.tokenizer.number_format.carries:
        return "tokenizer.number_format: tokens that carry numbers are not stacked"
    if (where := _dropout(recipe, "")) is not None:
        return f"{where}: what is dropped is drawn for one model at a time; 0 drops nothing"
    if isinstance(recipe.model, Decoder):
        return recipe.model.mixer.why_not_stacked()
    if isinstance(recipe.model, T5 | PretrainedDecoder | Numformer):
        return f"model: a {type(recipe.model).__name__} is trained alone; a Decoder stacks"
    return None


def train_stacked(
    recipes: Sequence[Recipe],
    *,
    runs_dir: str | Path | None = None,
    listen: Callable[[int, str, Mapping[str, Any]], None] | None = None,
    say: Callable[[str], None] | None = None,
    stop: Stop | None = None,
    command: str | None = None,
) -> list[TrainedRun | Exception]:
    """Trains recipes with one `stack_key` as one model: for each what `train` gives, or the error that it raises.

    Every run has its folder, under its lock, as if it were trained alone, and either way of training resumes what the
    other started. An error of one run (a locked folder, a loss that is not finite) ends that one; the others continue.
    `listen` is called with the index of the run. Raises `UserError` for recipes that are not one stack, and whatever
    the step of all raises.
    """
    if not recipes:
        return []
    _refuse(recipes)
    runs, stop = runs_directory(runs_dir), stop or Stop()
    ended: dict[int, TrainedRun | Exception] = {}
    with World.joined(recipes[0].device) as world, contextlib.ExitStack() as resources:
        if world.size > 1:
            raise UserError("stack: a stack is trained by one process; several (torchrun) train one run at a time")
        found = provenance.provenance()
        starts: dict[int, Start] = {}
        for index, recipe in enumerate(recipes):
            with _kept(ended, index):
                start = Start(
                    recipe,
                    world,
                    runs,
                    shown=False,
                    listen=_about(index, listen),
                    on_message=say,
                    command=command,
                    found=found,
                )
                starts[index] = resources.enter_context(start)
        going = [index for index, start in starts.items() if _begun(index, start, ended)]

        def over(position: int, outcome: Outcome | Exception) -> None:
            index = going[position]
            if isinstance(outcome, Exception):
                ended[index] = outcome
                starts[index].__exit__()
                return
            with _kept(ended, index):
                ended[index] = starts[index].end(outcome)

        if going:
            with stop:
                StackedTrainer([starts[index].trainer for index in going]).train(stop, over)
    return [ended[index] for index in range(len(recipes))]


def _refuse(recipes: Sequence[Recipe]) -> None:
    for recipe in recipes:
        if (why := why_not_stacked(recipe)) is not None:
            raise UserError(f"stack: {why}")
    if len({stack_key(recipe) for recipe in recipes}) > 1:
        raise UserError("stack: the runs differ in more than seed, optimiser, schedule, initialisation and budget")


def _begun(index: int, start: Start, ended: dict[int, TrainedRun | Exception]) -> bool:
    """Starts a run; False where there is nothing to do, or it failed."""
    with _kept(ended, index):
        if start.begin():
            return True
        ended[index] = start.nothing()
    return False


@contextlib.contextmanager
def _kept(ended: dict[int, TrainedRun | Exception], index: int) -> Iterator[None]:
    """Stores the error of one run as its outcome."""
    try:
        yield
    except Exception as error:
        ended[index] = error


def _about(index: int, listen: Callable[[int, str, Mapping[str, Any]], None] | None) -> Listener | None:
    if listen is None:
        return None
    return lambda kind, record: listen(index, kind, record)


def _dropout(spec: Any, path: str) -> str | None:
    """Where something is dropped in training: the path of a setting `...dropout` above 0."""
    for field in fields(spec):
        value, where = getattr(spec, field.name), f"{path}{field.name}"
        if field.name.endswith("dropout") and value:
            return where
        if is_dataclass(value) and (found := _dropout(value, f"{where}.")) is not None:
            return found
    return None
