"""The recipe of a run: the spec of each component, and the training settings."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from numerate.batch import ModelSpec
from numerate.config import Spec, setting
from numerate.config.display import spec_text
from numerate.errors import UserError
from numerate.evaluation.evaluator import Evaluation
from numerate.models.decoder import Decoder
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.task import Task
from numerate.tokenizers.layout import Continuation, Layout
from numerate.tokenizers.tokenizer import Characters, Tokenizer
from numerate.training.objective import Objective, Supervised
from numerate.training.optimizer import AdamW, Optimizer
from numerate.training.samples import Samples
from numerate.training.schedule import Schedule, WarmupStableDecay

BUDGETS = ("steps", "examples", "tokens", "flops", "epochs")


@dataclass(frozen=True)
class Training(Spec):
    """Training settings: budget, batch size, precision, parallelism, logging and checkpoints.

    The run ends when the first of `steps`, `examples`, `tokens`, `flops` and `epochs` is reached; `minutes` is a time
    limit, on which the schedule does not depend. With `steps=0` the initial model, such as pretrained weights, is
    evaluated and saved as the checkpoint of step 0. FLOPs are those of the forward and backward passes of whole rows,
    padding included: a backward pass counts as two forward passes; loops without a gradient have none.
    """

    steps: int | None = setting(
        1000, "budget: optimizer steps; 0: no training", at_least=0, at_most=10**15, in_run_id=False
    )
    examples: int | None = setting(None, "budget: examples", above=0, in_run_id=False)
    tokens: int | None = setting(None, "budget: input tokens without padding", above=0, in_run_id=False)
    flops: float | None = setting(None, "budget: floating-point operations, such as 8e18", above=0, in_run_id=False)
    epochs: float | None = setting(None, "budget: epochs over a finite dataset", above=0, at_most=1e9, in_run_id=False)
    minutes: float | None = setting(
        None, "time limit of one invocation of the command, in minutes", above=0, in_run_id=False
    )
    target_accuracy: float | None = setting(
        None, "stop at this accuracy on the validation split", above=0, at_most=1, in_run_id=False
    )
    batch_size: int = setting(
        64,
        "examples per optimizer step, over all processes and accumulated micro-batches",
        at_least=1,
        at_most=2**24,
    )
    batch_size_warmup: float = setting(
        0.0,
        "fraction of the budget over which the batch size grows from initial_batch_size; 0: none",
        at_least=0,
        at_most=1,
    )
    initial_batch_size: int | None = setting(
        None,
        "with batch_size_warmup: first batch size, and the increment by which it grows to batch_size",
        at_least=1,
    )
    batch_tokens: int | None = setting(
        None,
        "language modeling: batch size in tokens (a multiple of task.context_length) instead of batch_size",
        at_least=1,
    )
    gradient_accumulation_steps: int = setting(1, "micro-batches per optimizer step", at_least=1)
    micro_batch_size: int | None = setting(
        None,
        "examples per micro-batch and process, for less memory; null: those by gradient_accumulation_steps",
        at_least=1,
        in_run_id=False,
    )
    shuffle_window: int = setting(
        64,
        "batches drawn together: sorted by length, split into batches, the batches shuffled; 1: not sorted",
        at_least=1,
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto",
        "precision of the forward pass; auto: bf16 on a CUDA device that has it, else fp32, and when resuming what the "
        "run started with; fp16 scales the loss and needs a GPU",
    )
    tf32: bool = setting(False, "whether CUDA rounds float32 matrix products to TF32, which is much faster")
    compile: bool = setting(False, "whether forward pass and loss are compiled by torch.compile")
    parallel: Literal["all_reduce", "ddp", "fsdp"] = setting(
        "all_reduce",
        "several processes: one all-reduce in a fixed order (all_reduce), DDP (ddp), or FSDP2, sharded weights (fsdp)",
        in_run_id=False,
    )
    threads: int | None = setting(
        None, "CPU threads; null: all cores, or the previous number when resuming", at_least=1, in_run_id=False
    )
    log_every: int = setting(25, "steps between log lines", at_least=1, in_run_id=False)
    evaluate_every: int = setting(
        250, "steps between evaluations on the validation splits", at_least=1, in_run_id=False
    )
    evaluate_at_start: bool = setting(False, "whether the initial model is evaluated, and saved, too", in_run_id=False)
    log_layer_grad_norms: bool = setting(False, "whether gradient norms are logged per layer too", in_run_id=False)
    checkpoint_every: int | None = setting(500, "steps between checkpoints", at_least=1, in_run_id=False)
    checkpoint_minutes: float | None = setting(
        10, "also save after this many minutes, if checkpoint_every has not come first", above=0, in_run_id=False
    )
    keep_checkpoints: int | None = setting(
        2, "checkpoints kept besides the best; null: all", at_least=1, in_run_id=False
    )
    best_metric: Literal["accuracy", "loss"] | None = setting(
        None,
        "validation metric that selects the best checkpoint; null: accuracy, or loss for language modeling and for "
        "number tokens that carry a value (xVal)",
        in_run_id=False,
    )

    def conflicts(self) -> Iterator[str]:
        if all(getattr(self, budget) is None for budget in BUDGETS):
            yield "steps: a run needs a budget: steps, examples, tokens, flops or epochs"
        warmup, initial = self.batch_size_warmup, self.initial_batch_size
        if initial is None and warmup:
            what = "requires initial_batch_size, the number of examples of the first steps (published: 512)"
            yield f"batch_size_warmup: {warmup} {what}"
        if initial is not None and not warmup:
            yield f"initial_batch_size: must be null without batch_size_warmup (published: 0.6), not {initial}"
        if initial is not None and self.batch_size % initial:
            yield f"initial_batch_size: must divide batch_size={self.batch_size}, not {initial}"
        if self.batch_tokens is not None:  # `Recipe` converts it to examples
            return
        for name in ("gradient_accumulation_steps", "micro_batch_size"):
            if self.base_batch_size % (getattr(self, name) or 1):
                yield f"{name}: must divide the {self.base_batch_size} examples of a batch, not {getattr(self, name)}"

    def num_micro_batches(self, world_size: int) -> int:
        """Number of micro-batches per process of a batch of `base_batch_size`.

        >>> Training(batch_size=512, micro_batch_size=16).num_micro_batches(8)
        4

        Raises `UserError` if the examples cannot be divided equally among them.
        """
        size, accumulated = self.micro_batch_size, self.gradient_accumulation_steps
        if self.base_batch_size % (world_size * (size or accumulated)):
            name = "batch_size" if self.initial_batch_size is None else "initial_batch_size"
            how = f"{world_size} processes x {accumulated} micro-batches"
            how = how if size is None else f"micro-batches of {size} on {world_size} processes"
            raise UserError(f"training.{name}: {self.base_batch_size} examples must divide equally into {how}")
        return accumulated if size is None else self.base_batch_size // (world_size * size)

    @property
    def base_batch_size(self) -> int:
        """The unit in which the batch size grows: `initial_batch_size`, or `batch_size` if it does not grow."""
        return self.initial_batch_size if self.initial_batch_size is not None else self.batch_size


@dataclass(frozen=True)
class Tracking(Spec):
    """Project, entity and tags for experiment trackers."""

    project: str | None = setting(None, "project; null: WANDB_PROJECT, else numerate", in_run_id=False)
    entity: str | None = setting(None, "wandb user or team; null: WANDB_ENTITY", in_run_id=False)
    tags: tuple[str, ...] = setting((), "tags", in_run_id=False)


@dataclass(frozen=True, repr=False)
class Recipe(Spec):
    """The full description of a run: `numerate.train(Recipe(...))`, `numerate show RECIPE`."""

    task: Task = setting(Arithmetic(), "the data: questions with answers, or text")
    tokenizer: Tokenizer = setting(Characters(), "converts text into token ids")
    layout: Layout = setting(Continuation(), "how question and answer become model inputs and targets")
    model: ModelSpec = setting(Decoder(), "the model architecture")
    objective: Objective = setting(Supervised(), "the training objective: its forward passes and its loss")
    optimizer: Optimizer = setting(AdamW(), "the optimizer")
    schedule: Schedule = setting(WarmupStableDecay(), "the learning rate schedule")
    training: Training = setting(Training(), "budget, batch size, precision, checkpoints")
    evaluation: Evaluation = setting(Evaluation(), "what is evaluated, and on how many examples")
    samples: Samples = setting(Samples(), "texts generated during training", in_run_id=False)
    seed: int = setting(0, "seed of weights, data, position offsets and dropout", at_least=0, at_most=2**63 - 1)
    init_from: str | None = setting(None, "another run to take the initial weights from: path, id, name or latest")
    device: str = setting("auto", "cpu, cuda, cuda:1, mps; auto: CUDA if available", in_run_id=False)
    name: str | None = setting(None, "name by which the run can be loaded", in_run_id=False)
    group: str | None = setting(None, "a label shared by several runs", in_run_id=False)
    trackers: tuple[str, ...] = setting(
        (), "experiment trackers: wandb, tensorboard, trackio; files are always written", in_run_id=False
    )
    tracking: Tracking = setting(Tracking(), "project, entity and tags for the trackers", in_run_id=False)
    title: str = setting("recipe", "name of the recipe, and of the folder of its runs", in_run_id=False)
    paper: str | None = setting(None, "key of the paper that it is based on, cited below; null: none", in_run_id=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "training", self._resolve_batch_tokens())

    def conflicts(self) -> Iterator[str]:
        if self.name is not None and (not self.name.strip() or self.name == "latest" or {"/", "\\"} & set(self.name)):
            yield f"name: must not be empty, `latest` or contain a slash, not {self.name!r}; null: no name"

    def __repr__(self) -> str:
        return spec_text(self, f"Recipe {self.title}")

    def _resolve_batch_tokens(self) -> Training:
        """The training settings with `batch_tokens` converted to `batch_size`."""
        tokens, context = self.training.batch_tokens, getattr(self.task, "context_length", None)
        if tokens is None:
            return self.training
        if not self.task.is_language_modeling or not isinstance(context, int):
            raise UserError(
                f"training.batch_tokens: must be null for {type(self.task).__name__}, whose examples differ in length; "
                "set training.batch_size instead"
            )
        if tokens % context:
            raise UserError(f"training.batch_tokens: must be a multiple of context_length={context}, not {tokens}")
        return replace(self.training, batch_size=tokens // context, batch_tokens=None)
