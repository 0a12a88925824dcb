"""The studies that numerate brings: the first one of a new user, and comparisons at a laptop's size."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from numerate import recipes
from numerate.config import override
from numerate.losses.number_token import NumberToken
from numerate.recipes.study import Study, comparison_study
from numerate.training.objective import Supervised
from numerate.training.recipe import Recipe

SEEDS = 5
"""Seeds of each variant: at this size, differences between variants are often small compared with those between
seeds."""

LOSS_WEIGHTS = (0.3, 0.8, 2.0)
"""The factors of the number loss that were published, there called lambda."""

GENERATED_DATA_HINT = (
    "`numerate run number_loss_laptop_stand_in` is the same on generated questions and needs no file; its results "
    "do not hold for the dataset"
)

NUMBER_LOSS_LABELS = {
    "ce": "T5: cross-entropy",
    "mse": "T5: NTL-MSE",
    "was": "T5: NTL-WAS",
    "gaussian": "T5: Gaussian cross-entropy",
    "rt": "T5: regression transformer",
    "xval": "T5: xVal",
    "regression": "T5: regression head",
    "decoder_ce": "decoder: cross-entropy",
    "decoder_mse": "decoder: NTL-MSE",
    "decoder_was": "decoder: NTL-WAS",
    "decoder_gaussian": "decoder: Gaussian cross-entropy",
    "decoder_rt": "decoder: regression transformer",
}
"""The name in reports of each `number_loss_laptop_...` and `number_loss_small_...`."""


def quickstart() -> Study:
    """Reversed addition of 1 to 5 digits: Abacus with a random offset against rotary positions, on 1 to 12 digits."""
    return Study(
        title="quickstart",
        question="How far beyond the lengths they were trained on do two models add that differ in one thing, "
        "the positional encoding of digits?",
        recipes=(recipes.addition_abacus(), recipes.addition_rotary()),
        labels={"addition_abacus": "Abacus", "addition_rotary": "rotary"},
    )


def abacus_laptop() -> Study:
    """Reversed addition of 1 to 6 digits: six position encodings, five seeds each, evaluated up to 3x the length."""
    return comparison_study(
        "abacus_laptop",
        "How far beyond 6 digits do small models add, depending on the positional encoding of digits, and how much "
        "does it vary over seeds?",
        {
            recipes.addition6_abacus: "Abacus",
            recipes.addition6_no_offset: "Abacus without offset",
            recipes.addition6_looped: "looped Abacus",
            recipes.addition6_rotary: "rotary",
            recipes.addition6_fire: "FIRE",
            recipes.addition6_nope: "NoPE",
        },
        seeds=SEEDS,
    )


def counting_laptop() -> Study:
    """Three counting tasks, recurrent nets against transformers and diagonal recurrences, five seeds each."""
    return comparison_study(
        "counting_laptop",
        "Which architectures count beyond 50, the largest trained count: modulo 10, up from any number, and ten "
        "kinds of items, each counted separately?",
        {
            recipes.counting_mod10_rnn: "modulo 10: RNN",
            recipes.counting_mod10_lstm: "modulo 10: LSTM",
            recipes.counting_mod10_nope: "modulo 10: NoPE",
            recipes.counting_mod10_rotary: "modulo 10: rotary",
            recipes.counting_mod10_min_gru: "modulo 10: minGRU",
            recipes.counting_mod10_lru: "modulo 10: LRU",
            recipes.counting_mod10_delta_product: "modulo 10: DeltaProduct",
            recipes.counting_shifted_lstm: "shifted: LSTM",
            recipes.counting_shifted_rnn: "shifted: RNN",
            recipes.counting_shifted_nope: "shifted: NoPE",
            recipes.counting_shifted_sinusoidal: "shifted: sinusoidal",
            recipes.counting_shifted_rotary: "shifted: rotary",
            recipes.counting_shifted_alibi: "shifted: ALiBi",
            recipes.counting_items_nope: "items: NoPE",
            recipes.counting_items_lstm: "items: LSTM",
            recipes.counting_items_rnn: "items: RNN",
        },
        seeds=SEEDS,
    )


def counting_universal() -> Study:
    """One architecture, trained separately on three counting tasks with up to 50 symbols, evaluated up to 200."""
    return comparison_study(
        "counting_universal",
        "Does one small architecture count up from any number, modulo 10, and ten kinds of items, each far beyond the "
        "50 symbols it was trained on?",
        {
            recipes.counting_universal_shifted: "shifted start",
            recipes.counting_universal_modular: "modulo 10",
            recipes.counting_universal_items: "ten items",
        },
        seeds=SEEDS,
    )


def tiny_stories_laptop() -> Study:
    """Dual attention and Transformers equal to it in width and depth, in parameters, and in time; three seeds each."""
    return comparison_study(
        "tiny_stories_laptop",
        "Does dual attention model stories better than a Transformer: of equal width and depth, with equally many "
        "parameters, and in equal time?",
        {
            recipes.tiny_stories_laptop_dual: "dual attention",
            recipes.tiny_stories_laptop_width: "Transformer, equal width and depth",
            recipes.tiny_stories_laptop_parameters: "Transformer, equal parameters",
            recipes.tiny_stories_laptop_time: "Transformer, equal time",
        },
        seeds=3,
        missing_files_hint="`numerate data prepare tiny_stories_2048` creates them",
    )


def number_loss_laptop() -> Study:
    """Number losses and number formats on three mathematics modules: a small T5, a small decoder, five seeds each."""
    return comparison_study(
        "number_loss_laptop",
        "Do number token losses, or other number formats, answer school mathematics better than plain "
        "cross-entropy: on numbers as trained, and on larger ones?",
        _number_loss_recipes("laptop", NUMBER_LOSS_LABELS),
        seeds=SEEDS,
        missing_files_hint=GENERATED_DATA_HINT,
    )


def number_loss_laptop_stand_in() -> Study:
    """`number_loss_laptop` on generated questions, a stand-in for users without the files of the dataset."""
    return comparison_study(
        "number_loss_laptop_stand_in",
        "Do number token losses, or other number formats, answer generated questions better than plain "
        "cross-entropy: on numbers as trained, and on larger ones? (A stand-in for the mathematics dataset.)",
        _number_loss_recipes("small", NUMBER_LOSS_LABELS),
        seeds=SEEDS,
    )


def number_loss_lambda() -> Study:
    """The weight of the number loss, 0.3, 0.8 and 2, for NTL-MSE and NTL-WAS beside cross-entropy, five seeds each."""
    study = comparison_study(
        "number_loss_lambda",
        "How much should a number token loss weigh beside cross-entropy: 0.3, 0.8 or 2?",
        _number_loss_recipes("laptop", ("ce", "mse", "was", "decoder_ce", "decoder_mse", "decoder_was")),
        seeds=SEEDS,
        missing_files_hint=GENERATED_DATA_HINT,
    )
    return replace(study, recipes=tuple(one for recipe in study.recipes for one in _with_loss_weights(recipe)))


def _number_loss_recipes(size: str, variants: Iterable[str]) -> dict[Callable[[], Recipe], str]:
    """The recipes of some variants at a size, with their names in reports."""
    return {getattr(recipes, f"number_loss_{size}_{variant}"): NUMBER_LOSS_LABELS[variant] for variant in variants}


def _with_loss_weights(recipe: Recipe) -> list[Recipe]:
    """A recipe with each of the weights; unchanged if it has no number loss."""
    if not (isinstance(recipe.objective, Supervised) and isinstance(recipe.objective.loss, NumberToken)):
        return [recipe]
    return [override(recipe, [f"objective.loss.weight={weight}"]) for weight in LOSS_WEIGHTS]
