"""The position encodings of the Abacus paper at a laptop's size."""

from numerate import recipes
from numerate.studies.study import Study, comparison_study

SEEDS = 5
"""Seeds of each encoding: differences between encodings are small compared with those between seeds."""


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
