"""Heat maps in a terminal: their numbers, their frame, and what is done where they do not fit or it shows no colors."""

import io
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from numerate.results.terminal_map import _color, console_of, legend_text, maps_text

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def frame(high: int = 3, right: Callable[[int, int], int] = lambda a, b: 100, further: tuple[int, ...] = ()) -> Any:
    pandas = pytest.importorskip("pandas")
    sizes = [(a, b) for a in range(1, high + 1) for b in range(1, high + 1)] + [(n, n) for n in further]
    rows = [
        {
            **{"settings": None, "first_digits": a, "second_digits": b},
            **{"region": "in_distribution" if max(a, b) <= 2 else "ood_test", "exact_match": right(a, b) / 100},
        }
        for a, b in sizes
    ]
    return pandas.DataFrame(rows)


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def console(colors: str | None = None, width: int = 100) -> Any:
        for name, value in {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLORTERM": colors or ""}.items():
            monkeypatch.setenv(name, value) if colors else monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("COLUMNS", str(width))
        return console_of(io.StringIO())

    return console


def test_a_map_without_colors_is_numbers_in_a_frame(look: Any) -> None:
    cells = frame(right=lambda a, b: 0 if a == 3 else 100 if b < 3 else 7)
    assert maps_text(cells, "final", look()).split("\n") == [
        "final",
        "     1   2   3",
        "  ┏━━━━━━━┓",
        " 1┃100 100┃  7",
        " 2┃100 100┃  7",
        "  ┗━━━━━━━┛",
        " 3   0   0   0",
        "   digits of the first number (down), digits of the second number",
        "",
        "",
    ]


def test_colors_change_nothing_but_colors(look: Any) -> None:
    cells = frame(right=lambda a, b: 10 * a + b)
    plain, colored = (maps_text(cells, "final", look(colors)) for colors in (None, "truecolor"))
    assert [line.rstrip() for line in ESCAPE.sub("", colored).split("\n")] == plain.split("\n")
    assert "\x1b[48;2" in colored
    assert "\x1b[" not in plain


@pytest.mark.parametrize(
    ("colors", "width", "high", "titled", "row"),
    [
        (None, 100, 20, "", [13] * 20),
        (None, 80, 20, "one of 2 rows and columns", [13] * 10),
        ("256", 80, 20, "", []),
        ("256", 40, 40, "one of 5 rows and columns", [13] * 8),
    ],
)
def test_a_map_is_no_wider_than_the_terminal(
    colors: str | None, width: int, high: int, titled: str, row: list[int], look: Any
) -> None:
    cells = frame(high, right=lambda a, b: 13 if a % 3 == 1 else 6)
    title, *lines = ESCAPE.sub("", maps_text(cells, "final", look(colors, width))).split("\n")
    assert max(map(len, lines[:-3])) <= width
    assert title == f"final{', ' * bool(titled)}{titled}"
    first = next(line for line in lines[1:] if re.match(r" *1[┃ ]", line))
    assert [int(number) for number in re.findall(r"\d+", first)[1:]] == row


def test_equal_sizes_alone_are_a_strip_and_further_axes_have_a_map_for_each_value(look: Any) -> None:
    shown = maps_text(frame(further=(100, 200)), "final", look())
    assert "final, equal sizes\n  100 200\n  100 100\n" in shown
    assert shown.count("(down)") == 1
    deep = frame().iloc[:4]
    deep.insert(3, "carry", [0, 0, 3, 3])
    assert re.findall("final, .*", maps_text(deep, "final", look())) == ["final, carry 0", "final, carry 3"]


@pytest.mark.parametrize(
    ("environ", "is_terminal", "colors"),
    [
        ({"TERM": "xterm-256color"}, True, "256"),
        ({"TERM": "xterm"}, True, "256"),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, True, "truecolor"),
        ({"TERM": "dumb"}, True, None),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, True, None),
        ({"TERM": "xterm-256color"}, False, None),
        ({"TERM": "xterm-256color", "FORCE_COLOR": "1"}, False, "256"),
    ],
)
def test_the_colors_of_a_stream_are_detected(
    environ: dict[str, str], is_terminal: bool, colors: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TERM", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (environ | {"COLUMNS": "57"}).items():
        monkeypatch.setenv(name, value)
    console = console_of(Terminal() if is_terminal else io.StringIO())
    assert (console.color_system, console.width) == (colors, 57)
    assert "% correct" in legend_text(console)


def test_lightness_rises_with_the_share_and_numbers_can_be_read_on_every_color() -> None:
    def luminance(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    found = [luminance(_color(i / 100)) for i in range(101)]
    assert found == sorted(found)
    for i, back in enumerate(found):
        letters = 0.0 if i >= 50 else 1.0
        assert (max(back, letters) + 0.05) / (min(back, letters) + 0.05) >= 4.5
