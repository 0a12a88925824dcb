"""Dry runs: the estimated cost of training a recipe, and a small debug version of it."""

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from numerate.architectures.dual_attention import DualAttention
from numerate.batch import ModelSpec
from numerate.errors import UserError
from numerate.experiments.start import set_threads
from numerate.mixers.attention import Attention
from numerate.models.backbone import Loop, Stack
from numerate.models.decoder import Decoder
from numerate.tasks.language_modeling import LanguageModeling, located
from numerate.tasks.task import Task
from numerate.text.models.hugging_face import HuggingFaceSpec
from numerate.text.models.numformer import Numformer
from numerate.text.models.t5 import T5
from numerate.text.tasks.corpus_presets import presets
from numerate.training.budget import flop_text
from numerate.training.data_stream import StreamPosition, places_of
from numerate.training.distributed import World
from numerate.training.progress import duration
from numerate.training.recipe import Recipe
from numerate.training.trainer import Trainer

MOST_AT_ONCE = 3e10
"""Floating-point operations of a timed step on a CPU, about a second; larger steps are timed on some of their rows."""

MOST_TRIED = 500_000_000
"""Maximum number of weights of a model whose steps are timed on a CPU: 8 GB with gradients and moments."""


@dataclass(frozen=True)
class TrainingEstimate:
    """Estimated cost of training, printed by `--dry-run`.

    `memory` is in bytes (weights, gradients and two moments in float32), `flops` in floating-point operations of
    one full step (forward and backward, padding included), `total_operations` those of all `steps`, which take
    `examples` examples; `batch` is in rows and tokens of the first step, those of an encoder among them, `targets` in
    tokens. `seconds_per_step` is None for a model that is too large to time here.
    """

    parameters: int
    memory: int
    flops: int
    total_operations: int
    steps: int
    examples: int
    seconds_per_step: float | None
    batch: tuple[int, int]
    targets: int

    def __str__(self) -> str:
        rows, time = self.batch
        return "\n".join(
            [
                f"parameters        {self.parameters:,}",
                f"weights, moments  {self.memory / 1e6:,.1f} MB (and activations)",
                f"first batch       {rows} rows x {time} tokens, {self.targets} targets",
                f"budget            {self.steps:,} steps, {self.examples:,} examples",
                f"arithmetic        {flop_text(self.flops)} a step, {flop_text(self.total_operations)} in all",
                f"time              {self._time()}",
            ]
        )

    def _time(self) -> str:
        if self.seconds_per_step is None:
            return f"not measured: above {MOST_TRIED:,} weights no step is tried on a CPU; device=cuda tries some"
        total = duration(math.ceil(self.seconds_per_step / self.batch[0] * self.examples))
        return f"{self.seconds_per_step * 1e3:,.1f} ms a step, about {total} for {self.steps:,} steps here"


def dry_run(recipe: Recipe, *, trials: int = 5) -> TrainingEstimate:
    """Builds everything, trains a few steps in memory, and estimates the cost of the whole. Writes nothing.

    Of pretrained weights only the configuration is needed: the timed model has their sizes and random weights. A
    model of transformers with more than `MOST_TRIED` weights is only counted on a CPU, without memory for them."""
    with World.joined(recipe.device) as world:
        set_threads(recipe.training.threads, None)
        short = replace(recipe.training, log_every=10**9, evaluate_every=10**9, checkpoint_every=None)
        origin, counting = _pretrained_origin(recipe, world)
        trainer = Trainer(replace(recipe, training=short), world, origin=origin, counting=counting)
        steps, budget = trainer.steps, trainer.budget
        first = trainer.stream.batch(StreamPosition())
        tried = trainer if counting else _in_small(trainer, world)
        tried.model.train()
        times = []
        for _ in range(0 if counting else trials):
            seen, began = tried.progress.examples, time.perf_counter()
            tried.one_step(steps)
            if world.device.type == "cuda":
                torch.cuda.synchronize()
            grown = (tried.progress.examples - seen) / recipe.training.smallest
            times.append((time.perf_counter() - began) / grown)
    parameters = sum(p.numel() for p in trainer.model.parameters())
    return TrainingEstimate(
        parameters=parameters,
        memory=4 * 4 * parameters,
        flops=round(budget.operations_per_example * recipe.training.batch_size),
        total_operations=round(budget.operations_per_example * budget.examples),
        steps=steps,
        examples=budget.examples,
        seconds_per_step=sorted(times)[len(times) // 2] if times else None,
        batch=(len(first.tokens.ids), places_of(first) // len(first.tokens.ids)),
        targets=first.counts["tokens"],
    )


def _in_small(trainer: Trainer, world: World) -> Trainer:
    """The trainer, or one with fewer rows per step where a CPU would take minutes."""
    recipe, training = trainer.recipe, trainer.training
    flops = trainer.budget.operations_per_example * training.smallest
    if world.device.type != "cpu" or flops <= MOST_AT_ONCE:
        return trainer
    rows = max(1, int(training.smallest * MOST_AT_ONCE / flops))
    few = replace(
        training,
        batch_size=rows,
        batch_tokens=None,
        gradient_accumulation_steps=1,
        micro_batch_size=None,
        batch_size_warmup=0.0,
        initial_batch_size=None,
    )
    return Trainer(replace(recipe, training=few), world, origin=trainer.origin)


def _pretrained_origin(recipe: Recipe, world: World) -> tuple[dict[str, Any] | None, bool]:
    """The configuration of a model of transformers without its weights, and whether it is too large to time a step."""
    if not isinstance(recipe.model, HuggingFaceSpec):
        return None, False
    vocabulary = recipe.tokenizer.build_vocabulary(recipe.task)
    origin = recipe.model.origin(vocabulary)
    if world.device.type != "cpu":
        return origin, False
    model = recipe.model.build_on_meta(vocabulary, recipe.seed, origin)
    return origin, sum(parameter.numel() for parameter in model.parameters()) > MOST_TRIED


def debug(recipe: Recipe) -> Recipe:
    """`preset=debug`: a few steps of everything, small, on one core unless the recipe says more, in a run of its own.

    A decoder wider than 128 gets width 32 and at most 2 blocks and 2 loops; nothing is compiled. Of running
    text rows are at most 64 tokens long, and where it is not there `tiny_stories_2048` is read if that is.
    """
    training = replace(
        recipe.training,
        steps=6,
        examples=None,
        tokens=None,
        flops=None,
        epochs=None,
        batch_size=8 * recipe.training.gradient_accumulation_steps,
        micro_batch_size=None if recipe.training.micro_batch_size is None else 4,
        compile=False,
        initial_batch_size=None
        if recipe.training.initial_batch_size is None
        else 4 * recipe.training.gradient_accumulation_steps,
        shuffle_window=4,
        log_every=2,
        evaluate_every=3,
        checkpoint_every=3,
        threads=recipe.training.threads or 1,
    )
    evaluation = replace(
        recipe.evaluation,
        grid=_small_grid(recipe),
        examples_per_cell=8,
        validation_examples=16,
        validation_batches=None,
        chunks=8,
    )
    model = _small_model(recipe.model)
    task, title = _small_task(recipe.task), f"{recipe.title}-debug"
    return replace(recipe, task=task, model=model, training=training, evaluation=evaluation, title=title)


def _small_task(task: Task) -> Task:
    if not isinstance(task, LanguageModeling):
        return task
    small = presets()["tiny_stories_2048"]
    assert isinstance(small, LanguageModeling)
    if not _is_there(task) and _is_there(small):
        task = replace(small, order=task.order)
    return replace(task, context_length=min(task.context_length, 64))


def _is_there(task: LanguageModeling) -> bool:
    try:
        return all(located(name) is not None for name in (task.train, task.validation) if name is not None)
    except UserError:
        return False


def _small_model(model: ModelSpec) -> ModelSpec:
    if isinstance(model, T5) and model.weights is None:
        return replace(
            model, hidden_size=32, num_layers=1, num_decoder_layers=1, num_heads=2, head_dim=16, intermediate_size=64
        )
    if isinstance(model, Numformer):
        return replace(model, hidden_size=32, num_layers=1, num_heads=2, intermediate_size=64)
    if not isinstance(model, Decoder) or model.hidden_size <= 128:
        return model
    trunk, mixer = model.backbone, model.mixer
    if isinstance(trunk, Stack | Loop):
        trunk = replace(trunk, num_layers=min(trunk.num_layers, 2))
    if isinstance(trunk, Loop):
        trunk = replace(trunk, num_loops=min(trunk.num_loops, 2))
    if isinstance(mixer, Attention):
        mixer = replace(mixer, num_heads=4)
    if isinstance(mixer, DualAttention):
        own, other = 2 * bool(mixer.num_self_heads), 2 * bool(mixer.num_relational_heads)
        few = replace(mixer, num_self_heads=own, num_relational_heads=other, num_key_value_heads=None)
        mixer = replace(few, num_relations=None, relation_dim=None)
    fed = model.feed_forward if model.feed_forward is None else replace(model.feed_forward, intermediate_size=None)
    return replace(model, hidden_size=32, backbone=trunk, mixer=mixer, feed_forward=fed)


def _small_grid(recipe: Recipe) -> str | None:
    """Two sizes of each axis, or one where there is no other."""
    spans, endless = recipe.task.trained().values(), recipe.task.endless
    return "x".join(f"{span.low}:{span.low + (endless or span.high > span.low)}" for span in spans) or None
