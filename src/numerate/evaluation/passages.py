"""Text generation: passages after prompts, whole or streamed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numerate.batch import Model
from numerate.evaluation.evaluation_data import CHUNK
from numerate.evaluation.prompts import Prompt, TextStreamer, Writing, tokens_of
from numerate.evaluation.sampling import Sampling, generate

Listen = Callable[[int, str], None]
"""Called with the number of a passage and its new text."""


@dataclass(frozen=True)
class Passage:
    """The text generated after a prompt.

    - `tokens` are the generated ids, with the one that ended it; `log_probability` is the model's own of all of them,
      in nats, before temperature and the like.
    - `stopped` is whether it ended with an end token or a stop text, and not at the maximum length.
    - `sample` is its number among those of the same prompt, from 0.
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


def passages_after(
    model: Model,
    writing: Writing,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    most: int,
    *,
    count: int = 1,
    stop: Sequence[str] = (),
    window: int | None = None,
    told: Listen | None = None,
    ended: Callable[[], bool] | None = None,
) -> list[Passage]:
    """`count` passages of up to `most` tokens after each prompt, those of the first prompt first.

    Each is a function of the model, its prompt, how often that prompt came before, the sampling and its seed. A passage
    ends behind a text of `stop`. When `ended()` is true, what has been generated until then is returned.
    """
    device = next(model.parameters()).device
    # Of several samples of one prompt, and of a prompt that comes several times, each draws numbers of its own.
    seen: dict[tuple[int, ...], int] = {}
    requests: list[tuple[Prompt, int]] = []
    for prompt in prompts:
        first = seen.get(prompt.ids, 0)
        requests += [(prompt, first + sample) for sample in range(count)]
        seen[prompt.ids] = first + count
    rows = max(1, CHUNK // (max(len(prompt.ids) for prompt in prompts) + most))
    passages: list[Passage] = []
    for start in range(0, len(requests), rows):
        part, samples = zip(*requests[start : start + rows], strict=True)
        stream = _Stream(writing, part, stop, told, start, ended)
        found = generate(
            model,
            tokens_of(part, samples, device),
            most,
            sampling,
            stop=writing.stop,
            on_progress=stream.on_progress if stream.streams or ended is not None else None,
            window=window,
        )
        ids, lengths, scores = found.ids.tolist(), found.lengths.tolist(), found.log_probability.tolist()
        ends = [False] * len(part) if found.stopped is None else found.stopped.tolist()
        for row, (prompt, sample) in enumerate(zip(part, samples, strict=True)):
            generated = tuple(ids[row][: lengths[row]])
            text = writing.postprocess(prompt, stream.text(row, generated))
            stopped = ends[row] or row in stream.stopped
            passages.append(Passage(prompt.text, text, generated, scores[row], stopped, sample))
        if ended is not None and ended():
            break
    return passages


class _Stream:
    """Decodes the rows of a batch as their tokens come, and ends those with a stop text."""

    def __init__(
        self,
        writing: Writing,
        prompts: Sequence[Prompt],
        stop: Sequence[str],
        callback: Listen | None,
        first: int,
        ended: Callable[[], bool] | None,
    ) -> None:
        self.writing, self.prompts, self.stop, self.first, self.ended = writing, prompts, stop, first, ended
        # The answer to a question is not streamed: its digits may have to be reversed.
        self.callback = None if any(prompt.question for prompt in prompts) else callback
        self.streams = bool(stop) or callback is not None
        self.streamers = [TextStreamer(writing.text, prompt.ids) for prompt in prompts]
        self.texts = [""] * len(prompts)
        self.stopped: set[int] = set()
        self._ids: list[list[int]] = [[] for _ in prompts]

    def on_progress(self, tokens: Sequence[int | None]) -> Sequence[int]:
        if self.streams:
            for row, token in enumerate(tokens):
                if token is not None:
                    self._ids[row].append(token)
                    self._add(row, "" if token in self.writing.stop else self.streamers[row].put(token))
        if self.ended is not None and self.ended():
            return range(len(tokens))
        return sorted(self.stopped)

    def _add(self, row: int, new: str) -> None:
        if not new:
            return
        before = self.texts[row]
        self.texts[row] += new
        for stop in self.stop:
            # Only where it may just have been completed.
            at = self.texts[row].find(stop, max(0, len(before) - len(stop) + 1))
            if at >= 0:
                self.texts[row] = self.texts[row][: at + len(stop)]
                self.stopped.add(row)
        if self.callback is not None:
            self.callback(self.first + row, self.texts[row][len(before) :])

    def text(self, row: int, tokens: Sequence[int]) -> str:
        """The whole text of a row."""
        if not self.streams:
            for token in tokens:
                if token not in self.writing.stop:
                    self.texts[row] += self.streamers[row].put(token)
        if row not in self.stopped:
            self._add(row, self.streamers[row].rest())
        return self.texts[row]
