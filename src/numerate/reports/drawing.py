"""Elements of report pages: tables, lists of facts, links."""

from collections.abc import Mapping, Sequence
from html import escape
from urllib.parse import quote

from numerate.reports.limits import MAX_UNFOLDED_ROWS


def html_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    number_columns: Sequence[int] = (),
    monospace_columns: Sequence[int] = (),
) -> str:
    """A table; the columns in `number_columns` to the right, those in `monospace_columns` in fixed width. Cells are
    HTML already."""

    def mark(i: int) -> str:
        classes = ["num"] * (i in number_columns) + ["mono"] * (i in monospace_columns)
        return f' class="{" ".join(classes)}"' if classes else ""

    head = "".join(f"<th{mark(i)}>{cell}</th>" for i, cell in enumerate(header))
    body = "".join(
        "<tr>" + "".join(f"<td{mark(i)}>{cell}</td>" for i, cell in enumerate(row)) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table class="data"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def collapsible(body: str, rows: int, summary: str) -> str:
    """A long table folded under its summary; a shorter one as it is."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>" if rows > MAX_UNFOLDED_ROWS else body


def metadata_list(pairs: Mapping[str, str]) -> str:
    """A row of figures with their names, values as HTML."""
    return (
        '<dl class="facts">'
        + "".join(f"<div><dt>{escape(k)}</dt><dd>{v}</dd></div>" for k, v in pairs.items())
        + "</dl>"
    )


def csv_link(name: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A link that saves numbers as CSV, the data inside the page."""
    text = "\n".join(",".join(str(cell) for cell in row) for row in [header, *rows]) + "\n"
    data = quote(text, safe=",")
    return f'<a download="{escape(name)}" href="data:text/csv;charset=utf-8,{data}">the numbers as CSV</a>'
