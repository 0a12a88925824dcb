"""Promises of samples during training: they change nothing of it, and are the same however it was trained."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from numerate.errors import UserError
from numerate.evaluation.evaluator import Evaluation
from numerate.mixers.attention import Attention
from numerate.models.backbone import Stack
from numerate.models.decoder import Decoder
from numerate.positions.rotary import Rotary
from numerate.runs.run import Run
from numerate.runs.train import train
from numerate.tasks.language_modeling import LanguageModeling
from numerate.text.tokenizers.stored_tokenizer import load_tokenizer
from numerate.text.tokenizers.token_ids import TokenIds
from numerate.tokenizers.layout import NextToken
from numerate.training.distributed import World
from numerate.training.recipe import Recipe, Training
from numerate.training.samples import PUBLISHED_PROMPTS, SampleGenerator, Samples
from numerate.training.trainer import Trainer
from small_runs import same, weights

torch.set_num_threads(1)

TINY = str(Path(__file__).parents[1] / "text" / "tiny")
CONTEXT = 40


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    folder = tmp_path_factory.mktemp("texts")
    known = load_tokenizer(TINY)
    ids, _ = known.encode(["Once upon a time, 3 cats went to the park. " * 4])
    for name, count in (("train", 20), ("val", 2)):
        np.tile(np.concatenate([[known.document_start_id], ids]), count).astype(np.uint16).tofile(
            folder / f"{name}.bin"
        )
    return Recipe(
        task=LanguageModeling(str(folder / "train.bin"), str(folder / "val.bin"), TINY, context_length=CONTEXT),
        tokenizer=TokenIds(),
        layout=NextToken(),
        model=Decoder(
            hidden_size=16,
            backbone=Stack(num_layers=1),
            mixer=Attention(num_heads=2, dropout=0.2),
            positions=(Rotary(),),
            dropout=0.2,
        ),
        training=Training(
            steps=6,
            batch_size=4,
            threads=1,
            log_every=1,
            evaluate_every=2,
            checkpoint_every=1,
            keep_checkpoints=None,
            best_metric="loss",
        ),
        evaluation=Evaluation(validation_examples=2),
        samples=Samples(when="evaluation", max_new_tokens=8),
        device="cpu",
    )


@pytest.fixture(scope="module")
def run(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(recipe, runs_dir=tmp_path_factory.mktemp("runs"), quiet=True).run


def samples(run: Run) -> bytes:
    return run.folder.file("samples.jsonl").read_bytes()


def test_training_is_the_same_to_the_bit_with_and_without_samples(run: Run, recipe: Recipe, tmp_path: Path) -> None:
    without = train(replace(recipe, samples=Samples(when="never")), runs_dir=tmp_path, quiet=True).run
    assert same(weights(run), weights(without))
    assert without.path.name == run.path.name, "they are no part of a run's identity"
    assert not without.folder.file("samples.jsonl").exists()
    assert run.folder.file("metrics.jsonl").read_bytes() == without.folder.file("metrics.jsonl").read_bytes()


def test_each_evaluation_leaves_a_line_for_each_prompt(run: Run) -> None:
    found = run.folder.records("samples.jsonl")
    assert [one["step"] for one in found] == [2] * 7 + [4] * 7 + [6] * 7
    assert [one["prompt"] for one in found] == [*PUBLISHED_PROMPTS] * 3
    assert {one["seed"] for one in found} == {0}
    assert all(one["tokens"] <= 8 for one in found)
    assert len({one["text"] for one in found[18:]}) == 3, "empty prompts go on differently"


def test_samples_are_those_that_the_checkpoint_says_with_dropout_off(run: Run) -> None:
    last = run.folder.records("samples.jsonl")[14:]
    generated = run.generate(PUBLISHED_PROMPTS, max_new_tokens=8, seed=0)
    assert [one.text for one in generated] == [one["text"] for one in last]
    again = run.generate(PUBLISHED_PROMPTS, max_new_tokens=8, checkpoint="2")
    assert [one.text for one in again] == [one["text"] for one in run.folder.records("samples.jsonl")[:7]]


def test_a_resumed_run_leaves_the_same_bytes_and_no_line_twice(run: Run, recipe: Recipe, tmp_path: Path) -> None:
    place = tmp_path / "runs" / run.path.parent.name / run.path.name
    shutil.copytree(run.path, place)
    for step in (3, 4, 5, 6):  # what a crash after the evaluation of step 4 or 6 may leave
        shutil.rmtree(place / "checkpoints" / f"step-{step:06d}")
    again = train(recipe, runs_dir=tmp_path / "runs", quiet=True).run
    assert again.path == place
    assert samples(again) == samples(run)
    assert same(weights(again), weights(run))


def test_samples_of_a_step_that_are_made_again_take_the_place_of_those_before(run: Run, recipe: Recipe) -> None:
    before = samples(run)
    SampleGenerator(recipe.samples, run.evaluation_data, "fp32").generate(run.load_model(), 6, run.folder)
    assert samples(run) == before


def test_the_end_alone_is_the_rule_for_language_modeling(run: Run, recipe: Recipe, tmp_path: Path) -> None:
    ended = train(replace(recipe, samples=Samples(max_new_tokens=8)), runs_dir=tmp_path, quiet=True).run
    assert ended.folder.records("samples.jsonl") == run.folder.records("samples.jsonl")[14:]


def test_prompts_that_cannot_be_read_give_a_warning(recipe: Recipe, tmp_path: Path) -> None:
    long = Samples(when="end", prompts=("Once", "word " * CONTEXT), max_new_tokens=2)
    trainer = Trainer(replace(recipe, samples=long), World(device=torch.device("cpu")))
    assert [text for text in trainer.warnings if "left out" in text]
    with pytest.raises(UserError, match="prompts: must not be empty"):
        Samples(when="end", prompts=())
