"""Dry runs: the estimated cost of training a recipe."""

import math
import time
from dataclasses import dataclass

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

MAX_TIMED_FLOPS = 3e10  # of a timed step on a CPU, about a second; larger steps are timed on some of their rows
MAX_TIMED_PARAMETERS = 500_000_000  # of a model whose steps are timed on a CPU: 8 GB with gradients and moments


@dataclass(frozen=True)
class TrainingEstimate:
    """Estimated cost of training, printed by `--dry-run`; FLOPs include padding, and tokens do not.

    `memory_bytes` is that of weights, and of gradients and two moments of those that are trained, in float32. The shape
    of the first batch is its number of rows and tokens, including those of an encoder. `seconds_per_step` is None for a
    model that is too large to time here.
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
        (rows, length), seconds = self.first_batch_shape, self.seconds_per_step
        spent = f"not measured: models above {MAX_TIMED_PARAMETERS:,} parameters are timed with device=cuda alone"
        if seconds is not None:
            total = format_duration(math.ceil(seconds / rows * self.num_examples))
            spent = f"{seconds * 1e3:,.1f} ms a step, about {total} for {self.num_steps:,} steps here"
        budget = f"{self.num_steps:,} steps, {self.num_examples:,} examples, about {self.num_tokens:,} tokens"
        lines = {
            "parameters": f"{self.num_parameters:,}",
            "memory": f"{format_bytes(self.memory_bytes)} (weights, gradients, moments), and activations",
            "first batch": f"{rows} rows x {length} tokens, {self.first_batch_targets} targets",
            "budget": f"{budget}, {self.passes}" if self.passes else budget,
            "compute": f"{format_flops(self.flops_per_step)} a step, about {format_flops(self.total_flops)} in all",
            "time": spent,
        }
        return "\n".join(f"{name:<17} {text}" for name, text in lines.items())


def dry_run(recipe: Recipe, *, num_timed_steps: int = 5) -> TrainingEstimate:
    """Builds everything, trains a few steps in memory, and estimates the cost of the full run. Writes nothing.

    Of pretrained weights only the configuration is needed: the timed model has random ones. On a CPU, a model with more
    than 500 million parameters is not timed. Raises `UserError` for a recipe that cannot be trained."""
    make_trackers(recipe.trackers)  # their packages are installed
    with World.connect(recipe.device) as world:
        set_threads(recipe.training.threads, None)
        trainer = _random_trainer(recipe, world, use_meta_device=recipe.model.is_hugging_face)
        seconds_per_step = _seconds_per_step(trainer, num_timed_steps)
        first_batch = trainer.stream.batch(0)
    budget, parameters, rows = trainer.budget, list(trainer.model.parameters()), len(first_batch.tokens.ids)
    return TrainingEstimate(
        num_parameters=sum(p.numel() for p in parameters),
        memory_bytes=sum((16 if p.requires_grad else 4) * p.numel() for p in parameters),
        flops_per_step=round(budget.flops_per_example * recipe.training.batch_size),
        total_flops=round(budget.flops_per_example * budget.total_examples),
        num_steps=budget.total_steps,
        num_examples=budget.total_examples,
        num_tokens=budget.total_tokens,
        seconds_per_step=seconds_per_step,
        first_batch_shape=(rows, num_total_tokens(first_batch) // rows),
        first_batch_targets=first_batch.counts["tokens"],
        passes=budget.passes,
    )


def _random_trainer(recipe: Recipe, world: World, *, use_meta_device: bool) -> Trainer:
    """The trainer of a recipe, with random weights in place of pretrained ones."""
    config = recipe.model.pretrained_config(recipe.tokenizer.build_vocabulary(recipe.task))
    return Trainer(recipe, world, pretrained_config=config, use_meta_device=use_meta_device)


def _seconds_per_step(trainer: Trainer, num_timed_steps: int) -> float | None:
    """The median time of a step of the first batch size; on a CPU of fewer rows, scaled, if it would take minutes."""
    recipe, is_cpu = trainer.recipe, trainer.world.device.type == "cpu"
    num_parameters = sum(p.numel() for p in trainer.model.parameters())
    if num_timed_steps == 0 or (is_cpu and num_parameters > MAX_TIMED_PARAMETERS):
        return None
    base_rows = recipe.training.base_batch_size
    rows = max(1, int(MAX_TIMED_FLOPS / trainer.budget.flops_per_example)) if is_cpu else base_rows
    if rows < base_rows:
        undivided = "gradient_accumulation_steps=1 micro_batch_size=null batch_size_warmup=0 initial_batch_size=null"
        settings = [f"batch_size={rows}", *undivided.split()]
        recipe = override(recipe, [f"training.{text}" for text in settings])
    if recipe is not trainer.recipe or recipe.model.is_hugging_face:
        trainer = _random_trainer(recipe, trainer.world, use_meta_device=False)
    trainer.model.train()
    times = []
    for _ in range(num_timed_steps):
        examples, start_time = trainer.state.examples, time.perf_counter()
        trainer.training_step(trainer.total_steps)
        if trainer.world.device.type == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start_time) * base_rows / (trainer.state.examples - examples))
    return sorted(times)[len(times) // 2]
