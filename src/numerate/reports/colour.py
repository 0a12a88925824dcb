"""Colors of reports: one ramp for shares right, colors and marks of series, and what a terminal can show.

The ramp runs from a color near the page (nothing right) to the color farthest from it (everything right), with
lightness falling all the way, so that it survives color-blind eyes, grey printing and a dark page. The light ramp is
in the spirit of the yellow-green-blue one of the published Abacus maps. The colors of series were searched for: any
two are at least 0.12 apart in OKLab, with normal vision and without one kind of cone (the matrices of Machado et al.,
2009, https://doi.org/10.1109/TVCG.2009.113), on light pages and on dark ones.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

RGB = tuple[int, int, int]

COLORMAP_LIGHT: tuple[str, ...] = ("#f6f4ec", "#cfe5d0", "#7cc4bd", "#3a8fb7", "#24599c", "#12275c")
"""Equally spaced stops from 0 to 1 on a light page."""

COLORMAP_DARK: tuple[str, ...] = ("#20242f", "#28415f", "#2a6a80", "#3a9a8c", "#8fcb7c", "#f3ec9c")
"""Equally spaced stops from 0 to 1 on a dark page, and in a terminal."""

COLORMAP_DARK_256 = ("#262626", "#005f87", "#0087af", "#00af87", "#5faf87", "#87d787", "#afd787", "#d7ff87", "#ffffaf")
"""The dark ramp in colors that a 256-color terminal has; those nearest to `COLORMAP_DARK` would alternate in hue."""

SERIES = ("#083EA9", "#BD3D08", "#017C6D", "#E247BA", "#A69903", "#4B91FE", "#36006A", "#6A2E31")
"""Colors of series on a light page, in order."""

SERIES_DARK = ("#5071F6", "#D6550B", "#40D13E", "#DFB4C2", "#EEFC00", "#AFFFFF", "#A899F8", "#917883")
"""The same on a dark page."""

BORDER = "#D1242F"
"""The border of what was trained, red as in the published maps."""

BORDER_DARK = "#FF7B72"


def parse_hex_color(text: str) -> RGB:
    """Red, green and blue of a color of a web page.

    >>> parse_hex_color("#0072B2")
    (0, 114, 178)
    """
    return int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16)


def colormap(fraction: float, stops: tuple[str, ...] = COLORMAP_LIGHT) -> RGB:
    """The color of a share from 0 to 1, linear in sRGB between the stops."""
    position = min(max(fraction, 0.0), 1.0) * (len(stops) - 1)
    i = min(int(position), len(stops) - 2)
    low, high, part = parse_hex_color(stops[i]), parse_hex_color(stops[i + 1]), position - i
    red, green, blue = (round(a + (b - a) * part) for a, b in zip(low, high, strict=True))
    return red, green, blue


def luminance(color: RGB) -> float:
    """Relative luminance from 0 (black) to 1 (white), WCAG 2.2."""
    parts = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in color]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: RGB, other: RGB) -> float:
    """Contrast of two colors from 1 (none) to 21, WCAG 2.2; text is readable from 4.5 on."""
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def text_color(background: RGB) -> RGB:
    """The color of text on a colored cell: black or white, whichever reads better (always at least 4.5 to 1)."""
    black, white = (0, 0, 0), (255, 255, 255)
    return max(black, white, key=lambda color: contrast(color, background))


def format_hex_color(color: RGB) -> str:
    """The inverse of `parse_hex_color`.

    >>> format_hex_color((0, 114, 178))
    '#0072b2'
    """
    return "#{:02x}{:02x}{:02x}".format(*color)


MARKER_SHAPES = ("circle", "square", "diamond", "triangle", "triangle down", "plus")
"""The marks of series; each has a dash pattern too."""

DASHES: tuple[tuple[float, ...], ...] = (
    (),
    (4.0, 1.6),
    (1.2, 1.3),
    (6.0, 1.5, 1.2, 1.5),
    (2.2, 1.2),
    (4.0, 1.2, 1.2, 1.2, 1.2, 1.2),
)
"""The dash pattern of each shape, in line widths."""

BASELINE_DASHES = (1.4, 1.8)
"""The dash pattern of a baseline."""


@dataclass(frozen=True)
class Style:
    """The style of a series: `color` indexes `SERIES`, `marker` indexes `MARKER_SHAPES`. In a legend None is
    neutral."""

    color: int | None = 0
    marker: int | None = 0

    @property
    def dashes(self) -> tuple[float, ...]:
        return DASHES[self.marker or 0]


def split_labels(labels: Sequence[str]) -> tuple[list[str], list[str]] | None:
    """The first parts and the second parts of labels such as "T5: xVal", each once, where series share them."""
    pairs = [label.split(": ", 1) for label in labels]
    if not all(len(pair) == 2 for pair in pairs):
        return None
    first, second = (list(dict.fromkeys(pair[i] for pair in pairs)) for i in (0, 1))
    crossed = len(first) > 1 and len(second) < len(labels)
    most, fewest = max(len(first), len(second)), min(len(first), len(second))
    return (first, second) if crossed and most <= len(SERIES) and fewest <= len(MARKER_SHAPES) else None


def are_distinguishable(labels: Sequence[str]) -> bool:
    """Whether the styles are distinguishable: no color is used for two series, or for two parts of labels."""
    return len(labels) <= len(SERIES) or split_labels(labels) is not None


def assign_styles(labels: Sequence[str]) -> dict[str, Style]:
    """A style for each label.

    Labels of two parts that several share ("T5: cross-entropy", "decoder: cross-entropy") have the color of one part
    and the shape of the other; the part with more values has the colors. Others have a color and a shape each.

    >>> assign_styles(["T5: CE", "T5: WAS", "decoder: CE"])["decoder: CE"]
    Style(color=0, marker=1)
    """
    parts = split_labels(labels)
    if parts is None:  # repeated colors have other shapes
        count = len(SERIES)
        return {label: Style(i % count, (i + i // count) % len(MARKER_SHAPES)) for i, label in enumerate(labels)}
    indices = {
        label: [part.index(one) for part, one in zip(parts, label.split(": ", 1), strict=True)] for label in labels
    }
    by_color = 1 if len(parts[1]) >= len(parts[0]) else 0
    return {label: Style(pair[by_color], pair[1 - by_color]) for label, pair in indices.items()}


LegendEntry = tuple[str, Style | None]
"""A text and its style; a baseline has None."""


def legend_entries(labels: Sequence[str]) -> list[LegendEntry]:
    """The entries of a legend: each label, or of labels with two parts the colors first and then the shapes.

    >>> legend_entries(["T5: CE", "T5: WAS", "decoder: CE"])[-1]
    ('decoder', Style(color=None, marker=1))
    """
    parts = split_labels(labels)
    if parts is None:
        return list(assign_styles(labels).items())
    colors, markers = (parts[1], parts[0]) if len(parts[1]) >= len(parts[0]) else parts
    return [
        *((name, Style(i, None)) for i, name in enumerate(colors)),
        *((name, Style(None, i)) for i, name in enumerate(markers)),
    ]


@dataclass(frozen=True)
class TerminalStyle:
    """What a terminal can show: how many colors (0, 256 or 2**24), box-drawing letters or only ASCII, columns."""

    num_colors: int = 0
    unicode: bool = True
    width: int = 100

    @classmethod
    def from_stream(cls, stream: TextIO, environ: Mapping[str, str] | None = None) -> "TerminalStyle":
        """Looks at a stream and the environment. Color needs a terminal that is not "dumb" and no NO_COLOR
        (https://no-color.org); FORCE_COLOR asks for it without a terminal."""
        env = os.environ if environ is None else environ
        try:
            "┃█·".encode(stream.encoding or "ascii")
            unicode = True
        except (UnicodeEncodeError, LookupError):
            unicode = False
        try:
            columns = os.get_terminal_size(stream.fileno()).columns
        except (OSError, ValueError, AttributeError):
            columns = int(env["COLUMNS"]) if env.get("COLUMNS", "").isdigit() else 100
        terminal = stream.isatty() and env.get("TERM") != "dumb"
        if env.get("NO_COLOR") or not (terminal or env.get("FORCE_COLOR")):
            return cls(0, unicode, columns or 100)
        full = env.get("COLORTERM", "").lower() in ("truecolor", "24bit")
        return cls(2**24 if full else 256, unicode, columns or 100)

    def colormap(self, share: float) -> RGB:
        """The color of a share on this terminal."""
        if self.num_colors > 256:
            return colormap(share, COLORMAP_DARK)
        return parse_hex_color(COLORMAP_DARK_256[round(min(max(share, 0.0), 1.0) * (len(COLORMAP_DARK_256) - 1))])

    def colorize(
        self, text: str, *, foreground: RGB | None = None, background: RGB | None = None, bold: bool = False
    ) -> str:
        """Text with escape codes for its colors; without them where the terminal shows none."""
        if not self.num_colors or not text:
            return text
        from rich.color import Color, ColorSystem
        from rich.style import Style

        color, bgcolor = (rgb and Color.from_rgb(*rgb) for rgb in (foreground, background))
        system = ColorSystem.TRUECOLOR if self.num_colors > 256 else ColorSystem.EIGHT_BIT
        return Style(color=color, bgcolor=bgcolor, bold=bold or None).render(text, color_system=system)
