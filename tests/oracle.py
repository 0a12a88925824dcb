"""A model whose answers a test chooses; and rows of prompts and of answers."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import one_hot

from numerate.batch import IGNORE_INDEX, Batch, Model, Output, Tokens
from numerate.evaluation.generate import GenerationOutput


def row_of(prompts: Tokens, row: int) -> Tokens:
    """A row alone, without padding."""
    length, one = int(prompts.lengths[row]), slice(row, row + 1)
    return Tokens(prompts.ids[one, :length], prompts.lengths[one], prompts.example_indices[one])


def generated_rows(generated: GenerationOutput) -> list[list[int]]:
    """The ids of each row up to its end."""
    return [row[: int(length)].tolist() for row, length in zip(generated.ids, generated.lengths, strict=True)]


class Oracle(Model):
    """Says at every label of a batch what `spoil` makes of the row, the label's number and the right token."""

    def __init__(self, batch: Batch, vocabulary_size: int, spoil: Callable[[int, int, int], int]) -> None:
        super().__init__()
        self.size, self.answers = vocabulary_size, torch.ones_like(batch.targets)
        self.weight = torch.nn.Parameter(torch.zeros(1))
        for row, targets in enumerate(batch.targets):
            for place, position in enumerate((targets != IGNORE_INDEX).nonzero().flatten().tolist()):
                self.answers[row, position] = spoil(row, place, int(targets[position]))

    def assign_positions(self, tokens: Tokens, step_context: Any) -> Tokens:
        return tokens

    def forward(self, tokens: Tokens, source: Any = None, *, loops: Any = None, target_positions: Any = None) -> Output:
        predictions = one_hot(self.answers.gather(1, target_positions), self.size).float()
        return Output(predictions, lambda hidden: hidden, target_positions=target_positions)

    def prefill(self, *given: Any, **more: Any) -> Any:
        raise NotImplementedError

    step = check_tokens = num_position_offsets = optimizer_options_by_parameter = flops = prefill
