"""Promises of training on text: texts are tokenised before the first step, a resumed run reads on where it stopped, and
what does not go together is refused before anything is written."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from numerate.api import recipe
from numerate.config import override
from numerate.errors import UserError
from numerate.runs.train import train
from numerate.tasks.language_modeling import LanguageModeling
from numerate.text.tokenizers.tokenizer_files import CHARACTER_TOKENIZER
from numerate.training.recipe import Recipe
from numerate.training.stopping import Stop

pytest.importorskip("tokenizers", reason="the extra huggingface has it")

SMALL = (
    "tokenizer=TokenIds layout=NextToken evaluation.grid=null model.hidden_size=16 model.backbone.num_layers=1 "
    "model.positions=[Rotary] "
    "model.mixer.num_heads=2 training.batch_size=4 training.log_every=1 training.evaluate_every=6 "
    "training.checkpoint_every=6 "
    "evaluation.validation_examples=4 schedule=Constant(warmup=2) device=cpu"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """JSON lines to train on, and others that are held out."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for name, numbers in (("a", range(60)), ("b", range(60, 70))):
        stories = [json.dumps({"text": f"Story {number}: once there were {number} cats."}) for number in numbers]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(stories))
    return tmp_path


def small(order: str, steps: int) -> Recipe:
    found = recipe("addition_abacus", *SMALL.split(), f"training.steps={steps}", "task=LanguageModeling")
    task = LanguageModeling("a.jsonl", "b.jsonl", CHARACTER_TOKENIZER, context_length=24, order=order)
    return replace(found, task=task)


def records(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["step"] <= 12 and ("split" in line or "grad_norm" in line)]


def prepared(found: Recipe) -> list[str]:
    """The warnings about a recipe's held-out text, once its texts are tokenised."""
    found.task.prepare_files()
    return found.task.data_warnings()


@pytest.mark.parametrize("order", ["shuffled", "published"])
def test_a_resumed_run_reads_on_where_it_stopped(folder: Path, order: str) -> None:
    at_once = train(small(order, 12), runs_dir=folder / "one", quiet=True).run
    train(small(order, 6), runs_dir=folder / "two", quiet=True)
    parts = train(small(order, 12), runs_dir=folder / "two", quiet=True).run
    one, two = (records(Path(run.folder.path)) for run in (at_once, parts))
    assert [line["loss"] for line in one] == [line["loss"] for line in two]
    for mine, theirs in zip(at_once.load_model().parameters(), parts.load_model().parameters(), strict=True):
        assert torch.equal(mine, theirs)
    held_out = next(line for line in two if line.get("split") == "validation")
    assert held_out["perplexity"] > 1
    assert held_out["tokens"] > 0


def test_what_does_not_go_together_is_refused_before_anything_is_written(folder: Path) -> None:
    valid = small("shuffled", 4)
    for changed, message in (
        ("tokenizer=Characters", "the tokenizer must be TokenIds and the layout NextToken"),
        ("task=Arithmetic", "TokenIds must be used with task=LanguageModeling, not Arithmetic"),
    ):
        with pytest.raises(UserError, match=message):
            train(override(valid, [changed]), runs_dir=folder / "runs", quiet=True)
    sums = recipe("addition_abacus", "layout=NextToken", "training.steps=2", "device=cpu")
    with pytest.raises(UserError, match="for questions with answers use layout=Continuation"):
        train(sums, runs_dir=folder / "runs", quiet=True)
    with pytest.raises(UserError, match="train: there is no nowhere"):
        train(replace(valid, task=LanguageModeling("nowhere")), runs_dir=folder / "runs", quiet=True)
    assert not (folder / "runs").exists()


def test_held_out_text_that_is_trained_on_too_gives_a_warning(folder: Path) -> None:
    stories = (folder / "a.jsonl").read_text().splitlines()
    (folder / "b.jsonl").write_text("\n".join(stories[20:30]))
    warnings = prepared(small("shuffled", 2))
    assert "16 of 16 passages of 64 tokens are also in the training text" in warnings[0]
    (folder / "b.jsonl").write_text(json.dumps({"text": "Story 20: once there were"}))
    assert prepared(small("shuffled", 2)) == [], "less than a passage may stand anywhere"
    others = [story.replace("cats", "dogs") for story in stories]
    (folder / "b.jsonl").write_text("\n".join(stories[20:24] + others * 2))
    assert prepared(small("shuffled", 2)) == []


def test_a_stop_leaves_the_validation_between_two_batches(stop_at: Callable[[int], Stop], folder: Path) -> None:
    whole = train(small("shuffled", 6), runs_dir=folder / "whole", quiet=True)
    due = []
    for nth in (7, 8, 100):  # it looks before each of the six steps, then before each batch of the evaluation
        parted = train(small("shuffled", 6), runs_dir=folder / "parted", quiet=True, stop=stop_at(nth))
        due.append(parted.run.checkpoints()[0].state["progress"]["pending"])
    assert due == ["evaluation", "samples", ""]
    assert (parted.run.path / "metrics.jsonl").read_bytes() == (whole.run.path / "metrics.jsonl").read_bytes()
