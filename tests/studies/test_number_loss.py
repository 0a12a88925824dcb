"""The studies of number losses: what is compared, and the error where files are not there."""

from pathlib import Path

import pytest

from numerate.errors import UserError
from numerate.losses.number_token import NumberToken
from numerate.studies.definitions import number_loss_lambda, number_loss_laptop, number_loss_laptop_stand_in
from numerate.studies.study import Study, run_study
from numerate.text.models.t5 import T5
from numerate.text.tokenizers.subwords import Subwords
from numerate.training.objective import Supervised


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
    monkeypatch.setattr("numerate.text.tokenizers.tokenizer_files._is_hub_reachable", lambda: False)
    with pytest.raises(UserError) as error:
        run_study(number_loss_laptop(), runs_dir=tmp_path / "runs")
    for what in ("fetch mathematics`", "fetch t5_tokenizer`", "number_loss_laptop_stand_in"):
        assert what in str(error.value)
    assert not (tmp_path / "runs").exists()
