"""Promises of completion: bash offers commands, names, settings with values, runs and studies, fast."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import numerate
from numerate.cli import main
from numerate.commands import completion_names
from numerate.commands.completion import SCRIPTS, candidates
from numerate.commands.completion_names import collect_names, names_file

ASK = """
{script}
COMP_LINE="$1" COMP_POINT=${{#1}}
_numerate numerate
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    collected: dict[str, Any] = json.loads(json.dumps(collect_names()))
    return collected


@pytest.fixture
def folder(tmp_path: Path, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the names in its cache, the command `numerate`, two runs and a study."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NUMERATE_CACHE", str(tmp_path / "cache"))
    names_file().parent.mkdir()
    names_file().write_text(json.dumps(names))
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "numerate"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m numerate "$@"\n')
    command.chmod(0o755)
    for run, head in {
        "addition_abacus/3f2a9c01b7de": "name: mine",
        "addition_rotary/77aa00112233": "name: null",
    }.items():
        (tmp_path / "runs" / run).mkdir(parents=True)
        (tmp_path / "runs" / run / "recipe.yaml").write_text(f"format: 3\n{head}\n")
    (tmp_path / "runs" / "quickstart").mkdir()
    (tmp_path / "runs" / "quickstart" / "plan.jsonl").touch()
    return tmp_path


def in_bash(line: str, folder: Path) -> list[str]:
    """What bash replaces the end of a line with."""
    source = str(Path(numerate.__file__).parents[1])
    environment = os.environ | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": source}
    words = ["bash", "-c", ASK.format(script=SCRIPTS["bash"]), "bash", line]
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("numerate tr", ["train"]),
        ("numerate data w", ["write"]),
        ("numerate train addition_ab", ["addition_abacus", "addition_abacus_far"]),
        ("numerate train addition_abacus model.mixer=LS", ["LSTM"]),
        ("numerate train addition_abacus 'model.positions=[Rotary,AL", ["model.positions=[Rotary,ALiBi"]),
        ("numerate train addition_abacus training.preci", ["training.precision="]),
        ("numerate train addition_abacus training.precision=f", ["fp32", "fp16"]),
        ("numerate evaluate latest checkpoint=", [""]),
        ("numerate evaluate runs/addition_r", ["runs/addition_rotary/77aa00112233"]),
        ("numerate status q", ["quickstart"]),
        ("numerate data fetch gsm8", ["gsm8k"]),
        ("numerate evaluate latest --dry", ["--dry-run"]),
        ("numerate completion z", ["zsh"]),
    ],
)
def test_bash_offers(line: str, offered: list[str], folder: Path) -> None:
    assert in_bash(line, folder) == offered


@pytest.mark.parametrize(
    ("line", "some", "none"),
    [
        ("numerate ", {"train", "data", "completion"}, {"write", "latest"}),
        ("numerate list ", {"runs", "mixers", "position-ids"}, {"write"}),
        ("numerate train ", {"addition_abacus", "seeds=", "preset=", "model.", "model="}, {"grid=", "latest"}),
        ("numerate train addition_abacus model.mixer.", {"model.mixer.num_heads="}, {"model.mixer.num_slots="}),
        ("numerate train addition_abacus model.mixer=SlotLSTM model.mixer.", {"model.mixer.num_slots="}, set()),
        (
            "numerate train counting_mod10_lstm model.mixer.",
            {"model.mixer.output_projection="},
            {"model.mixer.num_heads="},
        ),
        ("numerate sample Arithmetic ", {"digits=", "operator=", "count="}, {"model=", "model."}),
        ("numerate ask ", {"latest", "mine", "3f2a9c01b7de"}, {"addition_abacus", "null"}),
        ("numerate ask latest model.", {"model.mixer="}, set()),
        ("numerate ask latest ", {"checkpoint=", "model."}, {"training."}),
        ("numerate compare ", {"quickstart", "runs/addition_abacus/3f2a9c01b7de"}, {"addition_abacus"}),
        ("numerate run quickstart executor=", {"executor=slurm"}, set()),
        ("numerate plot ", {"grid", "curves"}, {"latest"}),
        ("numerate plot grid ", {"latest"}, {"curves"}),
    ],
)
def test_a_word_is_offered_where_it_fits(
    line: str, some: set[str], none: set[str], folder: Path, names: dict[str, Any]
) -> None:
    offered = set(candidates(line, names))
    assert some <= offered
    assert not none & offered


def test_every_offered_value_is_one_that_the_setting_takes(names: dict[str, Any]) -> None:
    settings = [
        *("training.precision", "training.compile", "training.parallel", "model.norm", "task.operator"),
        *(
            "schedule",
            "optimizer",
            "objective.loss",
            "model.backbone",
            "model.initialization",
            "tokenizer.number_format",
        ),
    ]
    for setting in settings:
        offered = candidates(f"numerate train addition_abacus {setting}=", names)
        assert len(offered) > (setting not in ("optimizer", "tokenizer.number_format")), setting
        for word in offered:
            numerate.recipe("addition_abacus", word)


def test_a_completion_imports_neither_numpy_nor_torch(folder: Path) -> None:
    code = (
        "import sys; from numerate.cli import main; main(['__complete', 'numerate run quickstart model.mixer='])\n"
        "print({'numpy', 'torch', 'yaml'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "set()"
    assert "model.mixer=LSTM" in done.stdout.splitlines()


@pytest.mark.slow
def test_without_names_commands_are_offered_and_the_names_are_collected_for_the_next_time(folder: Path) -> None:
    names_file().unlink()
    assert in_bash("numerate tra", folder) == ["train"]
    deadline = time.monotonic() + 60
    while not names_file().exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "addition_abacus" in json.loads(names_file().read_text())["kinds"]["Recipe"]


def test_the_command_prints_the_script_and_collects_the_names(
    folder: Path, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names_file().unlink()
    monkeypatch.setattr(completion_names, "collect_names", lambda: names)
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == SCRIPTS["bash"] + "\n"
    assert json.loads(names_file().read_text()) == names
    assert main(["completion", "fish"]) == 2
    assert "must be one of bash, zsh, not 'fish'" in capsys.readouterr().err
