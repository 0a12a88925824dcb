"""`numerate data fetch [NAME ...]`: downloads datasets from their official addresses, or copies them."""

import os
import re
from pathlib import Path

from numerate.commands.words import options
from numerate.errors import UserError
from numerate.reports.table import text_table
from numerate.tasks.folders import data_folder
from numerate.text.data.archives import MEMBERS, Limits
from numerate.text.data.datasets import ALL, Dataset, dataset
from numerate.text.data.fetching import fetch, is_fetched
from numerate.training import disk
from numerate.training.progress import ProgressBar


def fetch_named(words: list[str], mirror: str | None) -> int:
    """Fetches datasets; without a name, lists them. Raises as `fetch` does."""
    names, own = options(words, {"unpacked_size": int, "unpacked_members": int})
    limits = Limits(own.get("unpacked_size"), own.get("unpacked_members", MEMBERS))
    source = None if mirror is None else Path(os.path.expanduser(mirror))
    if source is not None and not source.is_dir():
        raise UserError(f"--from: {source} is no folder; one with the layout of {data_folder()} is right")
    if not names:
        print(_table())
        return 0
    for found in dict.fromkeys(map(dataset, names)):
        with _Shown() as shown:
            lines = fetch(found, source, shown.on_progress, limits=limits)
        print("\n".join([*lines, f"{found.name}: {found.what}", f"licence: {found.licence}; {found.source}"]))
    return 0


def _table() -> str:
    rows = [
        (one.name, _size(one), "yes" if is_fetched(one) else "", re.split(r" \(|;", one.licence)[0], one.what)
        for one in ALL.values()
    ]
    table = text_table(("", "size", "there", "licence", ""), rows)
    return f"{table}\n\nThey are downloaded to {data_folder()} (or NUMERATE_DATA): numerate data fetch gsm8k"


def _size(found: Dataset) -> str:
    return "not known" if found.size is None else disk.size(found.size)


_SHOWN = 10_000_000
"""Smaller files (in bytes) are downloaded without a progress bar."""


class _Shown:
    """A progress bar for each large file that is downloaded."""

    def __init__(self) -> None:
        self._name = ""
        self._bar: ProgressBar | None = None

    def on_progress(self, name: str, done: int, total: int | None) -> None:
        if name != self._name:
            self.__exit__()
            large = total is None or total >= _SHOWN
            self._name, self._bar = name, ProgressBar((total or 0) // 1000, label=f"{name}, kB") if large else None
        if self._bar is not None:
            self._bar.step(done // 1000)

    def __enter__(self) -> "_Shown":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar = None
