"""The small number loss recipes: each trains without any download, and they differ in the loss alone."""

import numerate
from numerate.recipes.number_loss import ROWS
from numerate.text.models.t5 import T5

SMALL = [name for name in ROWS if name.startswith("number_loss_small_")]
WITHOUT_FILES = [name for name in SMALL if not name.endswith(("_rt", "_xval", "_regression"))]


def test_all_have_the_same_data_tokens_and_budget() -> None:
    recipes = [numerate.recipe(name) for name in WITHOUT_FILES]
    assert len({(recipe.task, recipe.tokenizer) for recipe in recipes}) == 1
    for kind in (True, False):
        mine = [recipe for recipe in recipes if isinstance(recipe.model, T5) == kind]
        assert len({(recipe.model, recipe.optimizer, recipe.schedule, recipe.training) for recipe in mine}) == 1
        assert len({recipe.objective for recipe in mine}) == len(mine)
