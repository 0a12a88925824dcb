"""Text generation: completions of prompts, optionally streamed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numerate.batch import Model
from numerate.evaluation.evaluation_data import MAX_TOKENS_PER_BATCH
from numerate.evaluation.prompts import Prompt, PromptProcessor, TextStreamer, pad_prompts
from numerate.evaluation.sampling import Sampling, generate

TextCallback = Callable[[int, str], None]
"""Called with the index of a completion and its new text."""


@dataclass(frozen=True)
class Completion:
    """The text generated after a prompt.

    - `tokens` are the generated ids, including the stop token; `log_probability` is their total log-probability under
      the model, in nats, before temperature and other sampling settings.
    - `stopped` is whether it ended with an end token or a stop text, not at the maximum length.
    - `sample` is its index among the completions of the same prompt.
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
        """A line of a `.jsonl` file."""
        return {
            "prompt": self.prompt,
            "sample": self.sample,
            "text": self.text,
            "tokens": list(self.tokens),
            "log_probability": round(self.log_probability, 4),
            "stopped": self.stopped,
        }


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

    Each is a function of the model, its prompt, the number of earlier occurrences of that prompt, the sampling and its
    seed. A completion ends after a text of `stop_texts`. When `should_stop()` is true, the text generated so far is
    returned.
    """
    device = next(model.parameters()).device
    # Each sample of a prompt, and each repetition of a prompt, has its own random numbers.
    num_samples_by_prompt: dict[tuple[int, ...], int] = {}
    requests: list[tuple[Prompt, int]] = []
    for prompt in prompts:
        first = num_samples_by_prompt.get(prompt.ids, 0)
        requests += [(prompt, first + sample) for sample in range(count)]
        num_samples_by_prompt[prompt.ids] = first + count
    rows_per_batch = max(1, MAX_TOKENS_PER_BATCH // (max(len(prompt.ids) for prompt in prompts) + max_new_tokens))
    completions: list[Completion] = []
    for start in range(0, len(requests), rows_per_batch):
        batch_prompts, samples = zip(*requests[start : start + rows_per_batch], strict=True)
        stream = _CompletionStream(prompt_processor, batch_prompts, stop_texts, on_text, start, should_stop)
        generated = generate(
            model,
            pad_prompts(batch_prompts, samples, device),
            max_new_tokens,
            sampling,
            stop_ids=prompt_processor.stop_ids,
            on_tokens=stream.on_tokens if stream.is_streaming or should_stop is not None else None,
            window=window,
        )
        ids, lengths, log_probabilities = (
            generated.ids.tolist(),
            generated.lengths.tolist(),
            generated.log_probability.tolist(),
        )
        has_stop_token = (
            [False] * len(batch_prompts) if generated.has_stop_token is None else generated.has_stop_token.tolist()
        )
        for row, (prompt, sample) in enumerate(zip(batch_prompts, samples, strict=True)):
            new_ids = tuple(ids[row][: lengths[row]])
            text = prompt_processor.postprocess(prompt, stream.final_text(row, new_ids))
            stopped = has_stop_token[row] or row in stream.stopped
            completions.append(Completion(prompt.text, text, new_ids, log_probabilities[row], stopped, sample))
        if should_stop is not None and should_stop():
            break
    return completions


class _CompletionStream:
    """Decodes the rows of a batch as tokens are generated, and ends rows at a stop text."""

    def __init__(
        self,
        writing: PromptProcessor,
        prompts: Sequence[Prompt],
        stop: Sequence[str],
        callback: TextCallback | None,
        first: int,
        ended: Callable[[], bool] | None,
    ) -> None:
        self.prompt_processor, self.prompts, self.stop_texts, self.first_index, self.should_stop = (
            writing,
            prompts,
            stop,
            first,
            ended,
        )
        # The answer to a question is not streamed: its digits may have to be reversed.
        self.callback = None if any(prompt.is_question for prompt in prompts) else callback
        self.is_streaming = bool(stop) or callback is not None
        self.streamers = [TextStreamer(writing.decode, prompt.ids) for prompt in prompts]
        self.texts = [""] * len(prompts)
        self.stopped: set[int] = set()
        self._ids: list[list[int]] = [[] for _ in prompts]

    def on_tokens(self, tokens: Sequence[int | None]) -> Sequence[int]:
        if self.is_streaming:
            for row, token in enumerate(tokens):
                if token is not None:
                    self._ids[row].append(token)
                    self._add_text(
                        row, "" if token in self.prompt_processor.stop_ids else self.streamers[row].put(token)
                    )
        if self.should_stop is not None and self.should_stop():
            return range(len(tokens))
        return sorted(self.stopped)

    def _add_text(self, row: int, new: str) -> None:
        if not new:
            return
        previous_text = self.texts[row]
        self.texts[row] += new
        for stop in self.stop_texts:
            # Only if it may just have been completed.
            stop_index = self.texts[row].find(stop, max(0, len(previous_text) - len(stop) + 1))
            if stop_index >= 0:
                self.texts[row] = self.texts[row][: stop_index + len(stop)]
                self.stopped.add(row)
        if self.callback is not None:
            self.callback(self.first_index + row, self.texts[row][len(previous_text) :])

    def final_text(self, row: int, tokens: Sequence[int]) -> str:
        """The whole text of a row."""
        if not self.is_streaming:
            for token in tokens:
                if token not in self.prompt_processor.stop_ids:
                    self.texts[row] += self.streamers[row].put(token)
        if row not in self.stopped:
            self._add_text(row, self.streamers[row].flush())
        return self.texts[row]
