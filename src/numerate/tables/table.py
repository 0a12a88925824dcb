"""A table with all that can be done with it; see `numerate.tables.rows` for what it holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numerate.config.values import split
from numerate.errors import UserError
from numerate.tables import exporting, showing
from numerate.tables.rows import NamedRows


@dataclass(frozen=True, repr=False, eq=False)
class Table(NamedRows):
    """A table. Shows itself as one in a terminal and in a notebook; iterating gives each row as a dictionary.

    >>> table = numerate.results_of("abacus_laptop")
    >>> table.where("label=Abacus").select("seed", "final.ood_test").sort("-final.ood_test")
    >>> table.group("label", statistic="iqm").write("groups.csv")
    >>> table.frame().groupby("label")["final.ood_test"].median()
    >>> table.query('select label, avg("final.ood_test") from runs group by label')

    `name` is what SQL calls it. `view` makes of it what people first see, until columns are chosen; `notes` are printed
    below it. Names of columns may be cut at the front where one alone is meant: `hidden_size` for `model.hidden_size`;
    `final` stands for all that is directly below it.
    """

    def group(
        self,
        *by: str,
        columns: Sequence[str] = (),
        statistic: str | None = None,
        threshold: float | None = None,
        success: str | None = None,
    ) -> "Table":
        """A row per group of rows with equal values; see `numerate.tables.grouping.grouped`."""
        from numerate.tables.grouping import grouped  # needs numpy

        return grouped(self, by, columns=columns, statistic=statistic, threshold=threshold, success=success)

    def query(self, sql: str) -> "Table":
        """The answer of DuckDB to a query; this table is called by its `name`, of a study: `runs`, and `cells`.

        Raises `UserError` where DuckDB and pyarrow are not installed, or the query is not understood.
        """
        return exporting.queried(self, sql)

    # For programs and people ------------------------------------------------------------------------------------------

    def frame(self) -> Any:
        """The table as a pandas DataFrame. Raises `UserError` where pandas is not installed."""
        return exporting.frame_of(self)

    def write(self, path: str | Path, format: str | None = None) -> Path:
        """Writes a file, .txt, .csv, .md, .tex, .jsonl or .parquet by its ending, or as `format`: `exporting.write`."""
        return exporting.write(self, path, format)

    def text(self, width: int | None = None, most: int | None = None) -> str:
        """For a terminal of so many columns: below each other what does not fit beside each other, `most` rows."""
        return showing.as_text(self, width, most)

    def markdown(self) -> str:
        """As Markdown, shares in per cent."""
        return showing.as_markdown(self)

    def latex(self) -> str:
        """As a LaTeX tabular with the rules of the package booktabs, shares in per cent."""
        return showing.as_latex(self)

    def __repr__(self) -> str:
        return self.text(width=100, most=30)

    def _repr_html_(self) -> str:
        return showing.as_html(self, most=30)


def listed(text: str, what: str) -> list[str]:
    """The parts between commas of what stands behind an option: `listed("label,seed", "columns")`."""
    parts = split(text)
    if parts is None:
        raise UserError(f"{what}: {text!r} has brackets or quotes that do not close")
    return [part for part in parts if part]
