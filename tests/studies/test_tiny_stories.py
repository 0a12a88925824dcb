"""The study of dual attention on stories: what the Transformers beside it are equal to it in."""

from pathlib import Path

import pytest

from numerate import recipes
from numerate.errors import UserError
from numerate.models.decoder import Decoder
from numerate.studies.definitions import tiny_stories_laptop
from numerate.studies.study import run_study
from numerate.training.recipe import Recipe
from numerate.vocabulary import Vocabulary

IDS = 2048


def size(recipe: Recipe) -> int:
    """Parameters beside the vocabulary's."""
    assert isinstance(recipe.model, Decoder)
    words = [f"w{number}" for number in range(IDS - Vocabulary.with_digits([]).size)]
    model = recipe.model.build_on_meta(Vocabulary.with_digits(words), 0)
    return sum(parameter.numel() for parameter in model.parameters()) - IDS * recipe.model.hidden_size


def test_each_model_has_three_seeds_and_reads_the_same() -> None:
    study = tiny_stories_laptop()
    assert len(study.recipes) == 3 * len(study.labels) == 12
    assert len({(recipe.task, recipe.tokenizer, recipe.optimizer, recipe.schedule) for recipe in study.recipes}) == 1


def test_one_transformer_is_as_wide_and_deep_and_one_has_as_many_parameters() -> None:
    dual, width, parameters = (
        make()
        for make in (
            recipes.tiny_stories_laptop_dual,
            recipes.tiny_stories_laptop_width,
            recipes.tiny_stories_laptop_parameters,
        )
    )
    assert isinstance(dual.model, Decoder)
    assert isinstance(width.model, Decoder)
    assert (dual.model.hidden_size, dual.model.backbone) == (width.model.hidden_size, width.model.backbone)
    assert (size(dual), size(width), size(parameters)) == (242_880, 197_248, 246_528)
    assert dual.training == width.training == parameters.training


def test_one_transformer_has_more_steps_by_as_much_as_a_step_of_dual_attention_takes_longer() -> None:
    dual, longer = recipes.tiny_stories_laptop_dual(), recipes.tiny_stories_laptop_time()
    assert longer.model == recipes.tiny_stories_laptop_width().model
    assert dual.training.steps is not None
    assert longer.training.steps is not None
    assert longer.training.steps / dual.training.steps == pytest.approx(1.7, abs=0.03)


def test_without_the_stories_the_study_says_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NUMERATE_DATA", str(tmp_path / "data"))
    with pytest.raises(UserError, match="numerate data prepare tiny_stories_2048"):
        run_study(tiny_stories_laptop(), runs_dir=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
