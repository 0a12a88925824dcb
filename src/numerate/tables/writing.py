"""Shows DataFrames of results as text, Markdown and LaTeX, and writes them to files.

In files for programs (CSV, Parquet, JSON lines) proportions are fractions, missing values are empty (null), and column
names are complete; tables for people have proportions in per cent and short names.
"""

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from numerate.errors import UserError, check_choice
from numerate.reports.grid import format_interval, format_percent
from numerate.reports.output_files import check_output_file, write_output
from numerate.reports.table import TextTable, text_table
from numerate.runs.study_folder import STUDY_FILE
from numerate.tables.selecting import display_format, is_identifier, plain_rows, short_names

if TYPE_CHECKING:
    from pandas import DataFrame

FORMATS = {".txt": "text", ".csv": "csv", ".md": "markdown", ".tex": "latex", ".jsonl": "jsonl", ".parquet": "parquet"}
"""The format of each file suffix."""

FORMATS_FOR_PEOPLE = ("text", "markdown", "latex")

MAX_TEXT_LENGTH = 60
"""Maximum length of texts in columns that were not requested, if the table is wider than the terminal; longer ones are
cut."""

_STUDY_FILES = (STUDY_FILE, "log.txt", "report.html", "figure.png")


def resolve_format(format: str | None, path: str | Path | None = None) -> str:
    """The format: as given, else by the suffix of the file, else text. Raises `UserError` for any other, for Parquet
    without a file, and for a file that is of another format."""
    suffix = None if path is None else Path(path).suffix.lower()
    if format is None and suffix is not None and suffix not in FORMATS:
        raise UserError(f"out: the suffix of {path} must be one of {', '.join(FORMATS)}, or say format=csv")
    found = format or (FORMATS[suffix] if suffix is not None else "text")
    check_choice("format", found, FORMATS.values())
    if path is not None:
        if _is_run_file(Path(path)):
            raise UserError(f"out: {path} is a file of a run or study and must not be replaced; give another name")
        check_output_file(path, found)
    elif found == "parquet":
        raise UserError("format: parquet is not for the terminal; for example out=results.parquet")
    return found


def write_table(frame: "DataFrame", path: str | Path, format: str | None = None, notes: Sequence[str] = ()) -> Path:
    """Writes a DataFrame of results to a file atomically, creating its parent folders, and returns the path.

    The format is that of the suffix (.txt, .csv, .md, .tex, .jsonl, .parquet) unless `format` is given. An existing
    file is replaced when the new one is complete. `notes` stand below a table for people.

    Raises `UserError` for an unknown suffix, for a path that is not writable, for a file written by a run or study, and
    for Parquet without pyarrow; `OperationalError` for a full disk.
    """
    path = Path(path)
    format = resolve_format(format, path)
    content = _parquet(frame) if format == "parquet" else render(frame, format, notes).encode(errors="backslashreplace")
    note = f"The previous content of {path.name} is unchanged." if path.exists() else ""
    return write_output(path, content, note)


def render(frame: "DataFrame", format: str, notes: Sequence[str] = ()) -> str:
    """A DataFrame of results as text with line ends, in any format except Parquet."""
    if format == "csv":
        bools = frame.select_dtypes(["bool", "boolean"]).columns
        written = frame.assign(**{name: frame[name].map({True: "true", False: "false"}) for name in bools})
        return str(written.to_csv(index=False, lineterminator="\n"))
    if format == "jsonl":
        return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in plain_rows(frame))
    if format == "latex":
        from numerate.tables.latex import to_latex

        return to_latex(list(frame.columns), *texts_of(frame), notes) + "\n"
    return {"text": to_text, "markdown": to_markdown}[format](frame, notes) + "\n"


def to_text(
    frame: "DataFrame",
    notes: Sequence[str] = (),
    width: int | None = None,
    max_rows: int | None = None,
    cut_texts: bool = False,
    num_keys: int | None = None,
) -> str:
    """Aligned columns, as many side by side as fit into `width`, the others below with identifying columns repeated;
    the first `max_rows` rows; then the notes. `cut_texts` shortens long texts in a table that is too wide. `num_keys`:
    how many columns are identifying, by default the leading ones that `is_identifier` names."""
    names, rows = texts_of(frame.head(max_rows) if max_rows is not None else frame)
    left = len(frame) - len(rows)
    if cut_texts and width is not None and TextTable(names, rows).width > width:
        rows = [
            [one if len(one) <= MAX_TEXT_LENGTH else f"{one[: MAX_TEXT_LENGTH - 3]}..." for one in row] for row in rows
        ]
    if num_keys is None:
        num_keys = next((i for i, name in enumerate(frame.columns) if not is_identifier(name)), len(names))
    more = [f"... and {left:,} more {'row' if left == 1 else 'rows'}"] if left else []
    below = [*more, *(notes if rows else ["no rows"])]
    lines = [line for note in below for line in wrap(note, max(width or 10**6, 40), break_long_words=False)]
    return "\n\n".join([text_table(names, rows, width, num_keys), *(["\n".join(lines)] if lines else [])])


def to_markdown(frame: "DataFrame", notes: Sequence[str] = ()) -> str:
    """A Markdown table, with its notes as a paragraph below."""
    return "\n\n".join([TextTable(*texts_of(frame)).to_markdown(), *(["\n".join(notes)] if notes else [])])


def format_value(name: str, value: Any) -> str:
    """One value of a column as text: proportions in per cent, counts with commas."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return single_line(value)
    kind = display_format(name)
    if kind == "share" and not 0 <= value <= 1:
        kind = "number"  # of a kind of evaluation with entries of its own
    if kind == "plain":
        return str(value)
    if kind == "share":
        text = format_percent(value)
        return f"{text} %" if "." in text or value in (0.0, 1.0) else f"{text}.0 %"
    return f"{value:,}" if isinstance(value, int) else _format_number(value)


def format_value_with_interval(name: str, value: float, low: float | None, high: float | None) -> str:
    """A value followed by an interval: `93.1 % [88, 97.4]`."""
    if display_format(name) == "share":
        interval = "" if low is None or high is None else f" {format_interval(low, high)}"
        return format_value(name, value) + interval
    if low is None or high is None:
        return _format_number(value)
    middle, *ends = _align_decimals([_format_number(value), _format_number(low), _format_number(high)])
    return f"{middle} [{', '.join(ends)}]"


def single_line(text: str) -> str:
    """A text on one line, without control characters."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def texts_of(frame: "DataFrame") -> tuple[list[str], list[list[str]]]:
    """The names of the columns and the rows as texts."""
    rows = [[format_value(name, value) for name, value in row.items()] for row in plain_rows(frame)]
    return short_names(list(frame.columns)), rows


def _parquet(frame: "DataFrame") -> bytes:
    buffer = io.BytesIO()
    try:
        frame.to_parquet(buffer, engine="pyarrow", index=False)
    except ImportError as error:
        raise UserError("format: parquet needs the package pyarrow; pip install 'numerate[tables]'") from error
    return buffer.getvalue()


def _is_run_file(path: Path) -> bool:
    """Whether a path is a file written by a run or study."""
    folder = path.absolute().parent
    if (folder / "recipe.yaml").is_file():
        return path.exists()
    return (folder / STUDY_FILE).is_file() and path.name in _STUDY_FILES


_DECIMAL = re.compile(r"-?[\d,]+\.\d+")


def _align_decimals(numbers: Sequence[str]) -> list[str]:
    """Decimals padded to the same number of places: `["7.58", "7.563"]` as `["7.580", "7.563"]`; other texts
    unchanged."""
    places = {n: len(n.partition(".")[2]) for n in numbers if _DECIMAL.fullmatch(n)}
    return [f"{n}{'0' * (max(places.values()) - places[n])}" if n in places else n for n in numbers]


def _format_number(value: float) -> str:
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1e6 or abs(value) < 1e-4:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
