"""Promises of docs/three-ways.md: its commands run as they stand there, at small sizes, and are as few as it says."""

import json
import re
import shlex
from pathlib import Path

import pytest

from hugging_face import QUIET, save_model
from newcomers import forget_parts_of_users
from numerate.cli import main
from numerate.commands.studies import load_study

pytestmark = QUIET

PAGE = Path(__file__).parents[1] / "docs" / "three-ways.md"
WAYS = (("An idea", 3, 20), ("A Hugging Face model", 2, 0), ("Fifty runs", 4, 0))
"""The sections of the page, and how many commands and lines of code they may have."""

SMALL = [
    "model.hidden_size=16",
    "training.steps=2",
    "training.batch_size=8",
    "evaluation.validation_examples=4",
    "evaluation.examples_per_cell=2",
    "evaluation.grid=1:2x1:2+diagonal:8",
    "engine=inprocess",
]
"""A run in about a second."""


def blocks(way: str, language: str) -> str:
    """The blocks of a language in the section of one way."""
    section = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (text,) = (one for one in section if one.startswith(way))
    return "".join(re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def commands(way: str) -> list[list[str]]:
    """The words of each command of one way, without `numerate`."""
    lines = [shlex.split(line, comments=True) for line in blocks(way, "sh").replace("\\\n", " ").splitlines()]
    assert all(words[0] == "numerate" for words in lines)
    return [words[1:] for words in lines]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which no parts of users are known."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NUMERATE_CONFIG", str(tmp_path / "configuration"))
    forget_parts_of_users(monkeypatch)
    return tmp_path


def test_the_ways_are_as_short_as_the_page_says_and_as_short_as_promised() -> None:
    told = re.findall(r"^\|.*\| (\d+) \| (\d+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    for numbers, (way, most_commands, most_lines) in zip(told, WAYS, strict=True):
        lines = [line for line in blocks(way, "python").splitlines() if line.strip()]
        assert [*map(int, numbers)] == [len(commands(way)), len(lines)]
        assert len(commands(way)) <= most_commands
        assert len(lines) <= most_lines


@pytest.mark.slow
def test_an_idea_is_compared_with_two_schemes_over_three_seeds(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, (run, results) = blocks("An idea", "python"), commands("An idea")
    (place / run[run.index("--parts") + 1]).write_text(code)
    study = load_study(run[1], [])
    assert main([*run, *SMALL]) == 0
    assert len(list(place.glob("runs/*/*/recipe.yaml"))) == 9
    page = (place / "runs" / study.title / "report.html").read_text(encoding="utf-8")
    capsys.readouterr()
    assert main(results) == 0
    table = capsys.readouterr().out
    for label in ("Learned(position_ids=DigitsBefore)", "Learned(position_ids=DigitIndex)", "Rotary"):
        assert f"positions.0={label}" in page
        row = re.escape(label)
        assert re.search(rf"^{row} .*\d \[[\d.]+, [\d.]+\]$", table, re.MULTILINE), "a mean with an interval over seeds"


@pytest.mark.slow
def test_a_model_of_hugging_face_is_compared_before_and_after(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("peft", reason="the extra finetune is not installed")
    fetch, finetune = commands("A Hugging Face model")
    assert fetch[:2] == ["data", "fetch"]
    save_model(place / "tiny")
    for name, begin, count in (("train", 0, 30), ("test", 100, 5)):
        rows = [{"question": f"{i} and {i}?", "answer": f"ok\n#### {2 * i}"} for i in range(begin, begin + count)]
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stand_ins = {finetune[1]: "hf:tiny", f"task={fetch[2]}": "task=GSM8K(data_dir=.)"}
    assert stand_ins.keys() <= {*finetune}
    words = [stand_ins.get(word, word) for word in finetune]
    small = ["training.steps=2", "training.batch_size=4", "evaluation.validation_examples=4"]
    assert main([*words, *small, "evaluation.generation.max_new_tokens=4"]) == 0
    assert re.search(r"hf-tiny-finetuned / hf-tiny +correct, % .*\[[-+]\d", capsys.readouterr().out)
    assert "Differences over the same questions" in (place / "compare.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_fifty_runs_become_a_latex_table_and_a_figure(place: Path) -> None:
    run, *others = commands("Fifty runs")
    study = load_study(run[1], [word for word in run[2:] if not word.startswith("workers=")])
    assert len(study.recipes) == 50
    words = ["seeds=2" if word.startswith("seeds=") else word for word in run if not word.startswith("workers=")]
    assert main([*words, *SMALL]) == 0
    for words in others:
        assert main(words) == 0
    table, figure = (Path(words[-1].removeprefix("out=")) for words in others)
    rows = re.findall(r"^(\S*) & 2 & .* \{\[\}[\d.]+, [\d.]+\]\}? \\\\$", table.read_text(), re.MULTILINE)
    assert rows == [f"{{[}}{scheme}]" for scheme in ("Rotary", "FIRE", "ALiBi", "Sinusoidal", "")]
    assert figure.read_bytes().startswith(b"%PDF")
