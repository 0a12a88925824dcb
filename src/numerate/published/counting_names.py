"""The published counting tasks by their names: what each is here, and the sizes it had there.

Chang and Bisk (2024), "Language Models Need Inductive Biases to Count Inductively", https://arxiv.org/abs/2405.20131;
names, vocabularies and sizes as in https://github.com/zdxdsw/inductive_counting_with_LMs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from string import ascii_lowercase
from typing import Any

from numerate.config import Span
from numerate.tasks.counting import Counting
from numerate.tasks.mixture import Mixture
from numerate.tasks.number_line import AdditionTable, NumberLine
from numerate.tasks.rasp import RaspCounting
from numerate.tasks.selective import SelectiveCounting
from numerate.tasks.task import Task

HELD_OUT_STARTS = 6
"""Held-out starts of each count: 300 in all of 50 counts, as published."""

MODULI = (10, 11, 13, 14, 15, 16, 17, 18, 19, 20)

ROW_LENGTHS = {10: 128, 11: 128, 13: 140, 14: 150, 15: 160, 16: 180, 17: 180, 18: 190, 19: 200, 20: 210}
"""Per modulus, the longest row and as many positions."""

TRAINED_AND_LARGEST = ((50, 100), (25, 50), (25, 100), (50, 200), (25, 200))
"""Of the tasks `shiftedstart3__trT_teE__`: the trained count T, and the largest number E."""


@dataclass(frozen=True)
class PublishedTask:
    """A published task.

    - `task`: with its auxiliary task mixed in by the numbers of rows, where it has one.
    - `folder`: the published folder of its files, which several names share; `auxiliary` and `auxiliary_folder` the
      name of its auxiliary test, and of its folder.
    - `num_rows`: how many rows training had, in `folder` and in `auxiliary_folder`.
    - `max_seq_len`: to how many tokens rows were padded; `max_position_embeddings`: how many positions there were.
    - `vocabulary`: the published texts in their order, which are ids from 0 on. (Two have an `a` twice.)
    - `is_trainable`: whether the published code could train it.
    """

    name: str
    task: Task
    folder: str
    num_rows: tuple[int, ...]
    vocabulary: tuple[str, ...]
    max_seq_len: int = 128
    max_position_embeddings: int = 128
    auxiliary: str | None = None
    auxiliary_folder: str | None = None
    is_trainable: bool = True


def presets() -> dict[str, Task]:
    """Every published name with its task.

    >>> task = presets()["counting_samesymbol_mod10bos"]
    >>> task.symbol, task.count, task.modulus, task.prefix
    ('same', Span(low=1, high=50), 10, '0')
    """
    return {name: named.task for name, named in published_tasks().items()}


@cache
def published_tasks() -> Mapping[str, PublishedTask]:
    """The whole table: the name of every published task with all that was published of it."""
    task_by_name: dict[str, PublishedTask] = {}
    for part in (_shifted_tasks(), _unshifted_tasks(), _trained_range_tasks(), _modular_tasks(), _other_tasks()):
        task_by_name.update({named.name: named for named in part})
    return task_by_name


AUXILIARY_TASKS: dict[str, tuple[Task, int]] = {
    "addbigram": (NumberLine(count=99), 100_000),
    "addbigram_upto200": (NumberLine(count=199, max_number=200), 100_000),
    "addbigram_blkseq": (NumberLine(count=99, filler="blank"), 100_000),
    "addbigram_nullseq": (NumberLine(count=99, filler="null"), 100_000),
    "addbigram_shiftedblkseq": (
        NumberLine(count=Span(50, 99), starts=Span(1, 50), end=100, filler="blank"),
        100_000,
    ),
    "addbigram_shiftednullseq": (
        NumberLine(count=Span(50, 99), starts=Span(1, 50), end=100, filler="null"),
        100_000,
    ),
    "addtable": (AdditionTable(count=Span(1, 99)), 99_000),
    "addtable_padhelper": (AdditionTable(count=Span(1, 99), helper="pad"), 99_000),
    "addtable_large": (AdditionTable(count=Span(1, 99)), 499_950),
    "addtable_padhelper_large": (AdditionTable(count=Span(1, 99), helper="pad"), 499_950),
}
"""The auxiliary tasks by their published folders, and how many rows each had."""


def number_texts(max_number: int) -> tuple[str, ...]:
    """The texts `0` to `max_number`."""
    return tuple(map(str, range(max_number + 1)))


def _published(
    name: str, task: Task, vocabulary: tuple[str, ...], sizes: tuple[int, int] = (128, 128), *, rows: int = 1_000_000
) -> PublishedTask:
    return PublishedTask(name, task, name, (rows,), vocabulary, *sizes)


def _with_auxiliary(
    base: PublishedTask, suffix: str, auxiliary: str, vocabulary: tuple[str, ...] | None = None, **more: Any
) -> PublishedTask:
    """The task of a folder with an auxiliary task beside it."""
    task, rows = AUXILIARY_TASKS[auxiliary]
    weights = (float(base.num_rows[0]), float(rows))
    return PublishedTask(
        base.name + suffix,
        Mixture((base.task, task), weights=weights, auxiliary=True),
        base.folder,
        (*base.num_rows, rows),
        vocabulary or base.vocabulary,
        base.max_seq_len,
        base.max_position_embeddings,
        auxiliary.removesuffix("_large"),
        auxiliary,
        **more,
    )


_SAME = (*number_texts(100), "<pad>", "a")
_LETTERS = (*number_texts(100), "<pad>", *ascii_lowercase)
_LETTERS_AND_A = (*number_texts(100), "<pad>", "a", *ascii_lowercase)
_FILLED = (*_SAME, "<b>")
_NULL = ("<null>", *_SAME)
_PADDED = (210, 128)


def _shifted_tasks() -> list[PublishedTask]:
    """An addend behind, or a start in front."""
    behind = Counting(start_number="after", held_out_starts=HELD_OUT_STARTS)
    before, both = (
        Counting(start_number="before", held_out_starts=HELD_OUT_STARTS),
        Counting(start_number="both", held_out_starts=HELD_OUT_STARTS),
    )
    fifty = Counting(count=50, start_number="before", starts=Span(1, 50))
    letters = Counting("different", start_number="after", held_out_starts=HELD_OUT_STARTS)
    same = _published("counting_samesymbol", behind, _SAME)
    different = _published("counting_diffsymbol", letters, _LETTERS)
    padded = _published("counting_samesymbol_padhelper", _with_helper(behind, "pad"), _SAME, _PADDED)
    shifted = [
        _published(f"counting_samesymbol_shiftedstart{which}", task, _SAME)
        for which, task in (("", both), ("2", before), ("3", fifty))
    ]
    shifted_padded = [
        _published(f"counting_samesymbol_shiftedstart{which}_padhelper", _with_helper(task, "pad"), _SAME, _PADDED)
        for which, task in (("2", before), ("3", fifty))
    ]
    return [
        same,
        different,
        _with_auxiliary(same, "_addbigram", "addbigram"),
        _with_auxiliary(different, "_addbigram", "addbigram", _LETTERS_AND_A, is_trainable=False),
        _published("counting_samesymbol_blankhelper", _with_helper(behind, "blank"), (*_SAME, "<blk>"), _PADDED),
        padded,
        _with_auxiliary(padded, "_addtable", "addtable_padhelper"),
        *shifted,
        _published(
            "counting_diffsymbol_shiftedstart",
            Counting("different", start_number="both", held_out_starts=HELD_OUT_STARTS),
            _LETTERS_AND_A,
        ),
        _with_auxiliary(shifted[0], "_addtable", "addtable"),
        _with_auxiliary(shifted[1], "_addtable", "addtable"),
        _with_auxiliary(shifted[2], "_addtablelarge", "addtable_large"),
        *shifted_padded,
        _with_auxiliary(shifted_padded[0], "_addtable", "addtable_padhelper"),
        _with_auxiliary(shifted_padded[1], "_addtablelarge", "addtable_padhelper_large"),
    ]


def _unshifted_tasks() -> list[PublishedTask]:
    """No number, or always the same; these were trained beside a number line only."""
    one = Counting(count=50, start_number="before", starts=1)
    plain = _published("counting_samesymbol_plain", Counting(count=50), _SAME)
    plain2 = _published("counting_samesymbol_plain2", one, _SAME)
    plain3 = _published("counting_samesymbol_plain3", one, _SAME, rows=100_000)
    plain3_without_bos = _published("counting_samesymbol_plain3_nobos", Counting(count=50), _SAME, rows=100_000)
    ending = Counting(start_number="before", starts=Span(1, 50), end=51)
    shifted = _published("counting_samesymbol_shiftedstart4", ending, _SAME, rows=100_000)
    tasks = [_with_auxiliary(base, "_addbigram", "addbigram") for base in (plain, plain2, plain3, plain3_without_bos)]
    for kind, vocabulary in (("blkseq", _FILLED), ("nullseq", _NULL)):
        for base in (plain2, plain3):
            tasks.append(_with_auxiliary(base, f"_addbigram_{kind}", f"addbigram_{kind}", vocabulary))
        tasks.append(_with_auxiliary(shifted, f"_addbigram_{kind}", f"addbigram_shifted{kind}", vocabulary))
    return tasks


def _trained_range_tasks() -> list[PublishedTask]:
    """Starts from 0 on, such that the largest number is reached in training."""
    return [
        _published(
            f"counting_samesymbol_shiftedstart3__tr{trained}_te{largest}__",
            Counting(count=trained, start_number="before", starts=Span(0, largest - trained), max_number=largest),
            (*number_texts(largest), "<pad>", "a"),
            {50: (64, 64), 100: (128, 128), 200: (256, 256)}[largest],
            rows=1_000_000 // (largest - trained + 1) * (largest - trained + 1),
        )
        for trained, largest in TRAINED_AND_LARGEST
    ]


def _modular_tasks() -> list[PublishedTask]:
    tasks = []
    for symbol in ("same", "different"):
        letters = ("a",) if symbol == "same" else tuple(ascii_lowercase)
        name, ten = f"counting_{symbol.removesuffix('erent')}symbol", (*number_texts(10), "<pad>", *letters)
        for modulus in MODULI:
            task = Counting(symbol, count=Span(1, 5 * modulus), modulus=modulus)
            vocabulary, rows = (*number_texts(modulus), "<pad>", *letters), 1_000_000 // (5 * modulus) * 5 * modulus
            tasks.append(_published(f"{name}_mod{modulus}", task, vocabulary, (ROW_LENGTHS[modulus],) * 2, rows=rows))
        base = Counting(symbol, modulus=10)
        hundred = Counting(symbol, count=Span(1, 100), modulus=10)
        tasks.append(_published(f"{name}_mod10_100_200", hundred, ten, (256, 256)))
        tasks.append(_published(f"{name}_mod10_padhelper", _with_helper(base, "pad"), ten, _PADDED))
    bos = Counting(modulus=10, prefix="0")
    return [*tasks, _published("counting_samesymbol_mod10bos", bos, (*number_texts(10), "<pad>", "a"))]


def _other_tasks() -> list[PublishedTask]:
    """Each kind of item for itself; a stream of counts; and the published test of the code itself."""
    pairs = SelectiveCounting(2, "letters", max_count=50, composition="pairs", inclusive=True)
    even, every = SelectiveCounting(composition="even"), SelectiveCounting(count=50)
    ten, letters = (*number_texts(9), "<pad>"), (*number_texts(50), "<pad>", "a", "b")
    modular = SelectiveCounting(4, count=64, max_count=64, modulus=4)
    debug = SelectiveCounting(2, "letters", count=3, max_count=3, composition="pairs", inclusive=True)
    begun = SelectiveCounting(composition="even", prefix="<bos>")
    return [
        _published("counting_selective", pairs, letters, rows=999_600),
        _published("counting_selective_padhelper", _with_helper(pairs, "pad"), letters, _PADDED, rows=999_600),
        _published("counting_selective_10items", even, ten),
        _published("counting_selective_10items2", every, ten),
        _published("counting_selective_10items2bos", begun, (*number_texts(9), "<bos>", "<pad>")),
        _published("counting_selective_10items_padhelper", _with_helper(even, "pad"), ten, _PADDED),
        _published("counting_selective_10items_padhelper2", _with_helper(every, "pad"), ten, _PADDED),
        _published("counting_selective_modular_4items", modular, (*number_texts(3), "<pad>"), (130, 130)),
        _published("counting_raspL", RaspCounting(), (*number_texts(155), "<pad>", "<", "<eos>", "<sos>"), (256, 256)),
        _published("debug", debug, ("<pad>", "a", "b", "1", "2", "3"), rows=8),
    ]


def _with_helper(task: Any, helper: str) -> Any:
    return replace(task, helper=helper)
