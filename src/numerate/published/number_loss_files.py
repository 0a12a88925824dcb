"""The files of the published number token loss in their original format.

Zausinger et al. (2024), "Regress, Don't Guess", https://arxiv.org/abs/2411.02083;
https://github.com/tum-ai/number-token-loss. Names and formats are as there. What is otherwise: divisions are a function
of a seed; training and validation of the mathematics dataset have no question in common; no decimal of GSM8K is
changed; the test of MultiRC is its validation, as the official test has no answers. A second writing gives the same
files, and never appends.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from numerate.errors import UserError
from numerate.published.datasets import presets as dataset_presets
from numerate.tasks.counter_rng import permute, random_key
from numerate.tasks.multiplication import Multiplication
from numerate.tasks.texts import Example
from numerate.text.data.new_folder import LineBlocks
from numerate.text.tasks.gsm8k import GSM8K, PREPARED_FILES
from numerate.text.tasks.mathematics import PREPARED_SPLIT_FILES, Mathematics
from numerate.text.tasks.multirc import MultiRC
from numerate.text.tasks.rjokes import RJokes
from numerate.text.tasks.text_task import DatasetSplits, SplitRows

NAMES = ("mathematics", "mathematics_arithmetic", "gsm8k", "multirc", "rjokes", "multiplication")
"""What can be written."""

DIGITS, NUM_TEST_PRODUCTS, NUM_VALIDATION_PRODUCTS = 3, 20_000, 10_000
"""Of the published products: the digits of both factors, and how many of all are the test and validation."""

_BLOCK_LINES = 1 << 13


def published_task(name: str) -> Any:
    """The task whose files are written, before its settings. Raises `UserError` for a name without published files."""
    if name not in NAMES:
        raise UserError(f"{name!r} has no published files; there are: {', '.join(NAMES)}")
    return dataset_presets()[name]


def published_files(task: Any, seed: int = 0) -> dict[str, LineBlocks]:
    """The published files of a task with their lines. Raises `UserError` if the dataset is not there."""
    if isinstance(task, Multiplication):
        return {f"digit-multiplication/data/{name}.jsonl": lines for name, lines in _multiplication_files(seed).items()}
    if isinstance(task, Mathematics):
        splits = replace(task, split_seed=seed).splits
        prefix = "arithmetic_" if task.modules == published_task("mathematics_arithmetic").modules else ""
        tests = [
            splits.test.take(splits.test.part_numbers <= splits.num_trained_parts),
            splits.test.take(splits.test.part_numbers > splits.num_trained_parts),
        ]
        files_and_splits = zip(PREPARED_SPLIT_FILES, (splits.train, splits.validation, *tests), strict=True)
        return {
            f"mathematics_dataset-v1.0/{prefix}{name}.txt": _line_blocks(split, format_two_lines)
            for name, split in files_and_splits
        }
    if isinstance(task, GSM8K):
        folder, names = "grade_school_math/data/preprocessed", PREPARED_FILES
        splits = replace(task, split_seed=seed, extra_tests=(), test=None).splits
    elif isinstance(task, MultiRC):
        folder = "multirc/data/preprocessed"
        names = ("train_clean.jsonl", "val_clean.jsonl", "test_clean.jsonl")
        splits = replace(task, validation_fraction=0.0, keep_duplicates=True).splits
    elif isinstance(task, RJokes):
        folder, names = "rjokes-dataset/data", ("train.jsonl", "dev.jsonl", "test.jsonl")
        splits = replace(task, keep_duplicates=True).splits
    else:
        raise UserError(f"{type(task).__name__} has no published files; there are: {', '.join(NAMES)}")
    split_rows = (splits.train, splits.validation, splits.test)
    format_example = format_json_line_utf8 if isinstance(task, MultiRC) else format_json_line
    return {
        f"{folder}/{name}": _line_blocks(stock, format_example) for name, stock in zip(names, split_rows, strict=True)
    }


def format_two_lines(pair: Example) -> bytes:
    """A question and its answer on a line each."""
    return f"{pair.question}\n{pair.answer}\n".encode()


def format_json_line(pair: Example) -> bytes:
    """A question and its answer as a line of JSON in ASCII."""
    return json.dumps({"question": pair.question, "answer": pair.answer}).encode() + b"\n"


def format_json_line_utf8(pair: Example) -> bytes:
    """The same in UTF-8, as the files of MultiRC are."""
    text = json.dumps({"question": pair.question, "answer": pair.answer}, ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass") + b"\n"


def _line_blocks(split: SplitRows, format_example: Callable[[Example], bytes]) -> LineBlocks:
    def lines() -> Iterator[list[bytes]]:
        for start in range(0, len(split), _BLOCK_LINES):
            yield [
                format_example(pair)
                for pair in split.source.read_examples(split.rows[start : start + _BLOCK_LINES].astype(np.int64))
            ]

    return lines


def _multiplication_files(seed: int) -> dict[str, LineBlocks]:
    """Every product of two numbers of three digits once: 780,000, 10,000 and 20,000 rows."""
    low, count = 10 ** (DIGITS - 1), 9 * 10 ** (DIGITS - 1)
    bounds = {
        "test": (0, NUM_TEST_PRODUCTS),
        "val": (NUM_TEST_PRODUCTS, NUM_TEST_PRODUCTS + NUM_VALIDATION_PRODUCTS),
        "train": (NUM_TEST_PRODUCTS + NUM_VALIDATION_PRODUCTS, count * count),
    }

    def lines_between(begin: int, end: int) -> LineBlocks:
        def lines() -> Iterator[list[bytes]]:
            for start in range(begin, end, _BLOCK_LINES):
                index = np.arange(start, min(start + _BLOCK_LINES, end))
                permuted = permute(index, count * count, random_key("products", seed))
                first, second = (permuted // count + low).tolist(), (permuted % count + low).tolist()
                yield [
                    format_json_line(Example(f"What is {one} times {other}?", str(one * other)))
                    for one, other in zip(first, second, strict=True)
                ]

        return lines

    return {name: lines_between(*bounds[name]) for name in ("train", "val", "test")}


def num_questions(task: Any) -> int:
    """How many questions the files of a task have in all."""
    if isinstance(task, Multiplication):
        numbers: int = 9 * 10 ** (DIGITS - 1)
        return numbers * numbers
    splits: DatasetSplits = task.splits
    return len(splits.train) + len(splits.validation) + len(splits.test)
