"""Promises of the benchmarks: the published way in them is the published one, and they run."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from import_file import import_file
from numerate.api import recipe
from numerate.vocabulary import EOS, PAD

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


def opened(name: str) -> ModuleType:
    return import_file(FOLDER / f"{name}.py")


@pytest.fixture(scope="module")
def abacus() -> ModuleType:
    return opened("abacus")


@pytest.mark.parametrize("name", ["abacus_ids_eval", "abacus_standalone_eval"])
def test_the_numbers_of_digits_are_the_published_ones(abacus: Any, shared: Path, name: str) -> None:
    cases = json.loads((shared / "cases" / "abacus.json").read_text())["cases"]
    case = next(case for case in cases if case["id"] == name)
    for row, expected in zip(case["input"], case["expected"], strict=True):
        assert abacus.abacus_ids(torch.tensor([row])).tolist() == [expected]


def test_rows_of_20_digits_have_the_published_64_columns(abacus: Any) -> None:
    assert abacus.columns(20) == 64
    ids, targets = abacus.padded_rows(abacus.questions(20), 64)
    assert ids.shape == targets.shape == (100, 64)
    assert abacus.PublishedStep(abacus.recipe(20)).batches[0][0].shape == (64, 64)


def test_what_follows_the_end_is_padding_and_the_place_of_the_end_counts(abacus: Any) -> None:
    gold = torch.tensor([[5, 6, EOS, PAD]])
    for said, right in (
        ([5, 6, EOS, 9], True),
        ([5, 6, EOS, EOS], True),
        ([5, 6, 4, EOS], False),
        ([5, EOS, 6, 7], False),
    ):
        assert abacus.verdicts(torch.tensor([said]), gold).tolist() == [right], said


def test_both_ways_of_evaluating_and_training_agree_for_a_model_that_is_sometimes_right(abacus: Any) -> None:
    model = abacus.briefly_trained(120, digits=1)
    batch = abacus.questions(1)
    torch.testing.assert_close(
        abacus.Published(model)(batch.tokens.ids), model(batch.tokens).logits, rtol=1e-3, atol=1e-3
    )
    ours, theirs = abacus.both(model, batch)
    assert torch.equal(ours, theirs)
    assert 0 < int(ours.sum()) < len(ours)
    assert abacus._steps_agree()["loss"] > 1


def test_the_grid_of_memory_has_its_largest_cells(abacus: Any) -> None:
    assert len(abacus.cells(True)) == 10_000
    assert {(100, 100), (99, 100), (1, 100), (1, 1)} <= set(abacus.cells(False))


def test_the_benchmark_of_a_gpu_runs_on_a_cpu_in_small(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--smoke"])
    opened("gpu").main()
    line, row = capsys.readouterr().out.splitlines()
    assert json.loads(line)["real_tokens_per_second"] > 0
    assert row.startswith("| cpu | as it is |")


def test_the_benchmark_of_a_gpu_says_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="no CUDA device is visible"):
        opened("gpu").main()


def test_the_benchmark_of_a_gpu_measures_the_recipe_of_8_x_2_and_its_published_size() -> None:
    gpu = opened("gpu")
    model = gpu.published(compiled=False, smoke=False)
    shipped = recipe("addition_lt_abacus_8x2")
    assert (model.model, model.objective, model.optimizer) == (shipped.model, shipped.objective, shipped.optimizer)
    assert (model.training.batch_size, model.training.flops) == (
        shipped.training.batch_size,
        shipped.training.flops,
    )
    built = model.model.build(model.tokenizer.build_vocabulary(model.task), 0)
    assert sum(p.numel() for p in built.parameters()) == pytest.approx(63.5e6, rel=0.02)
