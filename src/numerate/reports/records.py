"""Reads the records of a run folder, the only input of reports."""

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

from numerate.errors import UserError
from numerate.evaluation.labels import Labels, Metric
from numerate.evaluation.number_metrics import NumberScores
from numerate.evaluation.statistics import wilson
from numerate.evaluation.text_metrics import TextScores
from numerate.records.heads import HEAD, read_head, read_metrics
from numerate.records.kinds import OF_A_RUN
from numerate.records.reading import read as read_records
from numerate.reports.language_records import LanguageScores, foretold, is_portion


@dataclass(frozen=True)
class Cell:
    """One cell of an evaluation: `correct` of `count`, with the interval written by the evaluator.

    `at` says where it is (`{"first_digits": 3, "second_digits": 4}`). `region` is "in_distribution", "ood_validation",
    "ood_test" or "100+". `seen` cells have too few questions to hold any out and may overlap with training. `settings`
    are those changed for the evaluation (`{"model.backbone.num_loops": 8}`), {} as trained. `first_correct` counts the
    answers whose first token is correct, None where not recorded.

    `numbers` and `texts` are errors of decoded answers, None where not recorded. `labels` are those of a task with
    labels, by position. `repeats` is the number of position offsets averaged over. `sees_future` says how the model
    attends to later tokens, None where it does not. `names` names the sizes of parts such as modules. `metric` is what
    `correct` counts, in rows' worth unless it is exact match.
    """

    at: Mapping[str, int]
    correct: float
    count: int
    low: float
    high: float
    region: str
    seen: bool = False
    digit_accuracy: float | None = None
    first_wrong: tuple[int, ...] | None = None
    seed: int = 0
    checkpoint: str = "final"
    step: int = 0
    position_offset: int = 0
    method: str = "one pass"
    settings: Mapping[str, Any] = field(default_factory=dict)
    first_correct: int | None = None
    labels: Labels | None = None
    numbers: NumberScores | None = None
    texts: TextScores | None = None
    repeats: int = 1
    sees_future: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    metric: Metric = "exact"

    @property
    def accuracy(self) -> float:
        return self.correct / self.count

    def of(self, metric: Metric) -> "Cell":
        """The same cell as measured by a metric of its labels, with the interval about its rows.

        Accuracy on unseen counts is that on all labels in a trained cell, and in one whose rows have no unseen ones. A
        cell without labels has exact match alone.
        """
        if metric == "exact" or self.labels is None:
            return self
        name = self.labels.measured_by(metric, self.region)
        share = self.labels.measured(name)
        if share is None:
            return self
        rows = self.labels.rows_of(name)
        return replace(
            self, correct=share.value * rows, count=rows, low=share.low, high=share.high, repeats=1, metric=metric
        )

    @property
    def floor(self) -> float | None:
        """The score of memorising, or of one constant answer, in this cell; None in distribution and where unknown."""
        if self.labels is None or self.region in ("in_distribution", "below"):
            return None
        return self.labels.floor(self.labels.measured_by(self.metric, self.region))

    def of_first(self) -> "Cell | None":
        """The same cell as measured by the first token alone, with Wilson's interval; None where it is not known."""
        if self.first_correct is None:
            return None
        low, high = wilson(self.first_correct, self.count)
        return replace(self, correct=self.first_correct, low=low, high=high, first_wrong=None)


@dataclass(frozen=True)
class Sample:
    """A question with its answer and the prediction of the model."""

    at: Mapping[str, int]
    question: str
    gold: str
    prediction: str
    right: bool
    as_written: str
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Records:
    """The records of a run folder. `warnings` names what could not be read and was left out.

    A language model has no cells but `language`, its losses, and `drawn`, the texts sampled during training (lines of
    `samples.jsonl`). `timings` depend on the machine.
    """

    folder: Path
    head: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]] = ()
    cells: Sequence[Cell] = ()
    samples: Sequence[Sample] = ()
    language: Sequence[LanguageScores] = ()
    drawn: Sequence[Mapping[str, Any]] = ()
    timings: Sequence[Mapping[str, Any]] = ()
    warnings: Sequence[str] = field(default=())

    @property
    def recipe(self) -> Mapping[str, Any]:
        """The recipe as nested plain data."""
        tree = self.head.get("recipe")
        return tree if isinstance(tree, Mapping) else {}

    @property
    def label(self) -> str:
        """The name of the run: its `name`, else the recipe's folder, as in runs/<recipe>/<id>."""
        return str(self.head.get("name") or self.recipe_folder)

    @property
    def recipe_folder(self) -> str:
        """The name of the folder that the run is in, as text, with a sign for bytes that are no UTF-8."""
        return os.fsencode(self.folder.resolve().parent.name).decode("utf-8", "replace")

    @property
    def id(self) -> str:
        return str(self.head.get("id") or self.folder.resolve().name)

    @cached_property
    def seed(self) -> int | None:
        """The seed in the recipe, else the one in the cells, None where neither says."""
        for tree in (self.recipe, self.recipe.get("training")):
            if isinstance(tree, Mapping) and isinstance(tree.get("seed"), int):
                return int(tree["seed"])
        return self.cells[0].seed if self.cells else None

    @property
    def operator(self) -> str | None:
        """What stands between the two numbers of a question, where the task has such a thing."""
        task = self.recipe.get("task")
        return str(task["operator"]) if isinstance(task, Mapping) and "operator" in task else None

    @cached_property
    def running(self) -> bool:
        """Whether it is a language modeling run, without questions and answers."""
        task = self.recipe.get("task")
        kind = task.get("kind") if isinstance(task, Mapping) else None
        return bool(self.language) or kind == "LanguageModeling" or any("perplexity" in line for line in self.metrics)

    def checkpoints(self) -> list[tuple[str, int]]:
        """The evaluated checkpoints as (name, step), earliest first."""
        return sorted({(cell.checkpoint, cell.step) for cell in self.cells}, key=lambda pair: (pair[1], pair[0]))

    def position_offsets(self) -> list[int]:
        return sorted({cell.position_offset for cell in self.cells})

    def settings(self) -> list[Mapping[str, Any]]:
        """The settings that were changed in evaluations, as trained ({}) first, then by size."""
        return self._changed

    @cached_property
    def _changed(self) -> list[Mapping[str, Any]]:
        found = {settings_key(cell.settings): cell.settings for cell in self.cells}
        return [found[key] for key in sorted(found)]

    def chosen(self, settings: Mapping[str, Any] | None = None) -> tuple[str, int] | None:
        """The reported checkpoint: "final" where it was evaluated, else the latest one."""
        wanted = self._settings(settings)
        evaluated = sorted({(c.checkpoint, c.step) for c in self.cells if c.settings == wanted}, key=lambda p: p[::-1])
        final = [pair for pair in evaluated if pair[0] == "final"]
        return (final or evaluated)[-1] if evaluated else None

    def select(
        self,
        checkpoint: tuple[str, int] | None = None,
        position_offset: int | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> list[Cell]:
        """The cells of one checkpoint at one placement, run with some settings: by default the chosen checkpoint, the
        first placement, as trained (or as it was evaluated at all). Of labels the mean over all placements."""
        changed = self._settings(settings)
        wanted = checkpoint or self.chosen(changed)
        there = [c for c in self.cells if (c.checkpoint, c.step) == wanted and c.settings == changed]
        if not there:
            return []
        if position_offset is None and all(cell.labels is not None for cell in there):
            key = (wanted, settings_key(changed))
            if key not in self._means:
                self._means[key] = _over_placements(there)
            return self._means[key]
        at = min(cell.position_offset for cell in there) if position_offset is None else position_offset
        return [cell for cell in there if cell.position_offset == at]

    @cached_property
    def _means(self) -> dict[Any, list[Cell]]:
        """Cache of the means over placements, by checkpoint and settings."""
        return {}

    def _settings(self, settings: Mapping[str, Any] | None) -> Mapping[str, Any]:
        return next(iter(self.settings()), {}) if settings is None else settings

    def split(self, name: str) -> list[Mapping[str, Any]]:
        """The lines of metrics.jsonl about a split ("development", "beyond-development")."""
        return [line for line in self.metrics if line.get("split") == name]

    def training(self) -> list[Mapping[str, Any]]:
        """The lines of metrics.jsonl about training itself: step, examples, loss, rate, ..."""
        return [line for line in self.metrics if "split" not in line and "loss" in line]


def _over_placements(cells: Sequence[Cell]) -> list[Cell]:
    """Each cell once, its shares averaged over placements."""
    together: dict[tuple[tuple[str, int], ...], list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.position_offset):
        together.setdefault(tuple(sorted(cell.at.items())), []).append(cell)
    return [_mean_of(same) if len(same) > 1 else same[0] for same in together.values()]


def _mean_of(same: Sequence[Cell]) -> Cell:
    one, times = same[0], len(same)
    correct, count = sum(cell.correct for cell in same), sum(cell.count for cell in same)
    low, high = wilson(correct / times, count / times)
    wrong = [cell.first_wrong for cell in same if cell.first_wrong is not None]
    first = [cell.first_correct for cell in same if cell.first_correct is not None]
    return replace(
        one,
        correct=correct,
        count=count,
        low=float(low),
        high=float(high),
        digit_accuracy=None,
        first_wrong=tuple(map(sum, zip_longest(*wrong, fillvalue=0))) if wrong else None,
        first_correct=sum(first) if len(first) == times else None,
        labels=Labels.over_placements([cell.labels for cell in same if cell.labels is not None]),
        repeats=times,
    )


def read(folder: str | Path) -> Records:
    """Reads a run folder. Files that are not there yet count as empty; a truncated last line is skipped with a
    warning.

    Raises `UserError` when the folder is no run, and for a damaged head or evaluation; warns of damage in other files.
    """
    folder = Path(folder)
    if not (folder / HEAD).is_file():
        what = "holds no recipe.yaml" if folder.is_dir() else "does not exist"
        raise UserError(f"{folder}: no run, it {what}; a run folder looks like runs/<recipe>/<id>")
    left_out: list[str] = []

    def warn(text: str) -> None:
        left_out.append(text)
        warnings.warn(text, stacklevel=4)

    def records(name: str) -> list[dict[str, Any]]:
        return read_records(folder / name, OF_A_RUN[name], warn, left_out.append)

    head = read_head(folder / HEAD)
    evaluated = records("evaluation.jsonl")
    # A later line about the same cell replaces an earlier one.
    cells: dict[tuple[Any, ...], Cell] = {}
    axes: dict[tuple[Any, ...], tuple[str, ...]] = {}
    others: dict[tuple[str, ...], int] = {}
    for line in evaluated:
        if not is_portion(line) and (cell := cell_of(line)).count > 0:
            place, settings = tuple(sorted(cell.at.items())), settings_key(cell.settings)
            if (sizes := tuple(cell.at)) != axes.setdefault(settings, sizes):
                others[sizes] = others.get(sizes, 0) + 1
                continue
            key = (cell.seed, cell.checkpoint, cell.step, settings, cell.position_offset, place)
            cells[key] = cell
    for sizes, count in others.items():
        found, first = " and ".join(sizes), " and ".join(next(iter(axes.values())))
        warn(f"evaluation.jsonl: {count} cell{'s' * (count != 1)} by {found} left out, as the others are by {first}")
    names = {tuple(cell.at.items()): cell.names for cell in cells.values() if cell.names}
    drawn = records("samples.jsonl")
    samples = [
        Sample(
            at := line.get("cell") or {},
            line["question"],
            line.get("gold") or "",
            line["said"],
            line.get("right") or False,
            line.get("as_written") or "",
            names.get(tuple(at.items()), {}),
        )
        for line in drawn
        if "question" in line
    ]
    return Records(
        folder,
        head,
        read_metrics(folder, head, warn, left_out.append),
        list(cells.values()),
        samples,
        foretold([line for line in evaluated if is_portion(line)]),
        [line for line in drawn if "question" not in line],
        records("timings.jsonl"),
        tuple(left_out),
    )


def read_each(folders: Sequence[str | Path]) -> list[Records]:
    """Reads run folders, each once: a run matched by two patterns counts as one seed."""
    return [read(folder) for folder in {Path(folder).resolve(): folder for folder in folders}.values()]


def cell_of(line: Mapping[str, Any]) -> Cell:
    """The cell that a record of `evaluation.jsonl` is about, one of answers."""
    wrong, digits = line.get("first_wrong"), line.get("digit_accuracy")
    return Cell(
        at=line["cell"],
        correct=line["correct"],
        count=line["count"],
        low=line["low"],
        high=line["high"],
        region=line["region"],
        seen=line["seen"],
        digit_accuracy=digits,
        first_wrong=None if wrong is None else tuple(wrong),
        seed=line.get("seed") or 0,
        checkpoint=line["checkpoint"],
        step=line["step"],
        position_offset=line["position_offset"],
        method=line["method"],
        settings=line.get("settings") or {},
        first_correct=_first_correct(line, line["count"]),
        labels=Labels.read(line),
        numbers=NumberScores.read(line),
        texts=TextScores.read(line),
        sees_future=line.get("sees_future"),
        names=line.get("names") or {},
    )


def _first_correct(line: Mapping[str, Any], count: int) -> int | None:
    """How many first tokens are correct: as recorded, else from `first_wrong`."""
    if line.get("first_correct") is not None:
        return int(line["first_correct"])
    wrong = line.get("first_wrong")
    return None if wrong is None else count - (int(wrong[0]) if wrong else 0)


def split_measure(splits: Sequence[Sequence[Mapping[str, Any]]]) -> Metric:
    """The metric to plot for a development split: label accuracy where all lines have it, else exact match."""
    lines = [line for split in splits for line in split]
    return "accuracy" if lines and all(line.get("accuracy") is not None for line in lines) else "exact"


def settings_key(settings: Mapping[str, Any]) -> tuple[tuple[str, float, str], ...]:
    """Settings as a sort key: unchanged ones first, numbers by size (4 before 16)."""
    if not settings:
        return ()
    return tuple(
        (path, float(value) if isinstance(value, int | float) else 0.0, json.dumps(value, sort_keys=True))
        for path, value in sorted(settings.items())
    )
