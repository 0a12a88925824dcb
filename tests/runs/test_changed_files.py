"""Promises of runs on questions of files: a file that has changed since a run was begun is refused by name, wherever
the run is resumed, questioned, evaluated, or counted as done."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from numerate.config import override
from numerate.errors import UserError
from numerate.evaluation.evaluator import Evaluation
from numerate.models.decoder import Decoder
from numerate.positions.rotary import Rotary
from numerate.recipes.study import Study
from numerate.runs.run import Run
from numerate.runs.study import preview_study
from numerate.runs.train import train
from numerate.text.tasks.question_files import QuestionFiles
from numerate.training.recipe import Recipe, Training


def questions(shift: int = 0) -> str:
    pairs = [(f"{a}+{b}=", str(a + b + shift)) for a in range(1, 8) for b in range(1, 8)]
    return "".join(json.dumps({"question": question, "answer": answer}) + "\n" for question, answer in pairs)


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    monkeypatch.chdir(tmp_path)
    Path("mine.jsonl").write_text(questions())
    return Recipe(
        task=QuestionFiles(train_file="mine.jsonl"),
        model=Decoder(hidden_size=16, positions=(Rotary(),)),
        training=Training(steps=2, batch_size=4, shuffle_window=2, threads=1, log_every=2, evaluate_every=2),
        evaluation=Evaluation(examples_per_cell=4, validation_examples=4),
        title="mine",
    )


def trained(recipe: Recipe) -> Run:
    return train(recipe, runs_dir="runs", quiet=True).run


AGAIN: dict[str, Callable[[Recipe, Run], Any]] = {
    "the same command": lambda recipe, run: trained(recipe),
    "more steps": lambda recipe, run: trained(override(recipe, ["training.steps=4"])),
    "evaluate": lambda recipe, run: run.evaluate(),
    "ask": lambda recipe, run: run.ask("1+1="),
    "maps": lambda recipe, run: run.maps("1+1="),
    "a study": lambda recipe, run: preview_study(Study("mine", "Which?", [recipe]), runs_dir="runs"),
}


@pytest.mark.parametrize("how", AGAIN)
def test_a_run_is_not_gone_on_with_on_changed_questions(recipe: Recipe, how: str) -> None:
    run = trained(recipe)
    Path("mine.jsonl").write_text(questions(1))
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    message = (
        r"the contents of .*mine\.jsonl have changed since .* was started, .*restore the files, or start a new run "
        r"with the new ones \(another runs_dir= or seed=\)"
    )
    with pytest.raises(UserError, match=message):
        AGAIN[how](recipe, Run(run.folder))
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before
    Path("mine.jsonl").write_text(questions())
    AGAIN[how](recipe, Run(run.folder))


def test_a_run_without_a_checkpoint_begins_again_with_what_there_is(recipe: Recipe) -> None:
    run = trained(recipe)
    first = run.folder.metadata()["contents"]
    for path in sorted(run.folder.checkpoints.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    Path("mine.jsonl").write_text(questions(1))
    assert trained(recipe).folder.metadata()["contents"] != first


def test_another_seed_is_a_run_of_its_own_on_the_new_questions(recipe: Recipe) -> None:
    trained(recipe)
    Path("mine.jsonl").write_text(questions(1))
    assert trained(replace(recipe, seed=1)).evaluate()
