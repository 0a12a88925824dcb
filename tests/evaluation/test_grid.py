"""Grids: what they read, what they refuse, and that pieces cover them."""

from collections import Counter
from typing import Any

import pytest

from numerate.config import Span
from numerate.errors import Mistake
from numerate.evaluation.evaluator import cost, default_grid
from numerate.evaluation.grid import Grid, parse_shard, region, shard
from numerate.tasks.arithmetic import Arithmetic

AXES = ("first_digits", "second_digits")


def test_a_grid_is_every_combination() -> None:
    grid = Grid.parse("11:13x1:2", AXES)
    assert [tuple(dict(cell).values()) for cell in grid.cells()] == [
        (11, 1),
        (11, 2),
        (12, 1),
        (12, 2),
        (13, 1),
        (13, 2),
    ]
    assert all(tuple(dict(cell)) == AXES for cell in grid.cells())


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("1:12x1:12", (Span(1, 12), Span(1, 12))),
        ("1:12", (Span(1, 12), Span(1, 12))),
        ("7", (Span(7, 7), Span(7, 7))),
        ("7x1:3", (Span(7, 7), Span(1, 3))),
        (" 1:2 x 3:4 ", (Span(1, 2), Span(3, 4))),
        ("1:2×3:4", (Span(1, 2), Span(3, 4))),  # noqa: RUF001
    ],
)
def test_what_a_grid_reads(text: str, spans: tuple[Span, Span]) -> None:
    grid = Grid.parse(text, AXES)
    assert grid.spans == spans
    assert Grid.parse(str(grid), AXES) == grid


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1:2x3:4x5:6", r"^grid: '1:2x3:4x5:6' has 3 axes, the task has 2: first_digits, second_digits"),
        ("5:1x1:2", r"^grid: the span 5:1 is empty.*1:12x1:12"),
        ("", r"^grid: .*a grid reads like 1:12x1:12"),
        ("1:2x", r"^grid: .*a grid reads like 1:12x1:12"),
        ("one", r"^grid: .*a grid reads like 1:12x1:12"),
        ("1-5", r"^grid: .*a grid reads like 1:12x1:12"),
        ("1.5x2", r"^grid: .*a grid reads like 1:12x1:12"),
        ("-3:2x1:2", r"^grid: '-3:2x1:2' has a negative size"),
    ],
)
def test_what_is_no_grid_is_refused(text: str, words: str) -> None:
    with pytest.raises(Mistake, match=words):
        Grid.parse(text, AXES)


@pytest.mark.parametrize("of", [1, 2, 7, 50])
@pytest.mark.parametrize("text", ["1:12x1:12", "1:15x1:3", "5x5"])
def test_pieces_cover_every_cell_exactly_once_in_order(text: str, of: int) -> None:
    cells = Grid.parse(text, AXES).cells()
    pieces = [shard(cells, number, of, cost) for number in range(1, of + 1)]
    assert Counter(cell for piece in pieces for cell in piece) == Counter(cells)
    place = {cell: i for i, cell in enumerate(cells)}
    for piece in pieces:
        assert [place[cell] for cell in piece] == sorted(place[cell] for cell in piece)


@pytest.mark.parametrize("of", [2, 3, 20])
def test_pieces_cost_about_the_same(of: int) -> None:
    cells = Grid.parse("1:30x1:30", AXES).cells()
    costs = [sum(map(cost, shard(cells, number, of, cost))) for number in range(1, of + 1)]
    assert max(costs) - min(costs) <= max(map(cost, cells))
    assert max(costs) < 1.03 * min(costs)


def test_pieces_are_a_function_of_the_cells() -> None:
    cells = Grid.parse("1:9x1:9", AXES).cells()
    assert shard(cells, 2, 3, cost) == shard(list(cells), 2, 3, cost)
    assert shard(cells, 1, 1, cost) == cells


@pytest.mark.parametrize(("number", "of"), [(0, 3), (4, 3), (-1, 3), (1, 0)])
def test_a_piece_that_there_is_not_is_refused(number: int, of: int) -> None:
    with pytest.raises(Mistake, match=rf"^shard: {number}/{of} is no piece"):
        shard(Grid.parse("1:2", AXES).cells(), number, of, cost)


def test_what_a_piece_reads_like() -> None:
    assert parse_shard("2/4") == (2, 4)
    assert parse_shard(" 10/20 ") == (10, 20)
    for text in ("", "2", "2/", "a/b", "2 of 4", "1/2/3", "-1/4"):
        with pytest.raises(Mistake, match=r"^shard: .*a piece reads like 1/4"):
            parse_shard(text)


def test_dearer_cells_cost_more() -> None:
    assert cost(tuple(zip(AXES, (3, 4), strict=True)), 10) == 10 * (3 + 4 + 4 + 3)
    assert cost(()) == 3


@pytest.mark.parametrize(
    ("cell", "where"),
    [
        ((1, 1), "trained"),
        ((5, 5), "trained"),
        ((6, 6), "band"),
        ((6, 5), "beyond"),
        ((7, 6), "beyond"),
        ((1, 9), "beyond"),
    ],
)
def test_where_a_cell_lies(cell: tuple[int, int], where: str) -> None:
    task = Arithmetic(digits=Span(1, 5))
    found = region(dict(zip(AXES, cell, strict=True)), task.trained(), task.beyond().trained())
    assert found == where


def test_smaller_than_anything_trained_is_below_and_not_beyond() -> None:
    trained = {axis: Span(5, 8) for axis in AXES}
    assert region(dict(zip(AXES, (3, 6), strict=True)), trained, None) == "below"
    assert region(dict(zip(AXES, (3, 9), strict=True)), trained, None) == "beyond"


def test_the_default_grid_is_what_was_trained_and_as_much_again() -> None:
    assert str(default_grid(Arithmetic(digits=Span(1, 5)))) == "1:10x1:10"
    assert str(default_grid(Arithmetic(first_digits=Span(2, 4), second_digits=3))) == "2:8x3:6"

    class Axisless(Arithmetic):
        def axes(self) -> tuple[Any, ...]:
            return ()

        def trained(self) -> dict[str, Span]:
            return {}

    with pytest.raises(Mistake, match=r"^grid: Axisless has no axes"):
        default_grid(Axisless())
