"""What `numerate data fetch` put into a folder, as its record says, and whether a file is still that."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from numerate.tasks.contents import file_sha256
from numerate.text.tasks.input_errors import file_error

RECORD_FILE = "fetched.json"
"""The file of a dataset's folder that says where its files are from, with size and sha256 of each."""


def read_record(folder: Path) -> dict[str, Any]:
    """The record of a folder, without entries that cannot be read: of their files nothing is known."""
    try:
        record = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return {name: entry for name, entry in record.items() if _is_valid_entry(entry)} if isinstance(record, dict) else {}


def _is_valid_entry(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    if "files" in entry:
        return isinstance(entry["files"], dict) and isinstance(entry.get("sums", {}), dict)
    return "bytes" in entry and "sha256" in entry


class FileRecord(NamedTuple):
    """What a record says of a file: how many bytes it has, and its sha256, which earlier versions did not note of what
    came out of archives."""

    size: int
    sha256: str | None

    def matches(self, path: Path) -> bool:
        """Whether a file is there and is that."""
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        return self.sha256 is None or file_sha256(path) == self.sha256


def file_records(entry: Mapping[str, Any], name: str) -> dict[str, FileRecord]:
    """What an entry of a record says of each file that came as it: itself, or what its archive held."""
    if "files" not in entry:
        return {name: FileRecord(entry["bytes"], entry["sha256"])}
    sums = entry.get("sums", {})
    return {file: FileRecord(size, sums.get(file)) for file, size in entry["files"].items()}


def check_unmodified(path: Path) -> None:
    """Raises `UserError` for a file that was fetched and has changed since."""
    folder = next((folder for folder in path.absolute().parents[:2] if (folder / RECORD_FILE).is_file()), None)
    if folder is None:
        return
    relative_path = path.absolute().relative_to(folder).as_posix()
    for name, entry in read_record(folder).items():
        file_record = file_records(entry, name).get(relative_path)
        if file_record is not None and not file_record.matches(path):
            raise file_error(
                path,
                f"differs from the downloaded file (size or sha256 does not match {RECORD_FILE}); move it away and run "
                "`numerate data fetch` again; keep a file changed on purpose in another folder (data_dir=)",
            )
