"""A model whose answers a test chooses; decoding without a cache; and rows of prompts and of answers."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import one_hot

from numerate.batch import IGNORE_INDEX, Batch, Model, Output, StepContext, Tokens
from numerate.evaluation.generate import GenerationOutput
from numerate.vocabulary import EOS


def row_of(prompts: Tokens, row: int) -> Tokens:
    """A row alone, without padding."""
    length, one = int(prompts.lengths[row]), slice(row, row + 1)
    return Tokens(prompts.ids[one, :length], prompts.lengths[one], prompts.example_indices[one])


def generated_rows(generated: GenerationOutput) -> list[list[int]]:
    """The ids of each row up to its end."""
    return [row[: int(length)].tolist() for row, length in zip(generated.ids, generated.lengths, strict=True)]


@torch.no_grad()
def read_again(
    model: Any, prompts: Tokens, most: int, source: Tokens | None = None, position_offset: int = 0, end_id: int = EOS
) -> tuple[list[list[int]], list[float], list[Any]]:
    """Greedy decoding that reads everything again for every token: the ids of each row up to its end, with their
    log-probability, and the numbers predicted at each place."""
    tokens, rows = prompts, torch.arange(len(prompts.ids))
    ids, log_probabilities, numbers = [list[int]() for _ in rows], [0.0 for _ in rows], []
    for _ in range(most):
        output = model(model.assign_positions(tokens, StepContext.for_evaluation(position_offset)), source)
        scores, new_ids = output.logits[rows, tokens.lengths - 1].log_softmax(-1).max(-1)
        predicted = output.number_predictions
        numbers.append(None if predicted is None else predicted[rows, tokens.lengths - 1])
        for row, own in enumerate(ids):
            if own[-1:] != [end_id]:
                own.append(int(new_ids[row]))
                log_probabilities[row] += float(scores[row])
        tokens = tokens.append(new_ids, numbers[-1])
    return ids, log_probabilities, numbers


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
