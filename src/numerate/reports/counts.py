"""Accuracy per count: the share of correct labels at each position of a row, beside the floor of memorising."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import median

from numerate.evaluation.labels import METRICS, Metric
from numerate.evaluation.statistics import wilson
from numerate.reports.charts import Chart, ChartLine, Style, styles
from numerate.reports.drawing import chart_svg, table
from numerate.reports.grid import REGION_WORDS, bracket, percent
from numerate.reports.groups import Group
from numerate.reports.limits import MOST_EACH, drawn, left_out, listed

FLOOR = "what memorising gives"
"""The label of the floor line in a figure."""

MEMORISED = (
    "The floor is the score of a model that has memorised all counts of training and knows no further one; on unseen "
    "counts and on the last label it is that of the best single answer, given everywhere, where this is more."
)


@dataclass(frozen=True)
class Counted:
    """The accuracy at each count `t` of one group: the median over seeds and their range; with one seed the 95 %
    interval over rows. `each` has the values of every seed."""

    group: Group
    t: Sequence[int]
    value: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    each: Sequence[Sequence[float]]

    @property
    def floor(self) -> float | None:
        """The accuracy of the best constant answer on labels beyond the trained counts; None where unknown."""
        labels = self.group.labels[0]
        return None if labels.trained is None else labels.floor("unseen")


def counted(group: Group) -> Counted | None:
    """The accuracy per count of a group; None where answers are no labels."""
    curves = [labels.curve() for labels in group.labels]
    if not curves or not curves[0]:
        return None
    several = [{t: correct / count for t, correct, count in curve} for curve in curves]
    counts = [t for t in several[0] if all(t in one for one in several)]
    each = [[one[t] for t in counts] for one in several]
    repeats = group.labels[0].repeats
    if len(each) == 1:
        spans = [wilson(correct / repeats, max(1, count // repeats)) for _, correct, count in curves[0]]
        low, high = ([float(span[end]) for span in spans] for end in (0, 1))
    else:
        low, high = ([extreme(column) for column in zip(*each, strict=True)] for extreme in (min, max))
    return Counted(group, counts, [median(column) for column in zip(*each, strict=True)], low, high, each)


def floor_line(found: Sequence[Counted]) -> ChartLine | None:
    """The floor as a line by count: 1 up to the last trained one, then the mean of the best constant answer over
    further counts. None where groups have different floors or trained counts."""
    known = {(one.group.labels[0].trained, one.floor) for one in found}
    last = max(t for one in found for t in one.t)
    trained, floor = known.pop() if len(known) == 1 else (None, None)
    if trained is None or trained >= last:
        return None
    return ChartLine(FLOOR, [1, trained + 0.5, trained + 0.5, last], [1.0, 1.0, floor or 0.0, floor or 0.0], floor=True)


def count_chart(groups: Sequence[Group]) -> Chart:
    """The accuracy per count of all groups with labels as a chart, without lines where there is none."""
    shown = drawn([group for group in groups if group.labels])
    found = [one for group in shown if (one := counted(group)) is not None]
    styled = styles([one.group.label for one in found])
    lines = [_line(one, styled[one.group.label], len(found)) for one in found]
    floor = floor_line(found) if found else None
    trained = {one.group.labels[0].trained for one in found}
    limit = trained.pop() if len(trained) == 1 else None
    band = (
        "Bands: 95 % intervals over rows."
        if {len(one.each) for one in found} == {1}
        else "Lines: medians over seeds; bands: from the lowest to the highest"
        + "; thin lines: single seeds" * (len(found) <= MOST_EACH)
        + "."
    )
    return Chart(
        "",
        [*lines, *([floor] if floor is not None else [])],
        "count (the t-th label of a row)",
        "labels right, %",
        shares=True,
        lengths=True,
        trained=(1, limit) if limit is not None else None,
        region=REGION_WORDS["in_distribution"],
        notes=[band, *([left_out(groups, shown)] if len(shown) < len(groups) else [])],
    )


def by_count(groups: Sequence[Group]) -> str:
    """The accuracy per count of all groups as a chart, and their measures of labels as a table; "" without labels."""
    chart = count_chart(groups)
    if not chart.lines:
        return ""
    shown = drawn([group for group in groups if group.labels])
    parts = [
        f"Share of all rows whose t-th label is right. {chart.notes[0]}",
        f"Dashed: {FLOOR}; behind the trained counts that is the mean over these. {MEMORISED}"
        if chart.trained is not None
        else "",
        _placements(shown),
        *chart.notes[1:],
    ]
    figure = f'<div class="panels"><figure class="wide">{chart_svg(chart)}</figure></div>'
    return f"{figure}<figcaption>{escape(' '.join(filter(None, parts)))}</figcaption>{measures_table(shown)}"


def _line(one: Counted, style: Style, groups: int) -> ChartLine:
    seeds = len(one.group.labels)
    each = one.each if len(one.each) > 1 and groups <= MOST_EACH else ()
    suffix = f"{seeds} seeds" if seeds > 1 else ""
    label = one.group.label if groups > 1 else "the model"
    return ChartLine(label, one.t, one.value, one.low, one.high, style=style, suffix=suffix, each=each)


def _placements(groups: Sequence[Group]) -> str:
    """A note on means over placements."""
    meant = [group.label for group in groups if any(labels.repeats > 1 for labels in group.labels)]
    counts = sorted({labels.repeats for group in groups for labels in group.labels} - {1})
    if not counts:
        return ""
    whose = "All numbers" if len(meant) == len(groups) else f"Those of {listed(meant)}"
    return f"{whose} are means over {' or '.join(map(str, counts))} fixed position offsets."


def measures_table(groups: Sequence[Group]) -> str:
    """Every metric of labels by region, out of distribution with its floor below."""
    rows = []
    for group in groups:
        for name in dict.fromkeys(name for regions in group.regions for name in regions):
            several = [found.labels for one in group.regions if (found := one.get(name)) and found.labels is not None]
            if not several:
                continue
            row = [escape(group.label)] * (len(groups) > 1) + [
                escape(REGION_WORDS.get(name, name)).replace(" ", "\N{NO-BREAK SPACE}")
            ]
            for metric in METRICS:
                values = [value for labels in several if (value := labels.share(metric)) is not None]
                floor = several[0].floor(metric) if name != "in_distribution" else None
                row.append("" if metric == "unseen" and name == "in_distribution" else _measure_text(values, floor))
            rows.append(row)
    if not rows:
        return ""
    header = [*(["run"] * (len(groups) > 1)), "region", *(f"{_SHORT[metric]}, %" for metric in METRICS)]
    note = (
        "Over all rows, or labels, of a region, each weighing the same (elsewhere exact match is the mean over cells); "
        "of several seeds the median, from the lowest to the highest. Prefix: labels before the first wrong one, as a "
        "share of the row. Below each the floor."
    )
    shown = table(header, rows, numbers=range(len(header) - len(METRICS), len(header)))
    return f"<h3>All measures of labels</h3>{shown}<figcaption>{note}</figcaption>"


_SHORT: dict[Metric, str] = {
    "exact": "exact match",
    "unseen": "unseen counts",
    "accuracy": "all labels",
    "last": "last label",
    "prefix": "correct prefix",
}


def _measure_text(values: Sequence[float], floor: float | None) -> str:
    if not values:
        return ""
    text = percent(median(values))
    text += f" {bracket(min(values), max(values))}" if len(values) > 1 else ""
    return text + (f'<br><span class="quiet">floor {percent(floor)}</span>' if floor is not None else "")


def measure_of(groups: Sequence[Group]) -> Metric | None:
    """The common metric of these groups; None where they differ."""
    found = {group.measure for group in groups if group.points}
    return found.pop() if len(found) == 1 else None


def measure_words(groups: Sequence[Group]) -> str:
    """The common metric of these groups in words."""
    found = measure_of(groups)
    return "exact match" if not any(group.points for group in groups) else METRICS[found] if found else "share right"
