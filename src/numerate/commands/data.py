"""`numerate data`: write examples to files, show statistics, and download datasets."""

import argparse
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numerate import catalogue
from numerate.commands.words import first, no_more, options
from numerate.config import override
from numerate.config.values import from_text
from numerate.errors import UserError, did_you_mean
from numerate.reports.table import text_table
from numerate.tasks.plain import plain_text
from numerate.tasks.task import SPLITS, Task
from numerate.text.data.source import Source, TaskWithTokenizer
from numerate.text.data.statistics import Histogram, Statistics, statistics
from numerate.text.data.writing import FORMATS, write
from numerate.text.tasks.example_file import ExampleFile
from numerate.text.tasks.text_task import TextTask
from numerate.tokenizers.tokenizer import Characters, Tokenizer
from numerate.tokenizers.words import Words
from numerate.training import disk
from numerate.training.progress import ProgressBar

WRITTEN, LOOKED_AT = 1_000_000, 100_000
"""Default number of rows of a task for `write`, and for `stats`."""


def command(given: argparse.Namespace) -> int:
    doing = first(given.words, "what to do with data", "numerate data stats Arithmetic")
    known: dict[str, Callable[[list[str]], int]] = {
        "write": _write,
        "stats": _stats,
        "fetch": _fetch(given),
        "tokenise": _tokenise,
        "prepare": _prepare,
    }
    if doing not in known:
        raise UserError(f"data: there is no {doing!r}; there are: {', '.join(known)}.{did_you_mean(doing, known)}")
    if given.published_as is not None and doing != "write":
        raise UserError("--as: only what is written has a format; numerate data write debug --as published out=files")
    if given.mirror is not None and doing != "fetch":
        raise UserError("--from: only what is fetched comes from a folder; numerate data fetch gsm8k --from FOLDER")
    return known[doing]([*given.words[1:], *(() if given.published_as is None else (f"as={given.published_as}",))])


def _fetch(given: argparse.Namespace) -> Callable[[list[str]], int]:
    def fetch(names: list[str]) -> int:
        from numerate.commands.fetching import fetch_named

        return fetch_named(names, given.mirror)

    return fetch


def _tokenise(words: list[str]) -> int:
    from numerate.commands.corpora import tokenise

    return tokenise(words)


def _prepare(words: list[str]) -> int:
    from numerate.commands.corpora import prepare

    return prepare(words)


def _write(words: list[str]) -> int:
    name = first(words, "the task, recipe or file", "numerate data write Arithmetic out=sums count=1M")
    words, form = options(words, {"as": str})
    if form:
        return _write_published(name, words[1:], form["as"])
    settings, own = options(words[1:], OWN | {"format": _format})
    if not own.get("out"):
        raise UserError("out: the folder is missing; for example: out=sums")
    source = _source(name, settings, own, WRITTEN)
    if Path(own["out"]).exists():
        raise UserError(f"out: {own['out']} is there already and is not overwritten; another folder is right")
    with ProgressBar(source.count, label="write") as progress:
        folder = write(source, own["out"], own.get("format", "both"), progress.step)
    head = json.loads((folder / "head.json").read_text(encoding="utf-8"))
    for file, info in head["files"].items():
        print(f"{folder / file}  {disk.size(info['bytes'])}  sha256 {info['sha256'][:16]}")
    each = f", every row of split {source.split} once (count= draws them)" if source.whole else ""
    print(f"{folder}: {head['rows']:,} rows, {head['tokens']:,} tokens, {len(head['vocabulary'])} symbols{each}")
    return 0


def _write_published(name: str, words: list[str], form: str) -> int:
    """Writes the files of a published task in the format of its original code."""
    from numerate.published import counting_files as published
    from numerate.published import number_loss_files as published_texts

    if form != "published":
        raise UserError(f"as: there is no {form!r}; there is: published.{did_you_mean(form, ['published'])}")
    if name.replace("-", "_") in published_texts.NAMES:
        return _write_published_texts(name.replace("-", "_"), words)
    known = ("out", "count", "seed")
    rest, own = options(words, {option: OWN[option] for option in known})
    no_more(rest, known)
    if not own.get("out"):
        raise UserError("out: the folder is missing; for example: out=files")
    rows = own.get("count")
    if rows is not None and rows < 1:
        raise UserError(f"count: {rows} rows are none; 1 or more is right")
    with ProgressBar(published.total(name, rows), label="write") as progress:
        written = published.write(name, own["out"], rows, own.get("seed", 0), progress.show)
    for file, count in written.items():
        path = Path(own["out"]) / file
        print(f"{path}  {count:,} rows  {disk.size(path.stat().st_size)}")
    return 0


def _write_published_texts(name: str, words: list[str]) -> int:
    """Writes the published files of a text dataset. Further words are settings of its task."""
    from numerate.published import number_loss_files as published_texts

    settings, own = options(words, {"out": str, "seed": int})
    if not own.get("out"):
        raise UserError("out: the folder is missing; for example: out=files")
    task = override(published_texts.task_of(name), [word.removeprefix("task.") for word in settings])
    with ProgressBar(published_texts.total(task), label="write") as progress:
        written = published_texts.write(task, own["out"], own.get("seed", 0), progress.show)
    for file, count in written.items():
        path = Path(own["out"]) / file
        print(f"{path}  {count:,} questions  {disk.size(path.stat().st_size)}")
    if isinstance(task, TextTask):
        print(f"read: {task.told()}")
    return 0


def _stats(words: list[str]) -> int:
    words, own = options(words, OWN)
    names = [word for word in words if "=" not in word or Path(word).exists()]
    if not names:
        raise UserError("the task, recipe or file is missing; for example: numerate data stats Arithmetic")
    if own.get("out") == "":
        raise UserError("out: the folder is missing; for example: out=figures")
    settings = [word for word in words if word not in names]
    from numerate.commands.language_modeling import stats_of_text, texts_among

    names, texts = texts_among(names, settings)
    for number, (name, task) in enumerate(texts):
        print(("\n" if number else "") + stats_of_text(name, task, own))
    if texts and not names:
        return 0
    sources = [_source(name, settings, own, LOOKED_AT) for name in names]
    for number, source in enumerate(sources):
        with ProgressBar(source.count, label="read") as progress:
            found = statistics(source, progress.step)
        print(("\n" if number else "") + summary(found, source))
        if isinstance(source.task, TextTask):
            print(f"splits: {source.task.told()}")
        if "out" in own:
            folder = Path(own["out"])
            if len(sources) > 1:
                folder /= f"{number + 1}-{re.sub(r'[^A-Za-z0-9_-]+', '-', source.name).strip('-')}"
            _draw(found, folder)
    return 0


def _draw(found: Statistics, folder: Path) -> None:
    from numerate.reports.data_plots import draw

    with disk.explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        disk.replace(folder / "stats.json", json.dumps(found.tree(), indent=1, ensure_ascii=False).encode() + b"\n")
        names = ", ".join(path.name for path in draw(found, folder) if path.suffix == ".png")
    print(f"{folder}: stats.json; {names}, and as .svg")


def _count(text: str) -> int:
    try:
        return int(from_text(text, int, "count"))
    except UserError as error:
        field = f"; task.count={text} sets the count of a task" if ":" in text else ""
        raise ValueError(f"a whole number such as 1000, 64k or 20M{field}") from error


def _format(text: str) -> str:
    if text not in FORMATS:
        raise UserError(f"format: there is no {text!r}; there are: {', '.join(FORMATS)}.{did_you_mean(text, FORMATS)}")
    return text


OWN: dict[str, Callable[[str], Any]] = {"out": str, "count": _count, "split": str, "seed": int}


def _source(name: str, settings: list[str], own: dict[str, Any], count: int) -> Source:
    """The rows of a task, a recipe, a file or a folder, by its name."""
    kinds = catalogue.kinds()
    seed, split = own.get("seed"), own.get("split", "train")
    plain = name.replace("-", "_")
    recipe = plain in kinds["Recipe"] or name.endswith((".yaml", ".yml")) or ".py:" in name
    recipe = recipe or catalogue.in_family("Recipe", plain)
    if name != "ExampleFile" and (name in kinds["Task"] or name in catalogue.presets("Task")):
        made = catalogue.made("Task", name)
        if made.running:
            raise UserError(f"{name}: running text is tokens already; `numerate data tokenise` writes it to files")
        with_tokenizer = _configured(made, _of_task(settings))
        return _of_split(name, with_tokenizer.task, with_tokenizer.tokenizer, own, split, seed or 0, count)
    if recipe:
        from numerate.studies.naming import named_recipe

        found = override(named_recipe(name), settings)
        if found.task.running:
            raise UserError(f"{name}: running text is tokens already; `numerate data tokenise` writes it to files")
        seed = found.seed if seed is None else seed
        return _of_split(name, found.task, found.tokenizer, own, split, seed, count)
    if Path(name).exists() or "/" in name or name.endswith((".txt", ".arrow")) or name == "ExampleFile":
        if seed is not None:
            raise UserError("seed: the rows of a file are taken as they stand; nothing is drawn")
        parts = [f"task.split={own['split']}"] if "split" in own else []
        file = ExampleFile() if name == "ExampleFile" else ExampleFile(path=name)
        return Source.of_file(name, _configured(file, [*_of_task(settings), *parts]), own.get("count"))
    known = [*kinds["Task"], *kinds["Recipe"]]
    names = ", ".join(known)
    raise UserError(
        f"{name!r} is no task, recipe, file or folder; tasks and recipes are: {names}.{did_you_mean(name, known)}"
    )


def _configured(task: Task, settings: list[str]) -> TaskWithTokenizer:
    """A task with its settings applied, then its default tokenizer with the other settings applied."""
    of_task = [word for word in settings if word.startswith("task")]
    with_tokenizer = _with_tokenizer(override(TaskWithTokenizer(task), of_task).task)
    return override(with_tokenizer, [word for word in settings if not word.startswith("task")])


def _with_tokenizer(task: Task) -> TaskWithTokenizer:
    """A task with its default tokenizer: words where a symbol has several characters and there are no numbers."""
    long = any(len(text) > 1 for text in task.alphabet())
    words = long and not task.examples("train", 0, 0, 1).numbers.lengths.shape[1]
    return TaskWithTokenizer(task, Words() if words else Characters())


def _of_split(
    name: str, task: Task, tokenizer: Tokenizer, own: Mapping[str, Any], split: str, seed: int, usual: int
) -> Source:
    """`count` sampled rows; by default each question once if the task can list them, else `usual` rows."""
    # A task that samples from a list goes through it once by itself, in the order of a run.
    draws_from_list = type(task)._block is not Task._block
    lists = "count" not in own and split in SPLITS and not isinstance(task, ExampleFile)
    lists = lists and not (draws_from_list and split == "beyond-development")
    whole = task.whole(split) if lists else None
    if whole is None:
        return Source(name, task, tokenizer, int(own.get("count", usual)), split, seed)
    return Source(name, task, tokenizer, len(whole), split, seed, whole=not draws_from_list)


def _of_task(settings: list[str]) -> list[str]:
    """Prefixes settings with `task.` unless they already name task or tokenizer."""
    return [word if re.match(r"(task|tokenizer)[.=]", word) else f"task.{word}" for word in settings]


def summary(found: Statistics, source: Source) -> str:
    """The statistics as text."""
    first_one = next(source.blocks(1))[0]
    question, answer = plain_text(first_one, 0)
    between, end = ("", " with [EOS]") if first_one.labels is None else ("   ", "")
    between = " -> " if first_one.texts is not None else between
    what = "in the order of the file" if source.split is None else f"split {source.split}, seed {source.seed}"
    what = f"every row of split {source.split} once" if source.whole else what
    lines = [f"{found.name}: {found.count:,} rows, {what}; the first: {question}{between}{answer}", ""]
    table: list[tuple[str, ...]] = []
    for words, histogram in (
        (f"row, tokens{end}", found.rows),
        ("operand, digits", found.operands),
        ("answer, tokens", found.answers),
        ("longest carry chain of a sum", found.carries),
    ):
        if histogram.count:
            table.append((words, *_numbers(histogram)))
    lines += [text_table(("", "low", "median", "mean", "high"), table), ""]
    lines.append(
        f"questions: {found.distinct:,} different; {found.repeated:,} rows ({found.repeated / found.count:.2%}) repeat "
        f"one, the most frequent stands {found.most:,} times"
    )
    if found.carries.count:
        chains = found.carries
        shares = [
            f"{length} or more: {chains.counts[length:].sum() / chains.count:.2%}"
            for length in (1, 2, 4, 8, 16, 32, 64)
            if length <= chains.high()
        ]
        lines.append(f"carry chains: {', '.join(shares)}" if shares else "carry chains: none carries")
    if found.pairs and found.axes:
        least, most = min(found.pairs, key=found.pairs.__getitem__), max(found.pairs, key=found.pairs.__getitem__)
        worst = max(found.pairs, key=lambda pair: 1 - found.distinct_pairs.get(pair, 0) / found.pairs[pair])
        share = 1 - found.distinct_pairs.get(worst, 0) / found.pairs[worst]
        lines.append(
            f"pairs of {' and '.join(found.axes)}: {len(found.pairs):,}, with {found.pairs[least]:,} to "
            f"{found.pairs[most]:,} rows; most repeated: {_pair(worst, found.axes)} ({share:.0%} of its rows)"
        )
    total = sum(found.characters.values())
    often = sorted(found.characters.items(), key=lambda item: -item[1])
    frequent = [f"{symbol!r} {count / total:.1%}" for symbol, count in often[:20]]
    more = f", and {len(often) - 20} more" if len(often) > 20 else ""
    lines.append(f"characters: {', '.join(frequent)}{more}")
    return "\n".join(lines)


def _numbers(histogram: Histogram) -> tuple[str, str, str, str]:
    low, high = f"{histogram.low():,}", f"{histogram.high():,}"
    return low, f"{histogram.median():,}", f"{histogram.mean():.2f}", high


def _pair(pair: tuple[int, int], axes: tuple[str, str]) -> str:
    return " ".join(f"{axis}={size}" for axis, size in zip(axes, pair, strict=True))
