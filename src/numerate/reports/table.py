"""Tables as aligned text and as Markdown."""

import re
from collections.abc import Sequence

_NUMBER = re.compile(r"[<>-]?\d[\d.,]*( ?%)?( \[.*\])?$")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def text_width(text: str) -> int:
    """Columns that a text takes in a terminal, color codes not counted."""
    return len(_ESCAPE.sub("", text))


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned for a terminal, numbers to the right.

    >>> print(text_table(["region", "right"], [["in distribution", "99.8 %"], ["OOD test", "7 %"]]))
    region            right
    ---------------  ------
    in distribution  99.8 %
    OOD test            7 %
    """
    right = _number_columns(header, rows)
    widths = [max(text_width(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [_format_line(header, widths, right), "  ".join("-" * width for width in widths)]
    return "\n".join([*lines, *(_format_line(row, widths, right) for row in rows)])


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same as a Markdown table, `|` in a cell escaped.

    >>> print(markdown_table(["a", "b"], [["x|y", "2"]]))
    | a | b |
    |:--|--:|
    | x\\|y | 2 |
    """
    right = _number_columns(header, rows)
    lines = [list(header), *(list(row) for row in rows)]
    text = ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines]
    rule = "|" + "|".join("--:" if aligned else ":--" for aligned in right) + "|"
    return "\n".join([text[0], rule, *text[1:]])


def side_by_side(blocks: Sequence[str], width: int, gap: int = 4) -> str:
    """Blocks of lines side by side if they fit into `width` columns, otherwise below each other."""
    if not blocks:
        return ""
    split_blocks = [block.split("\n") for block in blocks]
    widths = [max(text_width(line) for line in lines) for lines in split_blocks]
    rows: list[list[int]] = [[]]
    for i, wide in enumerate(widths):
        used = sum(widths[j] + gap for j in rows[-1])
        if rows[-1] and used + wide > width:
            rows.append([])
        rows[-1].append(i)
    return "\n\n".join(_join_row([split_blocks[i] for i in shelf], [widths[i] for i in shelf], gap) for shelf in rows)


def _join_row(blocks: Sequence[Sequence[str]], widths: Sequence[int], gap: int) -> str:
    lines = []
    for i in range(max(len(block) for block in blocks)):
        parts = [block[i] if i < len(block) else "" for block in blocks]
        padded = [part + " " * (wide - text_width(part)) for part, wide in zip(parts, widths, strict=True)]
        lines.append((" " * gap).join(padded).rstrip())
    return "\n".join(lines)


def _number_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    columns = [[row[i] for row in rows if row[i].strip()] for i in range(len(header))]
    return [bool(column) and all(_NUMBER.fullmatch(_ESCAPE.sub("", cell)) for cell in column) for column in columns]


def _format_line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    parts = [
        " " * (width - text_width(cell)) + cell if aligned else cell + " " * (width - text_width(cell))
        for cell, width, aligned in zip(cells, widths, right, strict=True)
    ]
    return "  ".join(parts).rstrip()
