"""Dry runs: the estimated cost of training a recipe, and a small debug version of it."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from numerate.config import override
from numerate.integrations.trackers import make_trackers
from numerate.training.budget import format_flops
from numerate.training.data_stream import num_total_tokens
from numerate.training.disk import format_bytes
from numerate.training.distributed import World
from numerate.training.progress import format_duration
from numerate.training.recipe import Recipe
from numerate.training.trainer import Trainer, set_threads

MAX_TIMED_FLOPS = 3e10
"""Floating-point operations of a timed step on a CPU, about a second; larger steps are timed on some of their rows."""

MAX_TIMED_PARAMETERS = 500_000_000
"""Maximum number of weights of a model whose steps are timed on a CPU: 8 GB with gradients and moments."""


@dataclass(frozen=True)
class TrainingEstimate:
    """Estimated cost of training, printed by `--dry-run`.

    `memory_bytes` is in bytes (weights, and gradients and two moments of those that are trained, in float32),
    `flops_per_step` in floating-point operations of one full step (forward and backward, padding included),
    `total_flops` those of all `num_steps`, which take `num_examples` examples with `num_tokens` tokens (padding
    excluded, estimated from the first batches); `first_batch_shape` is the number of
    rows and tokens of the first step, including those of an encoder, `first_batch_targets` the number of target
    tokens. `seconds_per_step` is None for a model that is too large to time here.
    """

    num_parameters: int
    memory_bytes: int
    flops_per_step: int
    total_flops: int
    num_steps: int
    num_examples: int
    num_tokens: int
    seconds_per_step: float | None
    first_batch_shape: tuple[int, int]
    first_batch_targets: int
    passes: str = ""

    def __str__(self) -> str:
        rows, time = self.first_batch_shape
        sizes = [f"{self.num_steps:,} steps", f"{self.num_examples:,} examples", f"about {self.num_tokens:,} tokens"]
        budget = ", ".join(filter(None, [*sizes, self.passes]))
        return "\n".join(
            [
                f"parameters        {self.num_parameters:,}",
                f"memory            {format_bytes(self.memory_bytes)} (weights, gradients, moments), and activations",
                f"first batch       {rows} rows x {time} tokens, {self.first_batch_targets} targets",
                f"budget            {budget}",
                f"compute           {format_flops(self.flops_per_step)} a step, about "
                f"{format_flops(self.total_flops)} in all",
                f"time              {self._time()}",
            ]
        )

    def _time(self) -> str:
        if self.seconds_per_step is None:
            return (
                f"not measured: models above {MAX_TIMED_PARAMETERS:,} parameters are not timed on a CPU; use "
                "device=cuda"
            )
        total = format_duration(math.ceil(self.seconds_per_step / self.first_batch_shape[0] * self.num_examples))
        return f"{self.seconds_per_step * 1e3:,.1f} ms a step, about {total} for {self.num_steps:,} steps here"


def dry_run(recipe: Recipe, *, num_timed_steps: int = 5) -> TrainingEstimate:
    """Builds everything, trains a few steps in memory, and estimates the cost of the full run. Writes nothing.

    Of pretrained weights only the configuration is needed: the timed model has their sizes and random weights. On a
    CPU, parameters of a transformers model with more than `MAX_TIMED_PARAMETERS` weights are only counted, without
    allocating memory for them."""
    make_trackers(recipe.trackers)  # their packages are installed
    with World.connect(recipe.device) as world:
        set_threads(recipe.training.threads, None)
        timed_training = replace(recipe.training, log_every=10**9, evaluate_every=10**9, checkpoint_every=None)
        pretrained_config, count_only = _load_pretrained_config(recipe, world)
        trainer = Trainer(
            replace(recipe, training=timed_training),
            world,
            pretrained_config=pretrained_config,
            use_meta_device=count_only,
        )
        steps, budget = trainer.total_steps, trainer.budget
        first_batch = trainer.stream.batch(0)
        timed_trainer = trainer if count_only else _with_smaller_batches(trainer, world)
        timed_trainer.model.train()
        times = []
        for _ in range(0 if count_only else num_timed_steps):
            num_examples_before, start_time = timed_trainer.state.examples, time.perf_counter()
            timed_trainer.training_step(steps)
            if world.device.type == "cuda":
                torch.cuda.synchronize()
            batch_ratio = (timed_trainer.state.examples - num_examples_before) / recipe.training.base_batch_size
            times.append((time.perf_counter() - start_time) / batch_ratio)
    parameters = list(trainer.model.parameters())
    return TrainingEstimate(
        num_parameters=sum(p.numel() for p in parameters),
        memory_bytes=sum((16 if p.requires_grad else 4) * p.numel() for p in parameters),
        flops_per_step=round(budget.flops_per_example * recipe.training.batch_size),
        total_flops=round(budget.flops_per_example * budget.total_examples),
        num_steps=steps,
        num_examples=budget.total_examples,
        num_tokens=budget.total_tokens,
        seconds_per_step=sorted(times)[len(times) // 2] if times else None,
        first_batch_shape=(len(first_batch.tokens.ids), num_total_tokens(first_batch) // len(first_batch.tokens.ids)),
        first_batch_targets=first_batch.counts["tokens"],
        passes=budget.passes,
    )


def check_recipe(recipe: Recipe) -> None:
    """Raises the `UserError` of a recipe that cannot be trained, without loading pretrained weights."""
    make_trackers(recipe.trackers)
    vocabulary = recipe.tokenizer.build_vocabulary(recipe.task)
    with World.connect(recipe.device) as world:
        Trainer(recipe, world, pretrained_config=recipe.model.pretrained_config(vocabulary), use_meta_device=True)


def _with_smaller_batches(trainer: Trainer, world: World) -> Trainer:
    """The trainer, or one with fewer rows per step if a CPU would take minutes."""
    recipe, training = trainer.recipe, trainer.training
    flops = trainer.budget.flops_per_example * training.base_batch_size
    if world.device.type != "cpu" or flops <= MAX_TIMED_FLOPS:
        return trainer
    rows = max(1, int(training.base_batch_size * MAX_TIMED_FLOPS / flops))
    small_training = replace(
        training,
        batch_size=rows,
        batch_tokens=None,
        gradient_accumulation_steps=1,
        micro_batch_size=None,
        batch_size_warmup=0.0,
        initial_batch_size=None,
    )
    return Trainer(replace(recipe, training=small_training), world, pretrained_config=trainer.pretrained_config)


def _load_pretrained_config(recipe: Recipe, world: World) -> tuple[dict[str, Any] | None, bool]:
    """The configuration of a model of transformers without its weights, and whether it is too large to time a step."""
    if not recipe.model.is_hugging_face:
        return None, False
    vocabulary = recipe.tokenizer.build_vocabulary(recipe.task)
    pretrained_config = recipe.model.pretrained_config(vocabulary)
    if world.device.type != "cpu":
        return pretrained_config, False
    model = recipe.model.build_on_meta(vocabulary, recipe.seed, pretrained_config)
    return pretrained_config, sum(parameter.numel() for parameter in model.parameters()) > MAX_TIMED_PARAMETERS


def debug(recipe: Recipe, settings: Sequence[str] = ()) -> Recipe:
    """`preset=debug`: a short training of a small model, on one core unless the recipe sets `threads`, in a separate
    run.

    A decoder wider than 128 gets width 32 and at most 2 blocks and 2 loops; nothing is compiled. For language modeling
    rows are at most 64 tokens long, and `tiny_stories_2048` replaces a missing corpus if it is available. Of the
    `settings` that follow, `model.weights=null` is applied: a model without its weights is small, too.
    """
    recipe = override(recipe, [text for text in settings if text == "model.weights=null"])
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
    return replace(
        recipe,
        task=recipe.task.small(),
        model=recipe.model.small(),
        training=training,
        evaluation=evaluation,
        title=f"{recipe.title}-debug",
    )


def _small_grid(recipe: Recipe) -> str | None:
    """Two sizes of each axis, or one if there is only one."""
    spans, endless = recipe.task.training_spans().values(), recipe.task.has_ood_sizes
    return "x".join(f"{span.low}:{span.low + (endless or span.high > span.low)}" for span in spans) or None
