"""Models of Hugging Face in `evaluate` and `compare`: `hf:NAME task=...` is the run of its recipe, without training."""

import re
from collections.abc import Sequence
from typing import Any

from numerate.config import expand_sweep, override
from numerate.errors import UserError
from numerate.experiments.pretrained_run import pretrained_run
from numerate.experiments.results import Results
from numerate.experiments.run import Run
from numerate.studies.naming import load_recipe
from numerate.training.progress import ProgressBars


def is_pretrained(address: str) -> bool:
    """Whether an address is that of a model of Hugging Face."""
    return address.startswith("hf:")


def check_has_task(command: str, address: str, settings: Sequence[str]) -> None:
    """Raises `UserError` for settings without a task."""
    if not any(re.match(r"task[.=]", word) for word in settings):
        raise UserError(
            f"task: must be set, for example numerate {command} {address} task=gsm8k; others are svamp, gsm_hard, "
            "mathematics, Arithmetic, and 'QuestionFiles(train_file=mine.jsonl)'"
        )


def pretrained_runs(
    address: str, settings: Sequence[str], runs_dir: str | None = None, device: str | None = None
) -> dict[str, Run]:
    """The run of a model for each choice of settings, by a label that says what differs. Raises `UserError` without a
    task."""
    check_has_task("evaluate", address, settings)
    recipe, choices = load_recipe(address), expand_sweep(settings)
    swept = [i for i in range(len(settings)) if len({choice[i] for choice in choices}) > 1]
    return {
        " ".join([recipe.title, *(choice[i] for i in swept)]): pretrained_run(
            override(recipe, choice), runs_dir=runs_dir, device=device
        )
        for choice in choices
    }


def evaluate_with_progress(run: Run, **options: Any) -> Results:
    """Evaluates a run with a progress bar; the options are those of `Run.evaluate`."""
    with ProgressBars("evaluate") as progress:
        return run.evaluate(**options, on_progress=progress.on_progress)
