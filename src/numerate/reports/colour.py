"""Colours of reports: one ramp for shares right, a few colours for series, and what a terminal can show.

The ramp runs from a colour near the page (nothing right) to the colour farthest from it (everything right), with
lightness falling all the way, so that it survives colour-blind eyes, grey printing and a dark page. The light ramp is
in the spirit of the yellow-green-blue one of the published Abacus maps. The colours of series were searched for: any
two are at least 0.12 apart in OKLab, with normal vision and without one kind of cone (the matrices of Machado et al.,
2009, https://doi.org/10.1109/TVCG.2009.113), on light pages and on dark ones.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

Colour = tuple[int, int, int]

LIGHT: tuple[str, ...] = ("#f6f4ec", "#cfe5d0", "#7cc4bd", "#3a8fb7", "#24599c", "#12275c")
"""Equally spaced stops from 0 to 1 on a light page."""

DARK: tuple[str, ...] = ("#20242f", "#28415f", "#2a6a80", "#3a9a8c", "#8fcb7c", "#f3ec9c")
"""Equally spaced stops from 0 to 1 on a dark page, and in a terminal."""

DARK_256 = ("#262626", "#005f87", "#0087af", "#00af87", "#5faf87", "#87d787", "#afd787", "#d7ff87", "#ffffaf")
"""The dark ramp in colours that a 256-colour terminal has; those nearest to `DARK` would change hue to and fro."""

SERIES = ("#083EA9", "#BD3D08", "#017C6D", "#E247BA", "#A69903", "#4B91FE", "#36006A", "#6A2E31")
"""Colours of series on a light page, in order."""

SERIES_DARK = ("#5071F6", "#D6550B", "#40D13E", "#DFB4C2", "#EEFC00", "#AFFFFF", "#A899F8", "#917883")
"""The same on a dark page."""

FRAME = "#D1242F"
"""The border of what was trained, red as in the published maps."""

FRAME_DARK = "#FF7B72"


def rgb(text: str) -> Colour:
    """`rgb("#0072B2")` is (0, 114, 178)."""
    return int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16)


def ramp(share: float, stops: tuple[str, ...] = LIGHT) -> Colour:
    """The colour of a share from 0 to 1, linear in sRGB between the stops."""
    at = min(max(share, 0.0), 1.0) * (len(stops) - 1)
    i = min(int(at), len(stops) - 2)
    low, high, part = rgb(stops[i]), rgb(stops[i + 1]), at - i
    red, green, blue = (round(a + (b - a) * part) for a, b in zip(low, high, strict=True))
    return red, green, blue


def luminance(colour: Colour) -> float:
    """Relative luminance from 0 (black) to 1 (white), WCAG 2.2."""
    parts = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: Colour, other: Colour) -> float:
    """Contrast of two colours from 1 (none) to 21, WCAG 2.2; text is readable from 4.5 on."""
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def ink(paper: Colour) -> Colour:
    """The colour of text on a coloured cell: black or white, whichever reads better (always at least 4.5 to 1)."""
    black, white = (0, 0, 0), (255, 255, 255)
    return max(black, white, key=lambda colour: contrast(colour, paper))


def hexadecimal(colour: Colour) -> str:
    """`hexadecimal((0, 114, 178))` is "#0072b2"."""
    return "#" + "".join(f"{part:02x}" for part in colour)


@dataclass(frozen=True)
class TerminalStyle:
    """What a terminal can show: how many colours (0, 256 or 2**24), box-drawing letters or only ASCII, columns."""

    colours: int = 0
    unicode: bool = True
    width: int = 100

    @classmethod
    def of(cls, stream: TextIO, environ: Mapping[str, str] | None = None) -> "TerminalStyle":
        """Looks at a stream and the environment. Colour needs a terminal that is not "dumb" and no NO_COLOR
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

    def ramp(self, share: float) -> Colour:
        """The colour of a share on this terminal."""
        if self.colours > 256:
            return ramp(share, DARK)
        return rgb(DARK_256[round(min(max(share, 0.0), 1.0) * (len(DARK_256) - 1))])

    def paint(self, text: str, *, front: Colour | None = None, back: Colour | None = None, bold: bool = False) -> str:
        """Text with escape codes for its colours; without them where the terminal shows none."""
        if not self.colours or not text:
            return text
        codes = ["1"] * bold
        codes += [f"{layer};{self._code(colour)}" for layer, colour in ((38, front), (48, back)) if colour is not None]
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if codes else text

    def _code(self, colour: Colour) -> str:
        if self.colours > 256:
            return f"2;{colour[0]};{colour[1]};{colour[2]}"
        return f"5;{nearest_of_256(colour)}"


def nearest_of_256(colour: Colour) -> int:
    """The nearest of the 6 x 6 x 6 cube and the 24 greys of a 256-colour terminal: red (255, 0, 0) is 196."""
    levels = (0, 95, 135, 175, 215, 255)
    near = [min(range(6), key=lambda i: abs(levels[i] - part)) for part in colour]
    cube = (levels[near[0]], levels[near[1]], levels[near[2]])
    grey = min(range(24), key=lambda i: sum(abs(8 + 10 * i - part) for part in colour))
    flat = (8 + 10 * grey,) * 3

    def apart(other: tuple[int, ...]) -> int:
        return sum((a - b) ** 2 for a, b in zip(colour, other, strict=True))

    return 232 + grey if apart(flat) < apart(cube) else 16 + 36 * near[0] + 6 * near[1] + near[2]
