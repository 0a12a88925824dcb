"""Tables of results in LaTeX: headers in words, numbers aligned, the best of each column in bold."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from numerate.evaluation.answer_metrics import LOWER_IS_BETTER
from numerate.reports.grid import REGION_LABELS
from numerate.reports.table import TextTable
from numerate.tables.selecting import is_identifier

_LOWER_IS_BETTER = {*LOWER_IS_BETTER, "loss", "validation_loss", "perplexity", "bits_per_byte"}

_NUMBER = r"(-?[\d,]+(?:\.\d+)?(?:e[+-]?\d+)?)"
_ESTIMATE = re.compile(rf"{_NUMBER}(?: %)? \[{_NUMBER}, {_NUMBER}\]")

_ESCAPES = str.maketrans(
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}"}
    | {"[": "{[}", "*": "{*}"}  # these two would belong to the line break before them
)


def to_latex(
    columns: Sequence[str], names: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()
) -> str:
    """A LaTeX table for the package booktabs, of columns with their short names and texts; the notes are its caption.

    Numbers are aligned right, and of several rows the best of a result is bold, with all whose intervals overlap its
    own. Names are in words: `final.ood_test` is "OOD test (final)".
    """
    cells = [[row[i] for row in rows] for i in range(len(columns))]
    lines = [[_in_words(name).translate(_ESCAPES) for name in names], *([""] * len(columns) for _ in rows)]
    for i, (column, texts) in enumerate(zip(columns, cells, strict=True)):
        has_percent = any(texts) and all(" %" in text for text in texts if text)
        lines[0][i] += r" (\%)" * has_percent
        best = _best(column, texts)
        for row, text in enumerate(texts):
            shown = (text.replace(" %", "") if has_percent else text).translate(_ESCAPES)
            lines[row + 1][i] = rf"\textbf{{{shown}}}" if row in best else shown
    align = "".join("r" if is_number else "l" for is_number in TextTable(names, rows).number_columns)
    header, *body = [" & ".join(line) + r" \\" for line in lines]
    tabular = [
        rf"\begin{{tabular}}{{{align}}}",
        r"\toprule",
        header,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    if not notes:
        return "\n".join(tabular)
    caption = " ".join(note.translate(_ESCAPES) for note in notes)
    return "\n".join([r"\begin{table}", r"\centering", *tabular, rf"\caption{{{caption}}}", r"\end{table}"])


class _Interval(NamedTuple):
    value: float
    low: float
    high: float


def _best(column: str, texts: Sequence[str]) -> set[int]:
    """The rows with the best value of a result, and those whose intervals overlap the best one's; none where all do, or
    where a value has no interval."""
    found = {row: interval for row, text in enumerate(texts) if (interval := _parse(text)) is not None}
    if is_identifier(column) or not found or len(found) < sum(map(bool, texts)):
        return set()
    lower = any(part in _LOWER_IS_BETTER for part in re.split("[.( ]", column))
    best = (min if lower else max)(found.values())
    rows = {row for row, one in found.items() if one.low <= best.high and one.high >= best.low}
    return rows if len(rows) < len(found) else set()


def _parse(text: str) -> _Interval | None:
    """The value of a cell with its interval: `93.1 % [88, 97.4]`."""
    match = _ESTIMATE.fullmatch(text)
    return None if match is None else _Interval(*(float(part.replace(",", "")) for part in match.groups()))


def _in_words(name: str) -> str:
    """The name of a column in words.

    >>> _in_words("learning_rate"), _in_words("final.ood_test.mae")
    ('learning rate', 'OOD test mae (final)')
    """
    checkpoint, _, rest = name.partition(".") if name.startswith(("final.", "best.")) else ("", "", name)
    words = " ".join(REGION_LABELS.get(part, part) for part in rest.split(".")).replace("_", " ")
    return f"{words} ({checkpoint})" if checkpoint else words
