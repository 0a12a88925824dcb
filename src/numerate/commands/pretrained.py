"""Models of Hugging Face in `evaluate` and `compare`: `hf:NAME task=...` is the run of its recipe, without training."""

import re
from collections.abc import Sequence
from typing import Any

from numerate.config import expand_sweep, override
from numerate.errors import UserError
from numerate.recipes.naming import load_recipe
from numerate.runs.pretrained_run import pretrained_run
from numerate.runs.results import Results
from numerate.runs.run import Run
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
) -> list[Run]:
    """The run of a model for each choice of settings. Raises `UserError` without a task."""
    check_has_task("evaluate", address, settings)
    recipe = load_recipe(address)
    recipes = [override(recipe, choice) for choice in expand_sweep(settings)]
    return [pretrained_run(one, runs_dir=runs_dir, device=device) for one in recipes]


def evaluate_with_progress(run: Run, label: str = "evaluate", **options: Any) -> Results:
    """Evaluates a run with a progress bar; the options are those of `Run.evaluate`."""
    with ProgressBars(label, unit=run.evaluation_data.kind.unit.removesuffix("s")) as progress:
        return run.evaluate(**options, on_progress=progress.on_progress)
