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

HELD = 6
"""Held-out starts of each count: 300 in all of 50 counts, as published."""

MODULI = (10, 11, 13, 14, 15, 16, 17, 18, 19, 20)

SIZES = {10: 128, 11: 128, 13: 140, 14: 150, 15: 160, 16: 180, 17: 180, 18: 190, 19: 200, 20: 210}
"""Per modulus, the longest row and as many positions."""

RANGES = ((50, 100), (25, 50), (25, 100), (50, 200), (25, 200))
"""Of the tasks `shiftedstart3__trT_teE__`: the trained count T, and the largest number E."""


@dataclass(frozen=True)
class PublishedTask:
    """A published task.

    - `task`: with its auxiliary task mixed in by the numbers of rows, where it has one.
    - `folder`: the published folder of its files, which several names share; `auxiliary` and `auxiliary_folder` the
      name of its auxiliary test, and of its folder.
    - `rows`: how many rows training had, in `folder` and in `auxiliary_folder`.
    - `max_seq_len`: to how many tokens rows were padded; `max_position_embeddings`: how many positions there were.
    - `vocabulary`: the published texts in their order, which are ids from 0 on. (Two have an `a` twice.)
    - `runs`: whether the published code could train it.
    """

    name: str
    task: Task
    folder: str
    rows: tuple[int, ...]
    vocabulary: tuple[str, ...]
    max_seq_len: int = 128
    max_position_embeddings: int = 128
    auxiliary: str | None = None
    auxiliary_folder: str | None = None
    runs: bool = True


def presets() -> dict[str, Task]:
    """Every published name with its task.

    >>> presets()["counting_samesymbol_mod10bos"]
    Counting(symbol='same', count=Span(low=1, high=50), ..., modulus=10, prefix='0', ...)
    """
    return {name: named.task for name, named in named_tasks().items()}


@cache
def named_tasks() -> Mapping[str, PublishedTask]:
    """The whole table: the name of every published task with all that was published of it."""
    found: dict[str, PublishedTask] = {}
    for part in (_sums(), _plain(), _trained_ranges(), _modular(), _others()):
        found.update({named.name: named for named in part})
    return found


AUXILIARY: dict[str, tuple[Task, int]] = {
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


def numbers(most: int) -> tuple[str, ...]:
    """The texts `0` to `most`."""
    return tuple(map(str, range(most + 1)))


def _named(
    name: str, task: Task, vocabulary: tuple[str, ...], sizes: tuple[int, int] = (128, 128), *, rows: int = 1_000_000
) -> PublishedTask:
    return PublishedTask(name, task, name, (rows,), vocabulary, *sizes)


def _with(
    base: PublishedTask, suffix: str, auxiliary: str, vocabulary: tuple[str, ...] | None = None, **more: Any
) -> PublishedTask:
    """The task of a folder with an auxiliary task beside it."""
    task, rows = AUXILIARY[auxiliary]
    weights = (float(base.rows[0]), float(rows))
    return PublishedTask(
        base.name + suffix,
        Mixture((base.task, task), weights=weights, auxiliary=True),
        base.folder,
        (*base.rows, rows),
        vocabulary or base.vocabulary,
        base.max_seq_len,
        base.max_position_embeddings,
        auxiliary.removesuffix("_large"),
        auxiliary,
        **more,
    )


_SAME = (*numbers(100), "<pad>", "a")
_LETTERS = (*numbers(100), "<pad>", *ascii_lowercase)
_LETTERS_AND_A = (*numbers(100), "<pad>", "a", *ascii_lowercase)
_FILLED = (*_SAME, "<b>")
_NULL = ("<null>", *_SAME)
_PADDED = (210, 128)


def _sums() -> list[PublishedTask]:
    """An addend behind, or a start in front."""
    behind = Counting(number="behind", held_out_starts=HELD)
    before, both = Counting(number="before", held_out_starts=HELD), Counting(number="both", held_out_starts=HELD)
    fifty = Counting(count=50, number="before", starts=Span(1, 50))
    letters = Counting("different", number="behind", held_out_starts=HELD)
    same = _named("counting_samesymbol", behind, _SAME)
    different = _named("counting_diffsymbol", letters, _LETTERS)
    padded = _named("counting_samesymbol_padhelper", _helped(behind, "pad"), _SAME, _PADDED)
    shifted = [
        _named(f"counting_samesymbol_shiftedstart{which}", task, _SAME)
        for which, task in (("", both), ("2", before), ("3", fifty))
    ]
    shifted_padded = [
        _named(f"counting_samesymbol_shiftedstart{which}_padhelper", _helped(task, "pad"), _SAME, _PADDED)
        for which, task in (("2", before), ("3", fifty))
    ]
    return [
        same,
        different,
        _with(same, "_addbigram", "addbigram"),
        _with(different, "_addbigram", "addbigram", _LETTERS_AND_A, runs=False),
        _named("counting_samesymbol_blankhelper", _helped(behind, "blank"), (*_SAME, "<blk>"), _PADDED),
        padded,
        _with(padded, "_addtable", "addtable_padhelper"),
        *shifted,
        _named(
            "counting_diffsymbol_shiftedstart",
            Counting("different", number="both", held_out_starts=HELD),
            _LETTERS_AND_A,
        ),
        _with(shifted[0], "_addtable", "addtable"),
        _with(shifted[1], "_addtable", "addtable"),
        _with(shifted[2], "_addtablelarge", "addtable_large"),
        *shifted_padded,
        _with(shifted_padded[0], "_addtable", "addtable_padhelper"),
        _with(shifted_padded[1], "_addtablelarge", "addtable_padhelper_large"),
    ]


def _plain() -> list[PublishedTask]:
    """No number, or always the same; these were trained beside a number line only."""
    one = Counting(count=50, number="before", starts=1)
    plain = _named("counting_samesymbol_plain", Counting(count=50), _SAME)
    plain2 = _named("counting_samesymbol_plain2", one, _SAME)
    plain3 = _named("counting_samesymbol_plain3", one, _SAME, rows=100_000)
    without = _named("counting_samesymbol_plain3_nobos", Counting(count=50), _SAME, rows=100_000)
    ending = Counting(number="before", starts=Span(1, 50), end=51)
    shifted = _named("counting_samesymbol_shiftedstart4", ending, _SAME, rows=100_000)
    found = [_with(base, "_addbigram", "addbigram") for base in (plain, plain2, plain3, without)]
    for kind, vocabulary in (("blkseq", _FILLED), ("nullseq", _NULL)):
        for base in (plain2, plain3):
            found.append(_with(base, f"_addbigram_{kind}", f"addbigram_{kind}", vocabulary))
        found.append(_with(shifted, f"_addbigram_{kind}", f"addbigram_shifted{kind}", vocabulary))
    return found


def _trained_ranges() -> list[PublishedTask]:
    """Starts from 0 on, such that the largest number is reached in training."""
    return [
        _named(
            f"counting_samesymbol_shiftedstart3__tr{trained}_te{largest}__",
            Counting(count=trained, number="before", starts=Span(0, largest - trained), max_number=largest),
            (*numbers(largest), "<pad>", "a"),
            {50: (64, 64), 100: (128, 128), 200: (256, 256)}[largest],
            rows=1_000_000 // (largest - trained + 1) * (largest - trained + 1),
        )
        for trained, largest in RANGES
    ]


def _modular() -> list[PublishedTask]:
    found = []
    for symbol in ("same", "different"):
        letters = ("a",) if symbol == "same" else tuple(ascii_lowercase)
        name, ten = f"counting_{symbol.removesuffix('erent')}symbol", (*numbers(10), "<pad>", *letters)
        for modulus in MODULI:
            task = Counting(symbol, count=Span(1, 5 * modulus), modulus=modulus)
            vocabulary, rows = (*numbers(modulus), "<pad>", *letters), 1_000_000 // (5 * modulus) * 5 * modulus
            found.append(_named(f"{name}_mod{modulus}", task, vocabulary, (SIZES[modulus],) * 2, rows=rows))
        base = Counting(symbol, modulus=10)
        hundred = Counting(symbol, count=Span(1, 100), modulus=10)
        found.append(_named(f"{name}_mod10_100_200", hundred, ten, (256, 256)))
        found.append(_named(f"{name}_mod10_padhelper", _helped(base, "pad"), ten, _PADDED))
    bos = Counting(modulus=10, prefix="0")
    return [*found, _named("counting_samesymbol_mod10bos", bos, (*numbers(10), "<pad>", "a"))]


def _others() -> list[PublishedTask]:
    """Each kind of item for itself; a stream of counts; and the published test of the code itself."""
    pairs = SelectiveCounting(2, "letters", max_count=50, composition="pairs", inclusive=True)
    even, every = SelectiveCounting(composition="even"), SelectiveCounting(count=50)
    ten, letters = (*numbers(9), "<pad>"), (*numbers(50), "<pad>", "a", "b")
    modular = SelectiveCounting(4, count=64, max_count=64, modulus=4)
    debug = SelectiveCounting(2, "letters", count=3, max_count=3, composition="pairs", inclusive=True)
    begun = SelectiveCounting(composition="even", prefix="<bos>")
    return [
        _named("counting_selective", pairs, letters, rows=999_600),
        _named("counting_selective_padhelper", _helped(pairs, "pad"), letters, _PADDED, rows=999_600),
        _named("counting_selective_10items", even, ten),
        _named("counting_selective_10items2", every, ten),
        _named("counting_selective_10items2bos", begun, (*numbers(9), "<bos>", "<pad>")),
        _named("counting_selective_10items_padhelper", _helped(even, "pad"), ten, _PADDED),
        _named("counting_selective_10items_padhelper2", _helped(every, "pad"), ten, _PADDED),
        _named("counting_selective_modular_4items", modular, (*numbers(3), "<pad>"), (130, 130)),
        _named("counting_raspL", RaspCounting(), (*numbers(155), "<pad>", "<", "<eos>", "<sos>"), (256, 256)),
        _named("debug", debug, ("<pad>", "a", "b", "1", "2", "3"), rows=8),
    ]


def _helped(task: Any, helper: str) -> Any:
    return replace(task, helper=helper)
