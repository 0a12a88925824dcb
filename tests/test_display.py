"""Promises of a recipe on a screen: what differs from the defaults comes first, and it fits into a terminal."""

import pytest

import numerate
from numerate.config import describe_settings, override
from numerate.config.display import MAX_COLUMNS, MAX_LINES, changed_settings
from numerate.training.recipe import Recipe

NAMES = (
    "addition_abacus",
    "sorting_lt_abacus_fire",
    "gsm8k_t5_ntl_was",
    "tiny_stories_laptop_dual",
    "counting_items_slot_lstm",
)


@pytest.mark.parametrize("name", NAMES)
def test_the_settings_that_differ_reproduce_a_recipe_from_the_defaults(name: str) -> None:
    recipe = numerate.recipe(name)
    changed = changed_settings(recipe)
    assert override(Recipe(), [f"{path}={value}" for path, value in changed.items()]) == recipe
    default = dict(line[:2] for line in describe_settings(Recipe()))
    assert not changed.items() & default.items()


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_fits_into_a_terminal_and_begins_with_what_differs(name: str) -> None:
    recipe = numerate.recipe(name)
    lines = repr(recipe).splitlines()
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= MAX_COLUMNS
    assert lines[0] == f"Recipe {name}, differing from the defaults in"
    first = next(iter(changed_settings(recipe).items()))
    assert lines[1].startswith(f"  {'='.join(first)}"[:40])
    assert str(recipe) == repr(recipe)
