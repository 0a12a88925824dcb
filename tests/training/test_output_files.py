"""Properties of files that a command writes where its user says."""

from pathlib import Path

import pytest

from numerate.errors import UserError
from numerate.results import style
from numerate.training.output_files import check_output_file, write_output

BEGINNINGS = {
    "png": b"\x89PNG\r\n",
    "pdf": b"%PDF-1.4",
    "svg": b'<?xml version="1.0"',
    "html": b"<!DOCTYPE html>\n",
    "parquet": b"PAR1",
    "csv": b"label,seed\nAbacus,1\n",
    "jsonl": b'{"seed": 1}\n',
    "markdown": b"| label |\n",
    "latex": b"\\begin{tabular}{l}\n",
    "text": b"label   seed\n------  ----\n",
}


@pytest.mark.parametrize("kind", BEGINNINGS)
def test_a_file_is_replaced_by_one_of_its_kind_and_by_no_other(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    check_output_file(path, kind)
    for content in (b"", BEGINNINGS[kind]):
        path.write_bytes(content)
        check_output_file(path, kind)
    for content in (b"Dear reader, these are notes.\n", *(BEGINNINGS[one] for one in ("png", "pdf") if one != kind)):
        path.write_bytes(content)
        with pytest.raises(UserError, match=f"^out: .*file exists and is no {kind} file, so it is not replaced"):
            check_output_file(path, kind)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^out: must be a file, not the folder"):
        check_output_file(tmp_path, "csv")


def test_a_path_that_cannot_be_written_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    for path in (tmp_path / "taken" / "a.csv", *([Path("/proc/a.csv")] if Path("/proc/self").exists() else [])):
        with pytest.raises(UserError, match=r"^out: .*\. Choose another path with out=\."):
            write_output(path, b"a\n")


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_a_figure_replaces_an_earlier_one_and_no_notes(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{kind}"
    first = style.save(style.new_figure(), path).read_bytes()
    assert style.save(style.new_figure(), path).read_bytes() == first
    path.write_text("notes\n")
    with pytest.raises(UserError, match="is not replaced"):
        style.save(style.new_figure(), path)
    assert path.read_text() == "notes\n"
