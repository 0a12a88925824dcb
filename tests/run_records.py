"""Made-up runs: folders of records, as training and an evaluator would have left them."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from numerate.evaluation.statistics import wilson_interval
from numerate.training.run_folder import header_yaml


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
    lines = {name: files.pop(name, ()) for name in ("metrics", "samples", "timings")} | {"evaluation": cells}
    (folder / "recipe.yaml").write_bytes(header_yaml({"recipe": recipe, "id": folder.name} | files))
    for name, found in lines.items():
        if found := list(found):
            write_lines(folder / f"{name}.jsonl", found)
    return folder
