"""The golden comparisons use every part and every command and report each difference; no name is lost unnoticed."""

import copy
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

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


def test_every_command_is_in_the_transcripts() -> None:
    assert set(loaded("transcripts").COMMANDS) == {name.split()[0] for name in COMMANDS}


def test_times_places_and_ids_of_runs_are_no_difference(outside: ModuleType) -> None:
    first = """2026-11-23 14:02:02  sums 1/300 (0 %)
2026-11-23 14:02:03  sums 300/300 (100 %), loss 1.7, speed 201.3k tokens/s (14% of limit)
/tmp/a/runs/sums/d9f1e387921f: 300 steps, model.mixer.heads=4 task.digits=1:12
time  30.5 ms a step, about 2:18 for 4,500 steps here"""
    second = """2025-01-02 03:04:05  sums 300/300 (100 %), loss 1.7, speed 1,234 tokens/s (0.9% of limit)
/tmp/b/runs/sums/0123456789ab: 300 steps, model.mixer.heads=4 task.digits=1:12
time  7.25 ms a step, about 0:09 for 4,500 steps here"""
    expected = """<date>  sums 300/300 (100 %), loss 1.7, speed <speed> tokens
<folder>/runs/sums/<id 1>: 300 steps, model.mixer.heads=4 task.digits=1:12
time  <time> ms a step, about <time> for 4,500 steps here"""
    for text, place in (first, "/tmp/a"), (second, "/tmp/b"):
        assert outside.normalised(text, {place: "<folder>"}) == expected
    two_runs = "d9f1e387921f 0123456789ab d9f1e387921f"
    assert outside.normalised(two_runs, {}) == "<id 1> <id 2> <id 1>"


def test_of_a_page_the_text_and_the_cells_of_tables_are_compared(outside: ModuleType) -> None:
    page = """<style>p {color: red}</style><h1>Exact  <b>match</b></h1><script>run()</script>
<table class="a"><tr><th>region</th><th>%</th></tr><tr><td>all</td><td>12.5</td></tr></table>
<svg><title>1+1 digits</title><text x="3">100</text></svg>"""
    assert outside.page_text(page) == "Exact match\nregion | %\nall | 12.5\n1+1 digits\n100"
    assert outside.page_text(page.replace("h1", "h2").replace("class", "id")) == outside.page_text(page)


def test_of_an_export_each_tensor_is_compared(outside: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"weight": torch.ones(2, 3), "bias": torch.zeros(2)}, file)
    first = outside.contents(file, within_runs=False)
    assert [line.rpartition(" ")[0] for line in first.splitlines()] == ["bias float32 (2,)", "weight float32 (2, 3)"]
    save_file({"weight": torch.ones(2, 3), "bias": torch.full((2,), 1e-9)}, file)
    assert first.splitlines()[0] != outside.contents(file, within_runs=False).splitlines()[0]


def test_each_command_that_differs_is_listed_with_its_differences(outside: ModuleType) -> None:
    base = {"list": "exit status 0\nLSTM", "show": "exit status 0", "old": "exit status 0"}
    here = {"list": "exit status 0\nGRU", "show": "exit status 0"}
    found = outside.differences(base, here, {})
    assert found.keys() == {"list", "old"}
    assert found["list"].splitlines()[2:] == ["@@ -1,2 +1,2 @@", " exit status 0", "-LSTM", "+GRU"]


def test_a_renamed_word_is_understood_by_the_base_and_is_no_difference(outside: ModuleType) -> None:
    renamed = {"model.width": "model.hidden_size", "Mistake": "UserError"}
    old = {new: old for old, new in renamed.items()}
    assert outside.replaced("train sums model.hidden_size=32", old) == "train sums model.width=32"
    assert outside.replaced("Mistake: model.width, my.model.width, Mistakes", renamed) == (
        "UserError: model.hidden_size, my.model.width, Mistakes"
    )
    base = {"results": "width  final\n-----  -----\n   32   12 %\n"}
    here = {"results": "hidden_size  final\n-----------  -----\n         32   12 %\n"}
    assert not outside.differences(base, here, {"width": "hidden_size"})
    here["results"] = here["results"].replace("12", "13")
    assert outside.differences(base, here, {"width": "hidden_size"})


def test_a_base_that_has_renamed_words_already_is_asked_in_its_own(outside: ModuleType) -> None:
    here = {"most": "max_new_tokens", "rate": "learning_rate", "width": "hidden_size"}
    base = {"most": "max_new_tokens", "rate": "lr"}
    assert outside.renamed_since(base, here) == {"lr": "learning_rate", "width": "hidden_size"}
    assert outside.renamed_since({}, here) == here


def test_figures_of_a_benchmark_are_named_by_what_is_measured_and_more_is_better(against: ModuleType) -> None:
    lines = [
        "a warning",
        '{"benchmark": "step", "contender": "ours", "window": 4, "tokens_per_second": 50, "against": "x", "ratio": 2}',
        '{"benchmark": "step", "contender": "ours", "window": 8, "milliseconds": 4, "at_most": 3}',
    ]
    assert against.figures("training", lines) == {
        "training, step, ours, window 4, tokens_per_second": 50,
        "training, step, ours, window 8, milliseconds": 0.25,
    }


def test_the_interval_of_a_ratio_is_that_of_scipy_over_logarithms(against: ModuleType) -> None:
    # By hand: logarithms -0.1, 0, 0.1 have the standard error 0.1 / root 3; t of 0.975 at 2 degrees is 4.302653.
    middle, low, high = against.interval([0.904837418, 1.0, 1.105170918])
    assert (middle, low, high) == pytest.approx((1.0, 0.78004, 1.28199), rel=1e-4)
    assert against.interval([0.9]) == pytest.approx((0.9, 0.0, float("inf")))


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
