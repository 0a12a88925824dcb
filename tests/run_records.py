"""Made-up runs and studies: folders of records, as training, an evaluator and workers would have left them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numerate.evaluation.statistics import wilson_interval
from numerate.training import disk
from numerate.training.run_folder import RunFolder, header_yaml

if TYPE_CHECKING:
    from pandas import DataFrame


def cell_record(cell: Mapping[str, int], correct: float, count: int, region: str, **more: Any) -> dict[str, Any]:
    """The record of an evaluated cell of a final checkpoint, with its interval."""
    low, high = wilson_interval(correct, count)
    line = {"cell": dict(cell), "correct": correct, "count": count, "low": low, "high": high, "region": region}
    line |= {"seed": 0, "checkpoint": "final", "step": 100, "position_offset": 0, "overlaps_training": False}
    return line | {"method": "one pass"} | more


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_run(folder: Path, recipe: Mapping[str, Any], cells: Iterable[Mapping[str, Any]] = (), **files: Any) -> Path:
    """A run folder with a recipe and the records of cells; `metrics`, `samples` and `timings` are the lines of these
    files, everything else stands in the head."""
    folder.mkdir(parents=True)
    lines = {name: files.pop(name, ()) for name in ("metrics", "samples", "timings")} | {"cells": cells}
    (folder / "recipe.yaml").write_bytes(header_yaml({"recipe": recipe, "id": folder.name} | files))
    for name, found in lines.items():
        if found := list(found):
            write_lines(folder / f"{name}.jsonl", found)
    return folder


Runs = Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]]


class Studies:
    """Makes folders of studies: recipes as plain data, each with its status, its results or its error, and its `cells`;
    or None."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs

    def __call__(
        self, runs: Runs, title: str = "widths", labels: Mapping[str, str] | None = None, cells: Any = None
    ) -> "DataFrame":
        from numerate.results.runs import results_of
        from numerate.runs.end import End, write_end
        from numerate.runs.study_folder import StudyFolder, StudyRun

        folder = StudyFolder.from_title(title, self.runs)
        requested = [
            StudyRun.of(f"{tree['title']}/{number:012x}", f"key{number}", tree) for number, (tree, _) in enumerate(runs)
        ]
        folder.update(requested, question="How wide?", labels=labels or {})
        for number, (one, (_, end)) in enumerate(zip(requested, runs, strict=True)):
            if end is not None:
                place, entries = RunFolder(self.runs / one.run), dict(end)
                status, lines = entries.pop("status"), entries.pop("cells", ())
                entries = {"results": entries} if status == "done" else entries
                write_end(place, End.now(status, key=one.key, seconds=2.5, **entries))
                head = {"recipe": one.recipe_tree(), "id": place.path.name}
                (place.path / "recipe.yaml").write_bytes(header_yaml(head))
                if "step" in end and not (place.path / "metrics.jsonl").exists():
                    write_lines(place.path / "metrics.jsonl", [{"step": end["step"], "loss": 1.0}])
                disk.append_records(place.path / "cells.jsonl", lines if cells is None else cells(number))
        return results_of(title, self.runs)
