"""Grids: what they read, what they refuse, and that pieces cover them."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cases import published_case
from numerate.config import Span
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.evaluation.evaluator import resolve_grid
from numerate.evaluation.grid import (
    NAMED_GRIDS,
    Cell,
    Grid,
    cell_entries,
    cell_region,
    deal_by_size,
    parse_shard,
)
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.sorting import Sorting
from numerate.tasks.task import Task
from numerate.text.tasks.generated_mathematics import GeneratedMathematics
from numerate.tokenizers.layout import Continuation
from numerate.tokenizers.tokenizer import Characters

AXES = ("first_digits", "second_digits")
EXAM = EvaluationData(Arithmetic(), Characters(), Continuation())


def size_of(cell: Cell) -> int:
    return sum(dict(cell).values())


def places(text: str, axes: tuple[str, ...] = AXES) -> list[tuple[int, ...]]:
    return [tuple(dict(cell).values()) for cell in Grid.parse(text, axes).cells()]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("1:12", "1:12x1:12"),
        ("7", "7x7"),
        ("7x1:3", "7x1:3"),
        (" 1:2 x 3:4 ", "1:2x3:4"),
        ("1:2×3:4", "1:2x3:4"),  # noqa: RUF001
        ("1:100:40x7", "1:81:40x7"),
    ],
)
def test_what_a_grid_reads(text: str, written: str) -> None:
    grid = Grid.parse(text, AXES)
    assert str(grid) == written
    assert Grid.parse(str(grid), AXES) == grid


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1:2x3:4x5:6", r"^grid: '1:2x3:4x5:6' has 3 axes, the task has 2: first_digits, second_digits"),
        ("5:1x1:2", r"^grid: a span must go from low to high.*, not 5:1 .*1:12x1:12"),
        ("", r"^grid: .*use e.g. 1:12x1:12"),
        ("one", r"^grid: .*use e.g. 1:12x1:12"),
        ("1.5x2", r"^grid: .*use e.g. 1:12x1:12"),
        ("-3:2x1:2", r"^grid: '-3:2x1:2': sizes must be from 0 to 1,000,000"),
        ("1:9:0", r"^grid: '1:9:0': .* steps 1 or more"),
        ("diagonal:1:5x1:5", r"^grid: .* not '1:5x1' \(use e\.g\. .*diagonal:20:40"),
        ("1:5+", r"^grid: .*use e\.g\. 1:12x1:12"),
        ("1:20,30:40", r"parts are joined by \+, as in 1:12x1:12\+diagonal:20:40"),
        ("larg", r"Did you mean 'large'\?"),
        ("1:99999999999999999999", r"^grid: .*sizes must be from 0 to 1,000,000"),
        ("1:9999x1:9999", r"^grid: must have at most 1,000,000 cells, not 99,980,001"),
    ],
)
def test_what_is_no_grid_is_refused(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Grid.parse(text, AXES)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("uneven:4:8:4", [(1, 4), (4, 1), (2, 4), (4, 2), (1, 8), (8, 1), (4, 8), (8, 4)]),
        ("cascade:7", [(7, 1), (1, 7), (7, 7), (7, 7)]),
        ("carries:30", [(30, 30, chain) for chain in range(0, 31, 3)]),
    ],
)
def test_a_grid_has_the_strata_of_its_task_beside_other_cells(text: str, found: list[tuple[int, ...]]) -> None:
    grid = Grid.parse(f"2x3+{text}", AXES, Arithmetic())
    first, *strata = grid.cells()
    assert dict(first) == {"first_digits": 2, "second_digits": 3}
    assert [tuple(cell_entries(cell)["cell"].values()) for cell in strata] == found
    assert all("stratum" in cell_entries(cell) for cell in strata)
    assert str(grid) == f"2x3+{text}"
    assert {*grid.corners()} <= {*grid.cells()}


@pytest.mark.parametrize(
    ("task", "text", "words"),
    [
        (Arithmetic("x"), "carries:9", r"^grid: Arithmetic has no stratum 'carries'; it has uneven, cascade\.$"),
        (Arithmetic(), "1:9+cascade", r"^grid: .* not 'cascade' .*cascade:20"),
        (Sorting(), "cascade:9", r"^grid: Sorting has no stratum 'cascade'; it has none\.$"),
        (Arithmetic(), "cascades:9", r"Did you mean 'cascade'\?"),
        (Arithmetic("-"), "cascade:1:3", "^grid: cascade:1 selects none of the questions of Arithmetic$"),
        (Arithmetic(), "carries:1:5000", r"^grid: the sizes of 'carries:1:5000' must add up to at most 1,000,000"),
        (Arithmetic(), "carries:1x2", r"^grid: a span must be low:high, both included, such as 1:5, not '1x2'"),
    ],
)
def test_a_stratum_that_a_task_does_not_have_is_refused(task: Task, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Grid.parse(text, task.axes(), task)


def test_a_task_without_sizes_has_no_grid() -> None:
    with pytest.raises(UserError, match=r"^grid: must be null, not '1:12': the task has no sizes$"):
        Grid.parse("1:12", ())


@pytest.mark.parametrize("of", [1, 2, 7, 50])
@pytest.mark.parametrize("text", ["1:12x1:12", "1:15x1:3", "5x5"])
def test_pieces_cover_every_cell_exactly_once(text: str, of: int) -> None:
    cells = Grid.parse(text, AXES).cells()
    pieces = deal_by_size(cells, of, size_of)
    assert len(pieces) == of
    assert Counter(cell for piece in pieces for cell in piece) == Counter(cells)


@pytest.mark.parametrize(("costs", "of"), [([1, 4, 9, 16], 4), ([n * n for n in range(1, 61)], 8)], ids=["few", "many"])
def test_no_piece_is_empty_or_costs_much_more_than_the_mean(costs: list[int], of: int) -> None:
    sums = list(map(sum, deal_by_size(costs, of, float)))
    assert min(sums) > 0
    assert max(sums) == max(costs) or max(sums) < 1.05 * sum(costs) / of


def test_what_a_piece_reads_like() -> None:
    assert parse_shard("2/4") == (2, 4)
    assert parse_shard(" 10/20 ") == (10, 20)
    for text in ("", "2", "2/", "a/b", "2 of 4", "1/2/3", "-1/4", "0/3", "4/3", "1/0"):
        with pytest.raises(UserError, match=r"^shard: must be from 1/4 to 4/4, for example, not"):
            parse_shard(text)


def test_a_grid_is_every_combination_or_ties_all_axes() -> None:
    assert places("11:12x1:2") == [(11, 1), (11, 2), (12, 1), (12, 2)]
    grid = Grid.parse("diagonal:101:160", AXES)
    assert [tuple(dict(cell).values()) for cell in grid.cells()] == [(n, n) for n in range(101, 161)]
    assert places("diagonal:200:1000:100") == [(n, n) for n in range(200, 1001, 100)]
    assert places("diagonal:3:4", ("length",)) == [(3,), (4,)]
    assert places("1:100:40x7") == [(1, 7), (41, 7), (81, 7)]


def test_parts_are_joined_and_no_cell_comes_twice() -> None:
    assert places("1:2+diagonal:2:3+9x1") == [(1, 1), (1, 2), (2, 1), (2, 2), (3, 3), (9, 1)]
    grid = Grid.parse("1:2x5+diagonal:2:9:3", AXES)
    assert Grid.parse(str(grid), AXES) == grid
    assert grid.corners() == [tuple(zip(AXES, place, strict=True)) for place in ((2, 5), (8, 8))]


def test_the_published_tiers_have_their_cells(shared: Path) -> None:
    tiers = published_case(shared, "abacus.json", "eval_small_tiers")["expected"]
    assert len(tiers) == 4
    for name, expected in tiers.items():
        cells = places(name.removeprefix("_"))
        assert (len(cells), max(map(max, cells))) == (expected["cells"], expected["max_size"])
    whole = places("large+ood_only+up_to_40+up_to_50")
    assert sorted(whole) == sorted(places("1:50x1:50")), "each tier continues where the one before ends"
    assert all(Grid.parse(name, AXES).cells() for name in NAMED_GRIDS)


def test_twenty_pieces_cover_the_published_grid_and_cost_the_same(shared: Path) -> None:
    """Of the published twenty the dearest costs 2.8 times what the cheapest does."""
    cells = Grid.parse("1:100x1:100", AXES).cells()
    published = published_case(shared, "abacus.json", "eval_grid_pieces")["expected"]
    assert sum(published.values()) == len(cells)
    pieces = deal_by_size(cells, 20, size_of)
    assert Counter(cell for piece in pieces for cell in piece) == Counter(cells)
    lengths = {cell: (sum(dict(cell).values()) + max(dict(cell).values())) for cell in cells}
    for power in (1, 2):  # tokens, and the quadratic part of attention
        sums = [sum(lengths[cell] ** power for cell in piece) for piece in pieces]
        assert max(sums) < 1.01 * min(sums)


@pytest.mark.parametrize(
    ("digits", "cell", "where"),
    [
        (5, (1, 1), "in_distribution"),
        (5, (5, 5), "in_distribution"),
        (5, (6, 6), "ood_validation"),
        (5, (6, 5), "ood_test"),
        (5, (1, 9), "ood_test"),
        (5, (100, 100), "ood_test"),
        (5, (7, 101), "100+"),
        (150, (120, 120), "in_distribution"),
        (150, (180, 180), "ood_validation"),
        (150, (181, 181), "100+"),
    ],
)
def test_where_a_cell_lies(digits: int, cell: tuple[int, int], where: str) -> None:
    task = Arithmetic(digits=Span(1, digits))
    above = task.ood_validation_task()
    assert above is not None
    sizes = dict(zip(AXES, cell, strict=True))
    assert cell_region(sizes, task.training_spans(), above.training_spans()) == where


def test_smaller_than_anything_trained_is_below_and_not_beyond() -> None:
    trained = {axis: Span(5, 8) for axis in AXES}
    assert cell_region(dict(zip(AXES, (3, 6), strict=True)), trained, None) == "below"
    assert cell_region(dict(zip(AXES, (3, 9), strict=True)), trained, None) == "ood_test"


def test_cells_with_holes_make_a_grid_of_those_cells_alone() -> None:
    held: list[tuple[int, ...]]
    for held, text in (([(4,), (5,), (8,)], "4:5+8"), ([(3,)], "3")):
        grid = Grid.from_points(held, ("length",))
        assert str(grid) == text
        assert [tuple(dict(cell).values()) for cell in grid.cells()] == held
    held = [(1, 1), (1, 2), (1, 4), (2, 3), (3, 4)]
    assert places(str(Grid.from_points(reversed(held), AXES))) == held


def test_the_default_grid_is_what_was_trained_and_as_much_again() -> None:
    assert str(resolve_grid(Arithmetic(digits=Span(1, 5)), None)) == "1:10x1:10"
    assert str(resolve_grid(Arithmetic(first_digits=Span(2, 4), second_digits=3), None)) == "2:8x3:6"
    assert str(resolve_grid(GeneratedMathematics(), None)) == "1:8", "all parts, the four beyond training too"

    class Axisless(Arithmetic):
        def axes(self) -> tuple[Any, ...]:
            return ()

        def training_spans(self) -> dict[str, Span]:
            return {}

    with pytest.raises(UserError, match=r"^grid: Axisless has no axes"):
        resolve_grid(Axisless(), None)
