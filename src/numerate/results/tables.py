"""Tables for people and for programs: text fitted to a terminal, Markdown, LaTeX, CSV, JSON lines, Parquet."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from numerate.errors import UserError, check_choice, pluralize
from numerate.records.heads import RECIPE_FILE
from numerate.results.rows import REGIONS
from numerate.results.runs import group_keys, group_rows, success_column, value_columns
from numerate.results.selecting import (
    column_of,
    differing_within,
    informative_columns,
    is_identifier,
    is_shown,
    plain_values,
    setting_columns,
    sort_rows,
    split_name,
)
from numerate.results.summary import MIN_SEEDS, SUCCESS, is_lower_better, reported
from numerate.results.words import joined, number, percent, value_text
from numerate.runs.study_folder import STUDY_FILE
from numerate.terminal import NUMBER, text_table
from numerate.training.output_files import check_output_file, write_output

if TYPE_CHECKING:
    from pandas import DataFrame

FORMATS = {".txt": "text", ".csv": "csv", ".md": "markdown", ".tex": "latex", ".jsonl": "jsonl", ".parquet": "parquet"}
"""The formats of tables by the suffix of their file."""

FORMATS_FOR_PEOPLE = ("text", "markdown", "latex")

Interval = tuple[float, float, float]
"""A value with the ends of its interval."""


class Table(NamedTuple):
    """A table for people: its texts, the intervals of columns that have some, and notes below; on a page it is folded
    under the words of `fold`, if any. `num_keys` columns on the left tell rows apart."""

    texts: "DataFrame"
    intervals: Mapping[str, Sequence[Interval | None]] = {}
    notes: Sequence[str] = ()
    num_keys: int = 1
    fold: str = ""

    @property
    def is_number(self) -> list[bool]:
        """Which columns hold numbers, which are aligned right."""
        columns = [[text for text in self.texts[name] if text] for name in self.texts]
        return [bool(texts) and all(map(NUMBER.fullmatch, texts)) for texts in columns]


def pivot(found: "DataFrame", rows: Sequence[str], column: str, *, success: bool = False) -> "DataFrame":
    """A summary as texts, `90.5 [85.6, 93.8]`, with a row for each value of some of its columns and a column for each
    value of another; with `success`, how many seeds succeeded."""
    texts = [value_text(*one) for one in found[["metric", "value", "low", "high"]].itertuples(index=False)]
    if success:
        rates = [f"{round(rate * seeds)}/{seeds}" for rate, seeds in zip(found["success"], found["seeds"], strict=True)]
        texts = [f"{text} · {rate}" for text, rate in zip(texts, rates, strict=True)]
    table = found[list(rows)].assign(column=found[column], text=texts)
    wide = table.pivot_table(index=list(rows), columns="column", values="text", aggfunc="first", sort=False)
    return wide.reset_index().rename_axis(columns=None).fillna("")


# What a table says ----------------------------------------------------------------------------------------------------


def table_of(frame: "DataFrame", notes: Sequence[str] = ()) -> Table:
    """The columns of a frame as texts, shares in per cent, results with the ends of their intervals in brackets."""
    from pandas import DataFrame

    texts: dict[str, list[str]] = {}
    intervals: dict[str, Sequence[Interval | None]] = {}
    names = list(frame.columns)
    for name in names:
        if split_name(name)[3] in ("low", "high") and name.rpartition(".")[0] in names:
            continue
        ends = [f"{name}.{end}" for end in ("low", "high")]
        known = [plain_values(frame[one]) for one in [name, *(ends if {*ends} <= {*names} else ())]]
        texts[header(name)] = [cell_text(name, *one) for one in zip(*known, strict=True)]
        if len(known) > 1:
            rows = zip(*known, strict=True)
            intervals[header(name)] = [None if None in one else one for one in rows]
    num_keys = next((i for i, name in enumerate(names) if not is_identifier(name)), len(names))
    return Table(DataFrame(texts, dtype="str"), intervals, notes, num_keys)


def table_of_runs(runs: "DataFrame") -> Table:
    """The runs of a study as people want them: what tells them apart, the main results, and notes on what they mean and
    on runs that are missing."""
    shown = informative_columns(runs)
    last = "Results are of the last checkpoint; columns=best has those of the best one on OOD validation."
    notes = [*[last] * any(split_name(name)[0] for name in shown), *_meanings(shown), *_non_causal(runs)]
    if "plan" in runs:
        earlier = int((runs["plan"] == "earlier").sum())
        notes.append(f"{earlier:,} of earlier plans, not of the current one; where=plan=current leaves them out")
    counts = runs["status"].value_counts()
    if counts.get("done", 0) < len(runs):
        counted = [f"{counts[name]:,} {name}" for name in ("done", "failed", "running", "left") if name in counts]
        notes.append(f"{pluralize(len(runs), 'run')}: {', '.join(counted)}")
    if "failed" in counts:
        notes.append("where=status=failed columns=label,seed,failure,error shows why runs failed")
    return table_of(runs[shown], notes)


def _meanings(names: Sequence[str]) -> list[str]:
    """What the scores among these columns mean, and the budget of extended runs."""
    explained = [name for name in names if split_name(name)[0] or name == "extended_from"]
    meanings = {split_name(name)[2]: column_of(name).meaning for name in explained}
    return [f"{'; '.join(f'{name}: {meaning}' for name, meaning in meanings.items())}."] * bool(meanings)


def _non_causal(rows: "DataFrame") -> list[str]:
    reasons = rows["non_causal_reason"].dropna().unique() if "non_causal_reason" in rows else ()
    return [f"not comparable (non-causal), and no success: {reason}" for reason in reasons]


def table_of_groups(
    rows: "DataFrame",
    by: Sequence[str],
    *,
    columns: Sequence[str] = (),
    statistic: str = "median",
    order: Sequence[str] = (),
    threshold: float | None = None,
    success: str | None = None,
) -> Table:
    """`group_rows` for people: counts, successes, and of each result the statistic with its interval. By default the
    results at the last checkpoint that runs show."""
    keys = group_keys(rows, by)
    names = value_columns(rows, keys, columns)
    if not columns:
        names = [name for name in names if is_shown(name, list(rows.columns))] or names[:1]
    options: Any = {"statistic": statistic, "threshold": threshold, "success": success}
    groups = sort_rows(group_rows(rows, keys, columns=names or columns, **options), *order)
    hidden = [name for name in ("failed", "left") if name in groups and not groups[name].any()]
    hidden += [name for name in groups if split_name(name)[3] == "seeds"]
    table = table_of(groups.drop(columns=hidden))
    of_keys = {header(name): table.texts[header(name)].replace("", "none") for name in keys}

    is_of_runs = "status" in rows
    notes = [f"{_STATISTICS[statistic]} of the {'done ' * is_of_runs}runs [{_BRACKETS[statistic != 'median']}]."]
    notes += [*_meanings(keys), *_non_causal(rows)]
    if "success" in groups:
        judged, least = success_column(rows, success, threshold), percent(threshold or SUCCESS)
        of = f"with {judged} of at least {least} %, of those done or failed"
        notes.append(f"success: runs {of}; a failed run has none [Wilson's 95 % interval over runs].")
    if merged := _merged_columns(rows if is_of_runs or "checkpoint" in keys else reported(rows), keys):
        what, apart = "Runs" if is_of_runs else "Cells", ",".join([*keys, *merged])
        notes.append(f"{what} that differ in {joined(merged)} are grouped together; group={apart} separates them.")
    return table._replace(texts=table.texts.assign(**of_keys), notes=notes, num_keys=len(keys))


_STATISTICS = {"median": "Median", "iqm": "Interquartile mean", "mean": "Mean"}
_BRACKETS = (
    "lowest, highest; of a single one its 95 % interval over questions",
    f"95 % bootstrap interval over seeds; of fewer than {MIN_SEEDS} lowest, highest; of a single one over questions",
)


def _merged_columns(rows: "DataFrame", keys: Sequence[str]) -> list[str]:
    """The columns that tell rows apart and differ within a group, without settings implied by the label."""
    found = differing_within(rows, keys, [name for name in setting_columns(rows) if name not in keys])
    if "label" in found:
        return ["label", *differing_within(rows, ["label"], [name for name in found if name != "label"])]
    return found


def header(name: str) -> str:
    """The header of a column: its name, with the unit of a share."""
    return f"{name}, %" if column_of(name).format == "share" else name


def cell_text(name: str, value: Any, low: float | None = None, high: float | None = None) -> str:
    """One value of a column with its interval, `93.1 [88, 97.4]` with a space that does not break inside of it: shares
    in per cent, counts with commas."""
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).lower()
    if isinstance(value, str):
        return " ".join("".join(letter if letter.isprintable() else " " for letter in value).split())
    form = column_of(name).format
    write: Any = str if form == "plain" or isinstance(value, dict) else number
    write = percent if form == "share" and 0 <= value <= 1 else write
    is_known = low is not None and high is not None
    return f"{write(value)} [{write(low)},\N{NO-BREAK SPACE}{write(high)}]" if is_known else write(value)


# How it is written ----------------------------------------------------------------------------------------------------


def to_text(table: Table, width: int | None = 80, max_rows: int | None = None) -> str:
    """A table for a terminal, fitted to its width: as it is; else, of few rows, turned, with a line for each column;
    else in several tables one below the other, which all begin with the columns that tell rows apart. Then the notes.
    """
    from textwrap import wrap

    shown = table.texts if max_rows is None else table.texts.head(max_rows)
    left, width = len(table.texts) - len(shown), width or 10**4
    columns = [[name, *shown[name]] for name in shown.columns]
    blocks: Sequence[Sequence[Sequence[str]]] = [columns] if columns else []
    if _width(columns) > width:
        turned = [list(cells) for cells in zip(*columns, strict=True)]
        blocks = [turned] if _width(turned) <= width else _stacked(columns, width, table.num_keys)
    notes = [f"... and {left:,} more row{'s' * (left > 1)}"] * (left > 0)
    notes += list(table.notes) or ["no rows"] * (not len(shown))
    lines = [line for note in notes for line in wrap(note, max(width, 40), break_long_words=False)]
    cells = [([name for name, *_ in block], [*zip(*(own for _, *own in block), strict=True)]) for block in blocks]
    drawn = [text_table(*one, width) for one in cells]
    return "\n\n".join([*drawn, *["\n".join(lines)] * bool(lines)])


def _stacked(columns: Sequence[Sequence[str]], width: int, num_keys: int) -> list[Sequence[Sequence[str]]]:
    """Columns in blocks that fit, the first `num_keys` in each; one that does not fit is alone."""
    keys, rest = list(columns[:num_keys]), list(columns[num_keys:])
    blocks: list[Sequence[Sequence[str]]] = []
    while rest or not blocks:
        count = next((n for n in range(len(rest), 1, -1) if _width([*keys, *rest[:n]]) <= width), 1)
        blocks.append([*keys, *rest[:count]])
        rest = rest[count:]
    return blocks


def _width(columns: Sequence[Sequence[str]]) -> int:
    """The width of columns side by side."""
    from rich.cells import cell_len

    return sum(max(map(cell_len, column)) for column in columns) + 2 * (len(columns) - 1)


def to_markdown(table: Table) -> str:
    """A Markdown table, with its notes as a paragraph below."""
    texts = table.texts.map(lambda text: text.replace("|", r"\|"))
    rows = [list(texts.columns), ["---:" if right else "---" for right in table.is_number], *texts.to_numpy().tolist()]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, *(["", *table.notes] if table.notes else [])]) + "\n"


def to_latex(table: Table) -> str:
    """A LaTeX table for the package booktabs, with the notes as its caption, without hints of options.

    The best of each column with intervals is bold, with all whose intervals overlap its own; none where all do.
    """
    texts = table.texts.map(_latex)
    for name, intervals in table.intervals.items():
        for row in best_rows(name, intervals):
            texts.iloc[row, texts.columns.get_loc(name)] = rf"\textbf{{{texts[name].iloc[row]}}}"
    texts.columns = [_latex(in_words(name)) for name in texts.columns]
    align = "".join("r" if right else "l" for right in table.is_number)
    notes = [re.sub(r"(^|; )\w+=.*", "", note).removesuffix(".") for note in table.notes]
    caption = " ".join(f"{_latex(note)}." for note in notes if note) or None
    options: Any = {"hrules": True, "column_format": align, "position_float": "centering" if caption else None}
    return str(texts.style.hide(axis="index").to_latex(caption=caption, **options))


def best_rows(name: str, intervals: Sequence[Interval | None]) -> list[int]:
    """The rows with the best value of a column, and those whose intervals overlap the best one's; none where all do, or
    where a value has no interval.

    >>> best_rows("final.ood_test", [(0.9, 0.8, 1.0), (0.85, 0.7, 0.9), (0.1, 0.0, 0.2)])
    [0, 1]
    """
    known = [one for one in intervals if one is not None]
    if len(known) < len(intervals) or not known:
        return []
    metric = split_name(name.partition(",")[0])[2].removeprefix("validation_")
    best = (min if is_lower_better(metric) else max)(known)
    rows = [row for row, one in enumerate(known) if one[1] <= best[2] and one[2] >= best[1]]
    return rows if len(rows) < len(known) else []


def in_words(name: str) -> str:
    """The name of a column in words.

    >>> in_words("learning_rate"), in_words("final.ood_test.mae")
    ('learning rate', 'OOD test mae (final)')
    """
    checkpoint, _, rest = name.partition(".") if name.startswith(("final.", "best.")) else ("", "", name)
    rest, _, unit = rest.partition(", ")
    words = " ".join(REGIONS.get(part, part) for part in rest.split(".")).replace("_", " ")
    return f"{words} ({checkpoint})" * bool(checkpoint) + words * (not checkpoint) + f", {unit}" * bool(unit)


_ESCAPES = str.maketrans(
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "\N{NO-BREAK SPACE}": " "}
    | {"[": "{[}", "*": "{*}"}  # these two would belong to the line break before them
)


def _latex(text: str) -> str:
    return text.translate(_ESCAPES)


def render(frame: "DataFrame | Table", format: str, width: int | None = None, max_rows: int | None = None) -> str:
    """A table as text with line ends, in any format except Parquet; for programs all values as they are."""
    if isinstance(frame, Table):
        if format == "text":
            return to_text(frame, width, max_rows) + "\n"
        return to_markdown(frame) if format == "markdown" else to_latex(frame)
    plain = frame.drop(columns=["sums"], errors="ignore")
    if format == "csv":
        return str(plain.to_csv(index=False, lineterminator="\n"))
    rows = plain.astype(object).where(plain.notna(), None).to_dict("records")
    return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)


def write_table(frame: "DataFrame | Table", path: str | Path, format: str | None = None) -> Path:
    """Writes a table atomically, creating its parent folders, and returns the path. The format is that of the suffix
    (.txt, .csv, .md, .tex, .jsonl, .parquet) unless given.

    Raises `UserError` for an unknown suffix, a path that is not writable, or a file written by a run or study;
    `OperationalError` for a full disk.
    """
    path, format = Path(path), resolve_format(format, path)
    if isinstance(frame, Table) or format != "parquet":
        table = table_of(frame) if format in FORMATS_FOR_PEOPLE and not isinstance(frame, Table) else frame
        content = render(table, format).encode(errors="backslashreplace")
    else:
        try:
            content = frame.drop(columns=["sums"], errors="ignore").to_parquet(engine="pyarrow", index=False)
        except ImportError as error:
            raise UserError("format: parquet needs the package pyarrow; pip install 'numerate[tables]'") from error
    return write_output(path, content, f"The previous content of {path.name} is unchanged." if path.exists() else "")


def resolve_format(format: str | None, path: str | Path | None = None) -> str:
    """The format: as given, else by the suffix of the file, else text. Raises `UserError` for any other, for Parquet
    without a file, and for a file that is of another format or belongs to a run."""
    suffix = ".txt" if path is None else Path(path).suffix.lower()
    if format is None and suffix not in FORMATS:
        raise UserError(f"out: the suffix of {path} must be one of {', '.join(FORMATS)}, or say format=csv")
    check_choice("format", found := format or FORMATS[suffix], FORMATS.values())
    if path is None and found == "parquet":
        raise UserError("format: parquet is not for the terminal; for example out=results.parquet")
    if path is not None:
        if Path(path).name == STUDY_FILE or (Path(path).with_name(RECIPE_FILE).exists() and Path(path).exists()):
            raise UserError(f"out: {path} is a file of a run or study and must not be replaced; give another name")
        check_output_file(path, found)
    return found
