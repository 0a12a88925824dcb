"""What an evaluation found, as `Run.evaluate` returns it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numerate.evaluation.kinds.kind import EvaluationKind
from numerate.runs.presenting import of_results

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, repr=False)
class Results:
    """An evaluation of the run in a folder: its records, which iterating gives, and their table of cells; displays as
    the tables of its regions, parts and strata.

        results = run.evaluate("1:12x1:12", checkpoint="all")
        results.frame.groupby(["step", "region"])["exact_match"].mean()
        numerate.summary(results.frame, by=["first_digits"])

    `best` says at which step the run was best, and by which score.
    """

    kind: EvaluationKind
    path: Path
    records: Sequence[Mapping[str, Any]]
    best: Mapping[str, Any] | None

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    @cached_property
    def frame(self) -> "DataFrame":
        """A row per cell, with the columns of `numerate.cells`."""
        rows = of_results("rows")
        frame: DataFrame = rows.cells_of(rows.find_runs([self.path]), [self.records])
        return frame

    def text(self, width: int | None = None) -> str:
        """The tables with their notes in `width` columns of a terminal; each as wide as it is without one."""
        to_text = of_results("tables").to_text
        return "\n\n".join(to_text(one, width or 10**4) for one in self._tables)

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        from pandas import option_context

        notes = (f"<p>{escape(' '.join(one.notes))}</p>" for one in self._tables)
        with option_context("display.max_colwidth", None):
            html = [one.texts.to_html(index=False, border=0) for one in self._tables]
        return "".join(map("".join, zip(html, notes, strict=True)))

    @cached_property
    def _tables(self) -> Sequence[Any]:
        found: Sequence[Any] = of_results("evaluated").tables(self.frame, self.kind.columns)
        return found
