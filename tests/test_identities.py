"""Promises of run ids, random keys and position offsets: what changes them, and what does not."""

from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any

import pytest

import numerate
from numerate import catalogue
from numerate.config import check_same_defaults, identity, override, setting, to_tree
from numerate.config.settings import settings_in_key
from numerate.errors import UserError
from numerate.positions.position_ids import DigitIndex, PositionIds, Shifted
from numerate.recipes.study import content_key
from numerate.runs.train import train
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.counter_rng import random_key
from numerate.training.run_folder import RunFolder
from small_runs import ADDING


def schedule(**defaults: Any) -> Any:
    """A version of a part with settings and these defaults; `budget` extends a run."""
    settings = [(name, type(one), setting(one, name, in_run_id=name != "budget")) for name, one in defaults.items()]
    part = make_dataclass("Trapezoid", settings, frozen=True)
    part.__module__ = "numerate.schedules"  # a part of numerate, whose file is no part of its id
    return part


Trapezoid = schedule(warmup=10, decay=0.9, budget=100)


@dataclass(frozen=True)
class Several:
    __module__ = "numerate.schedules"

    schedules: tuple[Any, ...] = setting((Trapezoid(), Trapezoid(decay=0.5)), "schedules")
    steps: int = setting(100, "steps", in_run_id=False)


def test_an_id_has_what_differs_from_the_defaults() -> None:
    recipe = Several((Trapezoid(decay=0.5),))
    assert identity(recipe) == identity(Several((Trapezoid(10, 0.5, 100),), 7)) != identity(Several())
    assert identity(recipe) != identity(Several((Trapezoid(),))) != identity(Several(()))
    assert identity(Several((Trapezoid(budget=7), Trapezoid(decay=0.5)))) == identity(Several())


def test_a_setting_that_was_added_changes_no_id_where_it_has_its_default() -> None:
    later = schedule(warmup=10, decay=0.9, budget=100, floor=0.0)
    assert identity(Several((later(decay=0.5),))) == identity(Several((Trapezoid(decay=0.5),)))
    assert identity(later(floor=0.1)) != identity(later()) == identity(Trapezoid())


def test_a_changed_default_is_refused_in_one_sentence() -> None:
    later = schedule(warmup=10, decay=0.8, budget=7)
    assert identity(later(warmup=3)) == identity(Trapezoid(warmup=3))
    assert content_key(later(warmup=3)) != content_key(Trapezoid(warmup=3)), "results of studies are not reused either"
    tree = to_tree(Trapezoid(warmup=3))
    check_same_defaults(tree, Trapezoid(warmup=3, budget=9), Path("runs/a/1"))
    with pytest.raises(UserError, match=r"^runs/a/1: was made .* the default of decay was 0\.9, not 0\.8, .* decay=0"):
        check_same_defaults(tree, later(warmup=3), Path("runs/a/1"))


def test_a_run_is_not_continued_with_another_default(tmp_path: Path) -> None:
    recipe = override(ADDING, ["training.steps=2"])
    tree = to_tree(recipe)
    tree["training"] = {**tree["training"], "gradient_accumulation_steps": 2, "steps": 1}
    folder = RunFolder.create(tmp_path, recipe.title, identity(recipe), {"recipe": tree})
    before = folder.file("recipe.yaml").read_bytes()
    with pytest.raises(UserError, match=r"default of training\.gradient_accum.* was 2, not 1.* another runs_dir="):
        train(recipe, runs_dir=tmp_path, quiet=True)
    assert folder.file("recipe.yaml").read_bytes() == before


@dataclass(frozen=True)
class OffsetPerNumber(DigitIndex):
    key_name = "DigitIndex"

    largest: int = setting(0, "largest offset", key_name="max_offset")
    is_new: bool = setting(False, "added later", key_name="")


def test_a_renamed_class_or_setting_and_an_added_one_keep_random_keys() -> None:
    kind, settings = settings_in_key(OffsetPerNumber(max_offset=20, largest=20))
    assert (kind, settings) == settings_in_key(DigitIndex(max_offset=20))
    assert random_key(OffsetPerNumber(max_offset=20, largest=20), 3) == random_key(DigitIndex(max_offset=20), 3)
    assert OffsetPerNumber(largest=20)._salt() == DigitIndex(max_offset=20)._salt()
    assert OffsetPerNumber(largest=20, is_new=True)._salt() != DigitIndex(max_offset=20)._salt()


def test_the_names_in_keys_are_unique() -> None:
    for kind in ("Task", "PositionIds"):
        parts = [settings_in_key(catalogue.get_class(kind, name)())[0] for name in catalogue.parts_by_kind()[kind]]
        assert len(set(parts)) == len(parts)
    assert "key_name" not in vars(type("Inherits", (OffsetPerNumber,), {}))
    assert settings_in_key(type("Inherits", (OffsetPerNumber,), {})())[0] == "Inherits"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (lambda: identity(numerate.recipe("addition_abacus")), "3e87e83e2cc6"),
        (lambda: identity(numerate.recipe("counting_mod10_lstm")), "ec415ceddceb"),
        (lambda: random_key(Arithmetic()) % 2**32, 4029859489),
        (lambda: Shifted(100)._salt(), 1277880791),
    ],
)
def test_ids_are_those_of_version_0_3_and_keys_and_offsets_those_of_0_2(found: Any, expected: object) -> None:
    assert found() == expected


def test_position_ids_of_different_settings_have_different_offsets() -> None:
    schemes: list[PositionIds] = [Shifted(100), Shifted(101), DigitIndex(max_offset=100), DigitIndex(max_offset=101)]
    assert len({scheme._salt() for scheme in schemes}) == 4
