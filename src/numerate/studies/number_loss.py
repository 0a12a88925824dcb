"""Number token losses against cross-entropy, and against other number formats, at a laptop's size."""

from dataclasses import replace

from numerate import recipes
from numerate.config import override
from numerate.losses.number_token import NumberToken
from numerate.studies.study import Study, comparison_study
from numerate.training.objective import Supervised
from numerate.training.recipe import Recipe

SEEDS = 5
"""Seeds of each variant: at this size, differences between losses are small compared with those between seeds."""

LOSS_WEIGHTS = (0.3, 0.8, 2.0)
"""The factors of the number loss that were published, there called lambda."""

GENERATED_DATA_HINT = (
    "`numerate run number_loss_laptop_stand_in` is the same on generated questions and needs no file; its results "
    "do not hold for the dataset"
)


def number_loss_laptop() -> Study:
    """Number losses and number formats on three mathematics modules: a small T5, a small decoder, five seeds each."""
    return comparison_study(
        "number_loss_laptop",
        "Do number token losses, or other number formats, answer school mathematics better than plain "
        "cross-entropy: on numbers as trained, and on larger ones?",
        {
            recipes.number_loss_laptop_ce: "T5: cross-entropy",
            recipes.number_loss_laptop_mse: "T5: NTL-MSE",
            recipes.number_loss_laptop_was: "T5: NTL-WAS",
            recipes.number_loss_laptop_gaussian: "T5: Gaussian cross-entropy",
            recipes.number_loss_laptop_rt: "T5: regression transformer",
            recipes.number_loss_laptop_xval: "T5: xVal",
            recipes.number_loss_laptop_regression: "T5: regression head",
            recipes.number_loss_laptop_decoder_ce: "decoder: cross-entropy",
            recipes.number_loss_laptop_decoder_mse: "decoder: NTL-MSE",
            recipes.number_loss_laptop_decoder_was: "decoder: NTL-WAS",
            recipes.number_loss_laptop_decoder_gaussian: "decoder: Gaussian cross-entropy",
            recipes.number_loss_laptop_decoder_rt: "decoder: regression transformer",
        },
        seeds=SEEDS,
        missing_files_hint=GENERATED_DATA_HINT,
    )


def number_loss_laptop_stand_in() -> Study:
    """`number_loss_laptop` on generated questions, a stand-in for users without the files of the dataset."""
    return comparison_study(
        "number_loss_laptop_stand_in",
        "Do number token losses, or other number formats, answer generated questions better than plain "
        "cross-entropy: on numbers as trained, and on larger ones? (A stand-in for the mathematics dataset.)",
        {
            recipes.number_loss_small_ce: "T5: cross-entropy",
            recipes.number_loss_small_mse: "T5: NTL-MSE",
            recipes.number_loss_small_was: "T5: NTL-WAS",
            recipes.number_loss_small_gaussian: "T5: Gaussian cross-entropy",
            recipes.number_loss_small_rt: "T5: regression transformer",
            recipes.number_loss_small_xval: "T5: xVal",
            recipes.number_loss_small_regression: "T5: regression head",
            recipes.number_loss_small_decoder_ce: "decoder: cross-entropy",
            recipes.number_loss_small_decoder_mse: "decoder: NTL-MSE",
            recipes.number_loss_small_decoder_was: "decoder: NTL-WAS",
            recipes.number_loss_small_decoder_gaussian: "decoder: Gaussian cross-entropy",
            recipes.number_loss_small_decoder_rt: "decoder: regression transformer",
        },
        seeds=SEEDS,
    )


def number_loss_lambda() -> Study:
    """The weight of the number loss, 0.3, 0.8 and 2, for NTL-MSE and NTL-WAS beside cross-entropy, five seeds each."""
    study = comparison_study(
        "number_loss_lambda",
        "How much should a number token loss weigh beside cross-entropy: 0.3, 0.8 or 2?",
        {
            recipes.number_loss_laptop_ce: "T5: cross-entropy",
            recipes.number_loss_laptop_mse: "T5: NTL-MSE",
            recipes.number_loss_laptop_was: "T5: NTL-WAS",
            recipes.number_loss_laptop_decoder_ce: "decoder: cross-entropy",
            recipes.number_loss_laptop_decoder_mse: "decoder: NTL-MSE",
            recipes.number_loss_laptop_decoder_was: "decoder: NTL-WAS",
        },
        seeds=SEEDS,
        missing_files_hint=GENERATED_DATA_HINT,
    )
    return replace(study, recipes=tuple(one for recipe in study.recipes for one in _with_loss_weights(recipe)))


def _with_loss_weights(recipe: Recipe) -> list[Recipe]:
    """A recipe with each of the weights; unchanged if it has no number loss."""
    if not (isinstance(recipe.objective, Supervised) and isinstance(recipe.objective.loss, NumberToken)):
        return [recipe]
    return [override(recipe, [f"objective.loss.weight={weight}"]) for weight in LOSS_WEIGHTS]
