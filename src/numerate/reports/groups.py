"""Groups of runs that differ only in the seed."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from numerate.errors import UserError
from numerate.evaluation import answer_metrics
from numerate.evaluation.labels import METRICS, LabelCounts, Metric
from numerate.evaluation.statistics import Proportion, success_rate
from numerate.reports.colour import MARKER_SHAPES, SERIES, Style, assign_styles
from numerate.reports.grid import (
    ALL_OOD,
    ALL_REGION_LABELS,
    DIGIT_AXES,
    REGION_LABELS,
    Estimate,
    Point,
    RegionScore,
    aggregate_seeds,
    are_named_parts,
    cell_label,
    diagonal_points,
    grid_axes,
    join_names,
    metric_label,
    score_regions,
    span_text,
    stratum_size,
)
from numerate.reports.metrics import (
    MAIN_METRICS,
    METRIC_ORDER,
    MetricKey,
    SeedMetrics,
    format_metric,
    metrics_of_cells,
)
from numerate.reports.records import Cell, Records, settings_key
from numerate.reports.settings import differing_settings, format_settings, label_settings, remove_seeds

CONVERGENCE_THRESHOLD = 0.99
"""The exact match on held-out in-distribution questions from which on a run has converged."""

SAME_CHECKPOINT = "final = best"

NOT_COMPARABLE = "not comparable (non-causal)"
"""Replaces the numbers of a model that attends to later tokens."""


@dataclass(frozen=True)
class Group:
    """Runs that differ only in the seed, run with the same settings, under one label.

    `settings` are those changed for the evaluation; {} is as trained. `checkpoint` None is the reported one, "best" the
    one chosen on OOD validation. `metric` None is accuracy on unseen counts where answers are labels with known trained
    counts, else exact match. `shared_cells` are the cells that means of regions are over (default: all of them).
    """

    label: str
    runs: tuple[Records, ...]
    settings: Mapping[str, Any] | None = None
    checkpoint: str | None = None
    metric: Metric | None = None
    shared_cells: frozenset[Any] | None = None

    def cells(self, run: Records) -> list[Cell]:
        """The cells of one run at the checkpoint and settings of this group, by its metric."""
        return [cell.with_metric(self.resolved_metric) for cell in self.recorded_cells(run)]

    def recorded_cells(self, run: Records) -> list[Cell]:
        """The same as recorded. The best checkpoint is without the lengths it was chosen on."""
        named = self._named_checkpoints(run)
        return exclude_selection_cells(run.select_cells(named[-1], settings=self.settings)) if named else []

    def _named_checkpoints(self, run: Records) -> list[tuple[str, int] | None]:
        """The checkpoints of its name, None for the reported one."""
        return [None] if self.checkpoint is None else [pair for pair in run.checkpoints() if pair[0] == self.checkpoint]

    @cached_property
    def resolved_metric(self) -> Metric:
        """The metric, chosen by what its records have unless it is set."""
        cells = [cell for run in self.runs for cell in self.recorded_cells(run)]
        labels = [cell.labels for cell in cells if cell.labels is not None]
        is_known = (
            bool(cells) and len(labels) == len(cells) and all(one.max_training_labels is not None for one in labels)
        )
        return self.metric or ("ood_accuracy" if is_known else "exact_match")

    @property
    def metric_label(self) -> str:
        """The metric in words."""
        return metric_label(self.resolved_metric, self.points)

    @cached_property
    def labels(self) -> list[LabelCounts]:
        """The labels of each seed over all its cells; nothing where answers are no labels."""
        each = [[cell.labels for cell in cells if cell.labels is not None] for cells in self.evaluated_cells]
        return [LabelCounts.merge(labels) for labels in each] if each and all(each) else []

    @cached_property
    def at_checkpoints(self) -> "list[Group]":
        """This group, and itself at the best checkpoint where that was evaluated too and is another step."""
        final, best = self._steps("final"), self._steps("best")
        is_best_too = self.checkpoint is None and final and best and final != best
        return [self, replace(self, checkpoint="best")] if is_best_too else [self]

    @cached_property
    def checkpoint_label(self) -> str:
        """The name of its checkpoint, `SAME_CHECKPOINT` where the best one is the final one in every seed."""
        if self.checkpoint is None and self._steps("final") and self._steps("final") == self._steps("best"):
            return SAME_CHECKPOINT
        return " and ".join(sorted({cells[0].checkpoint for cells in self.evaluated_cells}))

    def _steps(self, checkpoint: str) -> list[list[int]]:
        """The evaluated steps of a checkpoint, run by run; empty without any."""
        steps = [[step for name, step in run.checkpoints() if name == checkpoint] for run in self.runs]
        return steps if any(steps) else []

    @cached_property
    def baseline(self) -> float | None:
        """The out-of-distribution score of memorizing, or of one constant answer; None for other tasks."""
        for found in self.region_scores:
            beyond = [region for name, region in found.items() if name != "in_distribution"]
            if beyond:
                return found.get(ALL_OOD, beyond[-1]).baseline
        return None

    @cached_property
    def non_causal_reason(self) -> str | None:
        """How its model attends to later tokens, so that its scores are not comparable; None if it does not."""
        cells = [cell for run in self.runs for cell in self.recorded_cells(run)]
        return next((cell.non_causal_reason for cell in cells if cell.non_causal_reason is not None), None)

    @cached_property
    def cells_by_run(self) -> list[tuple[Records, list[Cell]]]:
        """Each run that was evaluated with its cells."""
        return [(run, cells) for run in self.runs if (cells := self.cells(run))]

    @property
    def evaluated_cells(self) -> list[list[Cell]]:
        """The cells of each run that has any."""
        return [cells for _, cells in self.cells_by_run]

    @cached_property
    def points(self) -> list[Point]:
        """The cells of the chosen checkpoint, over the seeds that were evaluated."""
        return aggregate_seeds(self.evaluated_cells)

    @cached_property
    def strata(self) -> list[Point]:
        """The cells of strata of the chosen checkpoint, over the seeds that were evaluated there."""
        named = [(run, checkpoints[-1]) for run in self.runs if (checkpoints := self._named_checkpoints(run))]
        found = [exclude_selection_cells(run.select_strata(checkpoint, self.settings)) for run, checkpoint in named]
        return aggregate_seeds([cells for cells in found if cells])

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of the grid."""
        return grid_axes([*self.points, *self.strata])

    def stratum_size(self, point: Point) -> int:
        """The size of a cell of a stratum, such as the length of its longest operand."""
        return stratum_size(point, self.axes)

    @cached_property
    def first_token_points(self) -> list[Point]:
        """The same by the first token of the answer alone; nothing where the records do not say."""
        recorded = [cells for run in self.runs if (cells := self.recorded_cells(run))]
        each = [[one for cell in cells if (one := cell.with_first_token()) is not None] for cells in recorded]
        return aggregate_seeds(each) if all(each) else []

    @cached_property
    def has_unordered_cells(self) -> bool:
        """Whether its cells are named parts such as modules, which have no length."""
        return are_named_parts(cell for run in self.runs for cell in run.cells)

    @cached_property
    def diagonal(self) -> dict[int, Point]:
        """The cells by length; none where they are parts."""
        return {} if self.has_unordered_cells else diagonal_points(self.points)

    @cached_property
    def region_scores_by_run(self) -> list[tuple[Records, dict[str, RegionScore]]]:
        """Each run that was evaluated with the means of its regions."""
        return [(run, score_regions(self._shared(cells))) for run, cells in self.cells_by_run]

    def _shared(self, cells: Sequence[Cell]) -> Sequence[Cell]:
        return [cell for cell in cells if self.shared_cells is None or cell.place in self.shared_cells]

    @property
    def region_scores(self) -> list[dict[str, RegionScore]]:
        """The region means, one dictionary per seed that was evaluated."""
        return [found for _, found in self.region_scores_by_run]

    @property
    def first_region_scores(self) -> dict[str, RegionScore]:
        """Each region as the first seed that was evaluated there has it."""
        return {name: region for regions in reversed(self.region_scores) for name, region in regions.items()}

    def region_estimate(self, name: str) -> Estimate:
        """The mean of a region over the seeds evaluated there."""
        values = tuple(regions[name].score.value for regions in self.region_scores if name in regions)
        first = self.first_region_scores.get(name)
        return Estimate(values, (first.score.low, first.score.high), first.baseline) if first else Estimate(())

    @cached_property
    def metrics_by_seed(self) -> list[tuple[int | None, SeedMetrics]]:
        """All metrics of each evaluated seed; those of single cells for parts and for one run alone."""
        each = [(run.seed, self.recorded_cells(run)) for run in self.runs]
        has_cells = self.has_unordered_cells or len(self.runs) == 1
        return [(seed, metrics_of_cells(self._shared(own), own if has_cells else ())) for seed, own in each if own]

    def metric_by_seed(self, key: MetricKey, metric: str) -> dict[int | None, float]:
        """A metric of each seed that has it."""
        found = ((seed, metrics.get(key, {}).get(metric)) for seed, metrics in self.metrics_by_seed)
        return {seed: value for seed, value in found if value is not None}

    def metric_estimate(self, key: MetricKey, metric: str) -> Estimate:
        """A metric over seeds."""
        each = [metrics.get(key, {}) for _, metrics in self.metrics_by_seed]
        values = tuple(value for metrics in each if (value := metrics.get(metric)) is not None)
        low, high, baseline = (each[0].get(f"{metric}.{end}") if each else None for end in ("low", "high", "baseline"))
        return Estimate(values, None if low is None or high is None else (low, high), baseline)

    def metric_text(self, key: MetricKey, metric: str) -> str:
        """The median over seeds with its interval, and below it the baseline: `12.5 [10, 15]`; "" if there is none."""
        found = self.metric_estimate(key, metric)
        text = found.text(lambda value: format_metric(metric, value))
        return text if found.baseline is None else f"{text}\nbaseline {format_metric(metric, found.baseline)}"

    @cached_property
    def in_distribution_scores(self) -> list[tuple[Records, float]]:
        """The runs evaluated in distribution, with their exact match there; none where cells are parts."""
        each = [] if self.has_unordered_cells else replace(self, shared_cells=None).region_scores_by_run
        return [(run, found["in_distribution"].score.value) for run, found in each if "in_distribution" in found]

    @cached_property
    def convergence_rate(self) -> Proportion | None:
        """The share of converged seeds with Wilson's interval; None where that was not measured."""
        scores = [score for _, score in self.in_distribution_scores]
        return success_rate(scores, CONVERGENCE_THRESHOLD) if scores else None

    @cached_property
    def converged_group(self) -> "Group":
        """The group without the seeds that did not converge; seeds without a measurement stay."""
        failed = {id(run) for run, share in self.in_distribution_scores if share < CONVERGENCE_THRESHOLD}
        if not failed:
            return self
        return replace(self, runs=tuple(run for run in self.runs if id(run) not in failed))

    @property
    def operator(self) -> str | None:
        return self.runs[0].operator

    def point_label(self, point: Point) -> str:
        """A cell in words: "3+4 digits"."""
        return cell_label(point.coordinates, self.operator, point.names)

    def diagonal_label(self, point: Point) -> str:
        """A cell of the diagonal in words: "8+8 digits, both numbers n digits long"."""
        where = "both numbers n digits long" if self.axes == DIGIT_AXES else "on the diagonal"
        return self.point_label(point) + f", {where}" * (len(self.axes) > 1)


def group_runs(runs: Sequence[Records], labels: Mapping[str, str] | None = None) -> list[Group]:
    """Groups runs whose recipes are equal without their seeds (and, where the head of a run has a `variant`, without
    settings such as its labels), in order of appearance. Evaluations with changed settings make their own groups, after
    the one as trained: "abacus, times=8". So do runs with another budget, extended or unfinished ones, and those on
    other contents of the same files.

    Runs of one experiment under two titles with the same seeds stay two groups. `labels` renames a group by the label
    of its runs (`{"addition_abacus": "Abacus"}`). Groups with the same label get the settings in which they differ
    appended; where all groups have that label, the settings replace it.
    """
    runs_by_variant: dict[str, list[Records]] = {}
    for run in runs:
        tree = remove_seeds(run.recipe) if run.recipe else {"label": run.label}
        variant = str(run.metadata.get("variant") or json.dumps(tree, sort_keys=True, default=str))
        key = [variant, run.budget, run.training_note, sorted(run.file_hashes.values())]
        runs_by_variant.setdefault(json.dumps(key, sort_keys=True, default=str), []).append(run)
    groups = [
        Group(_label(members, labels or {}), tuple(sorted(members, key=lambda run: run.seed or 0)))
        for variant in runs_by_variant.values()
        for members in _split_by_label_and_title(variant, labels or {})
    ]
    return [one for group in _with_distinct_labels(groups) for one in _split_by_settings(group)]


def _with_distinct_labels(groups: Sequence[Group]) -> list[Group]:
    """Groups of one label with the settings in which they differ, or with numbers, and with how they were trained."""
    labels: dict[int, str] = {}
    for label in {group.label for group in groups}:
        places = [i for i, group in enumerate(groups) if group.label == label]
        runs = [groups[i].runs[0] for i in places]
        differences = map(_join, label_settings([run.recipe for run in runs]), _differing_files(runs))
        for i, run, difference in zip(places, runs, differences, strict=True):
            what = _join(difference, run.training_note or "")
            is_redundant = len(places) == len(groups) > 1 and difference
            labels[i] = what if is_redundant else f"{label} ({what})" if what else label
    counts, seen = Counter(labels.values()), Counter[str]()
    result = []
    for i, group in enumerate(groups):
        seen[labels[i]] += 1
        number = f" {seen[labels[i]]}" if counts[labels[i]] > 1 else ""
        result.append(replace(group, label=f"{labels[i]}{number}"))
    return result


def _differing_files(runs: Sequence[Records]) -> list[str]:
    """The files of the task whose contents differ among runs, with the beginning of the hash that each run has."""
    names = dict.fromkeys(name for run in runs for name in run.file_hashes)
    differing = [name for name in names if len({run.file_hashes.get(name) for run in runs}) > 1]
    return [_join(*(f"{name} {run.file_hashes.get(name, 'none')[:8]}" for name in differing)) for run in runs]


def _join(*texts: str) -> str:
    return ", ".join(filter(None, texts))


def _split_by_label_and_title(runs: Sequence[Records], labels: Mapping[str, str]) -> list[list[Records]]:
    """Splits runs of one experiment: by their `labels` where these differ, and by title where a seed occurs twice, as
    with two budgets (equal steps and equal time)."""
    has_repeated_seeds = len({run.id for run in runs}) < len(runs)
    has_several_labels = len({labels[run.label] for run in runs if run.label in labels}) > 1
    found: dict[tuple[str | None, str], list[Records]] = {}
    for run in runs:
        title = str(run.folder.resolve().parent) if has_repeated_seeds else ""
        found.setdefault((labels.get(run.label) if has_several_labels else None, title), []).append(run)
    return list(found.values())


def group_styles(groups: Sequence[Group]) -> dict[str, Style]:
    """A style for each group by its label. Where groups are all combinations of models and of other settings (losses,
    data), or of two settings, the color is that of the method and the marker that of the model."""
    settings = differing_settings([group.runs[0].recipe for group in groups])
    of_model = [path for path in settings if path.partition(".")[0] in ("model", "tokenizer")]
    if len(of_model) in (0, len(settings)):
        of_model = [*settings][:1]
    models, methods = (
        [
            repr([values[i] for path, values in settings.items() if (path in of_model) == wanted])
            for i in range(len(groups))
        ]
        for wanted in (True, False)
    )
    shapes, colors = list(dict.fromkeys(models)), list(dict.fromkeys(methods))
    pairs = list(zip(map(colors.index, methods), map(shapes.index, models), strict=True))
    is_cross = len({*pairs}) == len(groups) == len(shapes) * len(colors) and min(len(shapes), len(colors)) > 1
    if not is_cross or len(colors) > len(SERIES) or len(shapes) > len(MARKER_SHAPES):
        return assign_styles([group.label for group in groups])
    return {group.label: Style(*pair) for group, pair in zip(groups, pairs, strict=True)}


def have_unordered_cells(groups: Sequence[Group]) -> bool:
    """Whether the evaluated cells of all groups have no order: modules or test sets, each with a name."""
    known = [group for group in groups if any(run.cells for run in group.runs)]
    return bool(known) and all(group.has_unordered_cells for group in known)


def unique_trainings(groups: Sequence[Group]) -> list[Group]:
    """Groups without repeated evaluations of the same runs."""
    found: dict[tuple[str, ...], Group] = {}
    for group in groups:
        found.setdefault(tuple(str(run.folder) for run in group.runs), group)
    return list(found.values())


def part_axis(groups: Sequence[Group]) -> str:
    """The name of the axis of parts: "module", "test"."""
    cells = (cell for group in groups for run in group.runs for cell in run.cells)
    return next((axis for cell in cells for axis in cell.coordinates), "part")


def region_labels(groups: Sequence[Group]) -> dict[str, str]:
    """The names of regions on the pages of these groups."""
    words = dict(ALL_REGION_LABELS)
    if have_unordered_cells(groups):
        axis = part_axis(groups)
        words |= {"in_distribution": f"in-distribution {axis}s", "ood_test": f"OOD test {axis}s"}
    return words


def named_cells(groups: Sequence[Group]) -> dict[str, list[tuple[MetricKey, str]]]:
    """The evaluated cells with their names, by region, in the order of their coordinates."""
    found: dict[MetricKey, str] = {}
    for group in groups:
        for cell in (cell for run in group.runs for cell in run.cells):
            key = MetricKey(cell.region, tuple(cell.coordinates.values()))
            found.setdefault(key, cell_label(cell.coordinates, group.operator, cell.names))
    by_region = {
        name: sorted((key for key in found if key.region == name), key=lambda key: key.cell or ())
        for name in REGION_LABELS
    }
    return {name: [(key, found[key]) for key in keys] for name, keys in by_region.items() if keys}


def computed_metrics(groups: Sequence[Group]) -> list[str]:
    """Which metrics were computed."""
    known = [metrics for group in groups for _, each in group.metrics_by_seed for metrics in each.values()]
    own_scores = dict.fromkeys(
        name for group in groups for run in group.runs for cell in run.cells for name in cell.scores
    )
    return answer_metrics.available_metrics(dict.fromkeys([*METRIC_ORDER, *own_scores]), known)


def main_metrics(groups: Sequence[Group]) -> list[str]:
    """Which of them are tested, and shown unfolded."""
    there = computed_metrics(groups)
    return [name for name in MAIN_METRICS if name in there][:2]


def check_has_metric(groups: Sequence[Group], metric: str | None) -> None:
    """Raises `UserError` for a group whose records do not have a metric of numbers or texts; nothing for None."""
    for group in groups if metric is not None else ():
        if not any(group.metric_by_seed(MetricKey(region), str(metric)) for region in ALL_REGION_LABELS):
            if any(run.is_language_modeling for run in group.runs):
                raise UserError(f"metric: must be left out for {group.label}: of texts, all metrics are compared")
            raise UserError(f"metric: {group.label} has no {metric}; numerate evaluate RUN method=decoding computes it")


def not_comparable_notes(groups: Sequence[Group]) -> list[str]:
    """Clauses on the groups that are not comparable because their models are not causal, by reason."""
    reasons: dict[str, list[str]] = {}
    for group in groups:
        if group.non_causal_reason is not None:
            reasons.setdefault(group.non_causal_reason, []).append(group.label)
    return [f"{join_names(labels)}: {NOT_COMPARABLE}: {reason}" for reason, labels in reasons.items()]


def with_shared_cells(groups: Sequence[Group]) -> list[Group]:
    """The groups with means of regions over the cells that every run has; over all of them if none is in common."""
    evaluated = [places for group in groups for places in _places(group)]
    shared = frozenset.intersection(*evaluated) if any(places != evaluated[0] for places in evaluated) else None
    return [replace(group, shared_cells=shared or None) for group in groups]


def different_cells_notes(groups: Sequence[Group]) -> list[str]:
    """A sentence on groups of one task whose runs were evaluated on different cells, and on `with_shared_cells`."""
    evaluated = {group.label: places for group in groups if (places := _places(group))}
    if len({one for places in evaluated.values() for one in places}) < 2:
        return []
    counts = join_names([f"{label} on {span_text(map(len, places))}" for label, places in evaluated.items()])
    shared = with_shared_cells(groups)[0].shared_cells
    means = f"means of regions are over the {len(shared)} that all have" if shared else "their means share none"
    advice = "numerate evaluate RUN grid=... for each evaluates all on the same"
    return [f"The runs were evaluated on different cells ({counts}), and {means}; {advice}."]


def _places(group: Group) -> list[frozenset[Any]]:
    """The cells that each run was evaluated on."""
    return [frozenset(cell.place for cell in cells) for cells in group.evaluated_cells]


def comparable_groups(groups: Sequence[Group]) -> list[Group]:
    """The groups with causal models, whose scores are comparable."""
    return [group for group in groups if group.non_causal_reason is None]


def common_metric(groups: Sequence[Group]) -> Metric | None:
    """The common metric of these groups; None if they differ."""
    found = {group.resolved_metric for group in groups if group.points}
    return found.pop() if len(found) == 1 else None


def common_metric_label(groups: Sequence[Group]) -> str:
    """The common metric of these groups in words."""
    found, points = common_metric(groups), [point for group in groups for point in group.points]
    return "exact match" if not points else metric_label(found, points) if found else "accuracy"


def exclude_selection_cells(cells: Sequence[Cell]) -> list[Cell]:
    """The cells without those that the best checkpoint was chosen on (OOD validation)."""
    return [cell for cell in cells if cell.checkpoint != "best" or cell.region != "ood_validation"]


def with_metric(groups: Sequence[Group], metric: Metric | None) -> list[Group]:
    """The groups as measured by a metric. Raises `UserError` for one that they lack, or where none is evaluated."""
    result = [replace(group, metric=metric) for group in groups]
    recorded = {group.label: [cell for run in group.runs for cell in group.recorded_cells(run)] for group in groups}
    unlabelled = [label for label, cells in recorded.items() if any(cell.labels is None for cell in cells)]
    if metric is not None and metric not in METRICS:
        known = f"{', '.join(METRICS)}; of numbers and texts {', '.join(answer_metrics.ANSWER_METRICS)}"
        problem = f"there is no {metric!r}; there are: {known}"
    elif metric not in (None, "exact_match") and unlabelled:
        problem = f"must be exact_match for {unlabelled[0]}, whose answers have no labels"
    elif metric is not None and recorded and not any(recorded.values()):
        problem = f"{join_names(list(recorded), 4)} must be evaluated first, with numerate evaluate"
    else:
        return result
    raise UserError(f"metric: {problem}")


def _split_by_settings(group: Group) -> list[Group]:
    """One group for each set of evaluation settings of its runs."""
    settings_by_key = {settings_key(settings): settings for run in group.runs for settings in run.evaluation_settings}
    if not any(settings_by_key.values()):
        return [group]
    return [
        replace(group, label=", ".join(filter(None, (group.label, format_settings(settings)))), settings=settings)
        for _, settings in sorted(settings_by_key.items(), key=lambda pair: pair[0])
    ]


def _label(runs: Sequence[Records], labels: Mapping[str, str]) -> str:
    names = {run.label for run in runs}
    # Where the seeds have different names, use the name of the recipe.
    name = names.pop() if len(names) == 1 else runs[0].recipe_folder
    return labels.get(name, name)
