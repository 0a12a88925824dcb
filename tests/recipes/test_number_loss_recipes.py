"""The published number token loss rows: what each trains with, and over which tokens."""

from typing import Any

import pytest

import numerate
from numerate.losses.cross_entropy import CrossEntropy
from numerate.losses.number_heads import Regression, XValLoss
from numerate.losses.number_token import GaussianCrossEntropy, NumberToken
from numerate.recipes.number_loss import PUBLISHED
from numerate.text.models.numformer import Numformer
from numerate.text.models.t5 import T5
from numerate.text.tasks.gsm8k import GSM8K
from numerate.text.tasks.mathematics import Mathematics
from numerate.text.tasks.multirc import MultiRC
from numerate.text.tasks.rjokes import RJokes
from numerate.text.tokenizers.regression_transformer import RegressionTransformer
from numerate.text.tokenizers.subwords import Subwords
from numerate.text.tokenizers.text_number_formats import AsIs, PerDigit
from numerate.text.tokenizers.text_number_formats import XVal as Numbers
from numerate.tokenizers.layout import MaskedLM, Seq2Seq
from numerate.training.recipe import Recipe
from numerate.training.schedule import Plateau

TASKS = {"mathematics": Mathematics, "arithmetic": Mathematics, "rjokes": RJokes, "multirc": MultiRC}
WITH_DIGITS = ("ntl_mse", "ntl_was", "ntl_mae", "ntl_huber", "gaussian", "custom_tokenizer")


def dataset(name: str) -> str:
    return name.partition("_")[0]


def loss(name: str) -> Any:
    objective: Any = numerate.recipe(name).objective
    return objective.loss


def tokenizer(name: str) -> Subwords:
    found = numerate.recipe(name).tokenizer
    assert isinstance(found, Subwords)
    return found


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_trains_what_the_name_says(name: str) -> None:
    assert isinstance(numerate.recipe(name).task, TASKS.get(dataset(name), GSM8K))


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_is_trained_as_published(name: str) -> None:
    recipe: Recipe = numerate.recipe(name)
    optimizer: Any = recipe.optimizer
    training, encoder = recipe.training, "numformer" in name
    assert (optimizer.learning_rate, optimizer.weight_decay, optimizer.betas) == (1e-4, 0.01, (0.9, 0.999))
    assert optimizer.max_grad_norm == (None if encoder else 1.0)
    assert training.batch_size == (8 if "big" in name else 32)
    assert training.steps == (1_050_000 if dataset(name) == "mathematics" and "big" not in name else 2_500_000)
    assert (training.evaluate_every, training.keep_checkpoints) == (10_000 if encoder else 25_000, 2)
    assert encoder or recipe.schedule == Plateau(warmup=0, factor=0.5, patience=5)
    assert (training.precision, training.shuffle_window, training.parallel) == ("fp32", 1, "all_reduce")


@pytest.mark.parametrize("name", PUBLISHED)
def test_its_model_has_the_published_size_and_begins_with_the_published_weights(name: str) -> None:
    model = numerate.recipe(name).model
    if "numformer" in name:
        assert isinstance(model, Numformer)
        assert (model.num_layers, model.num_heads, model.hidden_size, model.intermediate_size) == (12, 12, 768, 3072)
        assert (model.final_norm, model.head_bias) == (False, False)
        return
    assert isinstance(model, T5)
    size = "11b" if "big" in name else {"mathematics": "base", "gsm8k": "3b"}.get(dataset(name), "small")
    assert (model.size, model.weights) == (size, f"google-t5/t5-{size}")
    assert tokenizer(name).tokenizer == f"google-t5/t5-{size}"
    assert model.gradient_checkpointing == (size in ("3b", "11b"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_number_losses_have_one_token_a_digit_and_plain_t5_has_its_own(name: str) -> None:
    numbers, row = tokenizer(name).number_format, name.partition("_t5_")[2]
    if "_rt" in name:
        assert numbers == RegressionTransformer()
    elif isinstance(loss(name), XValLoss):
        assert numbers == Numbers()
    elif row.startswith(WITH_DIGITS):
        assert numbers == PerDigit()
    else:
        assert numbers == AsIs(number_answers=row == "regression_head")
        assert isinstance(loss(name), CrossEntropy | Regression) or loss(name).number_tokens == "numbers"


@pytest.mark.parametrize("data", ["mathematics", "arithmetic", "rjokes", "multirc", "gsm8k"])
def test_every_dataset_has_a_row_that_differs_from_a_number_loss_in_the_loss_alone(data: str) -> None:
    def but_loss(name: str) -> Any:
        recipe = numerate.recipe(name)
        return recipe.task, recipe.tokenizer, recipe.model, recipe.training, recipe.evaluation, recipe.schedule

    assert but_loss(f"{data}_t5_custom_tokenizer") == but_loss(f"{data}_t5_ntl_was")
    assert loss(f"{data}_t5_custom_tokenizer") == CrossEntropy()


def test_a_name_says_the_loss() -> None:
    for name, form in (("ntl_mse", "mse"), ("ntl_was", "was"), ("ntl_mae", "mae"), ("ntl_huber", "huber")):
        assert loss(f"arithmetic_t5_{name}") == NumberToken(form, weight=0.3)  # type: ignore[arg-type]
    assert loss("mathematics_t5_ntl_mse").loss_function == "mse"
    assert loss("mathematics_rt_ntl_mse").loss_function == "mse"
    for suffix, weight in (("", 0.3), ("_lambda08", 0.8), ("_lambda2", 2.0)):
        assert loss(f"arithmetic_t5_ntl_mse{suffix}") == NumberToken("mse", weight=weight)
        assert loss(f"arithmetic_t5_ntl_was{suffix}") == NumberToken("was", weight=weight)
    for sigma in (1, 2):
        assert loss(f"arithmetic_t5_gaussian_sigma{sigma}") == GaussianCrossEntropy(float(sigma))
        both = loss(f"arithmetic_t5_gaussian_ntl_was_sigma{sigma}")
        assert both == NumberToken("was-cdf", weight=0.3, gaussian_sigma=float(sigma))
    assert {loss(f"{data}_t5_ntl_was").weight for data in ("rjokes", "multirc")} == {2.0}
    assert loss("gsm8k_t5_ntl_was").weight == loss("mathematics_t5_ntl_was").weight == 0.3


def test_rows_are_laid_out_for_their_models() -> None:
    for name in PUBLISHED:
        assert isinstance(numerate.recipe(name).layout, MaskedLM if "numformer" in name else Seq2Seq)
