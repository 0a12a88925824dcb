"""What a section may hold, described as data: tables, figures, notes, lists, folded parts.

`html_writer` writes it on pages and `terminal_writer` in a terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from numerate.reports.figure import Figure
from numerate.reports.table import TextTable


@dataclass(frozen=True)
class Note:
    """A paragraph below a table or a figure."""

    text: str


@dataclass(frozen=True)
class Heading:
    """A heading inside a section."""

    text: str


@dataclass(frozen=True)
class Facts:
    """Numbers with their names, side by side."""

    values: Mapping[str, str]


@dataclass(frozen=True)
class Code:
    """Text in fixed width, such as commands, one a line."""

    text: str


@dataclass(frozen=True)
class Folded:
    """Content under a summary that opens it."""

    summary: str
    content: "Content"
    is_open: bool = False


Block = TextTable | Figure | Note | Heading | Facts | Code | Folded | Markup
Content = Sequence[Block]
"""The blocks of a section in order. `Markup` is what only a page can show."""


def without_empty_blocks(content: Content) -> Content:
    """The content without tables that have no rows and figures that have nothing to draw."""
    return [
        block
        for block in content
        if not (isinstance(block, TextTable) and not block.rows)
        and not (isinstance(block, Figure) and not block.drawn_panels)
    ]
