"""Any function of logits and targets as a loss."""

from abc import ABC
from collections.abc import Callable, Mapping
from typing import Concatenate, ParamSpec

from torch import Tensor

from numerate.batch import IGNORE_INDEX, Batch, Output
from numerate.config.function_specs import FunctionSpec, spec_from_function
from numerate.errors import UserError
from numerate.losses.loss import Loss, LossModule
from numerate.vocabulary import Vocabulary

Settings = ParamSpec("Settings")


def wrap_loss(function: Callable[Concatenate[Tensor, Tensor, Settings], Tensor]) -> Callable[Settings, Loss]:
    """Makes a loss of a function of logits (targets x vocabulary, float32) and target ids. Its other arguments are
    settings.

        @numerate.wrap_loss
        def focal(logits: Tensor, targets: Tensor, gamma: float = 2.0) -> Tensor:
            each = cross_entropy(logits, targets, reduction="none")
            return (1 - (-each).exp()) ** gamma * each

        recipe = Recipe(objective=Supervised(loss=focal(gamma=1.0)))

    It returns the loss of each target, or their mean: positions without a label are left out before. The loss of a
    batch is the mean over all its targets, however the batch is divided. A loss that needs more than that, such as the
    values of tokens, derives from `Loss`.

    Raises `UserError` for what has no name, and for a setting without a default.
    """
    spec: Callable[Settings, Loss] = spec_from_function(function, WrappedLoss, "wrap_loss", ["logits", "targets"])
    return spec


class WrappedLoss(Loss, FunctionSpec, ABC):
    """The base of specs that `wrap_loss` makes."""

    def build(self, vocabulary: Vocabulary) -> "WrappedLossModule":
        return WrappedLossModule(type(self).__name__, self.call_function)


class WrappedLossModule(LossModule):
    """A function as a loss; its only term has the name of the function."""

    def __init__(self, name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.name, self.function = name, function
        self.weights: Mapping[str, float] = {name: 1.0}

    def counts(self, batch: Batch) -> dict[str, int]:
        return {self.name: batch.counts["tokens"]}

    def forward(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        targets = batch.targets_for(output).flatten()
        # Those with a label first: a mask as an index would wait for the device.
        index = (targets == IGNORE_INDEX).int().argsort(stable=True)[: batch.counts["tokens"]]
        logits, targets = output.logits.flatten(0, 1)[index].float(), targets[index]
        loss = self.function(logits, targets)
        if not isinstance(loss, Tensor) or loss.shape not in ((), targets.shape):
            found = f"a tensor of the shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise UserError(
                f"objective.loss: {self.name} must return the loss of each of the {len(targets)} targets, or their "
                f"mean, not {found}"
            )
        return {self.name: loss.sum() if loss.dim() else loss * len(targets)}
