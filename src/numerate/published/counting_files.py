"""The files of the published counting tasks in their original format: JSON lines of inputs and labels.

Chang and Bisk (2024), https://arxiv.org/abs/2405.20131; https://github.com/zdxdsw/inductive_counting_with_LMs. A line
is `[["65", "a", "a"], ["-1", "66", "67"]]`: two lists of texts of equal length, -1 where there is no label. What is not
random is byte for byte as published, including its oddities: rows written many times, the tests of modulus 13
that begin at the trained count of 65, the tests of `shiftedstart3__tr..` and `shiftedstart4` whose rows all end at the
largest number. What is random follows the same laws, drawn from our own keys.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span
from numerate.errors import UserError, did_you_mean
from numerate.published.counting_names import AUXILIARY_TASKS, PublishedTask, published_tasks
from numerate.tasks.counter_rng import CounterRNG, random_key
from numerate.tasks.counting import Counting
from numerate.tasks.mixture import Mixture
from numerate.tasks.questions import EMPTY, Questions
from numerate.tasks.rasp import RaspCounting
from numerate.tasks.selective import SelectiveCounting
from numerate.tasks.task import Task
from numerate.text.data.new_folder import LineBlocks

BLOCK_ROWS = 1 << 13
"""Rows per block."""

RowBlocks = Callable[[], Iterator[Questions]]
"""Blocks of the rows of a file, in order."""


def published_names() -> list[str]:
    """Names of everything that has published files: every published task, folder of a task, and auxiliary task."""
    tasks = published_tasks().values()
    return list(dict.fromkeys([*(task.name for task in tasks), *(task.folder for task in tasks), *AUXILIARY_TASKS]))


def published_files(name: str, count: int | None = None, seed: int = 0) -> dict[str, RowBlocks]:
    """The published files of a task, with the rows of each; of a name with an auxiliary task, the files of that too.

    `count` is how many rows the training files have, where the published number is not wanted; `seed` is the key of
    what is random. Raises `UserError` for a name that was not published.

    >>> list(published_files("counting_samesymbol_plain3_addbigram"))
    ['counting_samesymbol_plain3/train.txt', 'counting_samesymbol_plain3/val.txt', \
'counting_samesymbol_plain3/ood_test.txt', 'counting_samesymbol_plain3/addbigram_test.txt', \
'addbigram/train.txt', 'addbigram/addbigram_test.txt']
    """
    if name in AUXILIARY_TASKS:
        return _auxiliary_files(name, count)
    published_task = published_tasks().get(name) or next(
        (task for task in published_tasks().values() if task.folder == name), None
    )
    if published_task is None:
        raise UserError(
            f"no published files for {name!r}; see `numerate list tasks`.{did_you_mean(name, published_names())}"
        )
    main_task = published_task.task.tasks[0] if isinstance(published_task.task, Mixture) else published_task.task
    rows = _task_files(published_task, main_task, published_task.num_rows[0] if count is None else count, seed)
    main_files = {f"{published_task.folder}/{file}.txt": part for file, part in rows.items()}
    if published_task.auxiliary_folder is None or name == published_task.folder:
        return main_files
    test = f"{published_task.auxiliary}_test.txt"
    auxiliary_test = _auxiliary_files(published_task.auxiliary or "", count)[f"{published_task.auxiliary}/{test}"]
    return {
        **main_files,
        f"{published_task.folder}/{test}": auxiliary_test,
        **_auxiliary_files(published_task.auxiliary_folder, count),
    }


def published_lines(name: str, count: int | None = None, seed: int = 0) -> dict[str, LineBlocks]:
    """The published files of a task, as `published_files` gives them, as lines."""
    files = published_files(name, count, seed)
    return {file: lambda blocks=blocks: map(format_lines, blocks()) for file, blocks in files.items()}  # type: ignore[misc]


def num_rows(name: str, count: int | None = None) -> int:
    """About how many rows the files of a name have: those of training. Raises as `published_files` does."""
    files = published_files(name, count)
    if count is not None:
        return count * sum(file.endswith("/train.txt") for file in files)
    if name in AUXILIARY_TASKS:
        return AUXILIARY_TASKS[name][1]
    folders = {task.folder: task.num_rows[:1] for task in published_tasks().values()}
    return sum(published_tasks()[name].num_rows if name in published_tasks() else folders[name])


def format_lines(questions: Questions) -> list[bytes]:
    """Rows as the published lines.

    >>> format_lines(Counting(start_number="before").parse_question("65 a a"))
    [b'[["65", "a", "a"], ["-1", "66", "67"]]\\n']
    """
    texts = [json.dumps(text) for text in questions.alphabet]
    assert questions.labels is not None
    line_of_row: dict[bytes, bytes] = {}
    lines = []
    for tokens, labels in zip(questions.symbols, questions.labels, strict=True):
        row = tokens.tobytes() + labels.tobytes()
        if row not in line_of_row:
            valid = tokens != EMPTY
            inputs = ", ".join(texts[i] for i in tokens[valid].tolist())
            targets = ", ".join(texts[i] if i != EMPTY else '"-1"' for i in labels[valid].tolist())
            line_of_row[row] = f"[[{inputs}], [{targets}]]\n".encode()
        lines.append(line_of_row[row])
    return lines


def _task_files(published_task: PublishedTask, task: Task, count: int, seed: int) -> dict[str, RowBlocks]:
    if published_task.name == "debug":
        return _debug_files(task)
    if isinstance(task, Counting):
        if task.held_out_starts:
            return _held_out_files(task, count, seed)
        if task.modulus is not None:
            return _modular_files(published_task, task, count, seed)
        return _fixed_files(published_task, task, count)
    if isinstance(task, SelectiveCounting):
        return _selective_files(task, count, seed)
    assert isinstance(task, RaspCounting)
    test_task = replace(task, packed=False, eval_count=Span(Span.from_value(task.count).high + 1, task.max_number))
    return {
        "train": lambda: _example_blocks(task, "train", seed, count),
        "val": lambda: _example_blocks(task, "test", seed, 300),
        "ood_test": lambda: _cycle_rows(_all_questions(test_task)),
    }


def _held_out_files(task: Counting, count: int, seed: int) -> dict[str, RowBlocks]:
    """Training draws cells that are not held out; both layouts of a cell are adjacent."""
    train_span, layouts = Span.from_value(task.count), 2 if task.start_number == "both" else 1
    train_task = replace(task, symbol="same", start_number="before", helper="none")
    validation_cells = np.concatenate(
        [_cells_of_rows(_all_questions(train_task, split)) for split in ("test", "validation")]
    )
    ood_cells = task.allowed_starts.cells(Span(train_span.high + 1, task.allowed_starts.max_count()))

    def train() -> Iterator[Questions]:
        for number, block in enumerate(_example_blocks(train_task, "train", seed, -(-count // layouts))):
            yield _rows(task, _cells_of_rows(block), seed, "train", number)

    return {
        "train": lambda: _limit_rows(train(), count),
        "val": lambda: iter([_rows(task, validation_cells, seed, "val")]),
        "ood_test": lambda: iter([_rows(task, ood_cells, seed, "ood_test")]),
    }


def _fixed_files(published_task: PublishedTask, task: Counting, count: int) -> dict[str, RowBlocks]:
    """A few rows, repeated."""
    train_span, allowed = Span.from_value(task.count), task.allowed_starts
    cells = allowed.cells(train_span)
    cells = cells[np.argsort(cells[:, 1], kind="stable")]
    if task.end is not None:
        test_cells = np.stack([task.max_number - cells[:, 1], cells[:, 1]], axis=1)
        copies = (6, 6)
    elif "__tr" in published_task.name:
        starts = np.arange(task.max_number - train_span.high)
        test_cells, copies = np.stack([task.max_number - starts, starts], axis=1), (1, 50)
    else:
        last = 100 if published_task.folder == "counting_samesymbol_plain" else 99
        test_cells, copies = allowed.cells(Span(train_span.high + 1, last)), (1 if len(cells) > 1 else 10, 1)
    return {
        "train": lambda: _cycle_cells(task, cells, count),
        "val": lambda: iter([_rows(task, np.tile(cells, (copies[0], 1)))]),
        "ood_test": lambda: iter([_rows(task, np.tile(test_cells, (copies[1], 1)))]),
    }


def _modular_files(published_task: PublishedTask, task: Counting, count: int, seed: int) -> dict[str, RowBlocks]:
    """Cycles through the trained counts; tests the same number of further counts."""
    train_span = Span.from_value(task.count)
    cells = _cells_of_counts(np.arange(1, train_span.high + 1))
    low = train_span.high + (task.modulus != 13)  # 65 is tested and trained
    copies = 1
    if task.symbol == "different" and task.helper == "none" and train_span.high == 5 * (task.modulus or 0):
        copies = {10: 50, 11: 50, 16: 35}.get(task.modulus or 0, 30)
    test_counts = np.arange(low, 2 * train_span.high + 1).repeat(copies)
    result: dict[str, RowBlocks] = {
        "train": lambda: _cycle_cells(task, cells, count, seed),
        "val": lambda: iter([_rows(task, np.tile(cells, (300 // train_span.high, 1)), seed, "val")]),
        "ood_test": lambda: _cycle_cells(task, _cells_of_counts(test_counts), len(test_counts), seed, "ood_test"),
    }
    if published_task.folder == "counting_samesymbol_mod10":
        result["ood_test_100_200"] = lambda: iter([_rows(task, _cells_of_counts(np.arange(101, 201)))])
        result["ood_test_long"] = lambda: iter([_rows(task, _cells_of_counts(np.array([2000])))])
        result["corrupted_tokenemb"] = lambda: iter([_corrupted_rows(task)])
    return result


def _corrupted_rows(task: Counting) -> Questions:
    """Ten rows of 50 and nine of 100 with all symbols 0, for attention maps."""
    rows = _rows(task, _cells_of_counts(np.array([50] * 10 + [100] * 9)))
    return replace(rows, symbols=np.where(rows.symbols == EMPTY, EMPTY, 0).astype(np.int16))


def _selective_files(task: SelectiveCounting, count: int, seed: int) -> dict[str, RowBlocks]:
    trained = Span.from_value(task.count)
    if task.composition == "pairs":
        num_validation_rows, test_span, num_test_rows = 1275, Span(trained.high + 1, 2 * trained.high), 2550
    elif task.modulus is not None:
        num_validation_rows, test_span, num_test_rows = 2000, Span(2 * trained.high, 2 * trained.high), 3000
    else:
        num_validation_rows, test_span, num_test_rows = 2000, Span(trained.high + 1, 99), 2989
    return {
        "train": lambda: _example_blocks(task, "train", seed, count),
        "val": lambda: _example_blocks(task, "test", seed, num_validation_rows),
        "ood_test": lambda: _example_blocks(replace(task, eval_count=test_span), "test", seed, num_test_rows),
    }


def _debug_files(task: Task) -> dict[str, RowBlocks]:
    """Eight copies of a row, as the published debug files."""
    assert isinstance(task, SelectiveCounting)
    short, long = (task.parse_question(text).take(np.zeros(8, dtype=np.int64)) for text in ("a b b", "a b b a a"))
    return {"train": lambda: iter([short]), "val": lambda: iter([short]), "ood_test": lambda: iter([long])}


def _auxiliary_files(name: str, count: int | None) -> dict[str, RowBlocks]:
    task, default_count = AUXILIARY_TASKS[name]
    all_questions = _all_questions(task)
    order = np.lexsort((all_questions.metadata["count"], _cells_of_rows(all_questions)[:, 1]))
    copies = 10 if len(all_questions) == 1 else 1
    total = default_count if count is None else count

    def train() -> Iterator[Questions]:
        return _cycle_rows(all_questions.take(order), total)

    result: dict[str, RowBlocks] = {f"{name}/train.txt": train}
    if not name.endswith("_large"):
        result[f"{name}/{name}_test.txt"] = lambda: iter([all_questions.take(np.tile(order, copies))])
    return result


def _example_blocks(task: Task, split: str, seed: int, count: int) -> Iterator[Questions]:
    for start in range(0, count, BLOCK_ROWS):
        yield task.examples(split, seed, start, min(BLOCK_ROWS, count - start))


def _all_questions(task: Task, split: str = "test") -> Questions:
    found = task.all_questions(split)
    assert found is not None
    return found


def _cycle_rows(rows: Questions, count: int | None = None) -> Iterator[Questions]:
    """Cycles through these rows until there are `count`."""
    total = len(rows) if count is None else count
    for start in range(0, total, BLOCK_ROWS):
        yield rows.take(np.arange(start, min(start + BLOCK_ROWS, total)) % len(rows))


def _cells_of_counts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.stack([counts, np.zeros_like(counts)], axis=1)


def _cells_of_rows(questions: Questions) -> NDArray[np.int64]:
    """Count and start of rows that begin with the start."""
    table = np.array([int(text) if text.isdecimal() else 0 for text in questions.alphabet])
    return np.stack([questions.metadata["count"], table[questions.symbols[:, 0]]], axis=1)


def _cycle_cells(
    task: Counting, cells: NDArray[np.int64], count: int, seed: int = 0, file: str = "train"
) -> Iterator[Questions]:
    """Cycles through these cells until there are `count` rows."""
    for start in range(0, count, BLOCK_ROWS):
        index = np.arange(start, min(start + BLOCK_ROWS, count))
        yield _rows(task, cells[index % len(cells)], seed, file, start)


def _rows(task: Counting, cells: NDArray[np.int64], seed: int = 0, file: str = "", block_start: int = 0) -> Questions:
    """Rows of these cells, with random letters where the task has them; of both layouts, the addend's first."""
    count, start = cells.T
    letters = None
    if task.symbol == "different":
        rng = CounterRNG(random_key("published", task, file, seed, block_start))
        letters = rng.integers(26, (len(cells), int(count.max(initial=1))), np.int16)
    if task.start_number != "both":
        return task.build_rows(count, start, np.full(len(cells), task.start_number == "before"), letters)
    before = np.tile(np.array([False, True]), len(cells))
    return task.build_rows(
        count.repeat(2), start.repeat(2), before, None if letters is None else letters.repeat(2, axis=0)
    )


def _limit_rows(blocks: Iterator[Questions], count: int) -> Iterator[Questions]:
    """The blocks, up to so many rows."""
    for block in blocks:
        yield block if len(block) <= count else block.take(slice(count))
        count -= len(block)
        if count <= 0:
            return
