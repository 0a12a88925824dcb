"""Promises of the published recipes: sizes, budgets and schedules are the published ones, and everything runs."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import numerate
from numerate.config import Span
from numerate.models.backbone import Loop, Stack
from numerate.models.block import FeedForward
from numerate.models.decoder import Decoder
from numerate.models.initialization import DeepNorm
from numerate.positions.added import Learned
from numerate.positions.bias import FIRE
from numerate.positions.position_ids import DigitIndex, RandomSubset
from numerate.positions.rotary import Rotary
from numerate.recipes.abacus import ROWS
from numerate.recipes.preset import debug
from numerate.tokenizers.layout import Continuation
from numerate.tokenizers.number_formats import Digits
from numerate.training.recipe import Recipe

PUBLISHED = [name for name, row in ROWS.items() if row.base == "abacus_paper.published" and "_small_" not in name]
MILLIONS = {
    "addition_ff_nope": "121.7",
    "addition_ff_abacus": "122.3",
    "addition_ff_ii_abacus": "122.3",
    "addition_lt_abacus_8x2": "63.5",
    "addition_lt_abacus_4x4": "34.1",
    "addition_lt_abacus_2x8": "19.4",
    "addition_lt_abacus_1x16": "12.1",
    "addition_subtraction_lt_abacus_8x2": "63.5",
    "multiplication_abacus": "34.1",
    "bitwise_or_1x16_abacus": "12.1",
    "bitwise_or_16x1_ii_nope": "121.7",
    "sorting_st_abacus": "63.7",
    "addition_small_abacus": "0.4",
}
"""Published numbers of parameters, in millions."""


def made(name: str) -> Recipe:
    return numerate.recipe(name)


def small(recipe: Recipe) -> Recipe:
    """With the same tables and grid, but hardly any weights."""
    grid = recipe.evaluation.grid
    return replace(debug(recipe), evaluation=replace(debug(recipe).evaluation, grid=grid))


def layers_and_turns(recipe: Recipe) -> tuple[int, int]:
    assert isinstance(recipe.model, Decoder)
    return recipe.model.backbone.num_blocks(), recipe.model.backbone.default_num_loops()


def test_every_row_of_the_scripts_is_a_recipe() -> None:
    schemes = ("nope", "fire", "abacus")
    rows = {
        f"addition_{kind}_{scheme}" for kind in ("ff", "ff_ii") for scheme in (*schemes, "abacus_fire", "abacus_rope")
    }
    rows |= {f"addition_lt_{scheme}_{size}" for scheme in schemes for size in ("1x16", "2x8", "4x4", "8x2")}
    rows |= {f"multiplication_{scheme}" for scheme in ("fire", "abacus", "abacus_fire")}
    rows |= {f"bitwise_or_{size}_{scheme}" for size in ("1x16", "16x1_ii") for scheme in schemes}
    rows |= {
        f"sorting_{kind}_{scheme}" for kind in ("st", "st_ii", "lt") for scheme in ("fire", "abacus", "abacus_fire")
    }
    further = {
        "addition_ff_randomised_fire",
        "addition_lt_abacus_8x2_40_digits",
        "addition_subtraction_lt_abacus_8x2",
    }
    assert set(PUBLISHED) == rows | further


@pytest.mark.parametrize(("name", "millions"), MILLIONS.items())
def test_a_recipe_has_the_published_number_of_parameters(name: str, millions: str) -> None:
    recipe = made(name)
    with torch.device("meta"):
        model = recipe.model.build(recipe.tokenizer.build_vocabulary(recipe.task), 0)
    assert f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.1f}" == millions


def test_the_vocabularies_are_the_published_ones() -> None:
    sizes = {name: made(name).tokenizer.build_vocabulary(made(name).task).size for name in PUBLISHED}
    assert {name.split("_")[0]: size for name, size in sizes.items()} == {
        "addition": 19,
        "multiplication": 19,
        "bitwise": 19,
        "sorting": 118,
    }


@pytest.mark.parametrize("name", PUBLISHED)
def test_optimizer_schedule_and_batches_are_the_published_ones(name: str) -> None:
    recipe = made(name)
    optimizer, schedule, training = recipe.optimizer, recipe.schedule, recipe.training
    slow = "multiplication" in name and "fire" in name
    told = (optimizer.learning_rate, optimizer.betas, optimizer.eps, optimizer.weight_decay, optimizer.max_grad_norm)  # type: ignore[attr-defined]
    assert told == (6e-5 if slow else 1e-4, (0.9, 0.98), 1e-12, 0.01, 0.5)
    assert [schedule.multiplier(step, 100) for step in (10, 50, 89)] == [1.0, 1.0, 1.0]
    assert schedule.multiplier(0, 100) == pytest.approx(1 / 11)
    assert schedule.multiplier(95, 100) == pytest.approx(0.5)
    assert (training.batch_size, training.batch_size_warmup, training.initial_batch_size) == (
        8192,
        0.6,
        32 if "sorting" in name else 512,
    )
    budgets = {"multiplication": 64e18, "bitwise": 8e18 / 24}
    assert training.flops == budgets.get(name.split("_")[0], 8e18)
    assert training.steps is None
    assert training.precision == "bf16"


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_model_is_the_published_one(name: str) -> None:
    model = made(name).model
    assert isinstance(model, Decoder)
    assert (model.hidden_size, model.mixer.num_heads, model.norm_eps) == (1024, 16, 1e-12)  # type: ignore[attr-defined]
    assert not model.norm_first
    assert not model.tie_word_embeddings
    assert model.embedding_norm
    assert model.final_norm
    assert model.head_projection
    assert isinstance(model.backbone, Stack | Loop)
    assert model.backbone.initial_state == "noise"
    layers, turns = layers_and_turns(made(name))
    assert layers * turns == (8 if "sorting" in name else 16)
    loops = any(word in name for word in ("_lt_", "multiplication", "1x16"))
    assert (turns > 1) is loops
    assert type(made(name).objective).__name__ == ("Progressive" if loops else "Supervised")
    assert model.backbone.input_injection == ("add" if loops or "_ii" in name else "none")
    gated = FeedForward("geglu", expansion=1.0, bias=False)
    assert model.feed_forward == model.head_feed_forward == gated
    assert not model.mixer.bias  # type: ignore[attr-defined]
    assert model.initialization == DeepNorm()
    assert set(model.positions) <= {
        Learned(position_ids=DigitIndex(max_offset=100), max_position_embeddings=512),
        FIRE(),
        FIRE(position_ids=RandomSubset(max_length=128, subset_size=64, subset_per="batch")),
        Rotary(),
    }
    numbered = [type(position).__name__ for position in model.positions]
    assert ("Learned" in numbered, "FIRE" in numbered, "Rotary" in numbered) == (
        "abacus" in name,
        "fire" in name,
        "rope" in name,
    )


def test_tasks_are_the_published_ones() -> None:
    assert made("addition_ff_nope").task.training_spans() == {"first_digits": Span(1, 20), "second_digits": Span(1, 20)}
    assert made("addition_lt_abacus_8x2_40_digits").task.training_spans()["first_digits"] == Span(1, 40)
    assert made("multiplication_fire").task.training_spans()["second_digits"] == Span(1, 15)
    assert made("sorting_lt_fire").task.training_spans() == {"digits": Span(1, 10), "items": Span(1, 10)}
    assert made("bitwise_or_1x16_nope").task.max_examples == 100  # type: ignore[attr-defined]
    for name in PUBLISHED:  # what is asked is the answer with its end; numbers are written units first
        assert made(name).layout == Continuation(targets="answer")
        assert made(name).tokenizer.number_format == Digits(digit_order="reversed")  # type: ignore[attr-defined]
    objective: Any = made("multiplication_abacus").objective
    assert (objective.throttle, objective.loss.mean_over, objective.alpha) == ("described", "examples", 1.0)


def test_the_debug_preset_keeps_large_models_tiny() -> None:
    for name in PUBLISHED:
        recipe = debug(made(name))
        model = recipe.model.build(recipe.tokenizer.build_vocabulary(recipe.task), 0)
        assert sum(parameter.numel() for parameter in model.parameters()) < 100_000, name
        assert recipe.training.threads == 1
        assert layers_and_turns(recipe) <= (2, 2)
    few = made("addition_small_abacus")
    assert debug(few).model == few.model, "what is small already stays as it is"
