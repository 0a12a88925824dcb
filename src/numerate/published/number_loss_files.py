"""The files of the published number token loss in their original format.

Zausinger et al. (2024), "Regress, Don't Guess", https://arxiv.org/abs/2411.02083;
https://github.com/tum-ai/number-token-loss. Names and formats are as there. What is otherwise: divisions are a function
of a seed; training and validation of the mathematics dataset have no question in common; no decimal of GSM8K is
changed; the test of MultiRC is its validation, as the official test has no answers. A second writing gives the same
files, and never appends.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from numerate.errors import UserError
from numerate.published.datasets import presets
from numerate.tasks.counter_rng import key
from numerate.tasks.multiplication import Multiplication
from numerate.tasks.texts import Example
from numerate.text.data.new_folder import new_folder, refuse_taken
from numerate.text.tasks.gsm8k import GSM8K, PREPARED
from numerate.text.tasks.mathematics import SPLIT_FILES, Mathematics
from numerate.text.tasks.multirc import MultiRC
from numerate.text.tasks.rjokes import RJokes
from numerate.text.tasks.row_orders import shuffled
from numerate.text.tasks.text_task import Holdings, Stock

NAMES = ("mathematics", "mathematics_arithmetic", "gsm8k", "multirc", "rjokes", "multiplication")
"""What can be written."""

DIGITS, TESTED, VALIDATED = 3, 20_000, 10_000
"""Of the published products: the digits of both factors, and how many of all are the test and validation."""

_BLOCK = 1 << 13

Lines = Callable[[], Iterator[list[bytes]]]
"""The lines of a file, block by block."""


def task_of(name: str) -> Any:
    """The task whose files are written, before its settings. Raises `UserError` for a name without published files."""
    if name not in NAMES:
        raise UserError(f"{name!r} has no published files; there are: {', '.join(NAMES)}")
    return presets()[name]


def files(task: Any, seed: int = 0) -> dict[str, Lines]:
    """The published files of a task with their lines. Raises `UserError` where the dataset is not there."""
    if isinstance(task, Multiplication):
        return {f"digit-multiplication/data/{name}.jsonl": lines for name, lines in _products(seed).items()}
    if isinstance(task, Mathematics):
        found = replace(task, split_seed=seed).holdings
        begin = "arithmetic_" if task.modules == task_of("mathematics_arithmetic").modules else ""
        tests = [found.test.take(found.test.part <= found.trained), found.test.take(found.test.part > found.trained)]
        named = zip(SPLIT_FILES, (found.train, found.development, *tests), strict=True)
        return {f"mathematics_dataset-v1.0/{begin}{name}.txt": _lines(stock, two_lines) for name, stock in named}
    if isinstance(task, GSM8K):
        folder, names = "grade_school_math/data/preprocessed", PREPARED
        found = replace(task, split_seed=seed, extra_tests=(), test=None).holdings
    elif isinstance(task, MultiRC):
        folder = "multirc/data/preprocessed"
        names = ("train_clean.jsonl", "val_clean.jsonl", "test_clean.jsonl")
        found = replace(task, development_fraction=0.0, keep_duplicates=True).holdings
    elif isinstance(task, RJokes):
        folder, names = "rjokes-dataset/data", ("train.jsonl", "dev.jsonl", "test.jsonl")
        found = replace(task, keep_duplicates=True).holdings
    else:
        raise UserError(f"{type(task).__name__} has no published files; there are: {', '.join(NAMES)}")
    stocks = (found.train, found.development, found.test)
    written = json_line_as_it_is if isinstance(task, MultiRC) else json_line
    return {f"{folder}/{name}": _lines(stock, written) for name, stock in zip(names, stocks, strict=True)}


def two_lines(pair: Example) -> bytes:
    """A question and its answer on a line each."""
    return f"{pair.question}\n{pair.answer}\n".encode()


def json_line(pair: Example) -> bytes:
    """A question and its answer as a line of JSON in ASCII."""
    return json.dumps({"question": pair.question, "answer": pair.answer}).encode() + b"\n"


def json_line_as_it_is(pair: Example) -> bytes:
    """The same in UTF-8, as the files of MultiRC are."""
    text = json.dumps({"question": pair.question, "answer": pair.answer}, ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass") + b"\n"


def _lines(stock: Stock, written: Callable[[Example], bytes]) -> Lines:
    def lines() -> Iterator[list[bytes]]:
        for start in range(0, len(stock), _BLOCK):
            yield [written(pair) for pair in stock.source.pairs(stock.rows[start : start + _BLOCK].astype(np.int64))]

    return lines


def _products(seed: int) -> dict[str, Lines]:
    """Every product of two numbers of three digits once: 780,000, 10,000 and 20,000 rows."""
    low, count = 10 ** (DIGITS - 1), 9 * 10 ** (DIGITS - 1)
    bounds = {"test": (0, TESTED), "val": (TESTED, TESTED + VALIDATED), "train": (TESTED + VALIDATED, count * count)}

    def of(begin: int, end: int) -> Lines:
        def lines() -> Iterator[list[bytes]]:
            for start in range(begin, end, _BLOCK):
                index = np.arange(start, min(start + _BLOCK, end))
                drawn = shuffled(index, count * count, key("products", seed))
                first, second = (drawn // count + low).tolist(), (drawn % count + low).tolist()
                yield [
                    json_line(Example(f"What is {one} times {other}?", str(one * other)))
                    for one, other in zip(first, second, strict=True)
                ]

        return lines

    return {name: of(*bounds[name]) for name in ("train", "val", "test")}


def write(
    task: Any, out: str | Path, seed: int = 0, on_progress: Callable[[int, str], None] | None = None
) -> dict[str, int]:
    """Writes the published files of a task below a new folder, and returns how many questions each has.

    The folder appears under its name when all is written; `on_progress` gets the number of questions so far, and the
    file. Raises `UserError` for a folder that is there already, and where the dataset is not there.
    """
    out = Path(out)
    refuse_taken(out)
    wanted = files(task, seed)
    written: dict[str, int] = {}
    with new_folder(out) as beside:
        for file, lines in wanted.items():
            path = beside / file
            path.parent.mkdir(parents=True, exist_ok=True)
            written[file] = 0
            with open(path, "xb") as stream:
                for block in lines():
                    stream.write(b"".join(block))
                    written[file] += len(block)
                    if on_progress is not None:
                        on_progress(sum(written.values()), file)
                stream.flush()
                os.fsync(stream.fileno())
    return written


def total(task: Any) -> int:
    """How many questions the files of a task have in all."""
    if isinstance(task, Multiplication):
        numbers: int = 9 * 10 ** (DIGITS - 1)
        return numbers * numbers
    found: Holdings = task.holdings
    return len(found.train) + len(found.development) + len(found.test)
