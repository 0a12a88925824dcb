"""Any function of logits and targets is a loss. The promises of losses run on that of docs/adding.md."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import numerate
from numerate.errors import UserError
from numerate.losses.cross_entropy import CrossEntropy
from promises import RAGGED, labelled_rows, output_everywhere


@numerate.wrap_loss
def each_target(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    return cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)


@numerate.wrap_loss
def mean_of_targets(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    return cross_entropy(logits, targets, label_smoothing=smoothing)


@numerate.wrap_loss
def faulty(logits: Tensor, targets: Tensor, result: str = "logits") -> Any:
    return logits if result == "logits" else 3.0


@pytest.mark.parametrize("spec", [each_target(smoothing=0.1), mean_of_targets(smoothing=0.1)])
def test_the_loss_of_each_target_or_their_mean_is_the_loss_of_torch(spec: Any, vocabulary: Any) -> None:
    logits, batch = labelled_rows(RAGGED)
    loss, expected = spec.build(vocabulary), CrossEntropy(label_smoothing=0.1).build(vocabulary)
    name = type(spec).__name__
    assert loss.counts(batch) == {name: 9}
    found = loss(output_everywhere(logits), batch)[name]
    torch.testing.assert_close(found, expected(output_everywhere(logits), batch)["cross_entropy"])


@pytest.mark.parametrize(("result", "told"), [("logits", r"a tensor of the shape \(9, 19\)"), ("number", "float")])
def test_anything_else_is_refused_with_what_is_right(result: str, told: str, vocabulary: Any) -> None:
    logits, batch = labelled_rows(RAGGED)
    message = f"^objective.loss: faulty must return the loss of each of the 9 targets, or their mean, not {told}$"
    with pytest.raises(UserError, match=message):
        faulty(result=result).build(vocabulary)(output_everywhere(logits), batch)
