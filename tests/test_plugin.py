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
        ("evaluate", "latest", "grid=3:4", "count=2"): "in distribution",
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
