"""What a section of a page may hold, described as data: tables, notes, lists, folded parts, and drawn figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

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
class Bullets:
    """A list of sentences."""

    items: Sequence[str]


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


Block = TextTable | Note | Heading | Bullets | Facts | Code | Folded | Markup
Content = Sequence[Block]
"""The blocks of a section in order; an empty sequence leaves the section out. `Markup` is a drawn figure."""
