"""Number losses on the mathematics dataset, at a laptop's size: three modules of it, a small T5 and a small decoder.

`number_loss_small_*` (models, losses and budgets are those) on the dataset's own questions, over the tokens of T5, one
a digit, and only those that occur. It takes two things that are not generated: `numerate data fetch mathematics` and
`numerate data fetch t5_tokenizer`. Parts 1 to 3 of the evaluation are the test of interpolation, 4 to 6 that of
extrapolation. One row in twenty of each file of training is validation.
"""

from dataclasses import replace

from numerate.recipes import number_loss_small as small
from numerate.text.tasks.mathematics import Mathematics
from numerate.text.tokenizers.regression_transformer import RegressionTransformer
from numerate.text.tokenizers.subwords import Subwords
from numerate.text.tokenizers.text_number_formats import PerDigit, TextNumberFormat, XVal
from numerate.training.recipe import Recipe

MODULES = ("numbers__place_value", "numbers__round_number", "arithmetic__add_or_sub")


def number_loss_laptop_ce() -> Recipe:
    """A small T5 on three modules of mathematics: plain cross-entropy."""
    return _laptop(small.number_loss_small_ce())


def number_loss_laptop_mse() -> Recipe:
    """A small T5 on three modules of mathematics: NTL-MSE."""
    return _laptop(small.number_loss_small_mse())


def number_loss_laptop_was() -> Recipe:
    """A small T5 on three modules of mathematics: NTL-WAS."""
    return _laptop(small.number_loss_small_was())


def number_loss_laptop_gaussian() -> Recipe:
    """A small T5 on three modules of mathematics: cross-entropy smoothed by a Gaussian of width 1."""
    return _laptop(small.number_loss_small_gaussian())


def number_loss_laptop_rt() -> Recipe:
    """A small T5 on three modules of mathematics: the tokens and the vectors of the regression transformer."""
    return _laptop(small.number_loss_small_rt(), RegressionTransformer())


def number_loss_laptop_xval() -> Recipe:
    """A small T5 on three modules of mathematics: [NUM] for every number, and a number head."""
    return _laptop(small.number_loss_small_xval(), XVal(round_to_float32=True))


def number_loss_laptop_regression() -> Recipe:
    """A small T5 on three modules of mathematics: a regression head, one number per question."""
    return _laptop(small.number_loss_small_regression(), XVal(round_to_float32=True))


def number_loss_laptop_decoder_ce() -> Recipe:
    """A small decoder on three modules of mathematics: plain cross-entropy."""
    return _laptop(small.number_loss_small_decoder_ce())


def number_loss_laptop_decoder_mse() -> Recipe:
    """A small decoder on three modules of mathematics: NTL-MSE."""
    return _laptop(small.number_loss_small_decoder_mse())


def number_loss_laptop_decoder_was() -> Recipe:
    """A small decoder on three modules of mathematics: NTL-WAS."""
    return _laptop(small.number_loss_small_decoder_was())


def number_loss_laptop_decoder_gaussian() -> Recipe:
    """A small decoder on three modules of mathematics: cross-entropy smoothed by a Gaussian of width 1."""
    return _laptop(small.number_loss_small_decoder_gaussian())


def number_loss_laptop_decoder_rt() -> Recipe:
    """A small decoder on three modules of mathematics: the tokens of the regression transformer."""
    return _laptop(small.number_loss_small_decoder_rt(), RegressionTransformer())


def _laptop(recipe: Recipe, number_format: TextNumberFormat | None = None) -> Recipe:
    return replace(
        recipe,
        task=Mathematics(
            modules=MODULES, extrapolation_modules=tuple(f"{name}_big" for name in MODULES), validation_fraction=0.05
        ),
        tokenizer=Subwords("google-t5/t5-small", number_format or PerDigit(), vocabulary="occurring"),
        title=recipe.title.replace("_small", "_laptop"),
    )
