"""Runs as models of lm-evaluation-harness, which are asked in plain notation whatever their number format.

Importing this file registers the model `numerate`; the command is that of lm-eval with this file in front, as in
docs/lm-eval.md:

    python -m numerate.integrations.lm_eval_model --model numerate --model_args run=latest --tasks ...
"""

import importlib.metadata
import re
from collections.abc import Mapping
from copy import copy
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from numerate.config import from_tree
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EvaluationData, extract_prompts
from numerate.evaluation.text_answers import restore_number_format
from numerate.integrations.hf_export import export
from numerate.runs.run import load
from numerate.tokenizers.tokenizer import Characters
from numerate.training.recipe import Recipe

OLDEST_VERSION = (0, 4, 13)
"""Of lm-eval: earlier ones need a maximum length, which not every run has."""


def check_version() -> None:
    """Raises `UserError` if lm-eval is missing or too old."""
    try:
        version = importlib.metadata.version("lm_eval")
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    if tuple(map(int, re.findall(r"\d+", version)[:3])) < OLDEST_VERSION:
        oldest = ".".join(map(str, OLDEST_VERSION))
        raise UserError(
            f"lm-eval: must be {oldest} or newer, not {version}; install it with pip install 'numerate[lm-eval]'"
        )


check_version()

HFLM: Any = import_module("lm_eval.models.huggingface").HFLM
register_model: Any = import_module("lm_eval.api.registry").register_model


@register_model("numerate")
class NumerateLM(HFLM):  # type: ignore[misc]
    """A run (`run=latest`, with `checkpoint` and `runs_dir`), or a folder of `numerate export` (`pretrained=exported`).

    Questions of its task are asked in the run's number format, and numbers of answers restored to plain notation, as by
    `numerate ask`: with units first, `12+34=` is `21+43=` to the model, and its answer `64` is reported as `46`. Any
    other text is read as it is. All other arguments are those of `hf`. Raises `UserError` as `numerate export`.
    """

    add_bos_token: bool | None

    def __init__(
        self,
        pretrained: str | None = None,
        run: str | None = None,
        checkpoint: str = "final",
        runs_dir: str | None = None,
        **options: Any,
    ) -> None:
        if (pretrained is None) == (run is None):
            raise UserError(
                "model_args: must be either run=latest or pretrained=exported, a folder of `numerate export`"
            )
        with TemporaryDirectory() as temporary:
            if run is not None:
                folder = Path(temporary) / "run"
                pretrained = str(export(load(str(run), runs_dir), folder, checkpoint_name=str(checkpoint)))
            super().__init__(pretrained, **options)
        tree = getattr(self.config, "recipe", None)
        if not isinstance(tree, Mapping):
            raise UserError(
                f"pretrained: {pretrained} must be a folder of `numerate export`; for others use --model hf"
            )
        recipe = from_tree(tree, "config.json", expected_class=Recipe)
        assert isinstance(recipe, Recipe)
        self.evaluation_data = EvaluationData(recipe.task, recipe.tokenizer, recipe.layout)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        contexts = [self._reformat_question(request.args[0]) for request in requests]
        formatted = [
            request if context is None else _with_arguments(request, context, request.args[1])
            for request, context in zip(requests, contexts, strict=True)
        ]
        answers = super().generate_until(formatted, disable_tqdm=disable_tqdm)
        return [
            answer if context is None else restore_number_format(self.evaluation_data.tokenizer, answer)
            for answer, context in zip(answers, contexts, strict=True)
        ]

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        formatted = [
            request
            if (context := self._reformat_question(request.args[0])) is None
            else _with_arguments(request, context, self._reformat_answer(request.args[1]))
            for request in requests
        ]
        return super().loglikelihood(formatted, disable_tqdm=disable_tqdm)  # type: ignore[no-any-return]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        add_bos_token, self.add_bos_token = self.add_bos_token, False  # HFLM itself puts [BOS] before the text
        try:
            return super().loglikelihood_rolling(requests, disable_tqdm=disable_tqdm)  # type: ignore[no-any-return]
        finally:
            self.add_bos_token = add_bos_token

    def _reformat_question(self, context: str) -> str | None:
        """A question in the number format of the model; None for a text that is none, or has no numbers."""
        data = self.evaluation_data
        try:
            questions = data.task.parse_question(context)
        except (UserError, NotImplementedError):
            return None
        if not questions.has_numbers:
            return None
        prompt, _ = extract_prompts(data.batch(questions))
        return data.tokenizer.decode(prompt.ids[0].tolist(), data.vocabulary)

    def _reformat_answer(self, answer: str) -> str:
        """An answer with its numbers in the number format of the model."""
        tokenizer = self.evaluation_data.tokenizer
        if not isinstance(tokenizer, Characters):
            return answer
        number_format = tokenizer.number_format
        return re.sub(
            r"-?[0-9]+(?:\.[0-9]+)?",
            lambda found: "".join(number_format.format_number(Decimal(found[0]), is_answer=True)),
            answer,
        )


def _with_arguments(request: Any, *arguments: Any) -> Any:
    """The same request with other arguments."""
    changed = copy(request)
    changed.arguments = arguments
    return changed


if __name__ == "__main__":
    import_module("lm_eval.__main__").cli_evaluate()
