"""The schemes of the Abacus paper at a laptop's size."""

from dataclasses import replace

from numerate.recipes import abacus
from numerate.studies.study import Study

SEEDS = 5
"""Seeds of each scheme: what differs between schemes is small beside what differs between seeds."""


def abacus_laptop() -> Study:
    """Reversed addition of 1 to 6 digits: six schemes, five seeds each, evaluated to three times the length."""
    schemes = {
        abacus.addition6_abacus: "Abacus",
        abacus.addition6_no_offset: "Abacus without offset",
        abacus.addition6_looped: "looped Abacus",
        abacus.addition6_rotary: "rotary",
        abacus.addition6_fire: "FIRE",
        abacus.addition6_nope: "NoPE",
    }
    recipes = [make() for make in schemes]
    return Study(
        title="abacus_laptop",
        question="How far beyond 6 digits do small models add, by how the place of a digit is told, and how sure is "
        "that over seeds?",
        recipes=tuple(replace(recipe, seed=seed) for seed in range(SEEDS) for recipe in recipes),
        labels={recipe.title: label for recipe, label in zip(recipes, schemes.values(), strict=True)},
    )
