"""What `numerate data fetch` put into a folder, as its record says, and whether a file is still that."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from numerate.errors import UserError
from numerate.tasks.contents import sha256_of

RECORD = "fetched.json"
"""The file of a dataset's folder that says where its files are from, with size and sha256 of each."""


def record_of(folder: Path) -> dict[str, Any]:
    """The record of a folder, without entries that cannot be read: of their files nothing is known."""
    try:
        found = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return {name: entry for name, entry in found.items() if _is_sound(entry)} if isinstance(found, dict) else {}


def _is_sound(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    if "files" in entry:
        return isinstance(entry["files"], dict) and isinstance(entry.get("sums", {}), dict)
    return "bytes" in entry and "sha256" in entry


class Noted(NamedTuple):
    """What a record says of a file: how many bytes it has, and its sha256, which earlier versions did not note of what
    came out of archives."""

    size: int
    sha256: str | None

    def is_there(self, path: Path) -> bool:
        """Whether a file is there and is that."""
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        return self.sha256 is None or sha256_of(path) == self.sha256


def noted_files(entry: Mapping[str, Any], name: str) -> dict[str, Noted]:
    """What an entry of a record says of each file that came as it: itself, or what its archive held."""
    if "files" not in entry:
        return {name: Noted(entry["bytes"], entry["sha256"])}
    sums = entry.get("sums", {})
    return {file: Noted(size, sums.get(file)) for file, size in entry["files"].items()}


def refuse_edited(path: Path) -> None:
    """Raises `UserError` for a file that was fetched and has changed since."""
    folder = next((folder for folder in path.absolute().parents[:2] if (folder / RECORD).is_file()), None)
    if folder is None:
        return
    place = path.absolute().relative_to(folder).as_posix()
    for name, entry in record_of(folder).items():
        noted = noted_files(entry, name).get(place)
        if noted is not None and not noted.is_there(path):
            raise UserError(
                f"{path}: is not what was fetched (its size or sha256 is another than {RECORD} beside it says); move "
                "it away, and `numerate data fetch` gets it again; a file that was changed on purpose is read from "
                "another folder (data_dir=)"
            )
