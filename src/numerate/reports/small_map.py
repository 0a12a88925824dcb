"""A heat map as a picture inside a page: no numbers and nothing to point at, for many maps or large ones.

A cell of a table takes some 130 bytes of a page, one of a picture less than one."""

import struct
from base64 import b64encode
from functools import cache
from html import escape
from zlib import compress, crc32

from numerate.reports.colour import COLORMAP_DARK, COLORMAP_LIGHT, colormap
from numerate.reports.grid import PlotGrid


def map_image(grid: PlotGrid, name: str = "") -> str:
    """A grid as SVG around a picture of one pixel a cell, for light pages and for dark ones, the border of what was
    trained drawn over it."""
    height, width = len(grid.rows), len(grid.columns)
    pixels = [[_palette_index(grid, row, column) for column in grid.columns] for row in grid.rows]
    packed = b"".join(b"\0" + bytes(line) for line in pixels)  # no filter in any line
    pictures = "".join(
        f'<image class="{kind}" width="{width}" height="{height}" href="data:image/png;base64,{picture}"/>'
        for kind, picture in (
            ("light", _png(width, height, packed, COLORMAP_LIGHT)),
            ("dark", _png(width, height, packed, COLORMAP_DARK)),
        )
    )
    return (
        f'<svg class="small-map" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(name)}">'
        f'{pictures}<path class="frame" d="{_border_path(grid)}"/></svg>'
    )


def _palette_index(grid: PlotGrid, row: int, column: int) -> int:
    """The index of a cell's color in the palette: 0 is transparent, p + 1 is p per cent."""
    point = grid.points.get((row, column))
    return 0 if point is None else 1 + round(100 * point.score)


def _border_path(grid: PlotGrid) -> str:
    parts = []
    for i in range(len(grid.rows)):
        for j in range(len(grid.columns)):
            for side, path in (("top", f"M{j} {i}h1"), ("bottom", f"M{j} {i + 1}h1")):
                parts += [path] if grid.has_border(i, j, side) else []
            for side, path in (("left", f"M{j} {i}v1"), ("right", f"M{j + 1} {i}v1")):
                parts += [path] if grid.has_border(i, j, side) else []
    return "".join(parts)


def _png(width: int, height: int, packed: bytes, stops: tuple[str, ...]) -> str:
    """A picture of palette indices as PNG in base64, https://www.w3.org/TR/png-3/."""
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"PLTE", _palette(stops)), (b"tRNS", b"\0"), (b"IDAT", compress(packed, 9)))
    body = b"".join(_chunk(kind, data) for kind, data in (*chunks, (b"IEND", b"")))
    return b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc32(kind + data))


@cache
def _palette(stops: tuple[str, ...]) -> bytes:
    return bytes(part for color in ((0, 0, 0), *(colormap(p / 100, stops) for p in range(101))) for part in color)
