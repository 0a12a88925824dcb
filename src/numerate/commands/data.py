"""`data write` and `data fetch`: examples as files, and datasets."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numerate.commands.naming import NamedData, load_data
from numerate.config import override
from numerate.errors import UserError
from numerate.tasks.folders import data_folder
from numerate.tasks.task import SPLITS, Task
from numerate.terminal import output_width, print_wrapped, text_table
from numerate.text.data.source import RowSource
from numerate.text.data.writing import write_rows
from numerate.text.tasks.example_file import ExampleFile
from numerate.text.tasks.text_task import TextTask
from numerate.training import disk
from numerate.training.progress import ProgressBar, ProgressBars

_DEFAULT_ROWS = 1_000_000
"""Default number of rows of a task."""

_MIN_PROGRESS_BYTES = 10_000_000
"""Smaller files (in bytes) are downloaded without a progress bar."""


def write(
    name: str,
    *,
    settings: Sequence[str],
    out: str,
    as_: str | None = None,
    **options: Any,
) -> None:
    """Writes the rows of a task, recipe or file into a new folder."""
    if as_ is not None:
        _write_published(name, settings, out, **options)
        return
    data = _load_questions(name, settings, options.get("split"))
    source = _source(data, **options)
    with ProgressBar(source.count, label="write", unit="row") as progress:
        folder = write_rows(source, out, progress.step)
    head = json.loads((folder / "head.json").read_text(encoding="utf-8"))
    for file, info in head["files"].items():
        print(f"{folder / file}  {disk.format_bytes(info['bytes'])}  sha256 {info['sha256'][:16]}")
    note = f", every row of split {source.split} once (count= draws them)" * source.each_once
    print(f"{folder}: {head['rows']:,} rows, {head['tokens']:,} tokens, {len(head['vocabulary'])} symbols{note}")


def _load_questions(name: str, settings: Sequence[str], file_split: str | None = None) -> NamedData:
    """The data of a name. Raises `UserError` for language modeling."""
    data = load_data(name, settings, file_split)
    if data.task.is_language_modeling:
        raise UserError(
            f"{name}: language modeling data is tokenized already; `numerate data tokenise` writes it to files"
        )
    return data


def _write_published(
    name: str, settings: Sequence[str], out: str, seed: int = 0, count: int | None = None, split: str | None = None
) -> None:
    """Writes the files of a published task in the format of its original code."""
    from numerate.published import counting_files, number_loss_files
    from numerate.text.data.new_folder import write_lines

    plain = name.replace("-", "_")
    is_text = plain in number_loss_files.NAMES
    unused = [f"split={split}"] * (split is not None)
    unused += [f"count={count}"] * (count is not None) if is_text else settings
    if unused:
        raise UserError(f"{unused[0]}: the published files of {name} take no such option")
    task: Any = None
    if is_text:
        task = override(number_loss_files.published_task(plain), [word.removeprefix("task.") for word in settings])
        files, total = number_loss_files.published_files(task, seed), number_loss_files.num_questions(task)
    else:
        files, total = counting_files.published_lines(name, count, seed), counting_files.num_rows(name, count)
    with ProgressBar(total, label="write", unit="row") as progress:
        written = write_lines(files, out, lambda done, file: progress.update(min(done, total), file))
    for file, num_rows in written.items():
        path, unit = Path(out) / file, "questions" if is_text else "rows"
        print(f"{path}  {num_rows:,} {unit}  {disk.format_bytes(path.stat().st_size)}")
    if isinstance(task, TextTask):
        print(f"read: {task.summary()}")


def _source(
    data: NamedData,
    *,
    count: int | None = None,
    split: str | None = None,
    seed: int | None = None,
) -> RowSource:
    """The rows of a file in its order; else `count` sampled rows, by default each question once if the task can list
    them, or a million rows."""
    task, tokenizer = data.task, data.tokenizer
    if data.is_file:
        if seed is not None:
            raise UserError("seed: the rows of a file are read in order; nothing is sampled")
        return RowSource.from_file(data.name, task, tokenizer, count)
    split, seed = split or "train", data.seed if seed is None else seed
    # A task that samples from a list yields each item once, in the order of a run.
    draws_from_list = type(task)._draw_block is not Task._draw_block
    use_all = count is None and split in SPLITS and not isinstance(task, ExampleFile)
    use_all = use_all and not (draws_from_list and split == "ood_validation")
    all_questions = task.all_questions(split) if use_all else None
    if all_questions is None:
        return RowSource(data.name, task, tokenizer, count or _DEFAULT_ROWS, split, seed)
    return RowSource(data.name, task, tokenizer, len(all_questions), split, seed, each_once=not draws_from_list)


def fetch_datasets(*names: str, from_: str | None = None) -> None:
    """Downloads datasets from their official addresses, or copies them from a folder; without a name, lists them."""
    from numerate.text.data.datasets import DATASETS, find_dataset
    from numerate.text.data.fetching import fetch, is_fetched

    mirror = None if from_ is None else Path(os.path.expanduser(from_))
    if mirror is not None and not mirror.is_dir():
        raise UserError(f"--from: {mirror} must be a folder with the layout of {data_folder()}")
    for one in dict.fromkeys(map(find_dataset, names)):
        with ProgressBars(unit="kB", min_total=_MIN_PROGRESS_BYTES) as progress:
            lines = fetch(one, mirror, lambda name, done, total: progress.on_progress(done, total, name))
        print("\n".join([*lines, f"{one.name}: {one.description}", f"license: {one.license}; {one.homepage}"]))
    if not names:
        rows = []
        for one in DATASETS.values():
            size, is_here = "unknown" if one.size is None else disk.format_bytes(one.size), "yes" * is_fetched(one)
            rows.append((one.name, size, is_here, re.split(r" \(|;", one.license)[0], one.description))
        print(text_table(("", "size", "there", "license", ""), rows, output_width()))
        print_wrapped(f"\nThey are downloaded to {data_folder()} (or NUMERATE_DATA): numerate data fetch gsm8k")
