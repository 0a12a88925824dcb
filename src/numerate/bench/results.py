"""Results of a model on the test sets of the benchmark: as JSON, and several of them as one table."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from numerate.bench.test_sets import V1
from numerate.errors import UserError
from numerate.evaluation.statistics import wilson_interval
from numerate.reports.content import Note
from numerate.reports.grid import format_interval, format_percent
from numerate.reports.table import TextTable

VERSION = "numerate bench v1"


@dataclass(frozen=True)
class SetResult:
    """The answers of a model to one test set: `cells` has the numbers of correct and of all questions of each cell,
    `predictions` every answer in the order of the set; `ended` is the share of answers that ended by themselves."""

    sha256: str
    cells: Mapping[str, tuple[int, int]]
    predictions: Sequence[str | None]
    ended: float

    @property
    def correct(self) -> int:
        return sum(correct for correct, _ in self.cells.values())

    @property
    def questions(self) -> int:
        return sum(count for _, count in self.cells.values())

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the share of correct answers (Wilson), for the sampling of questions."""
        return wilson_interval(self.correct, self.questions)


@dataclass(frozen=True)
class BenchResult:
    """The results of one model. It is `complete` if all questions of all sets were asked."""

    model: Mapping[str, Any]
    settings: Sequence[str]
    sets: Mapping[str, SetResult]

    @property
    def name(self) -> str:
        return str(self.model["name"])

    @property
    def complete(self) -> bool:
        return all(one.name in self.sets and len(self.sets[one.name].predictions) == one.num_questions for one in V1)

    @property
    def mean(self) -> tuple[float, float, float] | None:
        """The mean over the sets with its 95 % interval, a normal approximation for the sampling of questions; None
        unless it is complete."""
        if not self.complete:
            return None
        shares = [one.correct / one.questions for one in self.sets.values()]
        variance = sum(p * (1 - p) / one.questions for p, one in zip(shares, self.sets.values(), strict=True))
        mean, half = sum(shares) / len(shares), 1.96 * variance**0.5 / len(shares)
        return mean, max(0.0, mean - half), min(1.0, mean + half)

    def to_json(self) -> str:
        """The text to submit. `from_json` reads it."""
        sets = {
            name: {"correct": one.correct, "questions": one.questions, "interval": one.interval, **asdict(one)}
            for name, one in self.sets.items()
        }
        content = {"benchmark": VERSION, "complete": self.complete, "model": self.model, "settings": self.settings}
        head = ",\n".join(f' "{name}": {_json(value)}' for name, value in (content | {"mean": self.mean}).items())
        lines = ",\n".join(f'  "{name}": {_json(value)}' for name, value in sets.items())
        return f'{{\n{head},\n "sets": {{\n{lines}\n }}\n}}\n'

    @classmethod
    def from_json(cls, path: str | Path) -> "BenchResult":
        """The result in a file. Raises `UserError` if it is not one of this version of the benchmark, or if its sets
        are not."""
        if not Path(path).is_file():
            raise UserError(f"{path}: does not exist; must be a file of results that `numerate bench v1` wrote")
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            sets = {
                name: SetResult(
                    one["sha256"],
                    {cell: (int(correct), int(count)) for cell, (correct, count) in one["cells"].items()},
                    list(one["predictions"]),
                    float(one["ended"]),
                )
                for name, one in content["sets"].items()
            }
            result = cls({**content["model"], "name": content["model"]["name"]}, list(content["settings"]), sets)
            version = content["benchmark"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: is no file of results that `numerate bench v1` wrote ({error})") from error
        hashes = {one.name: one.sha256 for one in V1}
        if version != VERSION or any(hashes.get(name) != one.sha256 for name, one in sets.items()):
            raise UserError(f"{path}: has results of other test sets than those of {VERSION}")
        return result


def results_table(results: Sequence[BenchResult]) -> list[TextTable | Note]:
    """One table of several models, a row for each set, with the mean of those that are complete."""
    rows = []
    for test_set in V1:
        if found := [result.sets.get(test_set.name) for result in results]:
            rows.append([test_set.name, *("" if one is None else _share_text(one) for one in found)])
    rows = [row for row in rows if any(row[1:])]
    if any(result.mean for result in results):
        means = ["" if (mean := result.mean) is None else _percent_text(*mean) for result in results]
        rows.append(["mean", *means])
    header = ["correct, % [95 % interval]", *(result.name for result in results)]
    note = "Intervals are for the sampling of questions. Models are comparable if none was trained on these tasks."
    partial = [result.name for result in results if not result.complete]
    notes = [Note(f"Not all questions of all 12 sets were asked of {', '.join(partial)}.")] if partial else []
    return [TextTable(header, rows), Note(note), *notes]


def cells_table(result: BenchResult) -> TextTable:
    """Correct answers and questions of each cell."""
    rows = [
        [name, cell, f"{correct} of {count}"]
        for name, one in result.sets.items()
        for cell, (correct, count) in one.cells.items()
    ]
    return TextTable(["set", "part", "correct"], rows)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _share_text(one: SetResult) -> str:
    return _percent_text(one.correct / one.questions, *one.interval)


def _percent_text(value: float, low: float, high: float) -> str:
    return f"{format_percent(value)} {format_interval(low, high)}"
