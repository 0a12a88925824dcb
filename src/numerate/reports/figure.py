"""Figures as data: panels of lines, of points with intervals, or of colored cells, with their axes, legends and notes.

`matplotlib_writer`, `html_writer` and `terminal_writer` draw the same description, each from it alone. Values stay in
the units of their axes; a proportion is from 0 to 1 and its ticks read in per cent.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, log10

from numerate.evaluation.labels import METRICS
from numerate.reports.colour import LegendEntry, Style
from numerate.reports.grid import (
    DIGIT_AXES,
    MAX_TOOLTIP_SEEDS,
    Point,
    axis_label,
    cell_label,
    format_integer_percent,
    format_interval,
    format_percent,
    length_ticks,
)

MAX_NUMBER_COLUMNS = 24
"""Lines with more points have no markers, and maps with more columns no numbers in their cells."""


LOG_RATIO = 200
"""Lengths that reach further than so many times the shortest, with gaps, have a logarithmic axis."""


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high` with its ticks, each a value and its text."""

    label: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    is_log: bool = False

    def fraction(self, value: float) -> float:
        """Where a value is, from 0 at `low` to 1 at `high`; values outside are at the ends."""
        low, high, at = ((log10(max(x, 1e-300)) for x in (self.low, self.high, value))
                         if self.is_log else (self.low, self.high, value))  # fmt: skip
        return min(max((at - low) / ((high - low) or 1.0), 0.0), 1.0)

    @classmethod
    def percent(cls, label: str, step: float = 0.2) -> "Axis":
        """The axis of a proportion."""
        return cls(label, 0.0, 1.0, [(i * step, f"{100 * i * step:.0f}") for i in range(round(1 / step) + 1)])

    @classmethod
    def linear(cls, label: str, low: float, high: float, ticks: Sequence[float] | None = None) -> "Axis":
        """An axis with these ticks, by default round numbers."""
        high = high if high > low else low + 1.0
        return cls(label, low, high, [(x, f"{x:g}") for x in (axis_ticks(low, high) if ticks is None else ticks)])

    @classmethod
    def log(cls, label: str, values: Sequence[float]) -> "Axis":
        """A logarithmic axis around positive values; its ticks are powers of ten."""
        first, last = floor(log10(min(values))), ceil(log10(max(values)) + 1e-9)
        ticks = [(10.0**power, power_of_ten(power)) for power in range(first, last + 1)]
        return cls(label, 10.0**first, 10.0**last, ticks, is_log=True)


def axis_ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers from low to high."""
    span = (high - low) or 1.0
    step = 10.0 ** floor(log10(span / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 6)
    return [step * i for i in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def power_of_ten(power: float) -> str:
    """A power of ten as text: `power_of_ten(-3)` is "10⁻³"."""
    return "1" if power == 0 else "10" + f"{power:.0f}".translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


@dataclass(frozen=True)
class ChartLine:
    """A line of a chart with its band, in the units of the axes; `seed_lines` are thin lines behind it, one per seed.

    `label` names the series and has its style; `suffix` follows it in a legend ("5 seeds"). With `is_baseline` it is no
    series but a neutral dashed line below the others."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    style: Style = Style()
    suffix: str = ""
    has_markers: bool = False
    tooltips: Sequence[str] | None = None
    is_baseline: bool = False
    seed_lines: Sequence[Sequence[float]] = ()

    @property
    def label_with_suffix(self) -> str:
        """`rotary (5 seeds)`."""
        return f"{self.label} ({self.suffix})" if self.suffix else self.label

    @property
    def is_marked(self) -> bool:
        """Whether its points have markers: they do unless there are many, and a single one always."""
        return len(self.x) == 1 or (self.has_markers and len(self.x) <= MAX_NUMBER_COLUMNS)


@dataclass(frozen=True)
class Chart:
    """Lines with their axes.

    `is_percent` fixes the vertical axis at 0 to 100 %, `is_log` makes it logarithmic, `has_integer_ticks` puts a tick
    at every whole number, `trained_range` shades what training covered, called `trained_range_label`; `zooms_to_data`
    starts the vertical axis near the lowest value and cuts values above those after the first tenth. `reference_lines`
    are vertical, each at an x with a text. `notes` are sentences on the lines and bands."""

    title: str
    lines: Sequence[ChartLine]
    x_label: str
    y_label: str
    is_percent: bool = False
    is_log: bool = False
    has_integer_ticks: bool = False
    zooms_to_data: bool = False
    trained_range: tuple[float, float] | None = None
    trained_range_label: str = ""
    reference_lines: Sequence[tuple[float, str]] = ()
    notes: Sequence[str] = ()

    @property
    def series(self) -> list[ChartLine]:
        """The lines that are series and have points."""
        return [line for line in self.drawn_lines if not line.is_baseline]

    @property
    def drawn_lines(self) -> list[ChartLine]:
        """The lines with points."""
        return [line for line in self.lines if len(line.x)]

    @cached_property
    def x_axis(self) -> Axis:
        xs = [x for line in self.drawn_lines for x in line.x]
        if not self.has_integer_ticks:
            return Axis.linear(self.x_label, min(0.0, *xs), max(xs))
        low, high = min(xs) - 0.5, max(xs) + 0.5
        # A few lengths far away leave no room for all others.
        are_dense = max(xs) - min(xs) < 2 * len(set(xs))
        if not are_dense and max(xs) > LOG_RATIO * min(xs) > 0:
            ticks = [(10.0**power, f"{10**power:,}") for power in range(ceil(log10(min(xs))), floor(log10(high)) + 1)]
            return Axis(self.x_label, low, high, ticks, is_log=True)
        return Axis.linear(self.x_label, low, high, length_ticks(xs, 13) if are_dense else None)

    @cached_property
    def y_axis(self) -> Axis:
        if self.is_percent:
            return Axis.percent(self.y_label)
        lines = self.drawn_lines
        ys = [y for line in lines for y in (*line.y, *(line.low or ()), *(line.high or ())) if y > 0 or not self.is_log]
        if self.is_log:
            return Axis.log(self.y_label, ys)
        if not self.zooms_to_data:
            return Axis.linear(self.y_label, min(0.0, *ys), max(ys) or 1.0)
        start = self.x_axis.low + (self.x_axis.high - self.x_axis.low) / 10
        late = [y for line in lines for x, y in zip(line.x, line.y, strict=True) if x >= start]
        low, high = min(ys), max(late, default=max(ys))
        margin = 0.04 * (high - low) or 0.5
        return Axis.linear(self.y_label, low - margin, high + margin)

    def legend_entries(self) -> list[LegendEntry]:
        """The entries of its legend; none for a single line."""
        return [(line.label_with_suffix, line.style) for line in self.series] if len(self.lines) > 1 else []


@dataclass(frozen=True)
class Mark:
    """One point of a row: the `value`, its interval (thick where it `is_reliable`), an upright line at the `median`, a
    tick for each of the `seeds` and a cross for each unconverged one. `text` is the number beside it, `tooltip` tells
    all."""

    style: Style
    value: float | None = None
    interval: tuple[float, float] | None = None
    is_reliable: bool = True
    median: float | None = None
    seeds: Sequence[float] = ()
    unconverged_seeds: Sequence[float] = ()
    text: str = ""
    note: str = ""
    tooltip: str = ""


@dataclass(frozen=True)
class PointRow:
    """A label with a note below, and its mark, if there is a value."""

    label: str
    mark: Mark | None
    note: str = ""


@dataclass(frozen=True)
class PointChart:
    """Rows of points with intervals on one horizontal axis. Charts of one figure have the same rows."""

    title: str
    rows: Sequence[PointRow]
    axis: Axis


@dataclass(frozen=True)
class HeatCell:
    """A colored cell: `fraction` from 0 to 1 is its color, `text` its number."""

    fraction: float
    text: str
    tooltip: str = ""
    is_trained: bool = False
    overlaps_training: bool = False


@dataclass(frozen=True)
class HeatMap:
    """Cells by row and column; a strip of one row has an empty `row_axis`. `title_style` is the marker of its series,
    `subtitle` quiet text behind the title. On a page it has numbers in its cells, or `as_image` is an image without
    tips, for large ones."""

    title: str
    row_axis: str
    column_axis: str
    rows: Sequence[int]
    columns: Sequence[int]
    cells: Mapping[tuple[int, int], HeatCell]
    title_style: Style | None = None
    subtitle: str = ""
    as_image: bool = False

    @property
    def axes_label(self) -> str:
        """The axes in words."""
        if (self.row_axis, self.column_axis) == ("first_digits", "second_digits"):
            return "digits of the first (down) and second number"
        down = f"{axis_label(self.row_axis)} (down), " if self.row_axis else ""
        return down + axis_label(self.column_axis) + (" (across)" if down else "")

    def has_border(self, i: int, j: int, side: str) -> bool:
        """Whether the border of what was trained runs along a side ("top", "left", "bottom", "right") of row i, column
        j (indices, not values)."""
        step_i, step_j = {"top": (-1, 0), "left": (0, -1), "bottom": (1, 0), "right": (0, 1)}[side]
        return self._is_trained(i, j) and not self._is_trained(i + step_i, j + step_j)

    def _is_trained(self, i: int, j: int) -> bool:
        inside = 0 <= i < len(self.rows) and 0 <= j < len(self.columns)
        cell = self.cells.get((self.rows[i], self.columns[j])) if inside else None
        return cell is not None and cell.is_trained


Panel = Chart | PointChart | HeatMap


@dataclass(frozen=True)
class Figure:
    """Panels in rows of `columns`; `caption` is small print."""

    panels: Sequence[Panel]
    columns: int = 3
    caption: str = ""

    @property
    def drawn_panels(self) -> list[Panel]:
        """The panels with something to draw."""
        return [one for one in self.panels if (one.drawn_lines if isinstance(one, Chart) else one.rows)]

    @property
    def charts(self) -> list[Chart]:
        return [panel for panel in self.panels if isinstance(panel, Chart)]

    @property
    def maps(self) -> list[HeatMap]:
        return [panel for panel in self.panels if isinstance(panel, HeatMap)]

    @property
    def point_charts(self) -> list[PointChart]:
        return [panel for panel in self.panels if isinstance(panel, PointChart)]

    @property
    def notes(self) -> str:
        """The caption of the figure and the notes of its charts, under their titles where there are several."""
        found = [self.caption] if self.caption else []
        for chart in self.charts:
            title = f"{chart.title}: " if len(self.charts) > 1 and chart.title and chart.notes else ""
            found += [title + " ".join(chart.notes)] if chart.notes else []
        return "\n".join(dict.fromkeys(found))

    @cached_property
    def shared_legend(self) -> Sequence[LegendEntry] | None:
        """The entries of one legend for all panels; None where charts need one each."""
        legends = [chart.legend_entries() for chart in self.charts]
        longest = max(legends, key=len, default=[])
        return longest if all(set(one) <= set(longest) for one in legends) else None


def heat_maps(points: Sequence[Point], title: str = "", operator: str | None = None) -> list[HeatMap]:
    """The maps of points: one for one or two axes, else one per combination of the further axes.

    The first axis runs down and the second across, as in the published heat maps. Points with all axes equal that are
    alone in their row and column (equal lengths, `diagonal:101:160`) make a strip of one row instead of a map.
    """
    if not points:
        return []
    axes = tuple(points[0].coordinates)
    if len(axes) == 2 and (isolated := _isolated_diagonal_points(points)):
        lengths = {point.length for point in isolated}
        others = [point for point in points if not lengths & set(point.coordinates.values())]
        words = "digits of each number" if axes == DIGIT_AXES else f"{axis_label(axes[0])} = {axis_label(axes[1])}"
        strip = {(0, point.length): point for point in isolated}
        return [*heat_maps(others, title, operator), _heat_map(strip, title, "", words, operator)]
    row_axis, column_axis = ("", axes[0]) if len(axes) == 1 else axes[:2]
    slices: dict[tuple[tuple[str, int], ...], dict[tuple[int, int], Point]] = {}
    for point in points:
        rest = tuple((axis, point.coordinates[axis]) for axis in axes[2:])
        place = (point.coordinates[row_axis] if row_axis else 0, point.coordinates[column_axis])
        slices.setdefault(rest, {})[place] = point
    return [
        _heat_map(
            table,
            ", ".join(filter(None, [title, *(f"{axis_label(axis)} {value}" for axis, value in rest)])),
            row_axis,
            column_axis,
            operator,
        )
        for rest, table in sorted(slices.items())
    ]


def _isolated_diagonal_points(points: Sequence[Point]) -> list[Point]:
    """The points of two equal values whose row and column have no other point, where there are several."""
    counts = Counter(value for point in points for value in set(point.coordinates.values()))
    alone = [point for point in points if [counts[value] for value in set(point.coordinates.values())] == [1]]
    return alone if len(alone) > 1 else []


def _heat_map(
    points: Mapping[tuple[int, int], Point], title: str, row_axis: str, column_axis: str, operator: str | None
) -> HeatMap:
    cells = {
        place: HeatCell(
            point.score,
            format_integer_percent(point.score),
            tooltip(point, operator),
            point.region == "in_distribution",
            point.overlaps_training,
        )
        for place, point in points.items()
    }
    rows, columns = (sorted(set(values)) for values in zip(*points, strict=True))
    return HeatMap(title, row_axis, column_axis, rows, columns, cells)


def tooltip(point: Point, operator: str | None = None) -> str:
    """The tooltip of a cell: position, share, interval or seeds, and whether it may overlap with training."""
    lines = [cell_label(point.coordinates, operator, point.names)]
    if len(point.seed_scores) == 1:
        lines.append(f"{format_percent(point.score)} % correct {format_interval(point.low, point.high)}")
        exact = point.metric == "exact_match"
        rows = f"{METRICS[point.metric]}, {point.count} row{'s' * (point.count != 1)}"
        lines.append(f"{round(point.score * point.count)} of {point.count} questions" if exact else rows)
    else:
        lines.append(f"median {format_percent(point.score)} %, seeds {format_interval(point.low, point.high)}")
        are_many = len(point.seed_scores) > MAX_TOOLTIP_SEEDS
        each = "each: " + ", ".join(map(format_percent, point.seed_scores))
        lines.append(f"{len(point.seed_scores)} seeds" if are_many else each)
    if point.baseline is not None:
        lines.append(f"baseline {format_percent(point.baseline)} %")
    if point.note and point.score < 1:
        lines.append(point.note)
    if point.overlaps_training:
        lines.append("too few questions to hold any out: may overlap with training")
    return "\n".join(lines)
