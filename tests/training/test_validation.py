"""Promises of the evaluation of text during training."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from numerate.errors import UserError
from numerate.evaluation.evaluator import Evaluation
from numerate.evaluation.kinds.text_likelihood import compute_chunk_losses
from numerate.evaluation.likelihoods import Likelihoods
from numerate.training.distributed import World
from numerate.training.recipe import Recipe
from numerate.training.trainer import Trainer

pytest.importorskip("tokenizers", reason="the extra huggingface has it")

from text_corpus import recipe_of, task_in


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return recipe_of(task_in(tmp_path_factory.mktemp("stories")))


def trainer_of(recipe: Recipe) -> tuple[Trainer, list[dict[str, Any]]]:
    records: list[dict[str, Any]] = []
    with World.connect("cpu") as world:
        trainer = Trainer(
            recipe, world, on_event=lambda kind, line: records.append(dict(line)) if "split" in line else None
        )
    return trainer, records


def test_what_is_recorded_is_loss_perplexity_and_bits_of_the_first_batches(recipe: Recipe) -> None:
    trainer, records = trainer_of(recipe)
    trainer.train()
    exam, model = trainer.evaluation_data, trainer.model.eval()
    batches = [exam.batch(recipe.task.examples("validation", 0, start, 4)) for start in (0, 4, 8)]
    each = [compute_chunk_losses(model, exam, batch).likelihoods().as_batch() for batch in batches]
    found = sum(each, Likelihoods())
    line = records[-1]
    assert [one["step"] for one in records] == [2, 4]
    assert line["split"] == "validation"
    assert "exact_match" not in line
    assert line["loss"] == pytest.approx(found.loss, rel=1e-5)
    assert line["perplexity"] == pytest.approx(math.exp(found.loss), rel=1e-5)
    assert line["mean_of_exp"] == pytest.approx(found.mean_of_exp, rel=1e-5)
    assert line["bits_per_byte"] == pytest.approx(found.bits_per_byte, rel=1e-5)
    assert line["tokens"] == found.tokens


def test_the_parts_of_an_accumulated_batch_are_the_batches_of_a_mean(recipe: Recipe) -> None:
    parts = replace(recipe.training, batch_size=8, gradient_accumulation_steps=2)
    trainer, _ = trainer_of(replace(recipe, training=parts))
    assert [*trainer.validator._batches()] == [(0, 4), (4, 4), (8, 4)]


@pytest.mark.parametrize("during", [11, 12])
def test_shares_of_processes_make_the_whole(recipe: Recipe, during: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, _ = trainer_of(replace(recipe, evaluation=Evaluation(validation_examples=during)))
    validator, model = trainer.validator, trainer.model.eval()
    alone = validator._likelihoods(model)
    world = validator.world
    shares: list[dict[str, float]] = []
    calls = []

    def sum_values(values: dict[str, float]) -> dict[str, float]:
        shares.append(dict(values))
        return {name: sum(one[name] for one in shares) for name in values}

    for rank in (0, 1):
        other = replace(world, rank=rank, size=2)
        monkeypatch.setattr(type(other), "sum_values", lambda self, values: sum_values(values))
        monkeypatch.setattr(validator, "world", other)
        calls.append(0)
        with model.register_forward_pre_hook(lambda *_: calls.append(calls.pop() + 1)):
            both = validator._likelihoods(model)
    assert calls[0] == calls[1] > 0  # every process calls the model equally often
    assert (both.tokens, both.bytes, both.chunks, both.correct_tokens) == (
        alone.tokens,
        alone.bytes,
        during,
        alone.correct_tokens,
    )
    assert both.loss == pytest.approx(alone.loss, rel=1e-6)
    assert both.mean_of_exp == pytest.approx(alone.mean_of_exp, rel=1e-6)


def test_a_target_is_refused_as_nothing_is_right_or_wrong(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"training\.target_accuracy: must be null for language modeling"):
        trainer_of(replace(recipe, training=replace(recipe.training, target_accuracy=0.9)))
