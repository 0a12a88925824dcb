"""The golden comparison (`make golden`) uses every part and reports each difference; no name is lost unnoticed."""

import copy
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numerate
from numerate import catalogue
from numerate.config import identity

GOLDEN = Path(__file__).resolve().parents[1] / "tools" / "golden"
NOT_IN_RECIPES = {"Recipe", "Study", "Executor"}


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"golden_{name}", GOLDEN / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def classes_of(part: Any) -> Iterator[str]:
    if is_dataclass(part):
        yield type(part).__name__
        for field in fields(part):
            yield from classes_of(getattr(part, field.name))
    elif isinstance(part, tuple):
        for item in part:
            yield from classes_of(item)


def test_the_cases_use_every_part_of_a_recipe() -> None:
    recipes = [numerate.recipe(*words) for words in loaded("cases").CASES.values()]
    used = {name for recipe in recipes for name in classes_of(recipe)}
    kinds = catalogue.kinds().items()
    assert {name for kind, names in kinds if kind not in NOT_IN_RECIPES for name in names} <= used
    assert len({identity(recipe) for recipe in recipes}) == len(recipes) >= 60


def test_every_name_of_0_1_is_there_or_says_what_became_of_it() -> None:
    inventory = loaded("inventory")
    before = set((GOLDEN / "inventory-0.1.txt").read_text().splitlines())
    now = inventory.everything()
    assert len(before) > 1000
    assert before - now == inventory.CHANGED.keys()
    named = {name for name in inventory.CHANGED.values() if not name.startswith("removed: ")}
    assert named <= now


def test_a_difference_in_any_layer_is_reported() -> None:
    compare = loaded("compare")
    base = {"sums": {layer: [f"{layer} hash"] for layer in compare.LAYERS}, "text": {"error": "UserError: no file"}}
    now = copy.deepcopy(base)
    now["sums"]["resumed"] = base["sums"]["final"]
    failed = {"text": ["base: UserError: no file; here: UserError: no file"]}
    assert compare.differences(base, now) == failed
    for layer in compare.LAYERS[:-1]:
        changed = copy.deepcopy(now)
        changed["sums"][layer] = ["another"]
        assert compare.differences(base, changed) == failed | {"sums": [layer]}
    now["sums"]["resumed"] = ["another"]
    assert compare.differences(base, now) == failed | {"sums": ["resumed"]}
    assert compare.differences(base, {}) == {"sums": ["only in the base"], "text": ["only in the base"]}
