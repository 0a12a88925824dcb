"""`numerate data fetch [NAME ...]`: downloads datasets from their official addresses, or copies them."""

import os
import re
from pathlib import Path

from numerate.commands.words import parse_options
from numerate.errors import UserError
from numerate.reports.table import text_table
from numerate.tasks.folders import data_folder
from numerate.text.data.archives import MAX_MEMBERS, UnpackLimits
from numerate.text.data.datasets import DATASETS, Dataset, find_dataset
from numerate.text.data.fetching import fetch, is_fetched
from numerate.training import disk
from numerate.training.progress import ProgressBar


def fetch_named(words: list[str], mirror: str | None) -> int:
    """Fetches datasets; without a name, lists them. Raises as `fetch` does."""
    names, option_values = parse_options(words, {"unpacked_size": int, "unpacked_members": int})
    limits = UnpackLimits(option_values.get("unpacked_size"), option_values.get("unpacked_members", MAX_MEMBERS))
    source = None if mirror is None else Path(os.path.expanduser(mirror))
    if source is not None and not source.is_dir():
        raise UserError(f"--from: {source} must be a folder with the layout of {data_folder()}")
    if not names:
        print(_table())
        return 0
    for found_dataset in dict.fromkeys(map(find_dataset, names)):
        with _DownloadProgress() as progress:
            lines = fetch(found_dataset, source, progress.on_progress, limits=limits)
        print(
            "\n".join(
                [
                    *lines,
                    f"{found_dataset.name}: {found_dataset.description}",
                    f"license: {found_dataset.license}; {found_dataset.homepage}",
                ]
            )
        )
    return 0


def _table() -> str:
    rows = [
        (
            one.name,
            _size_text(one),
            "yes" if is_fetched(one) else "",
            re.split(r" \(|;", one.license)[0],
            one.description,
        )
        for one in DATASETS.values()
    ]
    table = text_table(("", "size", "there", "licence", ""), rows)
    return f"{table}\n\nThey are downloaded to {data_folder()} (or NUMERATE_DATA): numerate data fetch gsm8k"


def _size_text(found: Dataset) -> str:
    return "unknown" if found.size is None else disk.format_bytes(found.size)


_MIN_PROGRESS_BYTES = 10_000_000
"""Smaller files (in bytes) are downloaded without a progress bar."""


class _DownloadProgress:
    """A progress bar for each large file that is downloaded."""

    def __init__(self) -> None:
        self._name = ""
        self._bar: ProgressBar | None = None

    def on_progress(self, name: str, done: int, total: int | None) -> None:
        if name != self._name:
            self.__exit__()
            large = total is None or total >= _MIN_PROGRESS_BYTES
            self._name, self._bar = name, ProgressBar((total or 0) // 1000, label=f"{name}, kB") if large else None
        if self._bar is not None:
            self._bar.step(done // 1000)

    def __enter__(self) -> "_DownloadProgress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar = None
