"""Files that a command writes where its user says (`out=`): an existing one is replaced only by one of its kind."""

import re
from pathlib import Path

from numerate.errors import UserError
from numerate.training import disk

_BEGINNINGS = {
    "png": rb"\x89PNG",
    "pdf": rb"%PDF",
    "svg": rb"<\?xml|<svg",
    "html": rb"<!doctype html",
    "parquet": rb"PAR1",
    "csv": rb'"?[\w.]+"?(,[^\n]*)?\n',
    "jsonl": rb"\{",
    "markdown": rb"\|",
    "latex": rb"\\begin\{(table|tabular)\}",
    "text": rb"[^\n]*\n[- ]+\n",
}
"""How a file of each kind begins."""


def check_output_file(path: str | Path, kind: str) -> None:
    """Raises `UserError` for a folder, and for an existing file that is not of this kind, such as a text under the name
    of a figure. Empty files may be replaced."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"out: must be a file, not the folder {path}")
    if not path.is_file():
        return
    with disk.convert_os_errors(path, place="out"), open(path, "rb") as file:
        beginning = file.read(4096)
    if beginning and not re.match(_BEGINNINGS[kind], beginning, re.IGNORECASE):
        raise UserError(f"out: {path} exists and is no {kind} file, so it is not replaced; give another name")


def write_output(path: str | Path, content: bytes, unharmed_note: str = "", *, place: disk.Place = "out") -> Path:
    """Writes a file atomically, creating its parent folders, and returns its path.

    Raises `UserError` where it cannot be written, `OperationalError` for a full disk.
    """
    path = Path(path)
    disk.make_folder(path.parent, unharmed_note, place=place)
    disk.write_atomically(path, content, unharmed_note, place=place)
    return path
