"""Passages: what is said after prompts, as text, whole or piece by piece as it comes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numerate.batch import Model
from numerate.evaluation.exam import CHUNK
from numerate.evaluation.prompts import Prompt, Telling, Writing, tokens_of
from numerate.evaluation.sampling import Sampling, generate

Listen = Callable[[int, str], None]
"""Told which passage, and what is new of its text."""


@dataclass(frozen=True)
class Passage:
    """What was said after a prompt: `prompt + text` reads on.

    - `tokens` are the ids of what was said, with the one that ended it; `log_probability` is the model's own of all of
      them, in nats, before temperature and the like.
    - `stopped` tells whether it ended by itself, or with a text that was to end it; else no more was allowed.
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
    ends behind a text of `stop`. When `ended` says so, what has been said until then is returned.
    """
    device = next(model.parameters()).device
    # Of several samples of one prompt, and of a prompt that comes several times, each draws numbers of its own.
    seen: dict[tuple[int, ...], int] = {}
    asked: list[tuple[Prompt, int]] = []
    for prompt in prompts:
        first = seen.get(prompt.ids, 0)
        asked += [(prompt, first + sample) for sample in range(count)]
        seen[prompt.ids] = first + count
    rows = max(1, CHUNK // (max(len(prompt.ids) for prompt in prompts) + most))
    passages: list[Passage] = []
    for begin in range(0, len(asked), rows):
        part, samples = zip(*asked[begin : begin + rows], strict=True)
        listener = _Listener(writing, part, stop, told, begin, ended)
        found = generate(
            model,
            tokens_of(part, samples, device),
            most,
            sampling,
            stop=writing.stop,
            on_progress=listener.on_progress if listener.listens or ended is not None else None,
            window=window,
        )
        ids, lengths, scores = found.ids.tolist(), found.lengths.tolist(), found.log_probability.tolist()
        ends = [False] * len(part) if found.stopped is None else found.stopped.tolist()
        for row, (prompt, sample) in enumerate(zip(part, samples, strict=True)):
            said = tuple(ids[row][: lengths[row]])
            text = writing.said(prompt, listener.text(row, said))
            stopped = ends[row] or row in listener.stopped
            passages.append(Passage(prompt.text, text, said, scores[row], stopped, sample))
        if ended is not None and ended():
            break
    return passages


class _Listener:
    """Makes text of tokens as they come, and ends rows in which a text has come that is to end them."""

    def __init__(
        self,
        writing: Writing,
        prompts: Sequence[Prompt],
        stop: Sequence[str],
        told: Listen | None,
        first: int,
        ended: Callable[[], bool] | None,
    ) -> None:
        self.writing, self.prompts, self.stop, self.first, self.ended = writing, prompts, stop, first, ended
        # A question is told as a whole: its numbers may have to be turned round.
        self.told = None if told is None or any(prompt.question for prompt in prompts) else told
        self.listens = bool(stop) or told is not None
        self.telling = [Telling(writing.text, prompt.ids) for prompt in prompts]
        self.texts = [""] * len(prompts)
        self.stopped: set[int] = set()
        self._ids: list[list[int]] = [[] for _ in prompts]

    def on_progress(self, said: Sequence[int | None]) -> Sequence[int]:
        if self.listens:
            for row, token in enumerate(said):
                if token is not None:
                    self._ids[row].append(token)
                    self._add(row, "" if token in self.writing.stop else self.telling[row].told(token))
        if self.ended is not None and self.ended():
            return range(len(said))
        return sorted(self.stopped)

    def _add(self, row: int, new: str) -> None:
        if not new:
            return
        before = self.texts[row]
        self.texts[row] += new
        for stop in self.stop:
            # Looked for where it may have been completed.
            at = self.texts[row].find(stop, max(0, len(before) - len(stop) + 1))
            if at >= 0:
                self.texts[row] = self.texts[row][: at + len(stop)]
                self.stopped.add(row)
        if self.told is not None:
            self.told(self.first + row, self.texts[row][len(before) :])

    def text(self, row: int, said: Sequence[int]) -> str:
        """All that a row said."""
        if not self.listens:
            for token in said:
                if token not in self.writing.stop:
                    self.texts[row] += self.telling[row].told(token)
        if row not in self.stopped:
            self._add(row, self.telling[row].rest())
        return self.texts[row]
