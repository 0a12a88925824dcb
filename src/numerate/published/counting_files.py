"""The files of the published counting tasks in their original format: JSON lines of inputs and labels.

Chang and Bisk (2024), https://arxiv.org/abs/2405.20131; https://github.com/zdxdsw/inductive_counting_with_LMs. A line
is `[["65", "a", "a"], ["-1", "66", "67"]]`: two lists of texts of equal length, -1 where there is no label. What is not
random is byte for byte as published, including its oddities: rows written many times, the tests of modulus 13
that begin at the trained count of 65, the tests of `shiftedstart3__tr..` and `shiftedstart4` whose rows all end at the
largest number. What is random follows the same laws, drawn from our own keys.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from numerate.config import Span
from numerate.errors import UserError, did_you_mean
from numerate.published.counting_names import AUXILIARY, PublishedTask, named_tasks
from numerate.tasks.counter_rng import CounterRNG, key
from numerate.tasks.counting import Counting
from numerate.tasks.mixture import Mixture
from numerate.tasks.questions import EMPTY, Questions
from numerate.tasks.rasp import RaspCounting
from numerate.tasks.selective import SelectiveCounting
from numerate.tasks.task import Task
from numerate.text.data.new_folder import new_folder, refuse_taken

BLOCK = 1 << 13
"""Rows per block."""

TRAINING = "/train.txt"
"""Suffix of the names of training files."""

Rows = Callable[[], Iterator[Questions]]
"""Blocks of the rows of a file, in order."""


def names() -> list[str]:
    """Every name that can be written: every published task, folder of a task, and auxiliary task."""
    tasks = named_tasks().values()
    return list(dict.fromkeys([*(task.name for task in tasks), *(task.folder for task in tasks), *AUXILIARY]))


def files(name: str, count: int | None = None, seed: int = 0) -> dict[str, Rows]:
    """The published files of a task, with the rows of each; of a name with an auxiliary task, the files of that too.

    `count` is how many rows the training files have, where the published number is not wanted; `seed` is the key of
    what is random. Raises `UserError` for a name that was not published.

    >>> list(files("counting_samesymbol_plain3_addbigram"))
    ['counting_samesymbol_plain3/train.txt', 'counting_samesymbol_plain3/val.txt', \
'counting_samesymbol_plain3/ood_test.txt', 'counting_samesymbol_plain3/addbigram_test.txt', \
'addbigram/train.txt', 'addbigram/addbigram_test.txt']
    """
    if name in AUXILIARY:
        return _of_auxiliary(name, count)
    found = named_tasks().get(name) or next((task for task in named_tasks().values() if task.folder == name), None)
    if found is None:
        raise UserError(f"{name!r} was not published; see `numerate list tasks`.{did_you_mean(name, names())}")
    main = found.task.tasks[0] if isinstance(found.task, Mixture) else found.task
    rows = _of_task(found, main, found.rows[0] if count is None else count, seed)
    main_files = {f"{found.folder}/{file}.txt": part for file, part in rows.items()}
    if found.auxiliary_folder is None or name == found.folder:
        return main_files
    test = f"{found.auxiliary}_test.txt"
    tested = _of_auxiliary(found.auxiliary or "", count)[f"{found.auxiliary}/{test}"]
    return {**main_files, f"{found.folder}/{test}": tested, **_of_auxiliary(found.auxiliary_folder, count)}


def write(
    name: str,
    out: str | Path,
    count: int | None = None,
    seed: int = 0,
    on_progress: Callable[[int, str], None] | None = None,
) -> dict[str, int]:
    """Writes the published files of a task below a new folder and returns how many rows each has.

    The folder appears under its name when all is written; `on_progress` gets the number of training rows so far, of
    the `total`, and the file that is being written. Raises `UserError` for a folder that is there already, and for a
    name that was not published.
    """
    out = Path(out)
    wanted = files(name, count, seed)
    refuse_taken(out)
    written: dict[str, int] = {}
    with new_folder(out) as beside:
        for file, rows in wanted.items():
            path = beside / file
            path.parent.mkdir(exist_ok=True)
            with open(path, "xb") as stream:
                written[file] = 0
                for block, lines in ((block, lines_of(block)) for block in rows()):
                    stream.write(lines)
                    written[file] += len(block)
                    if on_progress is not None:
                        on_progress(sum(rows for name, rows in written.items() if name.endswith(TRAINING)), file)
                stream.flush()
                os.fsync(stream.fileno())
    return written


def total(name: str, count: int | None = None) -> int:
    """How many rows the training files of a name have, which are nearly all. Raises as `files` does."""
    training = sum(file.endswith(TRAINING) for file in files(name, count))
    if count is not None and name != "debug":
        return count * training
    if name in AUXILIARY:
        return AUXILIARY[name][1]
    folders = {task.folder: task.rows[:1] for task in named_tasks().values()}
    return sum(named_tasks()[name].rows if name in named_tasks() else folders[name])


def lines_of(questions: Questions) -> bytes:
    """Rows as the published lines.

    >>> lines_of(Counting(number="before").read("65 a a"))
    b'[["65", "a", "a"], ["-1", "66", "67"]]\\n'
    """
    texts = [json.dumps(text) for text in questions.alphabet]
    assert questions.labels is not None
    known: dict[bytes, str] = {}
    lines = []
    for tokens, labels in zip(questions.symbols, questions.labels, strict=True):
        row = tokens.tobytes() + labels.tobytes()
        if row not in known:
            valid = tokens != EMPTY
            read = ", ".join(texts[i] for i in tokens[valid].tolist())
            targets = ", ".join(texts[i] if i != EMPTY else '"-1"' for i in labels[valid].tolist())
            known[row] = f"[[{read}], [{targets}]]\n"
        lines.append(known[row])
    return "".join(lines).encode()


def _of_task(named: PublishedTask, task: Task, count: int, seed: int) -> dict[str, Rows]:
    if named.name == "debug":
        return _debug(task)
    if isinstance(task, Counting):
        if task.held_out_starts:
            return _held(task, count, seed)
        if task.modulus is not None:
            return _modular(named, task, count, seed)
        return _fixed(named, task, count)
    if isinstance(task, SelectiveCounting):
        return _selective(task, count, seed)
    assert isinstance(task, RaspCounting)
    tested = replace(task, packed=False, eval_count=Span(Span.of(task.count).high + 1, task.max_number))
    return {
        "train": lambda: _examples(task, "train", seed, count),
        "val": lambda: _examples(task, "test", seed, 300),
        "ood_test": lambda: _blocks(_whole(tested)),
    }


def _held(task: Counting, count: int, seed: int) -> dict[str, Rows]:
    """Training draws cells that are not held out; both layouts of a cell are adjacent."""
    trained, layouts = Span.of(task.count), 2 if task.number == "both" else 1
    drawn = replace(task, symbol="same", number="before", helper="none")
    held = np.concatenate([_cells_of(_whole(drawn, split)) for split in ("test", "development")])
    beyond = task.allowed.cells(Span(trained.high + 1, task.allowed.furthest()))

    def train() -> Iterator[Questions]:
        for number, block in enumerate(_examples(drawn, "train", seed, -(-count // layouts))):
            yield _rows(task, _cells_of(block), seed, "train", number)

    return {
        "train": lambda: _cut(train(), count),
        "val": lambda: iter([_rows(task, held, seed, "val")]),
        "ood_test": lambda: iter([_rows(task, beyond, seed, "ood_test")]),
    }


def _fixed(named: PublishedTask, task: Counting, count: int) -> dict[str, Rows]:
    """A few rows, repeated."""
    trained, allowed = Span.of(task.count), task.allowed
    cells = allowed.cells(trained)
    cells = cells[np.argsort(cells[:, 1], kind="stable")]
    if task.end is not None:
        tested = np.stack([task.max_number - cells[:, 1], cells[:, 1]], axis=1)
        copies = (6, 6)
    elif "__tr" in named.name:
        starts = np.arange(task.max_number - trained.high)
        tested, copies = np.stack([task.max_number - starts, starts], axis=1), (1, 50)
    else:
        last = 100 if named.folder == "counting_samesymbol_plain" else 99
        tested, copies = allowed.cells(Span(trained.high + 1, last)), (1 if len(cells) > 1 else 10, 1)
    return {
        "train": lambda: _cycles(task, cells, count),
        "val": lambda: iter([_rows(task, np.tile(cells, (copies[0], 1)))]),
        "ood_test": lambda: iter([_rows(task, np.tile(tested, (copies[1], 1)))]),
    }


def _modular(named: PublishedTask, task: Counting, count: int, seed: int) -> dict[str, Rows]:
    """Cycles through the trained counts; tests the same number of further counts."""
    trained = Span.of(task.count)
    cells = _cells(np.arange(1, trained.high + 1))
    low = trained.high + (task.modulus != 13)  # 65 is tested and trained
    copies = 1
    if task.symbol == "different" and task.helper == "none" and trained.high == 5 * (task.modulus or 0):
        copies = {10: 50, 11: 50, 16: 35}.get(task.modulus or 0, 30)
    tested = np.arange(low, 2 * trained.high + 1).repeat(copies)
    found: dict[str, Rows] = {
        "train": lambda: _cycles(task, cells, count, seed),
        "val": lambda: iter([_rows(task, np.tile(cells, (300 // trained.high, 1)), seed, "val")]),
        "ood_test": lambda: _cycles(task, _cells(tested), len(tested), seed, "ood_test"),
    }
    if named.folder == "counting_samesymbol_mod10":
        found["ood_test_100_200"] = lambda: iter([_rows(task, _cells(np.arange(101, 201)))])
        found["ood_test_long"] = lambda: iter([_rows(task, _cells(np.array([2000])))])
        found["corrupted_tokenemb"] = lambda: iter([_corrupted(task)])
    return found


def _corrupted(task: Counting) -> Questions:
    """Ten rows of 50 and nine of 100 with all symbols 0, for attention maps."""
    rows = _rows(task, _cells(np.array([50] * 10 + [100] * 9)))
    return replace(rows, symbols=np.where(rows.symbols == EMPTY, EMPTY, 0).astype(np.int16))


def _selective(task: SelectiveCounting, count: int, seed: int) -> dict[str, Rows]:
    trained = Span.of(task.count)
    if task.composition == "pairs":
        held, tested, rows = 1275, Span(trained.high + 1, 2 * trained.high), 2550
    elif task.modulus is not None:
        held, tested, rows = 2000, Span(2 * trained.high, 2 * trained.high), 3000
    else:
        held, tested, rows = 2000, Span(trained.high + 1, 99), 2989
    return {
        "train": lambda: _examples(task, "train", seed, count),
        "val": lambda: _examples(task, "test", seed, held),
        "ood_test": lambda: _examples(replace(task, eval_count=tested), "test", seed, rows),
    }


def _debug(task: Task) -> dict[str, Rows]:
    """Eight copies of a row, as the published debug files."""
    assert isinstance(task, SelectiveCounting)
    short, long = (task.read(text).take(np.zeros(8, dtype=np.int64)) for text in ("a b b", "a b b a a"))
    return {"train": lambda: iter([short]), "val": lambda: iter([short]), "ood_test": lambda: iter([long])}


def _of_auxiliary(name: str, count: int | None) -> dict[str, Rows]:
    task, usual = AUXILIARY[name]
    every = _whole(task)
    order = np.lexsort((every.facts["count"], _cells_of(every)[:, 1]))
    copies = 10 if len(every) == 1 else 1
    total = usual if count is None else count

    def train() -> Iterator[Questions]:
        return _blocks(every.take(order), total)

    found: dict[str, Rows] = {f"{name}/train.txt": train}
    if not name.endswith("_large"):
        found[f"{name}/{name}_test.txt"] = lambda: iter([every.take(np.tile(order, copies))])
    return found


def _examples(task: Task, split: str, seed: int, count: int) -> Iterator[Questions]:
    for start in range(0, count, BLOCK):
        yield task.examples(split, seed, start, min(BLOCK, count - start))


def _whole(task: Task, split: str = "test") -> Questions:
    found = task.whole(split)
    assert found is not None
    return found


def _blocks(rows: Questions, count: int | None = None) -> Iterator[Questions]:
    """Cycles through these rows until there are `count`."""
    total = len(rows) if count is None else count
    for start in range(0, total, BLOCK):
        yield rows.take(np.arange(start, min(start + BLOCK, total)) % len(rows))


def _cells(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.stack([counts, np.zeros_like(counts)], axis=1)


def _cells_of(questions: Questions) -> NDArray[np.int64]:
    """Count and start of rows that begin with the start."""
    table = np.array([int(text) if text.isdecimal() else 0 for text in questions.alphabet])
    return np.stack([questions.facts["count"], table[questions.symbols[:, 0]]], axis=1)


def _cycles(
    task: Counting, cells: NDArray[np.int64], count: int, seed: int = 0, file: str = "train"
) -> Iterator[Questions]:
    """Cycles through these cells until there are `count` rows."""
    for start in range(0, count, BLOCK):
        index = np.arange(start, min(start + BLOCK, count))
        yield _rows(task, cells[index % len(cells)], seed, file, start)


def _rows(task: Counting, cells: NDArray[np.int64], seed: int = 0, file: str = "", at: int = 0) -> Questions:
    """Rows of these cells, with random letters where the task has them; of both layouts, the addend's first."""
    count, start = cells.T
    letters = None
    if task.symbol == "different":
        drawn = CounterRNG(key("published", task, file, seed, at))
        letters = drawn.below(26, (len(cells), int(count.max(initial=1))), np.int16)
    if task.number != "both":
        return task.rows(count, start, np.full(len(cells), task.number == "before"), letters)
    before = np.tile(np.array([False, True]), len(cells))
    return task.rows(count.repeat(2), start.repeat(2), before, None if letters is None else letters.repeat(2, axis=0))


def _cut(blocks: Iterator[Questions], count: int) -> Iterator[Questions]:
    """The blocks, up to so many rows."""
    for block in blocks:
        yield block if len(block) <= count else block.take(slice(count))
        count -= len(block)
        if count <= 0:
            return
