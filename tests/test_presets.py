"""Parts that are known by a paper's name: found by it, changed like any other."""

from typing import Any

import pytest

from numerate import catalogue
from numerate.config import Span, override
from numerate.errors import UserError
from numerate.tasks.arithmetic import Arithmetic
from numerate.training.recipe import Recipe


@pytest.fixture(autouse=True)
def published(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = {"sums_of_three": Arithmetic("+", digits=3), "long_sums": Arithmetic("+", digits=Span(1, 20))}
    monkeypatch.setattr(catalogue, "presets", lambda kind: ready if kind == "Task" else {})


def test_a_published_name_stands_for_a_part_with_its_settings() -> None:
    assert override(Recipe(), ["task=sums_of_three"]).task == Arithmetic("+", digits=3)
    assert override(Recipe(), ["task=sums-of-three"]).task == Arithmetic("+", digits=3)


def test_what_is_given_with_the_name_changes_those_settings_alone() -> None:
    made = override(Recipe(), ["task=long_sums(include_zero=true)", "task.no_carry=true"])
    assert made.task == Arithmetic("+", digits=Span(1, 20), include_zero=True, no_carry=True)


def test_a_name_in_a_list_of_parts_is_one_too() -> None:
    made: Any = override(Recipe(), ["task=Mixture([sums_of_three, Arithmetic(operator='-')])"]).task
    assert made.tasks == (Arithmetic("+", digits=3), Arithmetic("-"))


def test_a_mistyped_name_is_answered_with_the_nearest_of_all() -> None:
    with pytest.raises(UserError, match=r"no Task is named 'sums_of_tree'.*Did you mean 'sums_of_three'\?"):
        override(Recipe(), ["task=sums_of_tree"])


def test_a_part_is_made_from_either_kind_of_name() -> None:
    assert catalogue.get_part("Task", "Arithmetic") == Arithmetic()
    assert catalogue.get_part("Task", "sums_of_three") == Arithmetic("+", digits=3)
    with pytest.raises(UserError, match=r"no Task is named 'long_sum'; 2 presets are .* Did you mean 'long_sums'"):
        catalogue.get_part("Task", "long_sum")
    with pytest.raises(UserError, match="no Task is named 'zzz'; there are:"):
        catalogue.get_part("Task", "zzz")
