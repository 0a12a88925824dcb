"""What reports look like in a terminal: maps, bars, tables, and what is done where it shows no colours."""

import doctest
import io
import re
from itertools import pairwise

import pytest

from numerate.reports import colour, figure, matplotlib_writer, table
from numerate.reports.colour import (
    COLORMAP_DARK,
    COLORMAP_DARK_256,
    COLORMAP_LIGHT,
    TerminalStyle,
    colormap,
    contrast,
    luminance,
    parse_hex_color,
    text_color,
)
from numerate.reports.compare import comparison_text
from numerate.reports.figure import Chart, ChartLine, HeatMap
from numerate.reports.grid import aggregate_seeds, make_grids
from numerate.reports.groups import group_runs
from numerate.reports.records import Cell, read_run
from numerate.reports.table import markdown_table, side_by_side, text_table, text_width
from numerate.reports.terminal_writer import chart_text, heat_map_text, legend_text

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
COLOURS = TerminalStyle(num_colors=2**24, unicode=True, width=120)


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
    return HeatMap.from_grid(make_grids(aggregate_seeds([cells]))[0])


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.mark.parametrize("module", [table, figure, matplotlib_writer, colour])
def test_the_examples_in_the_documentation_are_true(module):
    assert doctest.testmod(module).failed == 0


def test_a_map_without_colours_is_numbers_in_a_frame():
    shown = heat_map_text(grid(right=lambda a, b: 0 if a == 3 else 100 if b < 3 else 7), TerminalStyle())
    assert shown.split("\n") == [
        "     1   2   3",
        "  ┏━━━━━━━┓",
        " 1┃100 100┃  7",
        " 2┃100 100┃  7",
        "  ┗━━━━━━━┛",
        " 3   ·   ·   ·",
        "   digits of the first (down) and second number",
    ]


def test_a_map_for_a_plain_terminal_is_ascii_alone():
    both = heat_map_text(grid(), TerminalStyle(unicode=False)) + legend_text(TerminalStyle(unicode=False))
    assert both.isascii()
    assert "+-------+" in both


def test_colours_change_nothing_but_colours():
    plain, coloured = (heat_map_text(grid(right=lambda a, b: 10 * a + b), look) for look in (TerminalStyle(), COLOURS))
    assert [line.rstrip() for line in ESCAPE.sub("", coloured).split("\n")] == plain.split("\n")
    assert "\x1b[" in coloured
    assert "\x1b[" not in plain


def test_every_cell_has_the_colour_of_its_share():
    coloured = heat_map_text(grid(high=1, right=lambda a, b: 40), COLOURS)
    red, green, blue = colormap(0.4, COLORMAP_DARK)
    assert f"48;2;{red};{green};{blue}" in coloured


@pytest.mark.parametrize(
    ("width", "high", "titled", "row"),
    [
        (120, 20, "", [13] * 20),
        (80, 20, "in tenths", [1] * 20),
        (40, 20, "means of 3 x 3 cells", [16] * 7),
        (80, 50, "means of 3 x 3 cells", [16] * 17),
        (40, 8, "", [13] * 8),
    ],
)
def test_a_map_is_no_wider_than_the_terminal_and_its_numbers_match_the_legend(width, high, titled, row):
    look = TerminalStyle(width=width)
    found = grid(high=high, trained=2, right=lambda a, b: 13 if a % 3 == 1 else 6 if a % 3 == 2 else 29)
    shown = heat_map_text(found, look)
    *lines, _ = shown.split("\n")
    assert max(map(text_width, lines)) <= width
    assert (titled in shown.split("\n")[0]) if titled else ("tenths" not in shown and "means" not in shown)
    first = next(line for line in lines[1 + bool(titled) :] if re.match(r" *1[┃ ]", line))
    assert [int(number) for number in re.findall(r"\d+", first)[1:]] == row
    text = legend_text(look, [found])
    assert ("in tenths: 4 is 40-49 % correct, 0 under 10 %" in text) == (titled == "in tenths")
    assert ("% correct, · is 0" in text) == (titled != "in tenths")


def test_a_cell_of_means_is_inside_of_the_border_only_with_all_of_its_cells():
    shown = heat_map_text(grid(high=40, trained=8), TerminalStyle(width=40))
    assert "means of 5 x 5 cells" in shown
    assert shown.count("┏━━━┓") == 1


@pytest.mark.parametrize("colours", [0, 2**24])
@pytest.mark.parametrize(("trained", "framed"), [(8, True), (2, False)])
def test_a_legend_explains_the_border_only_where_a_map_has_one(trained, framed, colours):
    found, look = grid(high=40, trained=trained), TerminalStyle(width=40, num_colors=colours, unicode=True)
    assert ("┏" in heat_map_text(found, look)) == framed
    assert ("in distribution" in legend_text(look, [found])) == framed


def test_cells_that_were_not_evaluated_stay_empty():
    cells = [Cell({"a": a, "b": b}, 1, 2, 0, 1, "ood_test") for a, b in ((1, 1), (2, 1), (2, 2))]
    found = HeatMap.from_grid(make_grids(aggregate_seeds([cells]))[0])
    assert " 1  50\n" in heat_map_text(found, TerminalStyle())


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
def test_the_colours_of_a_terminal_are_detected(environ, colours):
    assert TerminalStyle.from_stream(Terminal(), environ).num_colors == colours


def test_a_file_gets_no_colours_unless_they_are_forced():
    assert TerminalStyle.from_stream(io.StringIO(), {"TERM": "xterm-256color"}).num_colors == 0
    assert TerminalStyle.from_stream(io.StringIO(), {"FORCE_COLOR": "1"}).num_colors == 256
    assert TerminalStyle.from_stream(io.StringIO(), {"FORCE_COLOR": "1", "NO_COLOR": "1"}).num_colors == 0
    assert TerminalStyle.from_stream(io.StringIO(), {"COLUMNS": "57"}).width == 57


def test_a_stream_that_cannot_encode_boxes_gets_none():
    assert not TerminalStyle.from_stream(io.TextIOWrapper(io.BytesIO(), encoding="ascii"), {}).unicode
    assert TerminalStyle.from_stream(io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), {}).unicode


@pytest.mark.parametrize(("stops", "sign"), [(COLORMAP_LIGHT, -1), (COLORMAP_DARK, 1), (COLORMAP_DARK_256, 1)])
def test_lightness_runs_one_way_so_that_grey_print_keeps_the_order(stops, sign):
    steps = [luminance(colormap(i / 100, stops)) for i in range(101)]
    assert all(sign * (after - before) > 0 for before, after in pairwise(steps))


@pytest.mark.parametrize("stops", [COLORMAP_LIGHT, COLORMAP_DARK, COLORMAP_DARK_256])
def test_numbers_can_be_read_on_every_colour_of_the_map(stops):
    assert min(contrast(colormap(i / 100, stops), text_color(colormap(i / 100, stops))) for i in range(101)) >= 4.5


def test_the_256_colours_are_colours_of_such_a_terminal():
    style = TerminalStyle(num_colors=256)
    assert style.colorize("a", foreground=(255, 0, 0), background=(8, 8, 8)) == "\x1b[38;5;196;48;5;232ma\x1b[0m"
    levels = {0, 95, 135, 175, 215, 255}
    assert all(
        set(parse_hex_color(stop)) <= levels or len(set(parse_hex_color(stop))) == 1 for stop in COLORMAP_DARK_256
    )


def test_blocks_stand_side_by_side_where_they_fit_and_below_each_other_where_not():
    assert side_by_side(["ab\nc", "xy"], 8) == "ab    xy\nc"
    assert side_by_side(["ab\nc", "xy"], 7) == "ab\nc\n\nxy"


def test_coloured_text_is_as_wide_as_it_looks():
    assert text_width(COLOURS.colorize("abc", foreground=(1, 2, 3), bold=True)) == 3


def test_tables_keep_their_columns_with_empty_cells_and_pipes():
    assert (
        text_table(["a", "n"], [["x", ""], ["longer", "12.5 %"]]) == "a            n\n------  ------\nx\nlonger  12.5 %"
    )
    assert markdown_table(["a"], [["x|y"]]).split("\n")[-1] == "| x\\|y |"


def test_a_bar_shows_the_share_and_its_interval():
    chart = Chart("", [ChartLine("run", [6], [0.5], [0.4], [0.6])], "n", "%", is_percent=True)
    line = chart_text(chart, TerminalStyle()).split("\n")[-1]
    assert line == "6  ██████████──           50 [40, 60]"


def test_a_comparison_in_the_terminal_holds_both_maps_the_regions_and_the_finding(make_run):
    runs = [make_run("abacus", lambda n: n <= 7), make_run("rotary", lambda n: n <= 5)]
    text = comparison_text(group_runs([read_run(run) for run in runs]), TerminalStyle(width=120))
    assert "addition_abacus" in text.split("\n")[0]
    assert "addition_rotary" in text.split("\n")[0]
    assert "all OOD" in text
    assert text.endswith("intervals over questions).")
