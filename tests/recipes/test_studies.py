"""The studies that numerate brings: what is compared, and the error where files are not there."""

from pathlib import Path

import pytest

from numerate import recipes
from numerate.errors import UserError
from numerate.losses.number_token import NumberToken
from numerate.models.decoder import Decoder
from numerate.recipes.studies import (
    number_loss_lambda,
    number_loss_laptop,
    number_loss_laptop_stand_in,
    tiny_stories_laptop,
)
from numerate.recipes.study import Study
from numerate.runs.study import run_study
from numerate.text.models.t5 import T5
from numerate.text.tokenizers.subwords import Subwords
from numerate.training.objective import Supervised
from numerate.training.recipe import Recipe
from numerate.vocabulary import Vocabulary

IDS = 2048


@pytest.mark.parametrize("study", [number_loss_laptop(), number_loss_laptop_stand_in()], ids=lambda study: study.title)
def test_each_way_has_five_seeds_and_the_budget_of_its_architecture(study: Study) -> None:
    assert len(study.recipes) == 5 * len(study.labels) == 60
    assert {recipe.title for recipe in study.recipes} == set(study.labels)
    assert len({recipe.task for recipe in study.recipes}) == 1
    for kind in (True, False):
        mine = [recipe for recipe in study.recipes if isinstance(recipe.model, T5) == kind]
        assert len({(recipe.training, recipe.optimizer, recipe.schedule) for recipe in mine}) == 1


def test_the_dataset_is_read_over_the_tokens_of_t5_and_cut_to_what_occurs() -> None:
    for recipe in number_loss_laptop().recipes:
        assert isinstance(recipe.tokenizer, Subwords)
        assert (recipe.tokenizer.tokenizer, recipe.tokenizer.vocabulary) == ("google-t5/t5-small", "occurring")


def test_weights_are_scanned_beside_plain_cross_entropy() -> None:
    recipes = number_loss_lambda().recipes
    losses = [recipe.objective.loss for recipe in recipes if isinstance(recipe.objective, Supervised)]
    weights = [loss.weight for loss in losses if isinstance(loss, NumberToken)]
    assert sorted(set(weights)) == [0.3, 0.8, 2.0]
    assert (len(weights), len(recipes)) == (4 * 3 * 5, 4 * 3 * 5 + 2 * 5)


def test_without_its_files_a_study_says_how_to_get_them_and_offers_the_stand_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers", reason="the extra huggingface is not installed")
    monkeypatch.setenv("NUMERATE_DATA", str(tmp_path / "none"))
    monkeypatch.setattr("numerate.text.tokenizers.tokenizer_files.is_hub_reachable", lambda: False)
    with pytest.raises(UserError) as error:
        run_study(number_loss_laptop(), runs_dir=tmp_path / "runs")
    for what in ("fetch mathematics`", "fetch t5_tokenizer`", "number_loss_laptop_stand_in"):
        assert what in str(error.value)
    assert not (tmp_path / "runs").exists()


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
