"""Displays tables: in a terminal, in Markdown, in LaTeX, in a notebook."""

import re
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from textwrap import wrap

from numerate.reports.grid import format_interval, format_percent
from numerate.reports.table import markdown_table, text_table, text_width
from numerate.tables.rows import BaseTable, Column, Row, TableT, Value

MAX_TEXT_LENGTH = 60
"""Maximum length of texts in columns that were not requested, if the table is wider than the terminal; longer ones are
cut."""


def to_text(table: BaseTable, width: int | None = None, max_rows: int | None = None) -> str:
    """Aligned columns, as many side by side as fit into `width`, the others below with identifying columns repeated;
    the first `max_rows` rows; then the notes."""
    shown = default_view(table)
    names, rows, num_hidden = _format_rows(shown, max_rows)
    if not shown.columns:
        return "no columns"
    if table.make_view is not None and width is not None and _table_width(names, rows, range(len(names))) > width:
        rows = [
            [text if len(text) <= MAX_TEXT_LENGTH else f"{text[: MAX_TEXT_LENGTH - 3]}..." for text in row]
            for row in rows
        ]
    blocks = [
        text_table([names[i] for i in block], [[row[i] for i in block] for row in rows])
        for block in _column_blocks(shown, names, rows, width)
    ]
    notes = [
        line
        for note in _notes(shown, len(rows), num_hidden)
        for line in wrap(note, max(width or 10**6, 40), break_long_words=False)
    ]
    return "\n\n".join([*blocks, *(["\n".join(notes)] if notes else [])])


def to_markdown(table: BaseTable) -> str:
    """A Markdown table, with its notes as a paragraph below."""
    shown = default_view(table)
    names, rows, _ = _format_rows(shown, None)
    return "\n\n".join([markdown_table(names, rows), *(["\n".join(shown.notes)] if shown.notes else [])])


def to_latex(table: BaseTable) -> str:
    """A LaTeX tabular with the rules of booktabs, numbers aligned right; its notes as comments below."""
    shown = default_view(table)
    names, rows, _ = _format_rows(shown, None)
    align = "".join("r" if column.type in (int, float) else "l" for column in shown.columns)
    lines = [" & ".join(_escape_latex(text) for text in row) + r" \\" for row in (names, *rows)]
    body = [rf"\begin{{tabular}}{{{align}}}", r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
    return "\n".join([*body, r"\end{tabular}", *(f"% {single_line(note)}" for note in shown.notes)])


_DECIMAL = re.compile(r"-?[\d,]+\.\d+")

_LATEX_ESCAPES = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "[": "{[}",  # these two would belong to the line break before them
    "*": "{*}",
}


def _escape_latex(text: str) -> str:
    """A text with LaTeX's special characters escaped."""
    return "".join(_LATEX_ESCAPES.get(letter, letter) for letter in text)


def to_html(table: BaseTable, max_rows: int | None = None) -> str:
    """A plain HTML table, for notebooks."""
    shown = default_view(table)
    names, rows, left = _format_rows(shown, max_rows)
    numbers = [column.type in (int, float) for column in shown.columns]

    def line(tag: str, cells: Sequence[str]) -> str:
        style = [' style="text-align: right"' if number else ' style="text-align: left"' for number in numbers]
        inner = "".join(f"<{tag}{how}>{escape(cell)}</{tag}>" for cell, how in zip(cells, style, strict=True))
        return f"<tr>{inner}</tr>"

    body = "".join(line("td", row) for row in rows)
    notes = "".join(f"<p>{escape(note)}</p>" for note in _notes(shown, len(rows), left))
    return f"<table><thead>{line('th', names)}</thead><tbody>{body}</tbody></table>{notes}"


def default_view(table: TableT) -> TableT:
    """The table to display: its view, or the table itself if columns were selected."""
    return table if table.make_view is None else table.make_view(table)


def select_informative_columns(table: TableT) -> TableT:
    """Selects identifying and default columns, and the status if not all runs are done. A setting that is the same in
    all rows of a label is omitted: the label implies it."""
    rows = list(table.rows)
    values = [[row[i] for row in rows] for i in range(len(table.columns))]
    names = table.names
    labels = values[names.index("label")] if "label" in names else []
    identifiers = {
        i
        for i, column in enumerate(table.columns)
        if column.is_identifier and column.name != "run" and _varies(values[i])
    }
    if "label" in names and names.index("label") in identifiers:
        identifiers -= {
            i for i in identifiers if names[i] not in ("label", "seed") and is_determined_by(values[i], labels)
        }
    if not identifiers:
        identifiers = {i for i, name in enumerate(names) if name in ("label", "seed")}
    if "status" in names and any(value != "done" for value in values[names.index("status")]):
        identifiers.add(names.index("status"))
    default_columns = {
        i for i, column in enumerate(table.columns) if column.is_default and any(v is not None for v in values[i])
    }
    selected = [
        i
        for i, column in enumerate(table.columns)
        if i in identifiers or (i in default_columns if default_columns else column.is_default)
    ]
    return replace(
        table,
        columns=tuple(table.columns[i] for i in selected),
        rows=[tuple(row[i] for i in selected) for row in rows],
        make_view=None,
    )


def format_value(column: Column, value: Value) -> str:
    """One value as text: proportions in per cent, counts with commas."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return single_line(value)
    if column.display_format == "share":
        text = format_percent(value)
        return f"{text} %" if "." in text or value in (0.0, 1.0) else f"{text}.0 %"
    if column.display_format == "count":
        return f"{value:,}"
    if column.display_format == "number":
        return _format_number(value)
    return str(value)


def single_line(text: str) -> str:
    """A text on one line, without control characters."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def format_value_with_interval(column: Column, value: float, low: float | None, high: float | None) -> str:
    """A value followed by an interval: `93.1 % [88, 97.4]`."""
    if low is None or high is None:
        return format_value(column, value)
    if column.display_format == "share":
        return f"{format_value(column, value)} {format_interval(low, high)}"
    middle, *ends = _align_decimals([_format_number(value), _format_number(low), _format_number(high)])
    return f"{middle} [{', '.join(ends)}]"


def _align_decimals(numbers: Sequence[str]) -> list[str]:
    """Decimals padded to the same number of places: `["7.58", "7.563"]` as `["7.580", "7.563"]`; other texts
    unchanged."""
    places = {n: len(n.partition(".")[2]) for n in numbers if _DECIMAL.fullmatch(n)}
    return [f"{n}{'0' * (max(places.values()) - places[n])}" if n in places else n for n in numbers]


def short_names(table: BaseTable) -> list[str]:
    """Settings by the ends of their paths if these are unique, as options accept them; others by their full paths."""
    ends = [re.sub(r".*?([^.]+(\.\d+)*)$", r"\1", name) for name in table.names]
    return [
        end if column.is_identifier and ends.count(end) == 1 else column.name
        for column, end in zip(table.columns, ends, strict=True)
    ]


def _format_number(value: float) -> str:
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1e6 or abs(value) < 1e-4:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _format_rows(shown: BaseTable, max_rows: int | None) -> tuple[list[str], list[list[str]], int]:
    """The names of the columns, the rows as texts, and the number of omitted rows."""
    rows: list[Row] = []
    left = 0
    for row in shown.rows:
        if max_rows is None or len(rows) < max_rows:
            rows.append(row)
        else:
            left += 1
    texts = [[format_value(column, value) for column, value in zip(shown.columns, row, strict=True)] for row in rows]
    return short_names(shown), texts, left


def _notes(shown: BaseTable, rows: int, left: int) -> list[str]:
    """The number of omitted rows, and the notes on the shown ones."""
    more = [f"... and {left:,} more {'row' if left == 1 else 'rows'}"] if left else []
    return [*more, *([] if rows else ["no rows"]), *(shown.notes if rows else ())]


def _column_blocks(
    shown: BaseTable, names: Sequence[str], rows: Sequence[Sequence[str]], width: int | None
) -> list[list[int]]:
    """The columns of each block that is displayed side by side."""
    every = list(range(len(names)))
    if width is None or _table_width(names, rows, every) <= width:
        return [every]
    num_leading = next((i for i, column in enumerate(shown.columns) if not column.is_identifier), len(names))
    while num_leading > 1 and _table_width(names, rows, range(num_leading)) > width // 2:
        num_leading -= 1
    first = every[:num_leading]
    blocks, block_width = [[*first]], _table_width(names, rows, first)
    for family in _group_by_prefix(shown.names, every[num_leading:]):
        starts_block = (
            block_width + 2 + _table_width(names, rows, family) > width
            and _table_width(names, rows, [*first, *family]) <= width
        )
        for i in family:
            more = _table_width(names, rows, [i]) + 2
            if (block_width + more > width or (starts_block and i == family[0])) and blocks[-1] != first:
                blocks.append([*first])
                block_width = _table_width(names, rows, first)
            blocks[-1].append(i)
            block_width += more
    return blocks


def _group_by_prefix(names: Sequence[str], columns: Sequence[int]) -> list[list[int]]:
    """Consecutive columns with a common prefix: `final.in_distribution`, `final.ood_test`."""
    found: list[list[int]] = []
    for i in columns:
        alike = found and "." in names[i] and names[found[-1][0]].partition(".")[0] == names[i].partition(".")[0]
        if alike:
            found[-1].append(i)
        else:
            found.append([i])
    return found


def _table_width(names: Sequence[str], rows: Sequence[Sequence[str]], columns: Sequence[int]) -> int:
    widths = [max(text_width(names[i]), *(text_width(row[i]) for row in rows), 0) for i in columns]
    return sum(widths) + 2 * max(0, len(widths) - 1)


def _varies(values: Sequence[Value]) -> bool:
    return any(value != values[0] for value in values)


def is_determined_by(values: Sequence[Value], labels: Sequence[Value]) -> bool:
    """Whether each label has only one value."""
    found: dict[Value, Value] = {}
    return all(found.setdefault(label, value) == value for label, value in zip(labels, values, strict=True))
