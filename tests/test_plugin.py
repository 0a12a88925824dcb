"""A package that declares parts and a recipe is used like numerate itself: the example of docs/adding.md, installed."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import numerate

TOP = Path(__file__).parents[1]
SRC = Path(numerate.__file__).parents[1]

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which pip installed the package, from a copy, since it builds there."""
    pytest.importorskip("setuptools", minversion="70", reason="pip builds the package with it, without the network")
    folder = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source")
    for file in (TOP / "examples" / "plugin").iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--target", str(folder), str(source)], check=True, timeout=120)
    return folder


@pytest.fixture
def run(installed: Path, tmp_path: Path) -> Command:
    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        paths = {"PYTHONPATH": f"{installed}{os.pathsep}{SRC}", "NUMERATE_RUNS": "", "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, "-m", *words],
            cwd=tmp_path,
            env={**os.environ, **paths},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


@pytest.mark.slow
def test_what_it_declares_is_listed_shown_trained_and_evaluated(run: Command) -> None:
    listed = run("numerate", "list")
    assert listed.returncode == 0, listed.stderr
    for name, meaning in {
        "RunningMean": "The mean of a linear map of all tokens so far.",
        "Repeat": "A word is said twice: the answer to `abc>` is `abcabc`.",
        "repeat_mean": "Words of 3 to 5 letters twice, by a decoder with RunningMean.",
    }.items():
        assert any(line.split() == [name, *meaning.split()] for line in listed.stdout.splitlines()), name
    for words, text in {
        ("show", "RunningMean"): "whether the linear map has a bias",
        ("show", "repeat-mean"): "model.mixer",
        ("sample", "Repeat", "letters=4"): ">",
        ("train", "repeat_mean", "preset=debug", "training.steps=2"): "runs/repeat_mean-debug/",
        ("evaluate", "latest", "grid=3:4", "count=2"): "in_distribution",
        (
            "train",
            "addition_abacus",
            "preset=debug",
            "training.steps=2",
            "model.mixer=RunningMean",
            "model.positions=[]",
        ): ("2 steps"),
    }.items():
        done = run("numerate", *words)
        assert done.returncode == 0, done.stderr
        assert text in done.stdout + done.stderr, words


@pytest.mark.slow
def test_the_promises_of_numerate_are_tested_on_it(run: Command) -> None:
    done = run("pytest", "-p", "numerate.pytest_plugin", "-v", "--numerate-promises", "acme")
    assert done.returncode == 0, done.stdout + done.stderr
    for test in (
        "test_never_looks_ahead[RunningMean]",
        "test_the_defaults_survive_saving[Repeat]",
        "test_no_question_that_can_be_held_out_is_in_two_splits[Repeat]",
        "test_a_recipe_trains_and_resumes_exactly[repeat_mean]",
    ):
        assert f"{test} PASSED" in done.stdout
    assert "any_loss" not in done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.slow
def test_a_part_that_breaks_a_promise_is_found(run: Command, installed: Path, tmp_path: Path) -> None:
    """The package as it would be with two mistakes: a mixer that looks ahead, and a task that draws from the clock."""
    code = (installed / "acme.py").read_text()
    for right, wrong in {
        ".cumsum(dim=1) / counts[:, None]": ".mean(dim=1, keepdim=True).expand_as(x)",
        "length = rng.choice(": "length = random.choice(",
    }.items():
        assert code.count(right) == 1
        code = code.replace(right, wrong)
    (tmp_path / "acme.py").write_text(code)  # before the installed one on the path: the current folder is first
    done = run("pytest", "-p", "numerate.pytest_plugin", "-v", "--numerate-promises", "acme")
    assert done.returncode == 1
    for test in ("test_never_looks_ahead[RunningMean]", "test_an_example_does_not_depend_on_the_portions[Repeat]"):
        assert f"{test} FAILED" in done.stdout
    assert "test_the_defaults_survive_saving[RunningMean] PASSED" in done.stdout


def test_a_package_without_parts_is_told_apart(run: Command) -> None:
    done = run("pytest", "-p", "numerate.pytest_plugin", "--numerate-promises", "nobody")
    assert done.returncode == 4
    assert "--numerate-promises: no installed package 'nobody' declares parts" in done.stderr
