"""Reads the records of a run folder, the only input of reports."""

import json
import os
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

from numerate.errors import UserError
from numerate.evaluation.labels import LabelCounts, Metric
from numerate.evaluation.likelihoods import LanguageScores, merge_language_records
from numerate.evaluation.number_metrics import NumberScores
from numerate.evaluation.statistics import wilson_interval
from numerate.evaluation.text_metrics import TextScores
from numerate.records.heads import RECIPE_FILE, read_header, read_metrics
from numerate.records.kinds import RUN_FILE_SCHEMAS
from numerate.records.reading import read_records as read_records

BUDGETS = ("steps", "examples", "tokens", "flops", "epochs", "target_accuracy")
"""The settings of training that end it."""


@dataclass(frozen=True)
class Cell:
    """One cell of an evaluation: `correct` of `count`, with the interval written by the evaluator.

    `coordinates` says where it is (`{"first_digits": 3, "second_digits": 4}`). `region` is "in_distribution",
    "ood_validation", "ood_test" or "100+". `overlaps_training` cells have too few questions to hold any out and may
    overlap with training. `settings` are those changed for the evaluation (`{"model.backbone.num_loops": 8}`), {} as
    trained. `first_token_correct` counts the answers whose first token is correct, None if not recorded.

    `numbers` and `texts` are errors of decoded answers, None if not recorded. `labels` are those of a task with
    labels, by position. `repeats` is the number of position offsets averaged over. `non_causal_reason` says how the
    model attends to later tokens, None if it does not. `names` names the sizes of parts such as modules. `metric` is
    what `correct` counts, in rows' worth unless it is exact match. `scores` are sums over the questions, by the columns
    of the kind of evaluation. `stratum` is the name of its stratum, None for a cell of the map.
    """

    coordinates: Mapping[str, int]
    correct: float
    count: int
    low: float
    high: float
    region: str
    overlaps_training: bool = False
    first_error_counts: tuple[int, ...] | None = None
    seed: int = 0
    checkpoint: str = "final"
    step: int = 0
    position_offset: int = 0
    method: str = "one pass"
    settings: Mapping[str, Any] = field(default_factory=dict)
    first_token_correct: int | None = None
    labels: LabelCounts | None = None
    numbers: NumberScores | None = None
    texts: TextScores | None = None
    repeats: int = 1
    non_causal_reason: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    metric: Metric = "exact_match"
    scores: Mapping[str, float] = field(default_factory=dict)
    stratum: str | None = None

    @property
    def place(self) -> tuple[tuple[str, Any], ...]:
        """Which cell of the grid it is."""
        stratum = [] if self.stratum is None else [("stratum", self.stratum)]
        return (*sorted(self.coordinates.items()), *stratum)

    @property
    def accuracy(self) -> float:
        return self.correct / self.count

    def with_metric(self, metric: Metric) -> "Cell":
        """The same cell as measured by a metric of its labels, with the interval about its rows.

        Accuracy on unseen counts is that on all labels in a trained cell, and in one whose rows have no unseen ones. A
        cell without labels has exact match alone.
        """
        if metric == "exact_match" or self.labels is None:
            return self
        name = self.labels.effective_metric(metric, self.region)
        score = self.labels.score_with_interval(name)
        if score is None:
            return self
        rows = self.labels.num_rows(name)
        return replace(
            self, correct=score.value * rows, count=rows, low=score.low, high=score.high, repeats=1, metric=metric
        )

    @property
    def baseline(self) -> float | None:
        """The score of memorizing, or of one constant answer, in this cell; None in distribution and where unknown."""
        if self.labels is None or self.region in ("in_distribution", "below"):
            return None
        return self.labels.baseline(self.labels.effective_metric(self.metric, self.region))

    def with_first_token(self) -> "Cell | None":
        """The same cell as measured by the first token alone, with Wilson's interval; None if it is not known."""
        if self.first_token_correct is None:
            return None
        low, high = wilson_interval(self.first_token_correct, self.count)
        return replace(self, correct=self.first_token_correct, low=low, high=high, first_error_counts=None)


@dataclass(frozen=True)
class Records:
    """The records of a run folder. `warnings` names what could not be read and was left out.

    `samples` are the lines of `samples.jsonl` with questions, and the names of their cells. A language model has no
    cells but `language`, its losses, and `generated_texts`, the other lines, sampled during training. `timings` depend
    on the machine. `strata` are cells of strata, which are in no map or region.
    """

    folder: Path
    metadata: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]] = ()
    cells: Sequence[Cell] = ()
    samples: Sequence[Mapping[str, Any]] = ()
    language: Sequence[LanguageScores] = ()
    generated_texts: Sequence[Mapping[str, Any]] = ()
    timings: Sequence[Mapping[str, Any]] = ()
    warnings: Sequence[str] = field(default=())
    strata: Sequence[Cell] = ()

    @property
    def recipe(self) -> Mapping[str, Any]:
        """The recipe as nested plain data."""
        tree = self.metadata.get("recipe")
        return tree if isinstance(tree, Mapping) else {}

    @property
    def label(self) -> str:
        """The name of the run: its `name`, else the recipe's folder, as in runs/<recipe>/<id>."""
        return str(self.metadata.get("name") or self.recipe_folder)

    @property
    def recipe_folder(self) -> str:
        """The name of the folder that the run is in, as text, with a sign for bytes that are no UTF-8."""
        return os.fsencode(self.folder.resolve().parent.name).decode("utf-8", "replace")

    @property
    def id(self) -> str:
        return str(self.metadata.get("id") or self.folder.resolve().name)

    @cached_property
    def seed(self) -> int | None:
        """The seed in the recipe, else the one in the cells, None if neither says."""
        for tree in (self.recipe, self.recipe.get("training")):
            if isinstance(tree, Mapping) and isinstance(tree.get("seed"), int):
                return int(tree["seed"])
        return self.cells[0].seed if self.cells else None

    @property
    def file_hashes(self) -> Mapping[str, str]:
        """The sha256 of each file of its task, by name."""
        return self.metadata.get("contents") or {}

    @property
    def budget(self) -> dict[str, Any]:
        """The settings that say how long it is trained."""
        training = self.recipe.get("training")
        return {name: training.get(name) for name in BUDGETS} if isinstance(training, Mapping) else {}

    @cached_property
    def training_note(self) -> str | None:
        """How it differs from a run that was trained in one go to the end of its budget; None if it does not."""
        steps = [cell.step for cell in self.cells] + [scores.step for scores in self.language]
        step, ended = max(steps, default=None), self.metadata.get("ended") or {}
        total = ended.get("step") if ended.get("stop_reason") in ("budget", "target") else self.budget.get("steps")
        earlier_budgets = [
            f"{extension['budget']:,}"
            for extension in self.metadata.get("extensions", ())
            if step is None or step > extension["step"]
        ]
        notes = [f"extended from {' and '.join(earlier_budgets)} steps"] * bool(earlier_budgets)
        if step is not None and total and step < total:
            notes.append(f"{step:,} of {total:,} steps")
        return ", ".join(notes) or None

    @property
    def operator(self) -> str | None:
        """What stands between the two numbers of a question, where the task has such a thing."""
        task = self.recipe.get("task")
        return str(task["operator"]) if isinstance(task, Mapping) and "operator" in task else None

    @cached_property
    def is_language_modeling(self) -> bool:
        """Whether it is a language modeling run, without questions and answers."""
        task = self.recipe.get("task")
        kind = task.get("kind") if isinstance(task, Mapping) else None
        return bool(self.language) or kind == "LanguageModeling" or any("perplexity" in line for line in self.metrics)

    def checkpoints(self) -> list[tuple[str, int]]:
        """The evaluated checkpoints as (name, step), earliest first."""
        return sorted(
            {(cell.checkpoint, cell.step) for cell in (*self.cells, *self.strata)}, key=lambda pair: (pair[1], pair[0])
        )

    def position_offsets(self) -> list[int]:
        return sorted({cell.position_offset for cell in self.cells})

    @cached_property
    def evaluation_settings(self) -> list[Mapping[str, Any]]:
        """The settings that were changed in evaluations, as trained ({}) first, then by size."""
        found = {settings_key(cell.settings): cell.settings for cell in (*self.cells, *self.strata)}
        return [found[key] for key in sorted(found)]

    def reported_checkpoint(self, settings: Mapping[str, Any] | None = None) -> tuple[str, int] | None:
        """The reported checkpoint: "final" where it was evaluated, else the latest one."""
        chosen = self._resolve_settings(settings)
        cells = self.cells or self.strata
        found = {(cell.checkpoint, cell.step) for cell in cells if cell.settings == chosen}
        return max(found, key=lambda pair: (pair[0] == "final", pair[1], pair[0]), default=None)

    def select_cells(
        self,
        checkpoint: tuple[str, int] | None = None,
        position_offset: int | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> list[Cell]:
        """The cells of one checkpoint at one position offset, run with some settings: by default the chosen checkpoint,
        the first position offset, as trained (or as it was evaluated at all). Of labels the mean over all position
        offsets."""
        chosen = self._resolve_settings(settings)
        place = checkpoint or self.reported_checkpoint(chosen)
        matching = [cell for cell in self.cells if (cell.checkpoint, cell.step) == place and cell.settings == chosen]
        if position_offset is None and all(cell.labels is not None for cell in matching):
            key = (place, settings_key(chosen))
            if key not in self._mean_cells:
                self._mean_cells[key] = _mean_over_position_offsets(matching)
            return self._mean_cells[key]
        first = min((cell.position_offset for cell in matching), default=0)
        return [
            cell for cell in matching if cell.position_offset == (first if position_offset is None else position_offset)
        ]

    def select_strata(self, checkpoint: tuple[str, int] | None, settings: Mapping[str, Any] | None) -> list[Cell]:
        """The cells of strata, as `select_cells` at the first position offset."""
        return replace(self, cells=self.strata, strata=()).select_cells(
            checkpoint or self.reported_checkpoint(settings), settings=self._resolve_settings(settings)
        )

    @cached_property
    def _mean_cells(self) -> dict[Any, list[Cell]]:
        """Cache of the means over position offsets, by checkpoint and settings."""
        return {}

    def _resolve_settings(self, settings: Mapping[str, Any] | None) -> Mapping[str, Any]:
        return next(iter(self.evaluation_settings), {}) if settings is None else settings

    def split_metrics(self, name: str) -> list[Mapping[str, Any]]:
        """The lines of metrics.jsonl about a split ("validation", "ood_validation")."""
        return [line for line in self.metrics if line.get("split") == name]

    def training_metrics(self) -> list[Mapping[str, Any]]:
        """The lines of metrics.jsonl about training itself: step, examples, loss, rate, ..."""
        return [line for line in self.metrics if "split" not in line and "loss" in line]


def _mean_over_position_offsets(cells: Sequence[Cell]) -> list[Cell]:
    """Each cell once, its shares averaged over position offsets."""
    found: dict[tuple[tuple[str, Any], ...], list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.position_offset):
        found.setdefault(cell.place, []).append(cell)
    return [_mean_cell(same) if len(same) > 1 else same[0] for same in found.values()]


def _mean_cell(cells: Sequence[Cell]) -> Cell:
    repeats = len(cells)
    correct, count = sum(cell.correct for cell in cells), sum(cell.count for cell in cells)
    low, high = wilson_interval(correct / repeats, count / repeats)
    wrong = [cell.first_error_counts for cell in cells if cell.first_error_counts is not None]
    first = [cell.first_token_correct for cell in cells if cell.first_token_correct is not None]
    return replace(
        cells[0],
        correct=correct,
        count=count,
        low=float(low),
        high=float(high),
        first_error_counts=tuple(map(sum, zip_longest(*wrong, fillvalue=0))) if wrong else None,
        first_token_correct=sum(first) if len(first) == repeats else None,
        labels=LabelCounts.merge_position_offsets([cell.labels for cell in cells if cell.labels is not None]),
        repeats=repeats,
    )


def read_run(folder: str | Path) -> Records:
    """Reads a run folder. Files that are not there yet count as empty; a truncated last line is skipped with a
    warning.

    Raises `UserError` when the folder is no run, and for a damaged head or evaluation; warns of damage in other files.
    """
    folder = Path(folder)
    if not (folder / RECIPE_FILE).is_file():
        what = "holds no recipe.yaml" if folder.is_dir() else "does not exist"
        raise UserError(f"{folder}: not a run folder: it {what}; a run folder looks like runs/<recipe>/<id>")
    messages: list[str] = []

    def warn(text: str) -> None:
        messages.append(text)
        warnings.warn(text, stacklevel=4)

    def records(name: str) -> list[dict[str, Any]]:
        return read_records(folder / name, RUN_FILE_SCHEMAS[name], warn, messages.append, head.get("id"))

    head = read_header(folder / RECIPE_FILE)
    lines, sample_lines = records("cells.jsonl"), records("samples.jsonl")
    answered = [cell_from_record(line) for line in lines if "correct" in line]
    cells = _distinct_cells([cell for cell in answered if cell.stratum is None], warn)
    strata = {_evaluation_key(cell): cell for cell in answered if cell.stratum is not None and cell.count}
    if others := {line["kind"] for line in lines if "correct" not in line and "language" not in line}:
        warn(f"cells.jsonl: records of {', '.join(sorted(others))} are left out, as reports show no such scores")
    names = {tuple(cell.coordinates.items()): cell.names for cell in cells if cell.names}
    return Records(
        folder,
        head,
        read_metrics(folder, head, warn, messages.append),
        cells,
        [
            line | {"names": names.get(tuple((line.get("cell") or {}).items()), {})}
            for line in sample_lines
            if "question" in line
        ],
        merge_language_records([line for line in lines if "language" in line]),
        [line for line in sample_lines if "question" not in line],
        records("timings.jsonl"),
        tuple(messages),
        list(strata.values()),
    )


def _distinct_cells(cells: Sequence[Cell], warn: Callable[[str], None]) -> list[Cell]:
    """Cells with questions, each once: a later one replaces an earlier one. Cells by other sizes than most with the
    same settings are left out with a warning."""
    found: dict[tuple[Any, ...], Cell] = {}
    by_settings: dict[tuple[Any, ...], Counter[tuple[str, ...]]] = {}
    for cell in cells:
        by_settings.setdefault(settings_key(cell.settings), Counter())[tuple(cell.coordinates)] += 1
    axes = {settings: counts.most_common(1)[0][0] for settings, counts in by_settings.items()}
    skipped: dict[tuple[str, ...], int] = {}
    for cell in cells:
        if not cell.count:
            continue
        own, settings = tuple(cell.coordinates), settings_key(cell.settings)
        if own != axes[settings]:
            skipped[own] = skipped.get(own, 0) + 1
            continue
        found[_evaluation_key(cell)] = cell
    for own, count in skipped.items():
        text, most = " and ".join(own) or "no size", " and ".join(next(iter(axes.values())))
        warn(f"cells.jsonl: {count} cell{'s' * (count != 1)} by {text} left out, as the others are by {most}")
    return list(found.values())


def _evaluation_key(cell: Cell) -> tuple[Any, ...]:
    return (cell.seed, cell.checkpoint, cell.step, settings_key(cell.settings), cell.position_offset, cell.place)


def read_runs(folders: Sequence[str | Path]) -> list[Records]:
    """Reads run folders, each once: a run matched by two patterns counts as one seed."""
    return [read_run(folder) for folder in {Path(folder).resolve(): folder for folder in folders}.values()]


def cell_from_record(line: Mapping[str, Any]) -> Cell:
    """The cell that a record of `cells.jsonl` is about, one of answers."""
    same = ["correct", "count", "low", "high", "region", "overlaps_training"]
    same += ["checkpoint", "step", "position_offset", "method"]
    wrong, first = line.get("first_error_counts"), line.get("first_token_correct")
    if first is None and wrong is not None:
        first = line["count"] - (wrong[0] if wrong else 0)
    return Cell(
        coordinates=line["cell"],
        **{name: line[name] for name in same},
        first_error_counts=None if wrong is None else tuple(wrong),
        seed=line.get("seed") or 0,
        settings=line.get("settings") or {},
        first_token_correct=first,
        labels=LabelCounts.from_record(line),
        numbers=NumberScores.from_record(line),
        texts=TextScores.from_record(line),
        non_causal_reason=line.get("non_causal_reason"),
        names=line.get("names") or {},
        scores=line.get("scores") or {},
        stratum=line.get("stratum"),
    )


def split_metric_name(lines: Sequence[Mapping[str, Any]]) -> Metric:
    """The metric to plot for a validation split: label accuracy where all lines have it, else exact match."""
    return "accuracy" if lines and all(line.get("accuracy") is not None for line in lines) else "exact_match"


def settings_key(settings: Mapping[str, Any]) -> tuple[tuple[str, float, str], ...]:
    """Settings as a sort key: unchanged ones first, numbers by size (4 before 16)."""
    if not settings:
        return ()
    return tuple(
        (path, float(value) if isinstance(value, int | float) else 0.0, json.dumps(value, sort_keys=True))
        for path, value in sorted(settings.items())
    )
