"""Text generation: completions of prompts, optionally streamed."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from numerate.batch import Model
from numerate.evaluation.evaluation_data import MAX_TOKENS_PER_BATCH
from numerate.evaluation.prompts import Prompt, PromptProcessor, pad_prompts
from numerate.evaluation.sampling import Sampling, generate

TextCallback = Callable[[int, str], None]
"""Called with the index of a completion and its new text."""


@dataclass(frozen=True)
class Completion:
    """The text generated after a prompt: `tokens` are its ids, including the stop token, with their `log_probability`
    under the model, in nats. `stopped` is whether it ended with an end token or a stop text; `sample` is its index
    among the completions of the same prompt.
    """

    prompt: str
    text: str
    tokens: tuple[int, ...]
    log_probability: float
    stopped: bool
    sample: int = 0

    def __str__(self) -> str:
        return self.prompt + self.text

    def record(self) -> dict[str, Any]:
        found = {"prompt": self.prompt, "sample": self.sample, "text": self.text, "tokens": [*self.tokens]}
        return found | {"log_probability": round(self.log_probability, 4), "stopped": self.stopped}


def generate_completions(
    model: Model,
    prompt_processor: PromptProcessor,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    max_new_tokens: int,
    *,
    count: int = 1,
    stop_texts: Sequence[str] = (),
    window: int | None = None,
    on_text: TextCallback | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> list[Completion]:
    """`count` completions of up to `max_new_tokens` tokens for each prompt, ordered by prompt.

    Each is a function of the model, its prompt, the number of earlier occurrences of that prompt, and the sampling.
    When `should_stop()` is true, the text generated so far is returned.
    """
    device = next(model.parameters()).device
    # Each sample of a prompt, and each repetition of a prompt, has its own random numbers.
    num_samples, requests = Counter[tuple[int, ...]](), list[tuple[Prompt, int]]()
    for prompt in prompts:
        requests += [(prompt, num_samples[prompt.ids] + sample) for sample in range(count)]
        num_samples[prompt.ids] += count
    rows_per_batch = max(1, MAX_TOKENS_PER_BATCH // (max(len(prompt.ids) for prompt in prompts) + max_new_tokens))
    end_ids = (*prompt_processor.stop_ids, *model.other_end_ids)
    completions: list[Completion] = []
    for start in range(0, len(requests), rows_per_batch):
        batch_prompts, samples = zip(*requests[start : start + rows_per_batch], strict=True)
        # The answer to a question is not streamed: its digits may have to be reversed.
        callback = None if any(prompt.has_numbers for prompt in batch_prompts) else on_text
        rows = [
            GeneratedText(prompt_processor.decode, prompt.ids, stop_texts, callback and partial(callback, start + row))
            for row, prompt in enumerate(batch_prompts)
        ]

        def on_tokens(tokens: Sequence[int | None], rows: Sequence[GeneratedText] = rows) -> list[int]:
            for row, token in zip(rows, tokens, strict=True):
                if token is not None and token not in end_ids:
                    row.add(token)
            is_over = should_stop is not None and should_stop()
            return [index for index, row in enumerate(rows) if is_over or row.is_stopped]

        generated = generate(
            model,
            pad_prompts(batch_prompts, samples, device),
            max_new_tokens,
            sampling,
            stop_ids=end_ids,
            on_tokens=on_tokens,
            window=window,
        )
        ids, lengths = generated.ids.tolist(), generated.lengths.tolist()
        log_probabilities, ended = generated.log_probability.tolist(), generated.has_stop_token.tolist()
        for index, (prompt, sample, row) in enumerate(zip(batch_prompts, samples, rows, strict=True)):
            row.add(is_final=True)
            text, stopped = prompt_processor.postprocess(prompt, row.text), ended[index] or row.is_stopped
            new_ids = tuple(ids[index][: lengths[index]])
            completions.append(Completion(prompt.text, text, new_ids, log_probabilities[index], stopped, sample))
        if should_stop is not None and should_stop():
            break
    return completions


class GeneratedText:
    """The text of a row as its tokens are generated, up to a stop text; incomplete characters are buffered. Recent
    tokens are decoded again, since the text of a token depends on what precedes it (spaces, bytes of a character).

    >>> row = GeneratedText(lambda ids: bytes(ids).decode(errors="replace"), on_text=lambda text: print([text]))
    >>> for byte in "5€".encode():
    ...     row.add(byte)
    ['5']
    ['€']
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        context_ids: Sequence[int] = (),
        stop_texts: Sequence[str] = (),
        on_text: Callable[[str], None] | None = None,
    ) -> None:
        self.decode, self.stop_texts, self.on_text = decode, stop_texts, on_text
        self.text, self.is_stopped = "", False
        self._ids, self._previous_start, self._printed_end = list(context_ids), 0, len(context_ids)

    def add(self, *tokens: int, is_final: bool = False) -> None:
        """Adds tokens, and calls `on_text` with what is new, if anything; at the end also an incomplete character."""
        self._ids += tokens
        old = self.decode(self._ids[self._previous_start : self._printed_end])
        new = self.decode(self._ids[self._previous_start :])[len(old) :]
        if self.is_stopped or not new or (new.endswith("\N{REPLACEMENT CHARACTER}") and not is_final):
            return
        self._previous_start, self._printed_end = self._printed_end, len(self._ids)
        num_before, self.text = len(self.text), self.text + new
        for stop in self.stop_texts:
            end = self.text.find(stop, max(0, num_before - len(stop) + 1)) + len(stop)  # if it was just completed
            if end >= len(stop):
                self.text, self.is_stopped = self.text[:end], True
        if self.on_text is not None:
            self.on_text(self.text[num_before:])
