"""What reports look like in a terminal: maps, bars, tables, and what is done where it shows no colours."""

import io
import re
from itertools import pairwise

import pytest

from numerate.reports.colour import (
    COLORMAP_DARK,
    COLORMAP_LIGHT,
    colormap,
    luminance,
    text_color,
)
from numerate.reports.figure import heat_maps
from numerate.reports.grid import aggregate_seeds
from numerate.reports.records import Cell
from numerate.reports.table import TextTable, text_table, text_width
from numerate.reports.terminal_writer import TerminalStyle, heat_map_text, legend_text

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
COLOURS = TerminalStyle("truecolor", width=120)


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
    return heat_maps(aggregate_seeds([cells]))[0]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


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


def test_colours_change_nothing_but_colours():
    plain, coloured = (heat_map_text(grid(right=lambda a, b: 10 * a + b), look) for look in (TerminalStyle(), COLOURS))
    assert [line.rstrip() for line in ESCAPE.sub("", coloured).split("\n")] == plain.split("\n")
    assert "\x1b[" in coloured
    assert "\x1b[" not in plain


@pytest.mark.parametrize(
    ("style", "high", "titled", "row"),
    [
        (TerminalStyle(), 20, "", [13] * 20),
        (TerminalStyle(width=80), 20, "one of 2 rows and columns", [13] * 10),
        (TerminalStyle("256", width=80), 20, "", []),
        (TerminalStyle("256", width=40), 40, "one of 5 rows and columns", [13] * 8),
    ],
)
def test_a_map_is_no_wider_than_the_terminal(style, high, titled, row):
    shown = ESCAPE.sub("", heat_map_text(grid(high=high, right=lambda a, b: 13 if a % 3 == 1 else 6), style))
    *lines, _ = shown.split("\n")
    assert max(map(text_width, lines)) <= style.width
    assert (titled in lines[0]) if titled else ("rows and columns" not in shown)
    first = next(line for line in lines[1 + bool(titled) :] if re.match(r" *1[┃ ]", line))
    assert [int(number) for number in re.findall(r"\d+", first)[1:]] == row


@pytest.mark.parametrize(
    ("stream", "environ", "colours"),
    [
        (Terminal(), {"TERM": "xterm-256color"}, "256"),
        (Terminal(), {"TERM": "xterm", "COLORTERM": "truecolor"}, "truecolor"),
        (Terminal(), {"TERM": "dumb"}, None),
        (Terminal(), {"TERM": "xterm-256color", "NO_COLOR": "1"}, None),
        (io.StringIO(), {"TERM": "xterm-256color"}, None),
        (io.StringIO(), {"TERM": "xterm-256color", "FORCE_COLOR": "1"}, "256"),
    ],
)
def test_the_colours_of_a_stream_are_detected(stream, environ, colours, monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (environ | {"COLUMNS": "57"}).items():
        monkeypatch.setenv(name, value)
    assert TerminalStyle.from_stream(stream) == TerminalStyle(colours, 57, 57 if stream.isatty() else None)


@pytest.mark.parametrize(("stops", "sign"), [(COLORMAP_LIGHT, -1), (COLORMAP_DARK, 1)])
def test_lightness_runs_one_way_so_that_grey_print_keeps_the_order(stops, sign):
    steps = [luminance(colormap(i / 100, stops)) for i in range(101)]
    assert all(sign * (after - before) > 0 for before, after in pairwise(steps))


@pytest.mark.parametrize("stops", [COLORMAP_LIGHT, COLORMAP_DARK])
def test_numbers_can_be_read_on_every_colour_of_the_map(stops):
    for i in range(101):
        background = colormap(i / 100, stops)
        dim, bright = sorted(map(luminance, (background, text_color(background))))
        assert (bright + 0.05) / (dim + 0.05) >= 4.5


def test_coloured_text_is_as_wide_as_it_looks():
    assert text_width(COLOURS.colorize("abc", foreground=(1, 2, 3), bold=True)) == 3


def test_tables_keep_their_columns_with_empty_cells_and_pipes():
    assert (
        text_table(["a", "n"], [["x", ""], ["longer", "12.5 %"]]) == "a            n\n------  ------\nx\nlonger  12.5 %"
    )
    assert TextTable(["a"], [["x|y"]]).to_markdown().split("\n")[-1] == "| x\\|y |"


def test_a_wide_table_has_its_headers_and_texts_in_several_lines_before_its_columns_are_divided():
    header = ("run", "exact match of all questions, %", "note")
    rows = [("addition_abacus", "93.1", "too few questions to hold any out")]
    assert text_table(header, rows, 100) == text_table(header, rows)
    assert text_table(header, rows, 50).split("\n", 4)[4].splitlines() == [
        "                          %",
        "---------------  ----------  --------------------",
        "addition_abacus        93.1  too few questions to",
        "                             hold any out",
    ]
    divided = text_table(header, rows, 34).split("\n\n")
    assert [block.split()[:2] for block in divided] == [["run", "exact"], ["run", "note"]]
