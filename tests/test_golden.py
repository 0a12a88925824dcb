"""The golden comparisons use every part and every command and report each difference; no name is lost unnoticed."""

import copy
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import numerate
from import_file import import_file
from numerate import catalogue
from numerate.commands.table import COMMANDS
from numerate.config import identity

TOP = Path(__file__).resolve().parents[1]
GOLDEN = TOP / "tools" / "golden"
NOT_IN_RECIPES = {"Recipe", "Study", "Engine", "EvaluationKind"}


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(GOLDEN)
    return loaded("outside")


@pytest.fixture
def against(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(GOLDEN)
    return loaded("against", TOP / "benchmarks")


def loaded(name: str, folder: Path = GOLDEN) -> ModuleType:
    return import_file(folder / f"{name}.py")


def classes_of(part: Any) -> Iterator[str]:
    if is_dataclass(part):
        yield type(part).__name__
        for field in fields(part):
            yield from classes_of(getattr(part, field.name))
    elif isinstance(part, tuple):
        for item in part:
            yield from classes_of(item)


def test_the_cases_use_every_part_of_a_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "_user_classes", {})  # those of other tests
    recipes = [numerate.recipe(*words) for words in loaded("cases").CASES.values()]
    used = {name for recipe in recipes for name in classes_of(recipe)}
    kinds = catalogue.parts_by_kind().items()
    assert {name for kind, names in kinds if kind not in NOT_IN_RECIPES for name in names} <= used
    assert len({identity(recipe) for recipe in recipes}) == len(recipes) >= 60


def test_no_question_split_or_offset_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "_user_classes", {})
    monkeypatch.setitem(sys.modules, "cases", loaded("cases"))
    monkeypatch.chdir(TOP)
    stored = [line.split(" ", 1) for line in (GOLDEN / "keys.txt").read_text().splitlines()]
    assert loaded("keys").keys() == {label: key for key, label in stored}


def test_every_name_of_0_2_is_there_or_was_withdrawn() -> None:
    inventory = loaded("inventory")
    assert len(inventory.BEFORE.read_text().splitlines()) > 1000
    assert inventory.withdrawn(inventory.everything()).keys() == inventory.WITHDRAWN.keys()


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
    del base["sums"], now["text"]  # a case of one side alone stops no comparison of the others
    now["bits"], base["bits"] = ({layer: [bit] for layer in (*compare.LAYERS, "resumed")} for bit in "01")
    assert compare.differences(base, now) == {"bits": [*compare.LAYERS, "resumed"]}


def test_of_an_evaluation_the_counts_and_metrics_are_compared_in_any_order() -> None:
    evaluated = loaded("compare").evaluated
    line = [{"digits": 1}, 4, 3, {"linear": {"count": 4}, "metrics": {"mae": 2.0}}]
    assert evaluated([line]) == evaluated([[3, 4, {"length": 1}, {"nonzero": 4, "metrics": {"mae": 2.0}}]])
    for other in ([*line[:3], {"metrics": {"mae": 2.5}}], [{"digits": 1}, 4, 2, line[3]], [{"digits": 2}, *line[1:]]):
        assert evaluated([line]) != evaluated([other])


def test_every_command_is_in_the_transcripts() -> None:
    assert set(loaded("transcripts").COMMANDS) == {name.split()[0] for name in COMMANDS}


def test_each_command_that_differs_is_listed_with_its_differences(outside: ModuleType) -> None:
    base = {"list": "exit status 0\nLSTM", "show": "exit status 0", "old": "exit status 0"}
    here = {"list": "exit status 0\nGRU", "show": "exit status 0"}
    found = outside.differences(base, here, {})
    assert found.keys() == {"list", "old"}
    assert found["list"].splitlines()[2:] == ["@@ -1,2 +1,2 @@", " exit status 0", "-LSTM", "+GRU"]


def test_only_a_figure_whose_interval_lies_below_the_bound_is_called_slower(against: ModuleType) -> None:
    base = [{"quick": 100.0, "slow": 100.0, "noisy": 100.0, "gone": 1.0}] * 3
    here = [{"quick": 101.0, "slow": value, "noisy": noisy} for value, noisy in ((90, 70), (91, 100), (90.5, 80))]
    slower = {line.split()[-1]: is_slower for line, is_slower in against.compared(base, here)}
    assert slower == {"quick": False, "slow": True, "noisy": False, "gone": False}
    assert any("only in the base" in line for line, _ in against.compared(base, here))


def test_every_fault_that_is_put_to_the_tests_is_in_the_source_exactly_once() -> None:
    faults = loaded("mutations", TOP / "tools").FAULTS
    source = TOP / "src" / "numerate"
    missing = [fault.what for fault in faults if (source / fault.file).read_text("utf-8").count(fault.old) != 1]
    assert len(faults) == 80
    assert missing == []
