"""What training would take on a GPU that need not be there, and what a batch too large for a GPU should be instead."""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from numerate.batch import Batch
from numerate.errors import OperationalError, UserError, pluralize
from numerate.evaluation.evaluation_data import slice_rows
from numerate.executors.memory import is_on_gpu, out_of_memory_error
from numerate.training.budget import Budget, format_flops
from numerate.training.data_stream import BatchStream, StreamPosition, num_total_tokens
from numerate.training.disk import format_bytes
from numerate.training.distributed import World
from numerate.training.memory import StepMemory, num_row_tokens, step_memory
from numerate.training.peak_flops import GPU_NAMES, GPUS, find_gpu, resolve_matmul_precision
from numerate.training.progress import format_duration
from numerate.training.recipe import Recipe
from numerate.vocabulary import Vocabulary

UTILIZATIONS = (0.2, 0.4, 0.6)
"""Fractions of the peak FLOP/s at which the time is estimated: what training reaches, from small models to large."""

KERNEL_SECONDS = 5e-6
"""Time to launch a kernel: a step that is not compiled takes at least this for each of its operations."""


@dataclass(frozen=True)
class DeviceEstimate:
    """What training would take on a GPU, printed by `numerate train RECIPE --dry-run device=h100`.

    `gpu` is a name in `GPUS`, `peak_flops` its stated FLOP/s for the `precision` of matrix products. `memory` is that
    of a step with the largest micro-batch, of which a step has `num_micro_batches`; `smaller` that of the largest
    micro-batch that fits if this one does not, None if it does or none fits. FLOPs are those of a full step, of all
    steps, and per token (padding included).
    """

    gpu: str
    precision: str
    peak_flops: float
    num_parameters: int
    num_steps: int
    num_examples: int
    flops_per_step: int
    total_flops: int
    flops_per_token: float
    num_micro_batches: int
    memory: StepMemory
    smaller: StepMemory | None

    @property
    def fits(self) -> bool:
        """Whether the memory of the GPU is enough."""
        return self.memory.needed <= 1e9 * GPUS[self.gpu].memory

    def seconds(self, utilization: float) -> float:
        """The time of all steps at this fraction of the peak FLOP/s."""
        return self.total_flops / (utilization * self.peak_flops)

    @property
    def launch_seconds(self) -> float:
        """The time that launching the kernels of all steps takes at least, if they are not compiled."""
        return KERNEL_SECONDS * self.memory.num_kernels * self.num_examples / self.memory.batch_shape[0]

    def __str__(self) -> str:
        memory, (rows, time) = self.memory, self.memory.batch_shape
        by_part = dict(memory.activations)
        embeddings, head = (format_bytes(by_part.pop(name, 0)) for name in ("embeddings", "head, loss"))
        hours = [f"{format_duration(self.seconds(one))} at {one:.0%}" for one in UTILIZATIONS]
        lines = {
            "parameters": [f"{self.num_parameters:,}"],
            "budget": [f"{self.num_steps:,} steps, {self.num_examples:,} examples"],
            "compute": [
                f"{format_flops(self.flops_per_step)} a step, {format_flops(self.total_flops)} in all",
                f"{format_flops(self.flops_per_token)} a token",
            ],
            "largest batch": [f"{rows} rows x {time} tokens; micro-batches a step: {self.num_micro_batches}"],
            "weights, moments": [f"{format_bytes(memory.weights)}, {format_bytes(memory.moments)}"],
            "gradients": [format_bytes(memory.gradients)],
            "activations": [
                f"{format_bytes(sum(memory.activations.values()))}: {pluralize(len(by_part), 'block')} of up to "
                f"{format_bytes(max(by_part.values(), default=0))},",
                f"embeddings {embeddings}, head and loss {head}",
            ],
            "memory": [f"{format_bytes(memory.needed)} with CUDA and fragmentation", *self._verdict()],
            "peak": [f"{self.peak_flops / 1e12:g} TFLOP/s in {self.precision}, as stated for the {self.gpu}"],
            "time": [
                f"{', '.join(hours)} of that",
                f"{format_duration(self.launch_seconds)} or more for launching "
                f"{memory.num_kernels * self.num_micro_batches:,} kernels a step (eager)",
            ],
        }
        return "\n".join(
            f"{name * (at == 0):<18}{text}" for name, texts in lines.items() for at, text in enumerate(texts)
        )

    def _verdict(self) -> list[str]:
        there = f"{GPUS[self.gpu].memory:g} GB of one {self.gpu}"
        if self.fits:
            return [f"fits the {there}"]
        advice = "nor does one row at a time; training.parallel=fsdp shares it among GPUs"
        if self.smaller is not None:
            advice = (
                f"training.micro_batch_size={self.smaller.batch_shape[0]} needs {format_bytes(self.smaller.needed)}"
            )
        return [f"does not fit the {there}", advice]


def estimate_on_device(recipe: Recipe) -> DeviceEstimate:
    """What training would take on the GPU that `recipe.device` names, such as `h100`, from its data sheet, the recipe's
    data and a step on the meta device. Builds no weights, writes nothing.

    Raises `UserError` for a precision that the GPU lacks, `OperationalError` where the step needs values.
    """
    name, training = find_gpu(recipe.device), recipe.training
    if name is None:
        raise UserError(f"device: must be one of {GPU_NAMES}, not {recipe.device!r}")
    if training.precision == "auto":
        training = replace(training, precision="bf16" if GPUS[name].has_bf16 else "fp32")
        recipe = replace(recipe, training=training)
    precision = resolve_matmul_precision(training.precision, training.tf32, torch.device("cuda"))
    peak = GPUS[name].flops(precision)
    if peak is None:
        raise UserError(f"training.precision: must be fp16 or fp32 for device={recipe.device}, which has no bf16")
    sizes = RecipeSizes.from_recipe(recipe)
    memory = sizes.step_memory(sizes.longest)
    estimate = DeviceEstimate(
        gpu=name,
        precision=precision,
        peak_flops=peak,
        num_parameters=sizes.num_parameters,
        num_steps=sizes.budget.total_steps,
        num_examples=sizes.budget.total_examples,
        flops_per_step=round(sizes.budget.flops_per_example * training.batch_size),
        total_flops=round(sizes.budget.flops_per_example * sizes.budget.total_examples),
        flops_per_token=sizes.budget.flops_per_example / sizes.tokens_per_example,
        num_micro_batches=sizes.num_micro_batches,
        memory=memory,
        smaller=None,
    )
    return estimate if estimate.fits else replace(estimate, smaller=sizes.smaller(memory, 1e9 * GPUS[name].memory))


@dataclass(frozen=True)
class RecipeSizes:
    """The sizes of a recipe's steps on the device of each process: its budget, its longest micro-batch in the first
    window of data, and how many micro-batches a step of full size has."""

    recipe: Recipe
    vocabulary: Vocabulary
    pretrained_config: dict[str, object] | None
    budget: Budget
    num_parameters: int
    longest: Batch
    tokens_per_example: float
    num_micro_batches: int
    num_processes: int

    @classmethod
    def from_recipe(cls, recipe: Recipe, num_processes: int = 1) -> "RecipeSizes":
        training = recipe.training
        stream = BatchStream(
            recipe.task,
            recipe.tokenizer,
            recipe.layout,
            seed=recipe.seed,
            batch_size=training.base_batch_size,
            window=training.shuffle_window * (training.batch_size // training.base_batch_size),
        )
        return cls.from_stream(recipe, stream.vocabulary, stream, num_processes)

    @classmethod
    def from_stream(
        cls, recipe: Recipe, vocabulary: Vocabulary, stream: BatchStream, num_processes: int = 1
    ) -> "RecipeSizes":
        """The sizes of a recipe with this data."""
        training = recipe.training
        config = recipe.model.pretrained_config(vocabulary) if recipe.model.is_hugging_face else None
        model = recipe.model.build_on_meta(vocabulary, recipe.seed, config)
        batches = [stream.batch(StreamPosition(n * stream.batch_size)) for n in range(stream.window)]
        num_micro_batches = training.num_micro_batches(num_processes)
        rows = training.base_batch_size // (num_processes * num_micro_batches)
        longest = max(batches, key=num_row_tokens)
        return cls(
            recipe,
            vocabulary,
            config,
            Budget(training, recipe.task, stream, model, recipe.objective.build(vocabulary)),
            sum(parameter.numel() for parameter in model.parameters()),
            slice_rows(longest, slice(-rows, None)),  # rows are sorted by length
            sum(map(num_total_tokens, batches)) / (len(batches) * stream.batch_size),
            num_micro_batches * training.batch_size // training.base_batch_size,
            num_processes,
        )

    def step_memory(self, micro_batch: Batch) -> StepMemory:
        """The memory of a step with this micro-batch."""
        return step_memory(
            self.recipe,
            self.vocabulary,
            micro_batch,
            num_micro_batches=self.recipe.training.batch_size // (self.num_processes * len(micro_batch.tokens.ids)),
            pretrained_config=self.pretrained_config,
        )

    def smaller(self, memory: StepMemory, available: float) -> StepMemory | None:
        """The memory of a step with the largest smaller micro-batch that fits; None if none does."""
        rows, all_rows = memory.batch_shape[0], self.recipe.training.base_batch_size // self.num_processes
        one_row = self.step_memory(slice_rows(self.longest, slice(-1, None)))
        if rows == 1 or one_row.needed > available:
            return None
        per_row = (memory.needed - one_row.needed) / (rows - 1)
        for size in (size for size in range(rows - 1, 1, -1) if all_rows % size == 0):
            if one_row.needed + per_row * (size - 1) <= available:
                found = self.step_memory(slice_rows(self.longest, slice(-size, None)))
                if found.needed <= available:
                    return found
        return one_row


@contextlib.contextmanager
def explained_out_of_memory(device: torch.device, advice: Callable[[], str]) -> Iterator[None]:
    """Raises an `OperationalError` with advice on what needs less where a GPU is out of memory."""
    try:
        yield
    except Exception as error:
        cause = out_of_memory_error(error)
        if cause is None or not is_on_gpu(cause):
            raise
        size = total_memory(device)
        has = f" ({format_bytes(size)})" if size < math.inf else ""
        raise OperationalError(f"the GPU is out of memory{has}: {advice()}") from error


def batch_advice(recipe: Recipe, world: World) -> str:
    """The micro-batch with which a recipe, whose precision is resolved, needs less memory."""
    sizes = RecipeSizes.from_recipe(recipe, world.size)
    rows, available = len(sizes.longest.tokens.ids), total_memory(world.device)
    try:
        memory = sizes.step_memory(sizes.longest)
        # Where it should have fitted, something else is there too, or memory is fragmented.
        smaller = sizes.smaller(memory, available if memory.needed > available else math.inf)
    except OperationalError:  # it cannot be estimated
        return f"a training.micro_batch_size= below {rows} needs less, and resumes this run"
    needed = f"about {format_bytes(memory.needed)} are needed for {rows} rows at a time"
    if smaller is None:
        return f"{needed}; not even one row at a time fits; use a larger GPU or a smaller model"
    size, less = smaller.batch_shape[0], format_bytes(smaller.needed)
    return f"{needed}; training.micro_batch_size={size} would need about {less}, and resumes this run"


def total_memory(device: torch.device) -> float:
    """The memory of a GPU in bytes; infinite for another device."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else math.inf
