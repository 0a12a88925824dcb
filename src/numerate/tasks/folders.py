"""The folders of datasets, which `numerate data fetch` fills and file tasks read, and of caches."""

import os
from collections.abc import Iterable
from pathlib import Path

from numerate.errors import UserError


def data_folder() -> Path:
    """The folder of all datasets: the environment variable NUMERATE_DATA, or `~/.cache/numerate/data`. It need not
    exist.

    Raises `UserError` for a file.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.path.expanduser(os.environ.get("NUMERATE_DATA") or f"{cache}/numerate/data"))
    if folder.is_file():
        raise UserError(f"NUMERATE_DATA: {folder} must be a folder, not a file")
    return folder


def cache_folder() -> Path:
    """The folder of data derived from the user's files: NUMERATE_CACHE, or `~/.cache/numerate`. It need not exist."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(os.environ.get("NUMERATE_CACHE") or f"{cache}/numerate"))


def corpora_folder() -> Path:
    """The folder of tokenized corpora: `corpora` in the cache. It need not exist."""
    return cache_folder() / "corpora"


def dataset_folder(data_dir: str | None, name: str, folders: Iterable[str], expected_files: Iterable[str]) -> Path:
    """The folder of a dataset: the first with one of the files `expected_files` among `data_dir` (the setting) and the
    `folders` inside it; without `data_dir` among the `folders` of `data_folder()`.

    Raises `UserError`, with instructions for obtaining the dataset `name`, if there is none.
    """
    root = data_folder() if data_dir is None else Path(os.path.expanduser(data_dir))
    subfolders = [root / folder for folder in folders]
    expected_files = list(expected_files)
    for candidate in subfolders if data_dir is None else [root, *subfolders]:
        if any((candidate / file).exists() for file in expected_files):
            return candidate
    missing = subfolders[0] if data_dir is None else root
    what = f"has none of: {', '.join(expected_files)}" if missing.is_dir() else "does not exist"
    raise UserError(
        f"data_dir: {missing} {what}; download it with `numerate data fetch {name}`, or set task.data_dir= or "
        "NUMERATE_DATA to its folder"
    )


def dataset_file(folder: Path, file: str, name: str) -> Path:
    """A file of a dataset. Raises `UserError`, with instructions for obtaining it, if it is missing."""
    if not (folder / file).is_file():
        raise UserError(f"data_dir: {folder / file} does not exist; download it with `numerate data fetch {name}`")
    return folder / file
