"""How long a run is: how much of its budget is used, and how many examples the next step takes."""

import math
from functools import cached_property

from numerate.batch import Batch, Model, StepContext
from numerate.errors import UserError
from numerate.tasks.task import Task
from numerate.training.data_stream import Stream, StreamPosition
from numerate.training.objective import ObjectivePart
from numerate.training.recipe import Training
from numerate.training.training_state import TrainingState

_EDGE = 1e-9
"""Tolerance within which a number counts as whole."""


UNITS = ("", "kilo", "mega", "giga", "tera", "peta", "exa", "zetta")


def flop_text(flops: float) -> str:
    """Floating-point operations with a unit: `flop_text(8e18)` is `"8.0 exaFLOP"`."""
    power = 0
    while flops >= 999.95 and power < len(UNITS) - 1:
        flops, power = flops / 1000, power + 1
    return f"{flops:,.1f} {UNITS[power]}FLOP"


class Budget:
    """The budget of a run, which ends at the first limit reached.

    A budget in examples, tokens, passes or operations is estimated in steps by the mean over the first window of data;
    what ends the run is what was really used. Batches grow over the first `batch_size_warmup` of the budget, from
    `initial_batch_size` examples to `batch_size` in multiples of it: with m multiples to climb, the n-th starts at
    (n - 1) / m of the ramp. The position in the budget is the share of steps that are done, or, where batches grow and
    the budget is not one in steps, the share of examples: then the cost of a step is proportional to its size.
    """

    def __init__(self, training: Training, task: Task, stream: Stream, model: Model, objective: ObjectivePart) -> None:
        self.training, self.task, self.stream, self.model, self.objective = training, task, stream, model, objective
        self.most = training.batch_size // training.smallest

    # What is used --------------------------------------------------------------------------------------------------

    def used(self, spent: TrainingState) -> float:
        """The share of the budget that is used, for schedules and ramps: from 0 up to 1, or beyond."""
        if self._goes_by_examples:
            return spent.examples / self._examples
        return spent.step / max(1, self.steps)

    def position(self, spent: TrainingState) -> float:
        """The same in steps of `steps`: how many are done, unless batches grow."""
        return self.used(spent) * self.steps if self._goes_by_examples else spent.step

    def is_spent(self, spent: TrainingState) -> bool:
        """Whether the budget is used up."""
        training = self.training
        if training.tokens is not None and spent.tokens >= training.tokens:
            return True
        if training.flops is not None and spent.flops >= training.flops:
            return True
        most = math.inf if training.steps is None else training.steps
        return spent.step >= most or spent.examples >= self._known_examples

    # The size of a step --------------------------------------------------------------------------------------------

    def multiples(self, used: float) -> int:
        """How many times `initial_batch_size` examples a step takes at a place in the budget; 1 where batches do not
        grow.

        A ramp from 512 to 8192 over 0.6 of the budget has 2 multiples from 0.0375 (0.9 of 24 hours) on, 16 from 0.5625.
        """
        if used >= self.training.batch_size_warmup:
            return self.most
        return max(1, min(self.most, math.ceil(self.most * used / self.training.batch_size_warmup - _EDGE)))

    # How long it takes ---------------------------------------------------------------------------------------------

    @cached_property
    def steps(self) -> int:
        """The whole budget in optimiser steps: for tokens and operations an estimate; 0 where nothing is trained."""
        training = self.training
        if training.steps == 0:
            return 0
        if self.most > 1:
            return self._steps_for(self._examples) if self._goes_by_examples else training.steps or 1
        by_steps, by_examples = training.steps or math.inf, self._examples / training.batch_size
        return max(1, math.ceil(min(by_steps, by_examples)))

    @property
    def examples(self) -> int:
        """How many examples the whole budget takes: an estimate for budgets in tokens and operations."""
        if self.most == 1:
            return self.steps * self.training.batch_size
        return math.ceil(self._examples) if self._goes_by_examples else self._examples_of(self.steps)

    @cached_property
    def operations_per_example(self) -> float:
        """Floating-point operations of training on an example, padding included: the mean over the first window."""
        stream = self.stream
        batches = (stream.batch(StreamPosition(number * stream.batch_size)) for number in range(stream.window))
        return self._mean([self.objective.flops(self.model, batch) for batch in batches]) / stream.batch_size

    def flops_of(self, batch: Batch, draw: StepContext) -> int:
        """What a part of a step costs, padding included."""
        return self.objective.flops(self.model, batch, draw)

    @cached_property
    def _tokens_per_batch(self) -> float:
        stream = self.stream
        return self._mean([stream.batch(StreamPosition(n * stream.batch_size)).real for n in range(stream.window)])

    @staticmethod
    def _mean(values: list[int]) -> float:
        return sum(values) / len(values)

    @cached_property
    def _epoch(self) -> int:
        epoch = self.task.space()
        if epoch is None:
            raise UserError(
                f"training.epochs: {type(self.task).__name__} does not say how many different questions it has, so "
                "there are no epochs; training.steps would do"
            )
        return epoch

    # Growing batches -----------------------------------------------------------------------------------------------

    @cached_property
    def _goes_by_examples(self) -> bool:
        """Whether batches grow over a budget that something else than steps ends first."""
        if self.most == 1:
            return False
        steps = self.training.steps
        return steps is None or self._examples < self._examples_of(steps)

    @cached_property
    def _known_examples(self) -> float:
        """The budget in examples and passes; infinite where it is neither."""
        training, infinite = self.training, math.inf
        examples = infinite if training.examples is None else training.examples
        return min(examples, infinite if training.epochs is None else training.epochs * self._epoch)

    @cached_property
    def _examples(self) -> float:
        """The budget in examples, whatever it was given in, but for steps."""
        training, found = self.training, self._known_examples
        if training.tokens is not None:
            found = min(found, training.tokens / self._tokens_per_batch * self.stream.batch_size)
        if training.flops is not None:
            found = min(found, training.flops / self.operations_per_example)
        return found

    def _examples_of(self, steps: int) -> int:
        """How many examples so many steps take where the ramp goes by steps."""
        ends = [
            math.floor(self.training.batch_size_warmup * n / self.most * steps + _EDGE) + 1 for n in range(1, self.most)
        ]
        return self.training.smallest * (self.most * steps - sum(min(end, steps) for end in ends))

    def _steps_for(self, examples: float) -> int:
        """How many steps so many examples take where the ramp goes by examples."""
        seen, steps = 0, 0
        for n in range(1, self.most):
            size, end = n * self.training.smallest, self.training.batch_size_warmup * n / self.most * examples
            if seen <= end:
                here = min(math.floor((end - seen) / size + _EDGE) + 1, math.ceil((examples - seen) / size))
                seen, steps = seen + here * size, steps + here
        return max(1, steps + max(0, math.ceil((examples - seen) / self.training.batch_size)))
