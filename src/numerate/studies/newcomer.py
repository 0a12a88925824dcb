"""The first study of a new user."""

from numerate import recipes
from numerate.studies.study import Study


def quickstart() -> Study:
    """Reversed addition of 1 to 5 digits: Abacus with a random offset against rotary positions, on 1 to 12 digits."""
    return Study(
        title="quickstart",
        question="How far beyond the lengths they were trained on do two models add that differ in one thing, "
        "the positional encoding of digits?",
        recipes=(recipes.addition_abacus(), recipes.addition_rotary()),
        labels={"addition_abacus": "Abacus", "addition_rotary": "rotary"},
    )
