"""The `Table` class; see `numerate.tables.rows` for its content."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numerate.config.values import split_at_commas
from numerate.errors import UserError
from numerate.tables import exporting, showing
from numerate.tables.rows import BaseTable


@dataclass(frozen=True, repr=False, eq=False)
class Table(BaseTable):
    """A table of results. Displays in a terminal and in a notebook; iteration yields each row as a dict.

        table = numerate.results_of("abacus_laptop")
        table.where("label=Abacus").select("seed", "final.ood_test").sort("-final.ood_test")
        table.group_by("label", statistic="iqm").write("groups.csv")
        table.to_pandas().groupby("label")["final.ood_test"].median()
        table.query('select label, avg("final.ood_test") from runs group by label')

    `name` is its name in SQL. `view` selects what is displayed until columns are selected; `notes` are printed below
    it. Names of columns may be shortened at the front if they are unique: `hidden_size` for `model.hidden_size`;
    `final` stands for all columns directly below it.
    """

    def group_by(
        self,
        *by: str,
        columns: Sequence[str] = (),
        statistic: str | None = None,
        threshold: float | None = None,
        success_column: str | None = None,
    ) -> "Table":
        """A row per group of rows with equal values; see `numerate.tables.grouping.group_table`."""
        from numerate.tables.grouping import group_table  # needs numpy

        return group_table(
            self, by, columns=columns, statistic=statistic, threshold=threshold, success_column=success_column
        )

    def query(self, sql: str) -> "Table":
        """The result of a DuckDB query; the table is available under its `name`, for a study: `runs`, and `cells`.

        Raises `UserError` if DuckDB and pyarrow are not installed, or if the query is invalid.
        """
        return exporting.run_query(self, sql)

    # Export and display ----------------------------------------------------------------------------------------------

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame. Raises `UserError` if pandas is not installed."""
        return exporting.to_pandas(self)

    def write(self, path: str | Path, format: str | None = None) -> Path:
        """Writes a file, .txt, .csv, .md, .tex, .jsonl or .parquet by its suffix, or as `format`: see
        `exporting.write`."""
        return exporting.write_table(self, path, format)

    def to_text(self, width: int | None = None, max_rows: int | None = None) -> str:
        """The table for a terminal of a given width: columns that do not fit are continued below; `max_rows` rows."""
        return showing.to_text(self, width, max_rows)

    def to_markdown(self) -> str:
        """As Markdown, proportions in per cent."""
        return showing.to_markdown(self)

    def to_latex(self) -> str:
        """As a LaTeX tabular with the rules of the package booktabs, proportions in per cent."""
        return showing.to_latex(self)

    def __repr__(self) -> str:
        return self.to_text(width=100, max_rows=30)

    def _repr_html_(self) -> str:
        return showing.to_html(self, max_rows=30)


def parse_list(text: str, option: str) -> list[str]:
    """The values of an option, separated by commas.

    >>> parse_list("label,seed", "columns")
    ['label', 'seed']
    """
    parts = split_at_commas(text)
    if parts is None:
        raise UserError(f"{option}: {text!r} has unclosed brackets or quotes")
    return [part for part in parts if part]
