"""The model that counts three ways: one architecture, one set of settings, three tasks; and the studies of counting."""

import numerate
from numerate.config import Span
from numerate.evaluation.grid import Grid
from numerate.recipes.naming import load_recipe_or_study

NAMES = [f"counting_universal_{way}" for way in ("shifted", "modular", "items")]


def test_only_the_task_and_what_is_asked_differ() -> None:
    recipes = [numerate.recipe(name) for name in NAMES]
    for part in ("model", "objective", "optimizer", "schedule", "training", "tokenizer", "layout"):
        assert len({getattr(recipe, part) for recipe in recipes}) == 1, part


def test_all_are_trained_to_50_and_asked_at_least_to_100() -> None:
    for name, most in zip(NAMES, (200, 200, 100), strict=True):
        recipe = numerate.recipe(name)
        assert recipe.task.training_spans()["count"].high == 50
        assert recipe.evaluation.grid is not None
        assert Grid.parse(recipe.evaluation.grid, ("count",)).corners()[-1] == (("count", most),)


def test_of_a_shifted_start_200_is_a_label_of_training_and_of_every_longest_row() -> None:
    task = numerate.recipe(NAMES[0]).task
    rows = task.all_questions("train")
    assert rows is not None
    assert rows.labels is not None
    assert rows.alphabet[int(rows.labels.max())] == "200"
    (whole,) = [task.at_cell(count=200).all_questions()]
    assert whole is not None
    assert len(whole) == 1


def test_the_studies_have_five_seeds_of_each_scheme() -> None:
    for name, schemes in (("counting_universal", 3), ("counting_laptop", 16)):
        study = load_recipe_or_study(name)
        assert len(study.recipes) == 5 * schemes
        assert len(study.labels) == schemes
        assert {recipe.seed for recipe in study.recipes} == set(Span(0, 4))
