"""Texts generated during training: `samples.jsonl`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

from numerate.batch import Model
from numerate.config import Spec, setting
from numerate.evaluation.completions import generate_completions
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.evaluation.prompts import Prompt, resolve_max_new_tokens
from numerate.evaluation.sampling import Sampling
from numerate.training import disk
from numerate.training.precision import autocast
from numerate.training.run_folder import RunFolder
from numerate.training.stopping import Stopped

PUBLISHED_PROMPTS = ("Once upon a time,", "There once was a girl named ", "On a rainy day,", "Emma went to", "", "", "")
"""The prompts of the published system, https://github.com/Awni00/dual-attention; three are empty."""

SAMPLES_FILE = "samples.jsonl"


@dataclass(frozen=True)
class Samples(Spec):
    """Texts that are generated from prompts during training.

    They do not affect training: they use separate random numbers, with dropout off. Each sample depends only on the
    weights, its prompt and the seed.
    """

    when: Literal["evaluation", "end", "never"] | None = setting(
        None,
        "at each evaluation, at the end, or never; null: end for language modeling, never for other tasks",
        in_run_id=False,
    )
    prompts: tuple[str, ...] = setting(
        PUBLISHED_PROMPTS,
        "for language modeling, or if samples.when is set: prompts to continue; '': the beginning of a document",
        in_run_id=False,
    )
    max_new_tokens: int = setting(100, "maximum number of generated tokens", at_least=1, in_run_id=False)
    sampling: Sampling = setting(Sampling(), "how the next token is sampled", in_run_id=False)

    def conflicts(self) -> Iterator[str]:
        if not self.prompts and self.when in ("evaluation", "end"):
            yield "prompts: must not be empty; [''] is the beginning of a document"


class SampleGenerator:
    """Generates the samples of a run and stores them in its folder.

    Prompts longer than the context are left out, with `warnings` if they were set explicitly; there are also warnings
    about characters that the tokenizer does not know. Raises `UserError` if the run does not generate text, or cannot
    tokenize a prompt.
    """

    def __init__(self, samples: Samples, evaluation_data: EvaluationData, precision: str) -> None:
        self.samples, self.precision = samples, precision
        self.when = samples.when or ("end" if evaluation_data.task.is_language_modeling else "never")
        self.warnings: list[str] = []
        self._prompts: list[Prompt] = []
        if self.when == "never":
            return
        self.prompt_processor = evaluation_data.kind.prompt_processor(evaluation_data)
        context = evaluation_data.kind.context_length(evaluation_data)
        for text in samples.prompts:
            prompt = self.prompt_processor.encode(text)
            unknown = ", ".join(map(repr, prompt.unknown_parts))
            problems = [f"the tokenizer does not know {unknown}"] if unknown else []
            if len(prompt.ids) <= context:
                self._prompts.append(prompt)
            else:
                problems.append(f"has {len(prompt.ids)} tokens, and the context {context}; it is left out")
            if samples.when is not None or samples.prompts != PUBLISHED_PROMPTS:  # not only the defaults
                self.warnings += [f"samples.prompts: {text!r}: {problem}" for problem in problems]
        if self._prompts:
            self._max_new_tokens = resolve_max_new_tokens(
                self._prompts, None, context, None, default=samples.max_new_tokens
            )

    def is_due(self, *, is_evaluation_step: bool, is_last_step: bool) -> bool:
        """Whether samples are generated at this step."""
        return bool(self._prompts) and (
            is_last_step if self.when == "end" else is_evaluation_step and self.when == "evaluation"
        )

    @torch.no_grad()
    def generate(
        self, model: Model, step: int, folder: RunFolder | None, should_stop: Callable[[], bool] = lambda: False
    ) -> list[dict[str, Any]]:
        """Generates the samples of a step, with the model in evaluation mode. Every process must call it, as the model
        may be sharded; a process with a `folder` writes them, replacing those of this step and later ones.

        Raises `Stopped`, with nothing written, when `should_stop`, called after each token, is True.
        """
        sampling = self.samples.sampling
        with autocast(next(model.parameters()).device, self.precision):
            completions = generate_completions(
                model, self.prompt_processor, self._prompts, sampling, self._max_new_tokens, should_stop=should_stop
            )
        if should_stop():
            raise Stopped
        records = [
            {
                "step": step,
                "seed": sampling.seed,
                "prompt": completion.prompt,
                "sample": completion.sample,
                "text": completion.text,
                "tokens": len(completion.tokens),
                "log_probability": round(completion.log_probability, 2),
                "stopped": completion.stopped,
            }
            for completion in completions
        ]
        if folder is not None:
            folder.write(SAMPLES_FILE, _samples_until(folder, step - 1) + b"".join(map(disk.json_line, records)))
        return records


def remove_later_samples(folder: RunFolder, step: int) -> None:
    """Removes the samples of steps after `step`, which a resumed run generates again, the same."""
    if folder.file(SAMPLES_FILE).exists():
        folder.write(SAMPLES_FILE, _samples_until(folder, step))


def _samples_until(folder: RunFolder, step: int) -> bytes:
    """The unchanged lines of the file without samples of steps after `step`."""
    return folder.split_records(SAMPLES_FILE, lambda one: "prompt" not in one or one["step"] <= step)[0]
