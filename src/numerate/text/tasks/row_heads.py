"""The head of a folder of rows, `head.json`: what `numerate data write` wrote there, and whether that is as it was."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from numerate.errors import UserError
from numerate.tasks.contents import sha256_of

FORMAT = "numerate rows 1"
"""What the head of a folder says that it is."""

HEAD = "head.json"
FILES = ("rows.txt", "ids.bin", "offsets.bin", "answers.bin", "labels.bin")
"""The files that a head tells of."""

_AGAIN = "a copy of it that is whole is right, or `numerate data write` again, into another folder"


def written_folder(place: Path) -> Path | None:
    """The folder with a head that a path means, or that the file there is of; None where there is none."""
    folder = place.parent if place.name in FILES else place
    return folder if (folder / HEAD).is_file() else None


def files_of(folder: Path) -> list[Path]:
    """The head of a folder and the files beside it that a head may tell of."""
    return [file for name in (HEAD, *FILES) if (file := folder / name).is_file()]


def head_bytes(head: Mapping[str, Any]) -> bytes:
    """The content of a head's file: what it says, and a checksum of that."""
    return json.dumps({**head, "sum": _sum(head)}, indent=1, ensure_ascii=False).encode() + b"\n"


def checked_head(folder: Path) -> dict[str, Any]:
    """What the head of a folder says, where its files are as they were written: of the same size and sha256.

    Raises `UserError` that names the file where one is not, and for what `numerate data write` did not write.
    """
    head = _head(folder)
    for name, expected in head["files"].items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path}: is missing, which `numerate data write` wrote; {_AGAIN}")
        if (size := path.stat().st_size) != expected["bytes"]:
            raise UserError(
                f"{path}: is not as it was written ({size:,} bytes instead of {expected['bytes']:,}); {_AGAIN}"
            )
        if sha256_of(path) != expected["sha256"]:
            raise UserError(
                f"{path}: is not as it was written (its sha256 is another than {HEAD} says); {_AGAIN}; rows that were "
                f"changed on purpose are read from a text file of their own, without {HEAD} beside it"
            )
    return head


def _head(folder: Path) -> dict[str, Any]:
    path = folder / HEAD
    try:
        head = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{folder}: has no {HEAD}, so `numerate data write` did not write it") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read ({error}); {_AGAIN}") from error
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise UserError(f"{path}: says nothing of {FORMAT!r}, so `numerate data write` did not write it")
    if head.get("sum") != _sum(head):
        raise UserError(f"{path}: is not as it was written (its checksum is another); {_AGAIN}")
    if set(head["files"]) - set(FILES) or np.dtype(head["ids"]).kind != "u":
        raise UserError(f"{path}: tells of files that are no rows; {_AGAIN}")
    return head


def _sum(head: Mapping[str, Any]) -> str:
    content = {name: value for name, value in head.items() if name != "sum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
