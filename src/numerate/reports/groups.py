"""Groups of runs that differ only in the seed, and the settings in which groups differ."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from numerate.errors import UserError
from numerate.evaluation import answer_metrics
from numerate.evaluation.labels import METRICS, Labels, Metric
from numerate.reports.grid import (
    OOD,
    REGION_WORDS,
    PlotGrid,
    Point,
    Region,
    are_parts,
    diagonal,
    grids,
    points,
    regions,
)
from numerate.reports.records import Cell, Records, settings_key
from numerate.reports.symmetry import same_everywhere

CONVERGED = 0.99
"""The exact match on held-out in-distribution questions from which on a run has converged."""


@dataclass(frozen=True)
class Group:
    """Runs that differ only in the seed, run with the same settings, under one label.

    `settings` are those changed for the evaluation; {} is as trained. `checkpoint` None is the reported one, "best" the
    one chosen on OOD validation. `metric` None is accuracy on unseen counts where answers are labels with known trained
    counts, else exact match.
    """

    label: str
    runs: tuple[Records, ...]
    settings: Mapping[str, Any] | None = None
    checkpoint: str | None = None
    metric: Metric | None = None

    def cells(self, run: Records) -> list[Cell]:
        """The cells of one run at the checkpoint and settings of this group, by its metric."""
        return [cell.of(self.measure) for cell in self.recorded(run)]

    def recorded(self, run: Records) -> list[Cell]:
        """The same as recorded. The best checkpoint is without the lengths it was chosen on."""
        if self.checkpoint is None:
            return fairly(run.select(settings=self.settings))
        named = [pair for pair in run.checkpoints() if pair[0] == self.checkpoint]
        return fairly(run.select(named[-1], settings=self.settings)) if named else []

    @cached_property
    def measure(self) -> Metric:
        """The metric. Raises `UserError` for one that its records do not have."""
        cells = [cell for run in self.runs for cell in self.recorded(run)]
        labelled = bool(cells) and all(cell.labels is not None for cell in cells)
        if self.metric is not None and self.metric not in METRICS:
            there = f"there are: {', '.join(METRICS)}; of numbers and texts {', '.join(answer_metrics.METRICS)}"
            raise UserError(f"metric: there is no {self.metric!r}; {there}")
        if self.metric in (None, "exact") or labelled or not cells:
            known = labelled and all(cell.labels.trained is not None for cell in cells if cell.labels is not None)
            return self.metric or ("unseen" if known else "exact")
        raise UserError(f"metric: {self.label} has no labels of which {METRICS[self.metric]} is known; metric=exact is")

    @property
    def measure_words(self) -> str:
        """The metric in words."""
        return METRICS[self.measure]

    @cached_property
    def labels(self) -> list[Labels]:
        """The labels of each seed over all its cells; nothing where answers are no labels."""
        each = [[cell.labels for cell in cells if cell.labels is not None] for cells in self.evaluated]
        return [Labels.together(labels) for labels in each] if each and all(each) else []

    @cached_property
    def floor(self) -> float | None:
        """The out-of-distribution score of memorising, or of one constant answer; None for other tasks."""
        for found in self.regions:
            beyond = [region for name, region in found.items() if name != "in_distribution"]
            if beyond:
                return found.get(OOD, beyond[-1]).floor
        return None

    @cached_property
    def by_symmetry(self) -> bool:
        """Whether a symmetry limits the model to chance, whatever its weights."""
        return same_everywhere(self.runs[0].recipe)

    @cached_property
    def sees_future(self) -> str | None:
        """How its model attends to later tokens, in words, which rules out any claim; None where it does not."""
        cells = [cell for run in self.runs for cell in self.recorded(run)]
        return next((cell.sees_future for cell in cells if cell.sees_future is not None), None)

    @cached_property
    def _evaluated(self) -> list[tuple[Records, list[Cell]]]:
        return [(run, cells) for run in self.runs if (cells := self.cells(run))]

    @property
    def evaluated(self) -> list[list[Cell]]:
        """The cells of each run that has any."""
        return [cells for _, cells in self._evaluated]

    @cached_property
    def points(self) -> list[Point]:
        """The cells of the chosen checkpoint, over the seeds that were evaluated."""
        return points(self.evaluated)

    @cached_property
    def first(self) -> list[Point]:
        """The same by the first token of the answer alone; nothing where the records do not say."""
        recorded = [cells for run in self.runs if (cells := self.recorded(run))]
        each = [[one for cell in cells if (one := cell.of_first()) is not None] for cells in recorded]
        return points(each) if all(each) else []

    @cached_property
    def grids(self) -> list[PlotGrid]:
        return grids(self.points)

    @cached_property
    def parts(self) -> bool:
        """Whether its cells are named parts such as modules, which have no length."""
        return are_parts(cell for run in self.runs for cell in run.cells)

    @cached_property
    def diagonal(self) -> dict[int, Point]:
        """The cells by length; none where they are parts."""
        return {} if self.parts else diagonal(self.points)

    @cached_property
    def measured(self) -> list[tuple[Records, dict[str, Region]]]:
        """Each run that was evaluated with the means of its regions."""
        return [(run, regions(cells)) for run, cells in self._evaluated]

    @property
    def regions(self) -> list[dict[str, Region]]:
        """The region means, one dictionary per seed that was evaluated."""
        return [found for _, found in self.measured]

    @cached_property
    def learned(self) -> list[tuple[Records, float]]:
        """The runs evaluated in distribution, with their exact match there; none where cells are parts."""
        return (
            []
            if self.parts
            else [
                (run, found["in_distribution"].share.value)
                for run, found in self.measured
                if "in_distribution" in found
            ]
        )

    @cached_property
    def converged(self) -> "Group":
        """The group without the seeds that did not converge; seeds without a measurement stay, and all seeds stay where
        none can converge."""
        if self.by_symmetry:
            return self
        missed = {id(run) for run, share in self.learned if share < CONVERGED}
        return replace(self, runs=tuple(run for run in self.runs if id(run) not in missed)) if missed else self

    @property
    def as_trained(self) -> bool:
        return not self.settings

    @property
    def operator(self) -> str | None:
        return self.runs[0].operator

    @property
    def seeds(self) -> list[int | None]:
        return [run.seed for run in self.runs]


def grouped(runs: Sequence[Records], labels: Mapping[str, str] | None = None) -> list[Group]:
    """Groups runs whose recipes are equal without their seeds (and, where the head of a run has a `variant`, without
    settings such as its budget and labels), in order of appearance. Evaluations with changed settings make their own
    groups, after the one as trained: "abacus, times=8".

    Runs of one experiment under two titles with the same seeds, as with two budgets, stay two groups. `labels` renames
    a group by the label of its runs (`{"addition_abacus": "Abacus"}`). Groups with the same label get the settings in
    which they differ appended.
    """
    together: dict[str, list[Records]] = {}
    for run in runs:
        tree = without_seed(run.recipe) if run.recipe else {"label": run.label}
        variant = str(run.head.get("variant") or json.dumps(tree, sort_keys=True, default=str))
        together.setdefault(variant, []).append(run)
    groups = [
        Group(_label(members, labels or {}), tuple(sorted(members, key=lambda run: run.seed or 0)))
        for variant in together.values()
        for members in _one_way(variant, labels or {})
    ]
    for label in {group.label for group in groups}:
        same = [group for group in groups if group.label == label]
        if len(same) > 1:
            different = differing([group.runs[0].recipe for group in same])
            for i, group in enumerate(same):
                what = ", ".join(f"{path}={texts[i]}" for path, texts in different.items())
                groups[groups.index(group)] = replace(group, label=f"{label} ({what})" if what else f"{label} {i + 1}")
    return [one for group in groups for one in _by_settings(group)]


def _one_way(runs: Sequence[Records], labels: Mapping[str, str]) -> list[list[Records]]:
    """Splits runs of one experiment: by their `labels` where these differ, and by title where a seed occurs twice, as
    with two budgets (equal steps and equal time)."""
    twice = len({run.id for run in runs}) < len(runs)
    several = len({labels[run.label] for run in runs if run.label in labels}) > 1
    apart: dict[tuple[str | None, str], list[Records]] = {}
    for run in runs:
        title = str(run.folder.resolve().parent) if twice else ""
        apart.setdefault((labels.get(run.label) if several else None, title), []).append(run)
    return list(apart.values())


def by_parts(groups: Sequence[Group]) -> bool:
    """Whether the evaluated cells of all groups are named parts."""
    known = [group for group in groups if any(run.cells for run in group.runs)]
    return bool(known) and all(group.parts for group in known)


def part_axis(groups: Sequence[Group]) -> str:
    """The name of the axis of parts: "module", "test"."""
    return next((next(iter(cell.at)) for group in groups for run in group.runs for cell in run.cells), "part")


def region_words(groups: Sequence[Group]) -> dict[str, str]:
    """The names of regions on the pages of these groups."""
    words = dict(REGION_WORDS)
    if by_parts(groups):
        axis = part_axis(groups)
        words |= {"in_distribution": f"in-distribution {axis}s", "ood_test": f"OOD test {axis}s"}
    return words


def fairly(cells: Sequence[Cell]) -> list[Cell]:
    """The cells without those that the best checkpoint was chosen on (OOD validation)."""
    return [cell for cell in cells if cell.checkpoint != "best" or cell.region != "ood_validation"]


def by_metric(groups: Sequence[Group], metric: Metric | None) -> list[Group]:
    """The groups as measured by a metric. Raises `UserError` for one that they lack, or where none is evaluated."""
    found = [replace(group, metric=metric) for group in groups]
    for group in found:
        assert group.measure
    if metric is not None and found and not any(group.evaluated for group in found):
        names = ", ".join(group.label for group in found[:4]) + ", ..." * (len(found) > 4)
        raise UserError(
            f"metric: nothing is known yet of {names}, which was not evaluated; numerate evaluate does that"
        )
    return found


def _by_settings(group: Group) -> list[Group]:
    """One group for each set of evaluation settings of its runs."""
    found = {settings_key(settings): settings for run in group.runs for settings in run.settings()}
    if not any(found.values()):
        return [group]
    return [
        replace(group, label=", ".join(filter(None, (group.label, settings_words(settings)))), settings=settings)
        for _, settings in sorted(found.items(), key=lambda pair: pair[0])
    ]


def _label(runs: Sequence[Records], labels: Mapping[str, str]) -> str:
    names = {run.label for run in runs}
    # Where the seeds have different names, use the name of the recipe.
    name = names.pop() if len(names) == 1 else runs[0].recipe_folder
    return labels.get(name, name)


def without_seed(tree: Any) -> Any:
    """A recipe, or a part of one, without its seeds."""
    if isinstance(tree, Mapping):
        return {key: without_seed(value) for key, value in tree.items() if key != "seed"}
    return [without_seed(value) for value in tree] if isinstance(tree, list | tuple) else tree


LABELS = {"title", "name", "group", "paper", "trackers", "tracking"}
"""Settings that name and file a recipe and do not change the experiment."""


def differing(recipes: Sequence[Mapping[str, Any]], *, short: bool = False) -> dict[str, tuple[str, ...]]:
    """The settings in which recipes differ, seeds and labels aside: path to one text per recipe.

    Parts of different kinds are shown whole: `{"model.positions.0": ("Learned(max_offset=10)", "Rotary()")}`; with
    `short` only with the settings in which parts of one kind differ: `("Learned", "Rotary")`.
    """
    found: dict[str, tuple[Any, ...]] = {}
    trees = [{name: value for name, value in recipe.items() if name not in LABELS} for recipe in recipes]
    _compare("", [without_seed(tree) for tree in trees], found)
    text = _short_texts if short else lambda values: tuple(setting_text(value) for value in values)
    return {path: text(values) for path, values in found.items()}


def _short_texts(values: Sequence[Any]) -> tuple[str, ...]:
    """Values as texts, parts with only the settings in which they differ from others of their kind."""
    texts = []
    for value in values:
        if isinstance(value, Mapping) and "kind" in value:
            same = [other for other in values if isinstance(other, Mapping) and other.get("kind") == value["kind"]]
            own = {name: one for name, one in value.items() if any(one != other.get(name) for other in same)}
            texts.append(setting_text({"kind": value["kind"], **own}).removesuffix("()"))
        else:
            texts.append(setting_text(value))
    return tuple(texts)


def _compare(path: str, values: Sequence[Any], found: dict[str, tuple[Any, ...]]) -> None:
    if all(value == values[0] for value in values):
        return
    if all(isinstance(value, Mapping) for value in values) and len({value.get("kind") for value in values}) == 1:
        for key in dict.fromkeys(key for value in values for key in value):
            _compare(f"{path}.{key}".lstrip("."), [value.get(key) for value in values], found)
    elif all(isinstance(value, list | tuple) for value in values) and len({len(value) for value in values}) == 1:
        for i in range(len(values[0])):
            _compare(f"{path}.{i}", [value[i] for value in values], found)
    else:
        found[path] = tuple(values)


def settings_words(settings: Mapping[str, Any]) -> str:
    """The settings of an evaluation in a few words: `{"model.backbone.num_loops": 8}` is "times=8", as trained is "".

    Paths with the same last name are lengthened until they differ: "0.base=500, 1.base=100".
    """
    names = {path: path.rpartition(".")[2] for path in settings}
    for path in settings:
        others = [other for other in settings if other != path]
        parts = path.split(".")
        for count in range(1, len(parts) + 1):
            names[path] = ".".join(parts[-count:])
            if not any(other.endswith(f".{names[path]}") for other in others):
                break
    return ", ".join(f"{names[path]}={_short(value)}" for path, value in settings.items())


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else setting_text(value)


def setting_text(value: Any) -> str:
    """A setting as one would write it in Python: `Learned(position_ids=DigitIndex(max_offset=10))`."""
    if isinstance(value, Mapping):
        kind = str(value.get("kind", ""))
        inner = ", ".join(f"{key}={setting_text(item)}" for key, item in value.items() if key != "kind")
        return f"{kind}({inner})"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(setting_text(item) for item in value) + "]"
    return str(value)


def flattened(tree: Any, path: str = "") -> dict[str, str]:
    """A recipe as path to text, leaf by leaf, the kind of a part at the part's own path."""
    if isinstance(tree, Mapping) and tree:
        found: dict[str, str] = {path: str(tree["kind"])} if "kind" in tree else {}
        for key, value in tree.items():
            if key != "kind":
                found.update(flattened(value, f"{path}.{key}".lstrip(".")))
        return found
    if isinstance(tree, list | tuple) and any(isinstance(item, Mapping) for item in tree):
        found = {}
        for i, item in enumerate(tree):
            found.update(flattened(item, f"{path}.{i}"))
        return found
    return {path: setting_text(tree)}
