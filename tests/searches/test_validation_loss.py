"""Promises of searches with language modeling."""

from dataclasses import replace
from pathlib import Path

import pytest

from numerate.errors import UserError
from numerate.searches.trials import run_result
from numerate.tasks.arithmetic import Arithmetic
from numerate.training.recipe import Recipe, Training
from numerate.training.run_folder import RunFolder


def test_a_trial_is_worth_its_lowest_validation_loss(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "a", "1", {"recipe": {}})
    for step, loss in ((10, 3.0), (20, 2.0), (30, 2.5), (40, 1.0)):
        folder.append("metrics.jsonl", {"step": step, "loss": 9.0})
        line = {"loss": loss, "low": loss - 0.1, "high": loss + 0.1, "perplexity": 7.0, "token_accuracy": 0.5}
        folder.append("metrics.jsonl", {"step": step, "split": "validation", **line})
    recipe = Recipe(training=Training(steps=30))  # what was trained beyond does not count
    found = run_result(folder, recipe, "validation_loss")
    assert (found["value"], found["low"], found["best_step"], found["loss"]) == (2.0, 1.9, 20, 9.0)


def test_it_is_refused_where_there_is_no_language_modeling() -> None:
    pytest.importorskip("optuna")
    from numerate.searches.search import search

    recipe = replace(Recipe(), task=Arithmetic())
    with pytest.raises(UserError, match="metric: validation_loss needs a language modeling task, not Arithmetic"):
        search(recipe, ["model.hidden_size=32,64"], trials=1, metric="validation_loss")
