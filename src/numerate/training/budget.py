"""How long a run is: how much of its budget is used, and how many examples the next step takes."""

import math
from collections.abc import Iterator
from functools import cached_property

from numerate.batch import Batch, Model
from numerate.errors import UserError
from numerate.tasks.task import Task
from numerate.training.data_stream import BatchStream
from numerate.training.objective import ObjectiveModule
from numerate.training.recipe import Training
from numerate.training.training_state import TrainingState

_TOLERANCE = 1e-9
"""Tolerance within which a number counts as an integer."""


FLOP_PREFIXES = ("", "kilo", "mega", "giga", "tera", "peta", "exa", "zetta")


def format_flops(flops: float) -> str:
    """Floating-point operations with a unit: `format_flops(8e18)` is `"8.0 exaFLOP"`."""
    power = 0
    while flops >= 999.95 and power < len(FLOP_PREFIXES) - 1:
        flops, power = flops / 1000, power + 1
    return f"{flops:,.1f} {FLOP_PREFIXES[power]}FLOP"


class Budget:
    """The budget of a run, which ends at the first limit reached.

    A budget in tokens or FLOPs is converted to steps with the mean over the first window of data; the run ends when the
    actual use reaches the limit. Batches grow over the first `batch_size_warmup` of the budget, from
    `initial_batch_size` examples to `batch_size` in multiples of it: with m batch sizes, the n-th starts at (n - 1) / m
    of the warm-up. The position in the budget is the fraction of steps done; if batches grow and the budget is not in
    steps, it is the fraction of examples, since the cost of a step is then proportional to its size.
    """

    def __init__(
        self, training: Training, task: Task, stream: BatchStream, model: Model, objective: ObjectiveModule
    ) -> None:
        self.training, self.task, self.stream, self.model, self.objective = training, task, stream, model, objective
        self.max_multiple = training.batch_size // training.base_batch_size

    def fraction_used(self, state: TrainingState) -> float:
        """The fraction of the budget used, for schedules and batch size warm-up: from 0 to 1, or more."""
        if self._is_in_examples:
            return state.examples / self._estimated_examples
        return state.step / max(1, self.total_steps)

    def schedule_step(self, state: TrainingState) -> float:
        """The position in the schedule: the number of steps done, or if batches grow the fraction used x
        `total_steps`."""
        return self.fraction_used(state) * self.total_steps if self._is_in_examples else state.step

    def is_spent(self, state: TrainingState) -> bool:
        """Whether the budget is used up."""
        training = self.training
        limits = (
            *((state.step, training.steps), (state.tokens, training.tokens), (state.flops, training.flops)),
            (state.examples, self._max_examples),
        )
        return any(limit is not None and used >= limit for used, limit in limits)

    def batch_size_multiple(self, fraction_used: float) -> int:
        """The batch size as a multiple of `base_batch_size` at this point of the budget; 1 if batches do not grow.

        A warm-up from 512 to 8192 over 0.6 of the budget has the multiple 2 from 0.0375 (0.9 of 24 hours) on, 16 from
        0.5625.
        """
        warmup, largest = self.training.batch_size_warmup, self.max_multiple
        if fraction_used >= warmup:
            return largest
        return max(1, min(largest, math.ceil(largest * fraction_used / warmup - _TOLERANCE)))

    @cached_property
    def total_steps(self) -> int:
        """The total budget in optimizer steps; estimated for budgets in tokens and FLOPs; 0 if nothing is
        trained."""
        training = self.training
        if training.steps == 0:
            return 0
        if self.max_multiple > 1:
            return self._steps_for_examples(self._estimated_examples) if self._is_in_examples else training.steps or 1
        by_steps, by_examples = training.steps or math.inf, self._estimated_examples / training.batch_size
        return max(1, math.ceil(min(by_steps, by_examples)))

    @property
    def total_examples(self) -> int:
        """The total budget in examples, estimated for budgets in tokens and FLOPs."""
        if self.max_multiple == 1:
            return self.total_steps * self.training.batch_size
        in_examples = self._is_in_examples
        return math.ceil(self._estimated_examples) if in_examples else self._examples_for_steps(self.total_steps)

    @property
    def passes(self) -> str:
        """The epochs that the budget is, for a task with rows in files: `44.7 epochs of 358`; empty up to one."""
        num_rows = self.task.num_rows("train")
        epochs = self.total_examples / num_rows if num_rows else 0
        return f"{epochs:,.3g} epochs of {num_rows:,}" if epochs > 1 else ""

    @property
    def total_tokens(self) -> int:
        """The total budget in tokens, padding excluded, estimated from the first window."""
        return round(self.total_examples * self._tokens_per_batch / self.stream.batch_size)

    @cached_property
    def flops_per_example(self) -> float:
        """Floating-point operations of training on an example, padding included: the mean over the first window."""
        flops = [self.objective.flops(self.model, batch) for batch in self._first_window()]
        return float(sum(flops) / len(flops) / self.stream.batch_size)

    @cached_property
    def _tokens_per_batch(self) -> float:
        return sum(batch.num_input_tokens for batch in self._first_window()) / self.stream.window

    def _first_window(self) -> Iterator[Batch]:
        stream = self.stream
        return (stream.batch(number * stream.batch_size) for number in range(stream.window))

    @cached_property
    def _examples_per_epoch(self) -> int:
        epoch = self.task.num_questions()
        if epoch is None:
            raise UserError(
                f"training.epochs: must be null for {type(self.task).__name__}, whose number of questions is unknown; "
                "set training.steps instead"
            )
        return epoch

    @cached_property
    def _is_in_examples(self) -> bool:
        """Whether batches grow, and a limit other than `steps` ends the run."""
        if self.max_multiple == 1:
            return False
        steps = self.training.steps
        return steps is None or self._estimated_examples < self._examples_for_steps(steps)

    @cached_property
    def _max_examples(self) -> float:
        """The limit in examples and epochs; infinite if neither is set."""
        examples, epochs = self.training.examples, self.training.epochs
        in_epochs = math.inf if epochs is None else epochs * self._examples_per_epoch
        return min(math.inf if examples is None else examples, in_epochs)

    @cached_property
    def _estimated_examples(self) -> float:
        """The budget in examples, from all limits except steps."""
        training, num_examples = self.training, self._max_examples
        if training.tokens is not None:
            num_examples = min(num_examples, training.tokens / self._tokens_per_batch * self.stream.batch_size)
        if training.flops is not None:
            num_examples = min(num_examples, training.flops / self.flops_per_example)
        return num_examples

    def _examples_for_steps(self, steps: int) -> int:
        """The number of examples of `steps` steps if the batch size warm-up is in steps."""
        warmup, num_sizes = self.training.batch_size_warmup, self.max_multiple
        ends = (math.floor(warmup * n / num_sizes * steps + _TOLERANCE) + 1 for n in range(1, num_sizes))
        return self.training.base_batch_size * (num_sizes * steps - sum(min(end, steps) for end in ends))

    def _steps_for_examples(self, examples: float) -> int:
        """The number of steps of `examples` examples if the batch size warm-up is in examples."""
        seen, steps = 0, 0
        for n in range(1, self.max_multiple):
            size = n * self.training.base_batch_size
            end = self.training.batch_size_warmup * n / self.max_multiple * examples
            if seen <= end:
                num_steps = math.floor((end - seen) / size + _TOLERANCE) + 1
                num_steps = min(num_steps, math.ceil((examples - seen) / size))
                seen, steps = seen + num_steps * size, steps + num_steps
        return max(1, steps + max(0, math.ceil((examples - seen) / self.training.batch_size)))
