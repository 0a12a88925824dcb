"""Decoding token by token, with the state of the model as cache."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from numerate.batch import Model, Output, Tokens
from numerate.errors import OperationalError
from numerate.evaluation.evaluation_data import select_rows
from numerate.vocabulary import EOS, PAD

NextTokenFunction = Callable[[Float[Tensor, "rows vocabulary"], int], Int[Tensor, " rows"]]
"""Selects the next token of each row from its logits and the number of tokens generated so far."""

TokensCallback = Callable[[Sequence[int | None]], Collection[int]]
"""Called with the new token of each row (None for finished rows); returns the rows to stop."""

STOP_CHECK_INTERVAL = 8
"""Number of tokens between checks whether all rows have ended, on a GPU, since each check synchronizes with it."""


@dataclass(frozen=True)
class GenerationOutput:
    """The tokens generated after each prompt: `ids` up to and including the end token, then PAD; their `lengths`, total
    `log_probability` in nats, and the predictions of the number head at each token, if there is one, 1 after the end.
    `has_stop_token` marks the rows that ended with an end token, not at the maximum length."""

    ids: Int[Tensor, "rows tokens"]
    lengths: Int[Tensor, " rows"]
    log_probability: Float[Tensor, " rows"]
    number_values: Float[Tensor, "rows tokens"] | None
    has_stop_token: Bool[Tensor, " rows"]

    def check_finite(self) -> None:
        """Raises `OperationalError` if a log-probability is NaN."""
        if bool(self.log_probability.isnan().any()):
            raise OperationalError("model: the logits are NaN, because of corrupt weights or too low a precision")


class CachedDecoder:
    """The `output` at the last token of each row, one token further at each step.

    The tokens before are in the model's cache. Rows are read again where a model cannot reorder its cache, and where
    they have more than `window` tokens: then the last of them alone, as if the text began there."""

    output: Output
    tokens: Tokens
    _state: Any

    def __init__(
        self,
        model: Model,
        prompts: Tokens,
        max_new_tokens: int,
        source: Tokens | None = None,
        position_offset: int = 0,
        window: int | None = None,
    ) -> None:
        self.model, self.source, self.position_offset, self.window = model, source, position_offset, window
        self.longest = int(prompts.lengths.max())
        self.capacity = min(self.longest + max_new_tokens, window or self.longest + max_new_tokens)
        self._read(prompts)

    def step(
        self, ids: Int[Tensor, " rows"], number_values: Tensor | None, row_index: Int[Tensor, " rows"] | None = None
    ) -> None:
        """One more token of each row; with `row_index`, of these rows instead, some of them perhaps repeated."""
        self.longest += 1
        state = self._state if row_index is None else self.model.reorder_rows(self._state, row_index)
        if self.window is not None or state is None:
            tokens = self.tokens if row_index is None else select_rows(self.tokens, row_index)
            self.tokens = tokens.append(ids, number_values)
        if state is None or (self.window is not None and self.longest > self.window):
            self._read(self.tokens)
        else:
            read = self.model.step(ids, number_values, state)
            self.output, self._state = read.output, read.state

    def _read(self, tokens: Tokens) -> None:
        """Reads whole rows, or the last tokens in the window."""
        self.tokens = tokens
        if self.window is not None and self.longest > self.window:
            first = (tokens.lengths - self.window).clamp(min=0)[:, None]
            columns = first + torch.arange(self.window, device=first.device)
            names = ("ids", "number_values", "blocked_keys")
            last = {name: value.gather(1, columns) for name in names if (value := getattr(tokens, name)) is not None}
            tokens = replace(tokens, lengths=tokens.lengths.clamp(max=self.window), **last)
        read = self.model.prefill(tokens, self.source, capacity=self.capacity, position_offset=self.position_offset)
        self.output, self._state = read.output, read.state


def decode_tokens(
    model: Model,
    decoder: CachedDecoder,
    next_token: NextTokenFunction,
    num_rows: int,
    max_new_tokens: int,
    stop_ids: Sequence[int],
    *,
    on_tokens: TokensCallback | None = None,
) -> GenerationOutput:
    """Generates up to `max_new_tokens` tokens after the prompts that a decoder has processed, each selected by
    `next_token`, or until every row has one of `stop_ids`.

    The number that the number head predicts at a token is fed back together with the token. A model with a regression
    head outputs its number and the end token, regardless of their probability.
    """
    device = decoder.output.hidden_states.device
    stop_tensor = torch.tensor(list(stop_ids), dtype=torch.long, device=device)
    number_id, end_id = model.regression_token_id, stop_ids[0] if stop_ids else EOS
    tokens: list[Tensor] = []
    number_values: list[Tensor] = []
    log_probability: Any = 0.0
    is_finished = torch.zeros(num_rows, dtype=torch.bool, device=device)
    lengths = torch.zeros(num_rows, dtype=torch.long, device=device)
    has_stop_token = is_finished
    for step in range(max_new_tokens):
        output = decoder.output
        logits = output.logits[:, -1]
        if logits.dtype not in (torch.float32, torch.float64):
            logits = logits.float()
        forced_id = number_id if number_id is None or step == 0 else end_id
        new_ids = next_token(logits, step) if forced_id is None else torch.full_like(lengths, forced_id)
        # Only a regression head selects -1, which is not a token id.
        score = logits.gather(1, new_ids[:, None].clamp(min=0))[:, 0] - logits.logsumexp(-1)
        log_probability = log_probability + torch.where(is_finished, 0.0, score)
        new_ids = torch.where(is_finished, PAD, new_ids)
        tokens.append(new_ids)
        new_number = last_number(output)
        number_values += [] if new_number is None else [torch.where(is_finished, 1.0, new_number)]
        lengths = lengths + ~is_finished
        newly_finished = ~is_finished & torch.isin(new_ids, stop_tensor)
        has_stop_token = has_stop_token | newly_finished
        was_finished, is_finished = is_finished, is_finished | newly_finished
        if on_tokens is not None:
            new_tokens = [None if over else i for i, over in zip(new_ids.tolist(), was_finished.tolist(), strict=True)]
            is_finished[list(on_tokens(new_tokens))] = True
        if step == max_new_tokens - 1:
            break
        is_checked = device.type == "cpu" or on_tokens is not None or (step + 1) % STOP_CHECK_INTERVAL == 0
        if is_checked and bool(is_finished.all()):
            break
        decoder.step(new_ids, new_number)
    longest = int(lengths.max())  # more tokens may have been generated before the check
    values = torch.stack(number_values[:longest], dim=1) if number_values else None
    return GenerationOutput(torch.stack(tokens[:longest], dim=1), lengths, log_probability, values, has_stop_token)


def greedy_token(logits: Float[Tensor, "rows vocabulary"], step: int) -> Int[Tensor, " rows"]:
    """The most probable next token of each row; the lowest id among ties."""
    return logits.argmax(-1)


@torch.no_grad()
def greedy_decode(
    model: Model,
    prompts: Tokens,
    max_new_tokens: int,
    *,
    source: Tokens | None = None,
    position_offset: int = 0,
    end_id: int = EOS,
) -> GenerationOutput:
    """Greedy decoding of up to `max_new_tokens` tokens after prompts (padded on the right), or until every row has
    `end_id`; the other end tokens of a pretrained model end it like [EOS], which stands in `ids` for them."""
    decoder = CachedDecoder(model, prompts, max_new_tokens, source, position_offset)
    stop_ids = (end_id, *(model.other_end_ids if end_id == EOS else ()))
    output = decode_tokens(model, decoder, greedy_token, len(prompts.ids), max_new_tokens, stop_ids)
    rows = output.has_stop_token.nonzero()[:, 0]
    output.ids[rows, output.lengths[rows] - 1] = end_id
    return output


def last_number(output: Output) -> Float[Tensor, " rows"] | None:
    """The prediction of the number head, if any, at the last token of each row."""
    return None if output.number_predictions is None else output.number_predictions[:, -1]
