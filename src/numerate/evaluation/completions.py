"""Text generation: completions of prompts, optionally streamed."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from numerate.batch import Model
from numerate.config import Spec, setting
from numerate.evaluation.evaluation_data import MAX_TOKENS_PER_BATCH
from numerate.evaluation.prompts import Prompt, PromptProcessor, TextStreamer, pad_prompts
from numerate.evaluation.sampling import Sampling, generate

TextCallback = Callable[[int, str], None]
"""Called with the index of a completion and its new text."""


@dataclass(frozen=True)
class GenerationLimits(Spec):
    """How much is generated."""

    max_new_tokens: int | None = setting(None, "maximum number of new tokens; null: as many as fit", at_least=1)
    context_length: int | None = setting(None, "number of last tokens that are read; null: all", at_least=1)
    count: int = setting(1, "completions per prompt", at_least=1)


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
        fields = asdict(self) | {"tokens": list(self.tokens), "log_probability": round(self.log_probability, 4)}
        return {name: fields[name] for name in ("prompt", "sample", "text", "tokens", "log_probability", "stopped")}


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
    end_ids = (*prompt_processor.stop_ids, *model.other_end_ids)
    completions: list[Completion] = []
    for start in range(0, len(requests), rows_per_batch):
        batch_prompts, samples = zip(*requests[start : start + rows_per_batch], strict=True)
        stream = _CompletionStream(prompt_processor, end_ids, batch_prompts, stop_texts, on_text, start, should_stop)
        generated = generate(
            model,
            pad_prompts(batch_prompts, samples, device),
            max_new_tokens,
            sampling,
            stop_ids=end_ids,
            on_tokens=stream.on_tokens if stream.is_streaming or should_stop is not None else None,
            window=window,
        )
        ids, lengths = generated.ids.tolist(), generated.lengths.tolist()
        log_probabilities, ended = generated.log_probability.tolist(), generated.has_stop_token.tolist()
        for row, (prompt, sample) in enumerate(zip(batch_prompts, samples, strict=True)):
            new_ids = tuple(ids[row][: lengths[row]])
            text = prompt_processor.postprocess(prompt, stream.final_text(row, new_ids))
            stopped = ended[row] or row in stream.stopped
            completions.append(Completion(prompt.text, text, new_ids, log_probabilities[row], stopped, sample))
        if should_stop is not None and should_stop():
            break
    return completions


class _CompletionStream:
    """Decodes the rows of a batch as tokens are generated, and ends rows at a stop text."""

    def __init__(
        self,
        processor: PromptProcessor,
        end_ids: Sequence[int],
        prompts: Sequence[Prompt],
        stop_texts: Sequence[str],
        callback: TextCallback | None,
        first_index: int,
        should_stop: Callable[[], bool] | None,
    ) -> None:
        self.end_ids, self.stop_texts = end_ids, stop_texts
        self.first_index, self.should_stop = first_index, should_stop
        # The answer to a question is not streamed: its digits may have to be reversed.
        self.callback = None if any(prompt.has_numbers for prompt in prompts) else callback
        self.is_streaming = bool(stop_texts) or callback is not None
        self.streamers = [TextStreamer(processor.decode, prompt.ids) for prompt in prompts]
        self.texts = [""] * len(prompts)
        self.stopped: set[int] = set()

    def on_tokens(self, tokens: Sequence[int | None]) -> Sequence[int]:
        if self.is_streaming:
            for row, token in enumerate(tokens):
                if token is not None and token not in self.end_ids:
                    self._add_text(row, self.streamers[row].put(token))
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
                if token not in self.end_ids:
                    self.texts[row] += self.streamers[row].put(token)
        if row not in self.stopped:
            self._add_text(row, self.streamers[row].flush())
        return self.texts[row]
