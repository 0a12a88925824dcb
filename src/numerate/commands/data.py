"""`data write`, `data stats` and `data fetch`: examples as files, their statistics, and datasets."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from numerate.commands.naming import NamedData, load_data
from numerate.config import override
from numerate.errors import UserError
from numerate.reports.output_files import write_output
from numerate.reports.table import text_table
from numerate.tasks.folders import data_folder
from numerate.tasks.language_modeling import LanguageModeling
from numerate.tasks.plain import format_question
from numerate.tasks.task import SPLITS, Task
from numerate.terminal import output_width, print_wrapped
from numerate.text.data.source import RowSource
from numerate.text.data.statistics import Statistics, compute_statistics
from numerate.text.data.writing import write_rows
from numerate.text.tasks.example_file import ExampleFile
from numerate.text.tasks.text_task import TextTask
from numerate.training import disk
from numerate.training.progress import ProgressBar, ProgressBars

Format = Literal["text", "memmap", "both"]

DEFAULT_WRITE_ROWS, DEFAULT_STATS_ROWS = 1_000_000, 100_000
"""Default number of rows of a task for `write`, and for `stats`."""

_MIN_PROGRESS_BYTES = 10_000_000
"""Smaller files (in bytes) are downloaded without a progress bar."""


def write(
    name: str,
    *,
    settings: Sequence[str],
    out: str,
    as_: str | None = None,
    format: Format = "both",
    **options: Any,
) -> None:
    """Writes the rows of a task, recipe or file into a new folder."""
    if as_ is not None:
        _write_published(name, settings, out, **options)
        return
    data = _load_questions(name, settings, options.get("split"))
    source = _source(data, DEFAULT_WRITE_ROWS, **options)
    with ProgressBar(source.count, label="write", unit="row") as progress:
        folder = write_rows(source, out, format, progress.step)
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


def show_statistics(*names: str, settings: Sequence[str], out: str | None = None, **options: Any) -> None:
    """Prints the statistics of tasks, recipes, files and tokenized texts; with `out` also draws them."""
    from numerate.commands.corpora import corpus_statistics

    found = [load_data(name, settings, options.get("split")) for name in names]
    for number, data in enumerate(found):
        print("\n" * bool(number), end="")
        if isinstance(data.task, LanguageModeling):
            given = options if out is None else {**options, "out": out}
            print(corpus_statistics(data.name, data.task, **given))
            continue
        source = _source(data, DEFAULT_STATS_ROWS, **options)
        with ProgressBar(source.count, label="read", unit="example") as progress:
            statistics = compute_statistics(source, progress.step)
        print_wrapped(statistics_text(statistics, source))
        if isinstance(source.task, TextTask):
            print(f"splits: {source.task.summary()}")
        if out is not None:
            part = re.sub(r"[^A-Za-z0-9_-]+", "-", source.name).strip("-")
            _write_figures(statistics, Path(out) / f"{number + 1}-{part}" if len(names) > 1 else Path(out))


def _write_figures(found: Statistics, folder: Path) -> None:
    from numerate.reports.data_plots import save_figures

    write_output(folder / "stats.json", json.dumps(found.to_dict(), indent=1, ensure_ascii=False).encode() + b"\n")
    names = ", ".join(path.name for path in save_figures(found, folder) if path.suffix == ".png")
    print(f"{folder}: stats.json; {names}, and as .svg")


def _source(
    data: NamedData,
    default_count: int,
    *,
    count: int | None = None,
    split: str | None = None,
    seed: int | None = None,
) -> RowSource:
    """The rows of a file in its order; else `count` sampled rows, by default each question once if the task can list
    them, or `default_count` rows."""
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
        return RowSource(data.name, task, tokenizer, count or default_count, split, seed)
    return RowSource(data.name, task, tokenizer, len(all_questions), split, seed, each_once=not draws_from_list)


def statistics_text(found: Statistics, source: RowSource) -> str:
    """The statistics as text."""
    first_block = next(source.read_blocks(1))[0]
    question, answer = format_question(first_block, 0)
    is_labelled = first_block.labels is not None
    separator = " -> " if first_block.texts is not None else "   " * is_labelled
    order = f"split {source.split}, seed {source.seed}"
    if source.split is None or source.each_once:
        order = "in the order of the file" if source.split is None else f"every row of split {source.split} once"
    histograms = {
        f"row, tokens{' with [EOS]' * (not is_labelled)}": found.row_lengths,
        "operand, digits": found.operand_digits,
        "answer, tokens": found.answer_lengths,
        "longest carry chain of a sum": (chains := found.carry_chain_lengths),
    }
    table = [
        (name, f"{one.min():,}", f"{one.median():,}", f"{one.mean():.2f}", f"{one.max():,}")
        for name, one in histograms.items()
        if one.total
    ]
    lines = [
        f"{found.name}: {found.num_rows:,} rows, {order}; the first: {question}{separator}{answer}\n",
        f"{text_table(('', 'low', 'median', 'mean', 'high'), table)}\n",
        f"questions: {found.num_distinct:,} different; {found.num_repeated:,} rows "
        f"({found.num_repeated / found.num_rows:.2%}) repeat one, the most frequent occurs "
        f"{found.max_multiplicity:,} times",
    ]
    if chains.total:
        lengths = [length for length in (1, 2, 4, 8, 16, 32, 64) if length <= chains.max()]
        shares = [f"{length} or more: {chains.counts[length:].sum() / chains.total:.2%}" for length in lengths]
        lines.append(f"carry chains: {', '.join(shares) or 'no carries'}")
    if (rows := found.rows_per_pair) and found.axes:
        repeated_shares = {pair: 1 - found.distinct_per_pair.get(pair, 0) / number for pair, number in rows.items()}
        worst = max(rows, key=repeated_shares.__getitem__)
        worst_text = " ".join(f"{axis}={size}" for axis, size in zip(found.axes, worst, strict=True))
        most_repeated = f"; most repeated: {worst_text} ({repeated_shares[worst]:.1%} of its rows)"
        lines.append(
            f"pairs of {' and '.join(found.axes)}: {len(rows):,}, with {min(rows.values()):,} to "
            f"{max(rows.values()):,} rows{most_repeated * (repeated_shares[worst] >= 0.0005)}"
        )
    total = sum(found.symbol_counts.values())
    by_frequency = sorted(found.symbol_counts.items(), key=lambda item: -item[1])
    more = f", and {len(by_frequency) - 20} more" * (len(by_frequency) > 20)
    frequent = ", ".join(f"{symbol!r} {count / total:.1%}" for symbol, count in by_frequency[:20])
    return "\n".join([*lines, f"characters: {frequent}{more}"])


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
