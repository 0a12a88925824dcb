"""The head of a folder of rows, `head.json`: what `numerate data write` wrote there, and whether that is as it was."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from numerate.tasks.contents import file_sha256
from numerate.text.tasks.input_errors import file_error

FORMAT = "numerate rows 1"
"""What the head of a folder says that it is."""

METADATA_FILE = "head.json"
ROW_FILE_NAMES = ("rows.txt", "ids.bin", "offsets.bin", "answers.bin", "labels.bin")
"""The files that a head tells of."""

_REMEDY = "use an intact copy, or run `numerate data write` again into another folder"


def find_written_folder(place: Path) -> Path | None:
    """The folder with a head that a path means, or that the file there is of; None where there is none."""
    folder = place.parent if place.name in ROW_FILE_NAMES else place
    return folder if (folder / METADATA_FILE).is_file() else None


def existing_files(folder: Path) -> list[Path]:
    """The head of a folder and the files beside it that a head may tell of."""
    return [file for name in (METADATA_FILE, *ROW_FILE_NAMES) if (file := folder / name).is_file()]


def encode_metadata(metadata: Mapping[str, Any]) -> bytes:
    """The content of a head's file: what it says, and a checksum of that."""
    return json.dumps({**metadata, "sum": _metadata_sha256(metadata)}, indent=1, ensure_ascii=False).encode() + b"\n"


def read_verified_metadata(folder: Path) -> dict[str, Any]:
    """What the head of a folder says, where its files are as they were written: of the same size and sha256.

    Raises `UserError` that names the file where one is not, and for what `numerate data write` did not write.
    """
    path = folder / METADATA_FILE
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise file_error(folder, f"has no {METADATA_FILE}, so `numerate data write` did not write it") from None
    except (OSError, ValueError, RecursionError) as error:
        raise file_error(path, f"cannot be read ({error}); {_REMEDY}") from error
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise file_error(path, f"is not {FORMAT!r}; it was not written by `numerate data write`")
    if metadata.get("sum") != _metadata_sha256(metadata):
        raise file_error(path, f"is not as it was written (its checksum is another); {_REMEDY}")
    if set(metadata["files"]) - set(ROW_FILE_NAMES) or np.dtype(metadata["ids"]).kind != "u":
        raise file_error(path, f"lists files that are not row files; {_REMEDY}")
    for name, expected in metadata["files"].items():
        file, problem = folder / name, ""
        if not file.is_file():
            problem = "is missing"
        elif (size := file.stat().st_size) != expected["bytes"]:
            problem = f"is not as it was written ({size:,} bytes instead of {expected['bytes']:,})"
        elif file_sha256(file) != expected["sha256"]:
            problem = f"is not as it was written (its sha256 is another than {METADATA_FILE} says)"
        if problem:
            raise file_error(file, f"{problem}; {_REMEDY}; edited text is read without {METADATA_FILE} beside it")
    return metadata


def _metadata_sha256(metadata: Mapping[str, Any]) -> str:
    content = {name: value for name, value in metadata.items() if name != "sum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
