"""Promises of rows that `numerate data write` wrote: they are read as they were written, or refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from numerate.cli import main
from numerate.errors import UserError
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.counting import Counting
from numerate.text.data.source import RowSource
from numerate.text.data.writing import write_rows
from numerate.text.tasks.example_file import ExampleFile
from numerate.tokenizers.tokenizer import Characters
from numerate.tokenizers.words import Words


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of sums and rows with labels."""
    place = tmp_path_factory.mktemp("folders")
    write_rows(RowSource("Arithmetic", Arithmetic(), Characters(), 60), place / "sums")
    write_rows(RowSource("Counting", Counting(start_number="before"), Words(), 60), place / "labels")
    return place


def flipped(file: Path) -> None:
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    file.write_bytes(whole)


HARM: dict[str, Callable[[Path], object]] = {
    "flipped": flipped,
    "cut": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2 + 1]),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"\xff" * 8),
    "missing": Path.unlink,
}


@pytest.mark.parametrize("kind", ["sums", "labels"])
@pytest.mark.parametrize("harm", HARM)
def test_rows_that_are_not_as_written_are_refused_by_file(folders: Path, tmp_path: Path, kind: str, harm: str) -> None:
    folder = Path(shutil.copytree(folders / kind, tmp_path / "damaged"))
    assert ExampleFile(path=str(folder)).all_questions() is not None
    HARM[harm](folder / "rows.txt")
    with pytest.raises(UserError, match=r"rows\.txt: is (not as it was written|missing)"):
        ExampleFile(path=str(folder)).all_questions()


EDITS: dict[str, Callable[[str], str]] = {
    "cut": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "no object": lambda text: "[1, 2]",
    "deep": lambda text: "[" * 100_000,
    "another symbol": lambda text: text.replace('"+"', '"*"'),
    "a sha256": lambda text: text.replace('"sha256": "', '"sha256": "0'),
    "another count": lambda text: text.replace('"rows": 60', '"rows": 61'),
    "no checksum": lambda text: json.dumps({name: value for name, value in json.loads(text).items() if name != "sum"}),
    "files elsewhere": lambda text: text.replace('"rows.txt"', '"../rows.txt"'),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_head_that_is_not_as_written_is_refused(folders: Path, tmp_path: Path, edit: str) -> None:
    folder = Path(shutil.copytree(folders / "sums", tmp_path / "rows"))
    head = folder / "head.json"
    head.write_text(EDITS[edit](head.read_text()))
    with pytest.raises(UserError, match=r"head\.json: (is not as it was written|cannot be read|is not 'numerate)"):
        ExampleFile(path=str(folder)).all_questions()


def test_changed_answers_are_refused_by_every_command(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(folders / "sums", tmp_path / "rows"))
    rows = folder / "rows.txt"
    rows.write_text("".join(f"{line[:-1]}{9 - int(line[-1])}\n" for line in rows.read_text().splitlines()))
    for words in (
        ["data", "write", str(folder), f"out={tmp_path / 'again'}"],
        ["data", "write", str(rows), f"out={tmp_path / 'again'}"],
        ["sample", "ExampleFile", f"path={folder}"],
        ["train", "addition_abacus", f"task=ExampleFile(path={folder})", f"runs_dir={tmp_path / 'runs'}", "device=cpu"],
    ):
        assert main(words) == 2, words
        assert (
            "rows.txt: is not as it was written (its sha256 is another than head.json says)" in capsys.readouterr()[1]
        )
    assert not (tmp_path / "runs").exists()
    shutil.copy(rows, tmp_path / "mine.txt")  # as rows of one's own they are right
    assert ExampleFile(path=str(tmp_path / "mine.txt")).num_questions() == 60
