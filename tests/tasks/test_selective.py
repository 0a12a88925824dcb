"""Promises of counting each kind of item for itself, and of drawing how many of each there are."""

import itertools
from collections import Counter

import numpy as np
import pytest

from numerate.config import Span
from numerate.errors import UserError
from numerate.tasks.compositions import Compositions
from numerate.tasks.counter_rng import CounterRNG, random_key
from numerate.tasks.plain import format_question
from numerate.tasks.questions import Questions
from numerate.tasks.selective import SelectiveCounting

PAIRS = SelectiveCounting(2, "letters", max_count=50, composition="pairs", inclusive=True)
EVEN = SelectiveCounting(composition="even")
FIFTY = SelectiveCounting(count=50)


def counts(questions: Questions, items: int = 10) -> np.ndarray:
    """How many of each digit, `[rows, items]`."""
    return np.stack([(questions.symbols == questions.alphabet.index(str(i))).sum(axis=1) for i in range(items)], axis=1)


@pytest.mark.parametrize(
    ("task", "text", "labels"),
    [
        (SelectiveCounting(), "7 5 6 9 3 8 8 8", "0 0 0 0 0 0 1 2"),
        (SelectiveCounting(4, count=64, max_count=64, modulus=4), "0 0 2 2 2 1 2 2", "0 1 0 1 2 0 3 0"),
        (PAIRS, "b b a b", "1 2 1 3"),
        (SelectiveCounting(prefix="<bos>"), "<bos> 1 1", ". 0 1"),
        (SelectiveCounting(helper="pad"), "3 <pad> 3 <pad>", ". 0 . 1"),
        (SelectiveCounting(prefix="<bos>", helper="blank", inclusive=True), "<bos> 3 <blk>", ". . 1"),
        (SelectiveCounting(inclusive=True, modulus=2), "3 3 3", "1 0 1"),
    ],
)
def test_rows_read_as_the_paper_writes_them(task: SelectiveCounting, text: str, labels: str) -> None:
    assert format_question(task.parse_question(text), 0) == (text, labels)
    assert set(task.parse_question(text).alphabet) <= set(task.alphabet())


@pytest.mark.parametrize(
    ("parts", "most", "kept"), [(3, 3, ()), (3, 4, (0.1, 0.5)), (4, 2, (0.0, 0.25, 0.5)), (2, 9, ())]
)
def test_compositions_are_drawn_as_often_as_they_are_kept(parts: int, most: int, kept: tuple[float, ...]) -> None:
    of = Compositions(parts, most, parts * most, kept)
    total = parts * most // 2 + 1
    ways = [way for way in itertools.product(range(most + 1), repeat=parts) if sum(way) == total]
    weight = np.array([kept[min(way)] if min(way) < len(kept) else 1.0 for way in ways])
    drawn = of.draw(CounterRNG(random_key("ways", parts)), np.full(40_000, total))
    often = Counter(map(tuple, drawn.tolist()))
    assert set(often) <= set(ways)
    wanted = 40_000 * weight / weight.sum()
    found = np.array([often[way] for way in ways])
    assert (found[wanted == 0] == 0).all()
    there = wanted > 0
    spread = (((found - wanted) ** 2)[there] / wanted[there]).sum()
    assert spread < there.sum() + 6 * np.sqrt(2 * there.sum())


def test_a_total_that_no_numbers_make_is_an_error() -> None:
    with pytest.raises(ValueError, match="no numbers add up"):
        Compositions(2, 3, 9).draw(CounterRNG(1), np.array([7]))


def published_counts(length: int, rows: int, even: bool) -> np.ndarray:
    """As the published program draws them: nine cut points, drawn again until the list is kept."""
    rng = np.random.default_rng(0)
    total = length if length <= 50 else 100 - length
    found: list[np.ndarray] = []
    while sum(map(len, found)) < rows:
        cuts = np.argpartition(rng.random((40_000, total + 9)), 9, axis=1)[:, :9] + 1
        cuts.sort(axis=1)
        edges = np.concatenate([np.zeros((len(cuts), 1), int), cuts, np.full((len(cuts), 1), total + 10)], axis=1)
        parts = np.diff(edges, axis=1) - 1
        kept = parts.max(axis=1) <= 10
        if even and length > 50:
            kept &= rng.random(len(parts)) >= np.array([0.99, 0.5, 0.2, *[0] * 9])[parts.min(axis=1)]
        elif even and length > 20:
            kept &= rng.random(len(parts)) >= np.array([0.9995, 0.985, 0.8, 0.2, *[0] * 9])[parts.min(axis=1)]
        found.append(parts[kept] if length <= 50 else 10 - parts[kept])
    return np.concatenate(found)[:rows]


@pytest.mark.parametrize("length", [12, 40, 50, 52, 75])
@pytest.mark.parametrize("even", [False, True])
def test_lists_are_composed_as_published(length: int, even: bool) -> None:
    task = (EVEN if even else SelectiveCounting()).at_cell(count=length)
    ours = counts(task.examples("train", 0, 0, 2000))
    theirs = published_counts(length, 2000, even)
    assert (ours.sum(axis=1) == length).all()
    for what in (np.min, np.max, np.var):
        one, other = what(ours, axis=1).astype(float), what(theirs, axis=1).astype(float)
        assert one.mean() == pytest.approx(other.mean(), abs=5 * (one.std() + other.std() + 1e-9) / np.sqrt(2000))


def test_the_two_published_ways_of_ten_items_differ() -> None:
    even, every = (counts(task.at_cell(count=50).examples("train", 0, 0, 1000)) for task in (EVEN, FIFTY))
    assert (even.min(axis=1) >= 2).mean() > 0.8
    assert (every.min(axis=1) == 0).mean() > 0.5
    assert max(even.max(), every.max()) == 10
    assert set(FIFTY.examples("train", 0, 0, 100).metadata["count"].tolist()) == {50}
    assert Counter(EVEN.examples("train", 0, 0, 500).metadata["count"].tolist()) == dict.fromkeys(range(1, 51), 10)


def test_items_stand_in_any_order() -> None:
    drawn = FIFTY.examples("train", 0, 0, 4000)
    at = [(drawn.symbols[:, place] == drawn.alphabet.index("3")).mean() for place in (0, 24, 49)]
    assert at == pytest.approx([0.1] * 3, abs=0.025)


def test_every_pair_of_two_kinds_comes_equally_often() -> None:
    drawn = PAIRS.examples("train", 0, 0, 2 * 1275)
    first = (drawn.symbols == drawn.alphabet.index("a")).sum(axis=1)
    pairs = Counter(zip(first.tolist(), (drawn.metadata["count"] - first).tolist(), strict=True))
    assert pairs == {(a, b): 2 for a in range(1, 51) for b in range(51 - a)}
    further = PAIRS.at_cell(eval_count=Span(51, 100)).examples("test", 0, 0, 1275)
    first = (further.symbols == further.alphabet.index("a")).sum(axis=1)
    pairs = Counter(zip(first.tolist(), (further.metadata["count"] - first).tolist(), strict=True))
    assert pairs == {(a, b): 1 for a in range(51) for b in range(51) if a + b > 50}


@pytest.mark.parametrize("task", [PAIRS, EVEN, FIFTY, SelectiveCounting(4, count=64, max_count=64, modulus=4)])
def test_lists_that_are_many_are_held_out(task: SelectiveCounting) -> None:
    drawn = {split: task.examples(split, 0, 0, 2500) for split in ("train", "test")}
    seen = {split: set(block.hashes()[task.splittable_mask(block)].tolist()) for split, block in drawn.items()}
    assert len(seen["test"]) > 1500
    assert not seen["train"] & seen["test"]
    small = task.parse_question(" ".join(task.alphabet()[-1 if task.symbols == "letters" else 0]))
    assert not task.splittable_mask(small).any()
    assert task.at_cell(count=task.eval_span.high + 3).is_held_out("test")


def test_settings_that_cannot_be_are_refused() -> None:
    for settings, message in (
        ({"num_symbols": 1}, "^num_symbols: "),
        ({"num_symbols": 11}, "^num_symbols: must be from 2 to 10 with symbols=digits"),
        ({"max_count": None}, "^max_count: must be set to bound the labels"),
        ({"composition": "pairs"}, "^composition: 'pairs' requires num_symbols=2"),
        ({"count": 101}, "^count: a list of 101"),
        ({"eval_count": 101}, "^eval_count: a list of 101"),
        ({"modulus": 1}, "^modulus: "),
        ({"prefix": "3"}, "^prefix: "),
        ({"prefix": "x\ty"}, "^prefix: "),
        ({"prefix": "[EOS]"}, r"^prefix: \[EOS\] is a special token"),
        ({"max_count": 10_000, "count": 40_000}, "^count: a list of 40000 has more than 10000 items"),
        ({"symbols": "words"}, "^symbols: "),
    ):
        with pytest.raises(UserError, match=message):
            SelectiveCounting(**settings)  # type: ignore[arg-type]
    for text in ("", "a", "3 x", "3 " * 11):
        with pytest.raises(UserError, match=r"^question: "):
            SelectiveCounting().parse_question(text)


def test_lists_go_as_far_as_there_are_items() -> None:
    assert SelectiveCounting().at_cell(count=100).examples("test", 0, 0, 3).symbols.shape == (3, 100)
    ood_task = SelectiveCounting(count=90).ood_validation_task()
    assert ood_task is not None
    assert ood_task.training_spans() == {"count": Span(91, 100)}
    assert SelectiveCounting(count=100).ood_validation_task() is None
    assert SelectiveCounting(4, count=64, max_count=64, modulus=4).cells() is None
    assert SelectiveCounting(count=60).cells() == [(count,) for count in range(1, 101)]
