"""Opening rows in files: lines of text, folders of `numerate data write`, and those of Hugging Face `datasets`.

pyarrow alone reads what `save_to_disk` writes, which are plain Arrow streams with two small JSON files beside;
`datasets` would bring pandas, dill and a network client for nothing more.
"""

import json
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerate.errors import UserError, check_choice
from numerate.tasks.contents import file_sha256
from numerate.text.tasks.columns import HEAD_FILE, AnyColumns, build_columns, cached_folder, read_verified_head
from numerate.text.tasks.input_errors import file_error
from numerate.text.tasks.labelled_files import LabeledFile, is_labeled_line, open_labeled_text
from numerate.text.tasks.ragged_rows import RaggedRows
from numerate.text.tasks.row_files import VOCABULARIES, ConcatenatedRowFiles, RowFile, TextFile, TokenFile
from numerate.text.tasks.text_files import file_stamp
from numerate.vocabulary import SPECIAL_TOKENS

WRITTEN_FORMAT = "numerate rows 2"
"""What the head of a folder of `numerate data write` says that it is."""

WRITTEN_FILE = "rows.txt"
"""The file in that folder with the rows."""

_NO_ID = (1 << 16) - 1
"""Stands for an id that no vocabulary has."""

_ROWS = "a text file with one row per line, or a folder of *.txt, of a saved dataset or of `numerate data write`"


def open_row_file(path: str | Path, split: str = "all", vocabulary: str = "pad") -> RowFile | LabeledFile:
    """Opens a text file, a folder of `*.txt`, a folder that `datasets` saved, or one that `numerate data write` wrote,
    once as long as its files do not change. Rows are words with labels where the first one is so.

    `split` chooses one of a saved DatasetDict ("all": all of them); `vocabulary` names the ids of its tokens. Where a
    folder has both text and `hf_tokenized_dataset`, the text is taken for split "all". Raises `UserError` for anything
    else, for a folder without rows or that is not complete, and for a split that there is not.
    """
    resolved_path = Path(path)
    check_choice("vocabulary", vocabulary, VOCABULARIES)
    if not resolved_path.exists():
        raise file_error(resolved_path, f"does not exist; must be {_ROWS}")
    return _open_cached(resolved_path, tuple(map(file_stamp, _row_paths(resolved_path, split))), vocabulary)


def _row_paths(path: Path, split: str) -> list[Path]:
    """The files that hold the rows."""
    if (folder := _find_written_folder(path)) is not None:
        paths = [file for name in (HEAD_FILE, WRITTEN_FILE) if (file := folder / name).is_file()]
    elif path.is_file():
        paths = [path]
    elif (path / "state.json").is_file():
        paths = _arrow_paths(path)
    elif (path / "dataset_dict.json").is_file():
        return _split_paths(path, split)
    else:
        paths = sorted(path.glob("*.txt"))
        tokenised = path / "hf_tokenized_dataset"
        if tokenised.is_dir() and (split != "all" or not paths):
            return _row_paths(tokenised, split)
        if not paths:
            raise file_error(path, f"holds no rows; must be {_ROWS}")
    if split != "all":
        raise UserError(f"split: {path} has no splits; split must be all, not {split!r}")
    return paths


def _find_written_folder(place: Path) -> Path | None:
    """The folder with a head that a path means, or that the file there is of; None where there is none."""
    folder = place.parent if place.name == WRITTEN_FILE else place
    return folder if (folder / HEAD_FILE).is_file() else None


def _split_paths(path: Path, split: str) -> list[Path]:
    split_names = _read_json(path / "dataset_dict.json").get("splits") or []
    check_choice("split", split, [*split_names, "all"])
    return [file for name in (split_names if split == "all" else [split]) for file in _arrow_paths(path / name)]


def _arrow_paths(path: Path) -> list[Path]:
    state = _read_json(path / "state.json")
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise file_error(path, "is an index into another dataset; save it after flatten_indices()")
    return [path / item["filename"] for item in state.get("_data_files") or []]


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise file_error(file, f"cannot be read as JSON ({error})") from error
    if not isinstance(content, dict):
        raise file_error(file, "is not what `datasets` or `numerate data write` writes")
    return content


@lru_cache(maxsize=8)
def _open_cached(path: Path, stamps: tuple[tuple[str, int, int], ...], vocabulary: str) -> RowFile | LabeledFile:
    if (folder := _find_written_folder(path)) is not None:
        return _open_written_folder(folder)
    files: list[RowFile] = []
    for name, size, _ in stamps:
        file = Path(name)
        if file.suffix == ".arrow":
            files.append(TokenFile(file, _read_arrow(file), VOCABULARIES[vocabulary], vocabulary))
        elif size:
            files.append(TextFile(file))
    files = [file for file in files if file.count]
    if not files:
        raise file_error(path, "holds no rows")
    rows = files[0] if len(files) == 1 else ConcatenatedRowFiles(files)
    return open_labeled_text(rows) if is_labeled_line(rows.text(0)) else rows


def _open_written_folder(folder: Path) -> RowFile | LabeledFile:
    """What `numerate data write` wrote. Raises `UserError` where it is not as it was written."""
    metadata = read_verified_head(folder, WRITTEN_FORMAT, [WRITTEN_FILE])
    rows = TextFile(folder / WRITTEN_FILE)
    if not metadata["labels"]:
        return rows
    return open_labeled_text(rows, metadata["between"], tuple(metadata["vocabulary"][len(SPECIAL_TOKENS) :]))


def _read_arrow(file: Path) -> RaggedRows:
    """The `input_ids` of every record batch, read once."""
    folder = cached_folder("arrow", file_sha256(file), [file])
    _, columns = build_columns(partial(_write_arrow, file), {"ids": np.uint16, "offsets": np.int64}, folder)
    return RaggedRows(columns["offsets"], columns["ids"])


def _write_arrow(file: Path, columns: AnyColumns) -> dict[str, Any]:
    num_tokens = 0
    columns.append("offsets", np.zeros(1, np.int64))
    for offsets, ids in _read_batches(file):
        is_id = (ids >= 0) & (ids < _NO_ID)
        columns.append("ids", np.where(is_id, ids, _NO_ID).astype(np.uint16))
        columns.append("offsets", num_tokens + offsets[1:])
        num_tokens += len(ids)
    return {}


def _read_batches(file: Path) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
    """The offsets and ids of every record batch. Raises `UserError` for what `datasets` did not save."""
    try:
        import pyarrow as arrow
    except ImportError as error:
        raise file_error(file, "is Arrow, which pyarrow reads: pip install 'numerate[data]'") from error
    try:
        batches = arrow.ipc.open_stream(arrow.memory_map(str(file)))
        while (batch := next(batches, None)) is not None:
            if "input_ids" not in batch.schema.names:
                raise file_error(file, f"has no column input_ids; it has: {', '.join(batch.schema.names)}")
            column = batch.column("input_ids")
            if column.null_count or not hasattr(column, "offsets"):
                raise file_error(file, f"the column input_ids is no list of token ids per row, but {column.type}")
            column.validate(full=True)
            offsets = column.offsets.to_numpy().astype(np.int64)
            yield offsets - offsets[0], column.values.to_numpy()[offsets[0] : offsets[-1]]
    except (arrow.ArrowInvalid, OSError) as error:
        reason = str(error).splitlines()[0]
        raise file_error(file, f"is no Arrow stream as `datasets` saves it, or a damaged one ({reason})") from error
