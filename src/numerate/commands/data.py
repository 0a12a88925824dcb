"""`numerate data`: write examples to files, show statistics, and download datasets."""

import argparse
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numerate import catalogue
from numerate.commands.words import check_no_more_words, parse_options, require_word
from numerate.config import override
from numerate.config.values import parse_value
from numerate.errors import UserError, did_you_mean
from numerate.reports.table import text_table
from numerate.tasks.plain import format_question
from numerate.tasks.task import SPLITS, Task
from numerate.text.data.source import RowSource, TaskWithTokenizer
from numerate.text.data.statistics import Histogram, Statistics, compute_statistics
from numerate.text.data.writing import FORMATS, write_rows
from numerate.text.tasks.example_file import ExampleFile
from numerate.text.tasks.text_task import TextTask
from numerate.tokenizers.tokenizer import Characters, Tokenizer
from numerate.tokenizers.words import Words
from numerate.training import disk
from numerate.training.progress import ProgressBar

DEFAULT_WRITE_ROWS, DEFAULT_STATS_ROWS = 1_000_000, 100_000
"""Default number of rows of a task for `write`, and for `stats`."""


def command(args: argparse.Namespace) -> int:
    action = require_word(args.words, "what to do with data", "numerate data stats Arithmetic")
    actions: dict[str, Callable[[list[str]], int]] = {
        "write": _write,
        "stats": _stats,
        "fetch": _fetch(args),
        "tokenise": _tokenize,
        "prepare": _prepare,
    }
    if action not in actions:
        raise UserError(
            f"data: there is no {action!r}; there are: {', '.join(actions)}.{did_you_mean(action, actions)}"
        )
    if args.published_as is not None and action != "write":
        raise UserError("--as: only what is written has a format; numerate data write debug --as published out=files")
    if args.mirror is not None and action != "fetch":
        raise UserError("--from: only what is fetched comes from a folder; numerate data fetch gsm8k --from FOLDER")
    return actions[action]([*args.words[1:], *(() if args.published_as is None else (f"as={args.published_as}",))])


def _fetch(args: argparse.Namespace) -> Callable[[list[str]], int]:
    def fetch(names: list[str]) -> int:
        from numerate.commands.fetching import fetch_named

        return fetch_named(names, args.mirror)

    return fetch


def _tokenize(words: list[str]) -> int:
    from numerate.commands.corpora import tokenize

    return tokenize(words)


def _prepare(words: list[str]) -> int:
    from numerate.commands.corpora import prepare

    return prepare(words)


def _write(words: list[str]) -> int:
    name = require_word(words, "the task, recipe or file", "numerate data write Arithmetic out=sums count=1M")
    words, format_options = parse_options(words, {"as": str})
    if format_options:
        return _write_published(name, words[1:], format_options["as"])
    settings, option_values = parse_options(words[1:], OPTION_PARSERS | {"format": _parse_format})
    if not option_values.get("out"):
        raise UserError("out: the folder is missing; for example: out=sums")
    source = _source(name, settings, option_values, DEFAULT_WRITE_ROWS)
    if Path(option_values["out"]).exists():
        raise UserError(f"out: {option_values['out']} already exists; out= must be a new folder")
    with ProgressBar(source.count, label="write") as progress:
        folder = write_rows(source, option_values["out"], option_values.get("format", "both"), progress.step)
    head = json.loads((folder / "head.json").read_text(encoding="utf-8"))
    for file, info in head["files"].items():
        print(f"{folder / file}  {disk.format_bytes(info['bytes'])}  sha256 {info['sha256'][:16]}")
    note = f", every row of split {source.split} once (count= draws them)" if source.each_once else ""
    print(f"{folder}: {head['rows']:,} rows, {head['tokens']:,} tokens, {len(head['vocabulary'])} symbols{note}")
    return 0


def _write_published(name: str, words: list[str], format_name: str) -> int:
    """Writes the files of a published task in the format of its original code."""
    from numerate.published import counting_files as published
    from numerate.published import number_loss_files as published_texts

    if format_name != "published":
        raise UserError(
            f"as: there is no {format_name!r}; there is: published.{did_you_mean(format_name, ['published'])}"
        )
    if name.replace("-", "_") in published_texts.NAMES:
        return _write_published_texts(name.replace("-", "_"), words)
    known = ("out", "count", "seed")
    rest, option_values = parse_options(words, {option: OPTION_PARSERS[option] for option in known})
    check_no_more_words(rest, known)
    if not option_values.get("out"):
        raise UserError("out: the folder is missing; for example: out=files")
    rows = option_values.get("count")
    if rows is not None and rows < 1:
        raise UserError(f"count: must be at least 1, not {rows}")
    with ProgressBar(published.num_training_rows(name, rows), label="write") as progress:
        written = published.write_published(
            name, option_values["out"], rows, option_values.get("seed", 0), progress.update
        )
    for file, count in written.items():
        path = Path(option_values["out"]) / file
        print(f"{path}  {count:,} rows  {disk.format_bytes(path.stat().st_size)}")
    return 0


def _write_published_texts(name: str, words: list[str]) -> int:
    """Writes the published files of a text dataset. Further words are settings of its task."""
    from numerate.published import number_loss_files as published_texts

    settings, option_values = parse_options(words, {"out": str, "seed": int})
    if not option_values.get("out"):
        raise UserError("out: the folder is missing; for example: out=files")
    task = override(published_texts.published_task(name), [word.removeprefix("task.") for word in settings])
    with ProgressBar(published_texts.num_questions(task), label="write") as progress:
        written = published_texts.write_published(
            task, option_values["out"], option_values.get("seed", 0), progress.update
        )
    for file, count in written.items():
        path = Path(option_values["out"]) / file
        print(f"{path}  {count:,} questions  {disk.format_bytes(path.stat().st_size)}")
    if isinstance(task, TextTask):
        print(f"read: {task.summary()}")
    return 0


def _stats(words: list[str]) -> int:
    words, option_values = parse_options(words, OPTION_PARSERS)
    names = [word for word in words if "=" not in word or Path(word).exists()]
    if not names:
        raise UserError("the task, recipe or file is missing; for example: numerate data stats Arithmetic")
    if option_values.get("out") == "":
        raise UserError("out: the folder is missing; for example: out=figures")
    settings = [word for word in words if word not in names]
    from numerate.commands.language_modeling import corpus_statistics, split_language_tasks

    names, texts = split_language_tasks(names, settings)
    for number, (name, task) in enumerate(texts):
        print(("\n" if number else "") + corpus_statistics(name, task, option_values))
    if texts and not names:
        return 0
    sources = [_source(name, settings, option_values, DEFAULT_STATS_ROWS) for name in names]
    for number, source in enumerate(sources):
        with ProgressBar(source.count, label="read") as progress:
            found = compute_statistics(source, progress.step)
        print(("\n" if number else "") + statistics_text(found, source))
        if isinstance(source.task, TextTask):
            print(f"splits: {source.task.summary()}")
        if "out" in option_values:
            folder = Path(option_values["out"])
            if len(sources) > 1:
                folder /= f"{number + 1}-{re.sub(r'[^A-Za-z0-9_-]+', '-', source.name).strip('-')}"
            _write_figures(found, folder)
    return 0


def _write_figures(found: Statistics, folder: Path) -> None:
    from numerate.reports.data_plots import save_figures

    with disk.convert_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        disk.write_atomically(
            folder / "stats.json", json.dumps(found.to_dict(), indent=1, ensure_ascii=False).encode() + b"\n"
        )
        names = ", ".join(path.name for path in save_figures(found, folder) if path.suffix == ".png")
    print(f"{folder}: stats.json; {names}, and as .svg")


def _parse_count(text: str) -> int:
    try:
        return int(parse_value(text, int, "count"))
    except UserError as error:
        field = f"; task.count={text} sets the count of a task" if ":" in text else ""
        raise ValueError(f"an integer such as 1000, 64k or 20M{field}") from error


def _parse_format(text: str) -> str:
    if text not in FORMATS:
        raise UserError(f"format: there is no {text!r}; there are: {', '.join(FORMATS)}.{did_you_mean(text, FORMATS)}")
    return text


OPTION_PARSERS: dict[str, Callable[[str], Any]] = {"out": str, "count": _parse_count, "split": str, "seed": int}


def _source(name: str, settings: list[str], option_values: dict[str, Any], count: int) -> RowSource:
    """The rows of a task, a recipe, a file or a folder, by its name."""
    kinds = catalogue.parts_by_kind()
    seed, split = option_values.get("seed"), option_values.get("split", "train")
    recipe_name = name.replace("-", "_")
    recipe = recipe_name in kinds["Recipe"] or name.endswith((".yaml", ".yml")) or ".py:" in name
    recipe = recipe or catalogue.is_in_family("Recipe", recipe_name)
    if name != "ExampleFile" and (name in kinds["Task"] or name in catalogue.presets("Task")):
        task = catalogue.get_part("Task", name)
        if task.is_language_modeling:
            raise UserError(
                f"{name}: language modeling data is tokenized already; `numerate data tokenise` writes it to files"
            )
        with_tokenizer = _with_settings(task, _prefix_with_task(settings))
        return _source_from_split(
            name, with_tokenizer.task, with_tokenizer.tokenizer, option_values, split, seed or 0, count
        )
    if recipe:
        from numerate.studies.naming import load_recipe

        recipe_with_settings = override(load_recipe(name), settings)
        if recipe_with_settings.task.is_language_modeling:
            raise UserError(
                f"{name}: language modeling data is tokenized already; `numerate data tokenise` writes it to files"
            )
        seed = recipe_with_settings.seed if seed is None else seed
        return _source_from_split(
            name, recipe_with_settings.task, recipe_with_settings.tokenizer, option_values, split, seed, count
        )
    if Path(name).exists() or "/" in name or name.endswith((".txt", ".arrow")) or name == "ExampleFile":
        if seed is not None:
            raise UserError("seed: the rows of a file are read in order; nothing is sampled")
        parts = [f"task.split={option_values['split']}"] if "split" in option_values else []
        file = ExampleFile() if name == "ExampleFile" else ExampleFile(path=name)
        return RowSource.from_file(
            name, _with_settings(file, [*_prefix_with_task(settings), *parts]), option_values.get("count")
        )
    known = [*kinds["Task"], *kinds["Recipe"]]
    names = ", ".join(known)
    raise UserError(
        f"{name!r} is not a task, recipe, file or folder; tasks and recipes are: {names}.{did_you_mean(name, known)}"
    )


def _with_settings(task: Task, settings: list[str]) -> TaskWithTokenizer:
    """A task with its settings applied, then its default tokenizer with the other settings applied."""
    task_settings = [word for word in settings if word.startswith("task")]
    with_tokenizer = _with_default_tokenizer(override(TaskWithTokenizer(task), task_settings).task)
    return override(with_tokenizer, [word for word in settings if not word.startswith("task")])


def _with_default_tokenizer(task: Task) -> TaskWithTokenizer:
    """A task with its default tokenizer: words where a symbol has several characters and there are no numbers."""
    long = any(len(text) > 1 for text in task.alphabet())
    words = long and not task.examples("train", 0, 0, 1).numbers.lengths.shape[1]
    return TaskWithTokenizer(task, Words() if words else Characters())


def _source_from_split(
    name: str,
    task: Task,
    tokenizer: Tokenizer,
    option_values: Mapping[str, Any],
    split: str,
    seed: int,
    default_count: int,
) -> RowSource:
    """`count` sampled rows; by default each question once if the task can list them, else `default_count` rows."""
    # A task that samples from a list yields each item once, in the order of a run.
    draws_from_list = type(task)._draw_block is not Task._draw_block
    use_all = "count" not in option_values and split in SPLITS and not isinstance(task, ExampleFile)
    use_all = use_all and not (draws_from_list and split == "ood_validation")
    all_questions = task.all_questions(split) if use_all else None
    if all_questions is None:
        return RowSource(name, task, tokenizer, int(option_values.get("count", default_count)), split, seed)
    return RowSource(name, task, tokenizer, len(all_questions), split, seed, each_once=not draws_from_list)


def _prefix_with_task(settings: list[str]) -> list[str]:
    """Prefixes settings with `task.` unless they already name task or tokenizer."""
    return [word if re.match(r"(task|tokenizer)[.=]", word) else f"task.{word}" for word in settings]


def statistics_text(found: Statistics, source: RowSource) -> str:
    """The statistics as text."""
    first_block = next(source.read_blocks(1))[0]
    question, answer = format_question(first_block, 0)
    separator, end = ("", " with [EOS]") if first_block.labels is None else ("   ", "")
    separator = " -> " if first_block.texts is not None else separator
    order_text = "in the order of the file" if source.split is None else f"split {source.split}, seed {source.seed}"
    order_text = f"every row of split {source.split} once" if source.each_once else order_text
    lines = [f"{found.name}: {found.num_rows:,} rows, {order_text}; the first: {question}{separator}{answer}", ""]
    table: list[tuple[str, ...]] = []
    for row_name, histogram in (
        (f"row, tokens{end}", found.row_lengths),
        ("operand, digits", found.operand_digits),
        ("answer, tokens", found.answer_lengths),
        ("longest carry chain of a sum", found.carry_chain_lengths),
    ):
        if histogram.total:
            table.append((row_name, *_histogram_cells(histogram)))
    lines += [text_table(("", "low", "median", "mean", "high"), table), ""]
    lines.append(
        f"questions: {found.num_distinct:,} different; {found.num_repeated:,} rows "
        f"({found.num_repeated / found.num_rows:.2%}) repeat one, the most frequent occurs {found.max_multiplicity:,} "
        "times"
    )
    if found.carry_chain_lengths.total:
        chains = found.carry_chain_lengths
        shares = [
            f"{length} or more: {chains.counts[length:].sum() / chains.total:.2%}"
            for length in (1, 2, 4, 8, 16, 32, 64)
            if length <= chains.max()
        ]
        lines.append(f"carry chains: {', '.join(shares)}" if shares else "carry chains: no carries")
    if found.rows_per_pair and found.axes:
        least, most = (
            min(found.rows_per_pair, key=found.rows_per_pair.__getitem__),
            max(found.rows_per_pair, key=found.rows_per_pair.__getitem__),
        )
        most_repeated = max(
            found.rows_per_pair, key=lambda pair: 1 - found.distinct_per_pair.get(pair, 0) / found.rows_per_pair[pair]
        )
        share = 1 - found.distinct_per_pair.get(most_repeated, 0) / found.rows_per_pair[most_repeated]
        lines.append(
            f"pairs of {' and '.join(found.axes)}: {len(found.rows_per_pair):,}, with {found.rows_per_pair[least]:,} "
            f"to {found.rows_per_pair[most]:,} rows; most repeated: {_pair_text(most_repeated, found.axes)} "
            f"({share:.0%} of its rows)"
        )
    total = sum(found.symbol_counts.values())
    by_frequency = sorted(found.symbol_counts.items(), key=lambda item: -item[1])
    frequent = [f"{symbol!r} {count / total:.1%}" for symbol, count in by_frequency[:20]]
    more = f", and {len(by_frequency) - 20} more" if len(by_frequency) > 20 else ""
    lines.append(f"characters: {', '.join(frequent)}{more}")
    return "\n".join(lines)


def _histogram_cells(histogram: Histogram) -> tuple[str, str, str, str]:
    low, high = f"{histogram.min():,}", f"{histogram.max():,}"
    return low, f"{histogram.median():,}", f"{histogram.mean():.2f}", high


def _pair_text(pair: tuple[int, int], axes: tuple[str, str]) -> str:
    return " ".join(f"{axis}={size}" for axis, size in zip(axes, pair, strict=True))
