"""Tables, described once and written as aligned text, as Markdown, and as HTML by the templates of pages."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

from numerate.terminal import wrapped

_NUMBER = re.compile(r"[<>+-]?\d[\d.,]*(?:e[+-]\d+)?(?: ?%)?(?: \[[^\n]*\])?(?:\n.*)?", re.DOTALL)
_MIN_HEADER, _MIN_TEXT = 10, 20
"""Columns of a terminal that a folded header and a folded text have at least."""

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class TextTable:
    """A table of texts, with a caption; columns that hold only numbers are aligned to the right.

    On a page an interval in brackets at the end of a cell and every line after the first are grey, cells of the columns
    `monospace` are in fixed width, and many rows are folded. `style` names classes of the style sheet. A cell that is
    `markupsafe.Markup` is HTML.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    style: str = ""
    monospace: Sequence[int] = ()

    @cached_property
    def number_columns(self) -> list[bool]:
        """Of each column whether it holds numbers alone."""
        columns = ([row[i] for row in self.rows if row[i].strip()] for i in range(len(self.header)))
        return [bool(column) and all(_NUMBER.fullmatch(_ESCAPE.sub("", cell)) for cell in column) for column in columns]

    @cached_property
    def widths(self) -> list[int]:
        """The columns of a terminal that each column takes."""
        columns = zip(self.header, *self.rows, strict=True)
        return [max(text_width(line) for cell in column for line in cell.split("\n")) for column in columns]

    @property
    def width(self) -> int:
        return sum(self.widths) + 2 * (len(self.widths) - 1)

    def to_text(self, width: int | None = None, num_keys: int = 1) -> str:
        """Columns aligned for a terminal, without the caption. In a table that is wider than `width`, headers and long
        texts are in several lines; the columns that still do not fit are below with the first `num_keys` repeated."""
        table = self if width is None or self.width <= width else self._narrowed(width)
        rows = (table.header, *table.rows)
        blocks = _column_blocks(table.widths, width, num_keys)
        return "\n\n".join(_aligned(*([row[i] for i in block] for row in rows)) for block in blocks)

    def _narrowed(self, width: int) -> "TextTable":
        """The table with headers in several lines where they are wider than their cells, then the longest texts."""
        header, rows = list(self.header), [list(row) for row in self.rows]
        for i, name in enumerate(header):
            header[i] = _fold(name, max([_MIN_HEADER, *TextTable(("",), [(row[i],) for row in rows]).widths]))
        texts = {i for i, is_number in enumerate(self.number_columns) if not is_number}
        while texts and (excess := (table := TextTable(header, rows)).width - width) > 0:
            longest = max(texts, key=table.widths.__getitem__)
            for row in rows:
                row[longest] = _fold(row[longest], max(_MIN_TEXT, table.widths[longest] - excess))
            texts.remove(longest)
        return TextTable(header, rows)

    def to_markdown(self) -> str:
        r"""A Markdown table without the caption.

        >>> print(TextTable(["a", "b"], [["x|y", "2"]]).to_markdown())
        | a | b |
        |:--|--:|
        | x\|y | 2 |
        """
        rule = ["--:" if right else ":--" for right in self.number_columns]
        lines = [
            [f" {cell} ".replace("|", "\\|").replace("\n", " ") for cell in line] for line in (self.header, *self.rows)
        ]
        return "\n".join("|" + "|".join(line) + "|" for line in (lines[0], rule, *lines[1:]))


def text_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None, num_keys: int = 1
) -> str:
    """Columns aligned for a terminal, numbers to the right; see `TextTable.to_text`.

    >>> print(text_table(["region", "right"], [["in distribution", "99.8 %"], ["OOD test", "7 %"]]))
    region            right
    ---------------  ------
    in distribution  99.8 %
    OOD test            7 %
    """
    return TextTable(header, rows).to_text(width, num_keys)


def _aligned(header: Sequence[str], *rows: Sequence[str]) -> str:
    """Columns side by side, a rule below the header, numbers to the right."""
    table = TextTable(header, rows)
    cells = ([cell.split("\n") for cell in line] for line in (header, *rows))
    lines = [list(line) for row in cells for line in zip_longest(*row, fillvalue="")]
    lines.insert(max(cell.count("\n") for cell in header) + 1, ["-" * width for width in table.widths])
    columns = list(zip(table.widths, table.number_columns, strict=True))
    return "\n".join(
        "  ".join(_pad(cell, *of) for cell, of in zip(line, columns, strict=True)).rstrip() for line in lines
    )


def _fold(text: str, width: int) -> str:
    return "\n".join(wrapped(line, width) for line in text.split("\n"))


def _column_blocks(widths: Sequence[int], width: int | None, num_keys: int) -> list[list[int]]:
    """The columns of each block that is displayed side by side: keys are repeated if they leave two fifths of it."""
    while num_keys > 1 and width is not None and sum(widths[:num_keys]) + 2 * (num_keys - 1) > width * 3 // 5:
        num_keys -= 1
    if width is None or sum(widths) + 2 * (len(widths) - 1) <= width:
        num_keys = 0
    blocks = [list(range(num_keys))]
    for i in range(num_keys, len(widths)):
        block = [*blocks[-1], i]
        if width is not None and len(block) > num_keys + 1 and sum(widths[j] + 2 for j in block) - 2 > width:
            blocks.append([*range(num_keys), i])
        else:
            blocks[-1] = block
    return blocks


def text_width(text: str) -> int:
    """Columns that a text takes in a terminal, color codes not counted."""
    return len(_ESCAPE.sub("", text))


def _rows(shelf: Sequence[Sequence[str]]) -> Iterator[Sequence[str]]:
    """The lines of padded blocks side by side, shorter blocks filled up with empty lines."""
    empty = [" " * text_width(lines[0]) for lines in shelf]
    for i in range(max(map(len, shelf))):
        yield [lines[i] if i < len(lines) else blank for lines, blank in zip(shelf, empty, strict=True)]


def _pad(text: str, width: int, at_end: bool = False) -> str:
    space = " " * (width - text_width(text))
    return space + text if at_end else text + space
