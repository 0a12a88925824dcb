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
        raise UserError(f"NUMERATE_DATA: {folder} is a file; the folder that datasets are in is right")
    return folder


def numerate_cache() -> Path:
    """The folder of what is made from the user's files: NUMERATE_CACHE, else `~/.cache/numerate`. It need not exist."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(os.environ.get("NUMERATE_CACHE") or f"{cache}/numerate"))


def corpora_folder() -> Path:
    """The folder of corpora that were prepared from texts: `corpora` in the cache. It need not exist."""
    return numerate_cache() / "corpora"


def dataset_folder(given: str | None, name: str, folders: Iterable[str], wanted: Iterable[str]) -> Path:
    """The folder of a dataset: the first that has one of the files `wanted`, of `given` (the setting `data_dir`) and of
    the `folders` inside it; where none is given, of the `folders` of the user's data.

    Raises `UserError` that says how to get the dataset `name`, where there is none.
    """
    begin = data_folder() if given is None else Path(os.path.expanduser(given))
    inside = [begin / folder for folder in folders]
    wanted = list(wanted)
    for place in inside if given is None else [begin, *inside]:
        if any((place / file).exists() for file in wanted):
            return place
    lacking = inside[0] if given is None else begin
    what = f"has none of: {', '.join(wanted)}" if lacking.is_dir() else "is not there"
    raise UserError(
        f"data_dir: {lacking} {what}; `numerate data fetch {name}` gets it, and data_dir= or NUMERATE_DATA names "
        "another place"
    )


def dataset_file(folder: Path, file: str, name: str) -> Path:
    """A file of a dataset. Raises `UserError` that says how to get it, where it is not there."""
    if not (folder / file).is_file():
        raise UserError(f"data_dir: {folder / file} is not there; `numerate data fetch {name}` gets what is missing")
    return folder / file
