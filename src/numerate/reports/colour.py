"""Colors of reports: one ramp for shares right, colors and marks of series.

The ramp runs from a color near the page (nothing right) to the color farthest from it (everything right), with
lightness falling all the way, so that it survives color-blind eyes, grey printing and a dark page. The light ramp is
in the spirit of the yellow-green-blue one of the published Abacus maps. The colors of series were searched for: any
two are at least 0.12 apart in OKLab, with normal vision and without one kind of cone (the matrices of Machado et al.,
2009, https://doi.org/10.1109/TVCG.2009.113), on light pages and on dark ones.
"""

RGB = tuple[int, int, int]

COLORMAP_LIGHT: tuple[str, ...] = ("#f6f4ec", "#cfe5d0", "#7cc4bd", "#3a8fb7", "#24599c", "#12275c")
"""Equally spaced stops from 0 to 1 on a light page."""

COLORMAP_DARK: tuple[str, ...] = ("#20242f", "#28415f", "#2a6a80", "#3a9a8c", "#8fcb7c", "#f3ec9c")
"""Equally spaced stops from 0 to 1 on a dark page, and in a terminal."""


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


def text_color(background: RGB) -> RGB:
    """The color of text on a colored cell: black or white, whichever has more contrast (at least 4.5 to 1)."""
    return (0, 0, 0) if luminance(background) > 0.179 else (255, 255, 255)


def format_hex_color(color: RGB) -> str:
    """The inverse of `parse_hex_color`.

    >>> format_hex_color((0, 114, 178))
    '#0072b2'
    """
    return "#{:02x}{:02x}{:02x}".format(*color)
