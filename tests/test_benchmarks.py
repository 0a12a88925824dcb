"""Promises of the benchmarks: the published way in them is the published one, and they run."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from cases import published_case
from import_file import import_file
from numerate.vocabulary import EOS, PAD

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


def opened(name: str) -> ModuleType:
    return import_file(FOLDER / f"{name}.py")


@pytest.fixture(scope="module")
def abacus() -> ModuleType:
    return opened("abacus")


@pytest.mark.parametrize("name", ["abacus_ids_eval", "abacus_standalone_eval"])
def test_the_numbers_of_digits_are_the_published_ones(abacus: Any, shared: Path, name: str) -> None:
    case = published_case(shared, "abacus.json", name)
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


SMALLEST = {
    "abacus": "--repetitions 1 --steps 2 --only evaluation training",
    "counting": "--repetitions 1 --only LSTM",
    "dual_attention": "--repetitions 1",
    "evaluation": "--repetitions 1 --digits 20",
    "engines": "--items 4 --repeats 1",
    "generation": "--seconds 0.01",
    "gpu": "--smoke",
    "grid": "--grid 1:2x1:2 --count 1 --steps 2 --workers 1",
    "long_rows": "--digits 20 --decoded 5 --recipes addition_far",
    "mamba": "--repetitions 1",
    "mixers": "--repetitions 1 --tokens 64 --lengths 16 --width 32 --only LSTM Mamba",
    "number_loss": "--repetitions 1 --only logits head --vocabulary 500",
    "studies": "--runs 1 --seconds 0.1 --workers 1 --alone 1 --engines local",
    "tokenising": f"--repetitions 1 --tokenizer {shlex.quote(str(FOLDER.parent / 'tests' / 'text' / 'tiny'))}",
    "training": "--repetitions 1",
}
"""Each benchmark with its smallest run."""
IN_PROCESSES = ("engines", "grid", "long_rows", "studies")
"""Those that start processes, which read the file."""
QUICK = ("generation", "gpu", "mamba", "mixers", "number_loss", "tokenising")
TESTED_ELSEWHERE = {"against", "size"}
SHORTER: dict[str, dict[str, object]] = {
    "abacus": {"QUESTIONS": 2, "ROWS": 4, "BATCHES": 2},
    "dual_attention": {
        "SETTINGS": {"symbolic-32": (32, 2, 1.0), "relative-32": (32, 2, 1.0), "plain-32": (32, 2, 1.0)},
        "GENERATION": {"generation-1": (1, 1.0)},
        "MORE_WORDS": 100,
        "memory": lambda who, setting: 1.0,
    },
}
"""What no option makes smaller."""


def test_every_benchmark_has_a_smallest_run() -> None:
    assert {file.stem for file in FOLDER.glob("*.py")} == {*SMALLEST, *TESTED_ELSEWHERE}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in SMALLEST]
)
def test_the_smallest_run_of_a_benchmark_prints_its_lines(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if name in ("evaluation", "training"):
        pytest.importorskip("x_transformers", reason="x-transformers is not installed: the extra benchmarks")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    if name in IN_PROCESSES:
        words = [sys.executable, str(FOLDER / f"{name}.py"), *shlex.split(SMALLEST[name])]
        subprocess.run(words, check=True)
    else:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *shlex.split(SMALLEST[name])])
        module: Any = opened(name)
        for constant, value in SHORTER.get(name, {}).items():
            monkeypatch.setattr(module, constant, value)
        if name == "abacus":
            questions = module.questions
            monkeypatch.setattr(module, "questions", lambda digits, count=2: questions(digits, 2))
        module.main()
    text = capfd.readouterr().out
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert lines
    assert all({*line} & {"benchmark", "what", "compared"} for line in lines)
    if name == "gpu":
        assert lines[0]["real_tokens_per_second"] > 0
        assert text.splitlines()[1].startswith("| cpu | as it is |")
