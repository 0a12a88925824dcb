"""Where the user's datasets are: a folder that `numerate data fetch` fills, and that tasks over files read."""

import os
from collections.abc import Iterable
from pathlib import Path

from numerate.errors import UserError


def data_folder() -> Path:
    """The folder of all datasets: the environment's NUMERATE_DATA, else `~/.cache/numerate/data`. It need not exist.

    Raises `UserError` for a file.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.path.expanduser(os.environ.get("NUMERATE_DATA") or f"{cache}/numerate/data"))
    if folder.is_file():
        raise UserError(f"NUMERATE_DATA: {folder} must be a folder, not a file")
    return folder


def cache_folder() -> Path:
    """The folder of what is made from the user's files: NUMERATE_CACHE, else `~/.cache/numerate`. It need not exist."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(os.environ.get("NUMERATE_CACHE") or f"{cache}/numerate"))


def corpora_folder() -> Path:
    """The folder of corpora that were prepared from texts: `corpora` in the cache. It need not exist."""
    return cache_folder() / "corpora"


def dataset_folder(data_dir: str | None, name: str, folders: Iterable[str], expected_files: Iterable[str]) -> Path:
    """The folder of a dataset: the first that has one of the files `expected_files`, of `data_dir` (the setting
    `data_dir`) and of the `folders` inside it; where none is given, of the `folders` of the user's data.

    Raises `UserError` that says how to get the dataset `name`, where there is none.
    """
    root = data_folder() if data_dir is None else Path(os.path.expanduser(data_dir))
    subfolders = [root / folder for folder in folders]
    expected_files = list(expected_files)
    for candidate in subfolders if data_dir is None else [root, *subfolders]:
        if any((candidate / file).exists() for file in expected_files):
            return candidate
    missing = subfolders[0] if data_dir is None else root
    what = f"has none of: {', '.join(expected_files)}" if missing.is_dir() else "is not there"
    raise UserError(
        f"data_dir: {missing} {what}; download it with `numerate data fetch {name}`, or set data_dir= or NUMERATE_DATA "
        "to its folder"
    )


def dataset_file(folder: Path, file: str, name: str) -> Path:
    """A file of a dataset. Raises `UserError` that says how to get it, where it is not there."""
    if not (folder / file).is_file():
        raise UserError(f"data_dir: {folder / file} is not there; `numerate data fetch {name}` gets what is missing")
    return folder / file
