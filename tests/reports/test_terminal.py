"""What reports look like in a terminal: maps, bars, tables, and what is done where it shows no colours."""

import doctest
import io
import re
from itertools import pairwise

import pytest

from numerate.reports import colour, curve, table
from numerate.reports.colour import DARK, DARK_256, LIGHT, Look, contrast, ink, luminance, nearest_of_256, ramp, rgb
from numerate.reports.compare import comparison_text
from numerate.reports.curve import length_curve, sparkline
from numerate.reports.grid import grids, points
from numerate.reports.groups import grouped
from numerate.reports.heat_map import heat_map, legend
from numerate.reports.records import Cell, read
from numerate.reports.table import beside, markdown_table, text_table, text_width

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
COLOURS = Look(colours=2**24, unicode=True, width=120)


def grid(high=3, trained=2, right=lambda a, b: 100):
    cells = [
        Cell(
            {"first_digits": a, "second_digits": b},
            right(a, b),
            100,
            0.0,
            1.0,
            "in_distribution" if max(a, b) <= trained else "ood_test",
        )
        for a in range(1, high + 1)
        for b in range(1, high + 1)
    ]
    return grids(points([cells]))[0]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.mark.parametrize("module", [table, curve, colour])
def test_the_examples_in_the_documentation_are_true(module):
    assert doctest.testmod(module).failed == 0


def test_a_map_without_colours_is_numbers_in_a_frame():
    shown = heat_map(grid(right=lambda a, b: 0 if a == 3 else 100 if b < 3 else 7), Look())
    assert shown.split("\n") == [
        "     1   2   3",
        "  ┏━━━━━━━┓",
        " 1┃100 100┃  7",
        " 2┃100 100┃  7",
        "  ┗━━━━━━━┛",
        " 3   ·   ·   ·",
        "   digits of the first (down), second (across)",
    ]


def test_a_map_for_a_plain_terminal_is_ascii_alone():
    both = (
        heat_map(grid(), Look(unicode=False)) + legend(Look(unicode=False)) + sparkline([1, 2, 3], Look(unicode=False))
    )
    assert both.isascii()
    assert "+-------+" in both


def test_colours_change_nothing_but_colours():
    plain, coloured = (heat_map(grid(right=lambda a, b: 10 * a + b), look) for look in (Look(), COLOURS))
    assert [line.rstrip() for line in ESCAPE.sub("", coloured).split("\n")] == plain.split("\n")
    assert "\x1b[" in coloured
    assert "\x1b[" not in plain


def test_every_cell_has_the_colour_of_its_share():
    coloured = heat_map(grid(high=1, right=lambda a, b: 40), COLOURS)
    red, green, blue = ramp(0.4, DARK)
    assert f"48;2;{red};{green};{blue}" in coloured


def test_a_large_map_shows_tenths_instead_of_per_cents():
    shown = heat_map(grid(high=50, trained=20, right=lambda a, b: 100 if a < 25 else 37), Look())
    assert max(len(line) for line in shown.split("\n")) < 120
    assert "#" in shown
    assert "3" in shown.split("\n")[-3]


def test_cells_that_were_not_evaluated_stay_empty():
    cells = [Cell({"a": a, "b": b}, 1, 2, 0, 1, "ood_test") for a, b in ((1, 1), (2, 1), (2, 2))]
    assert " 1  50\n" in heat_map(grids(points([cells]))[0], Look())


@pytest.mark.parametrize(
    ("environ", "colours"),
    [
        ({"TERM": "xterm-256color"}, 256),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, 2**24),
        ({"TERM": "dumb"}, 0),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, 0),
        ({"TERM": "xterm-256color", "NO_COLOR": "", "COLORTERM": "24bit"}, 2**24),
    ],
)
def test_a_terminal_is_asked_what_it_shows(environ, colours):
    assert Look.of(Terminal(), environ).colours == colours


def test_a_file_gets_no_colours_unless_they_are_asked_for():
    assert Look.of(io.StringIO(), {"TERM": "xterm-256color"}).colours == 0
    assert Look.of(io.StringIO(), {"FORCE_COLOR": "1"}).colours == 256
    assert Look.of(io.StringIO(), {"FORCE_COLOR": "1", "NO_COLOR": "1"}).colours == 0
    assert Look.of(io.StringIO(), {"COLUMNS": "57"}).width == 57


def test_a_stream_that_cannot_encode_boxes_gets_none():
    assert not Look.of(io.TextIOWrapper(io.BytesIO(), encoding="ascii"), {}).unicode
    assert Look.of(io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), {}).unicode


@pytest.mark.parametrize(("stops", "sign"), [(LIGHT, -1), (DARK, 1), (DARK_256, 1)])
def test_lightness_runs_one_way_so_that_grey_print_keeps_the_order(stops, sign):
    steps = [luminance(ramp(i / 100, stops)) for i in range(101)]
    assert all(sign * (after - before) > 0 for before, after in pairwise(steps))


@pytest.mark.parametrize("stops", [LIGHT, DARK, DARK_256])
def test_numbers_can_be_read_on_every_colour_of_the_map(stops):
    assert min(contrast(ramp(i / 100, stops), ink(ramp(i / 100, stops))) for i in range(101)) >= 4.5


def test_the_256_colours_are_colours_of_such_a_terminal():
    assert nearest_of_256((255, 0, 0)) == 196
    assert nearest_of_256((8, 8, 8)) == 232
    levels = {0, 95, 135, 175, 215, 255}
    assert all(set(rgb(stop)) <= levels or len(set(rgb(stop))) == 1 for stop in DARK_256)


def test_blocks_stand_side_by_side_where_they_fit_and_below_each_other_where_not():
    assert beside(["ab\nc", "xy"], 8) == "ab    xy\nc"
    assert beside(["ab\nc", "xy"], 7) == "ab\nc\n\nxy"


def test_coloured_text_is_as_wide_as_it_looks():
    assert text_width(COLOURS.paint("abc", front=(1, 2, 3), bold=True)) == 3


def test_tables_keep_their_columns_with_empty_cells_and_pipes():
    assert (
        text_table(["a", "n"], [["x", ""], ["longer", "12.5 %"]]) == "a            n\n------  ------\nx\nlonger  12.5 %"
    )
    assert markdown_table(["a"], [["x|y"]]).split("\n")[-1] == "| x\\|y |"


def test_a_bar_shows_the_share_and_its_interval():
    cell = Cell({"n": 6}, 50, 100, 0.4, 0.6, "ood_test")
    line = length_curve({"run": {6: points([[cell]])[0]}}, Look()).split("\n")[-1]
    assert line == "  6  ██████████──           50 [40, 60]"


def test_a_sparkline_keeps_the_order_of_what_it_shows():
    assert sparkline([1, 0.1, 0.01], Look(), log=True) == "█▅▁"
    assert sparkline([3, 3], Look()) == "▁▁"
    assert sparkline([], Look()) == ""
    assert len(sparkline(list(range(1000)), Look(), width=30)) == 30


def test_a_comparison_in_the_terminal_holds_both_maps_the_regions_and_the_finding(make_run):
    runs = [make_run("abacus", lambda n: n <= 7), make_run("rotary", lambda n: n <= 5)]
    text = comparison_text(grouped([read(run) for run in runs]), Look(width=120))
    assert "addition_abacus" in text.split("\n")[0]
    assert "addition_rotary" in text.split("\n")[0]
    assert "all OOD" in text
    assert text.endswith("100 per cell).")
