"""Charts as data: lines and styles, drawn as SVG on pages and by matplotlib in figures."""

from collections.abc import Sequence
from dataclasses import dataclass

from numerate.reports.colour import SERIES

MARKER_SHAPES = ("circle", "square", "diamond", "triangle", "triangle down", "plus")
"""The marks of series; each has a dash pattern too."""

DASHES: tuple[tuple[float, ...], ...] = (
    (),
    (4.0, 1.6),
    (1.2, 1.3),
    (6.0, 1.5, 1.2, 1.5),
    (2.2, 1.2),
    (4.0, 1.2, 1.2, 1.2, 1.2, 1.2),
)
"""The dash pattern of each shape, in line widths."""

BASELINE_DASHES = (1.4, 1.8)
"""The dash pattern of a baseline."""


@dataclass(frozen=True)
class Style:
    """The style of a series: `color` indexes `SERIES`, `marker` indexes `MARKER_SHAPES`. In a legend None is
    neutral."""

    color: int | None = 0
    marker: int | None = 0

    @property
    def dashes(self) -> tuple[float, ...]:
        return DASHES[self.marker or 0]


def _split_labels(labels: Sequence[str]) -> tuple[list[str], list[str]] | None:
    """The first parts and the second parts of labels such as "T5: xVal", each once, where series share them."""
    pairs = [label.split(": ", 1) for label in labels]
    if not all(len(pair) == 2 for pair in pairs):
        return None
    first, second = (list(dict.fromkeys(pair[i] for pair in pairs)) for i in (0, 1))
    crossed = len(first) > 1 and len(second) < len(labels)
    most, fewest = max(len(first), len(second)), min(len(first), len(second))
    return (first, second) if crossed and most <= len(SERIES) and fewest <= len(MARKER_SHAPES) else None


def are_distinguishable(labels: Sequence[str]) -> bool:
    """Whether the styles are distinguishable: no color is used for two series, or for two parts of labels."""
    return len(labels) <= len(SERIES) or _split_labels(labels) is not None


def assign_styles(labels: Sequence[str]) -> dict[str, Style]:
    """A style for each label.

    Labels of two parts that several share ("T5: cross-entropy", "decoder: cross-entropy") have the color of one part
    and the shape of the other; the part with more values has the colours. Others have a color and a shape each.

    >>> assign_styles(["T5: CE", "T5: WAS", "decoder: CE"])["decoder: CE"]
    Style(color=0, marker=1)
    """
    parts = _split_labels(labels)
    if parts is None:
        # Repeated colors have other shapes.
        num_colors = len(SERIES)
        return {
            label: Style(i % num_colors, (i + i // num_colors) % len(MARKER_SHAPES)) for i, label in enumerate(labels)
        }
    first, second = parts
    styles_by_label = {}
    for label in labels:
        one, other = label.split(": ", 1)
        a, b = first.index(one), second.index(other)
        styles_by_label[label] = Style(b, a) if len(second) >= len(first) else Style(a, b)
    return styles_by_label


def legend_entries(labels: Sequence[str]) -> list[tuple[str, Style]]:
    """The entries of a legend: each label, or of labels with two parts the colors first and then the shapes.

    >>> legend_entries(["T5: CE", "T5: WAS", "decoder: CE"])[-1]
    ('decoder', Style(color=None, marker=1))
    """
    parts = _split_labels(labels)
    if parts is None:
        return list(assign_styles(labels).items())
    first, second = parts
    color_labels, marker_labels = (second, first) if len(second) >= len(first) else (first, second)
    return [(name, Style(i, None)) for i, name in enumerate(color_labels)] + [
        (name, Style(None, i)) for i, name in enumerate(marker_labels)
    ]


@dataclass(frozen=True)
class ChartLine:
    """A line of a chart with its band, in the units of the axes; `seed_curves` are thin lines behind it, one per seed.

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


@dataclass(frozen=True)
class Chart:
    """Lines with their axes.

    `is_percent` fixes the vertical axis at 0 to 100 %, `is_log` makes it logarithmic, `has_integer_ticks` puts a tick
    at every whole number, `trained_range` shades what training covered, called `trained_range_label`; `zooms_to_data`
    starts the vertical axis near the lowest value and cuts values above those after the first tenth. `notes` describe
    the lines and bands."""

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
    notes: Sequence[str] = ()

    @property
    def series(self) -> list[ChartLine]:
        """The lines that are series and have points."""
        return [line for line in self.lines if len(line.x) and not line.is_baseline]

    def legend_entries(self) -> list[tuple[str, Style]]:
        """The entries of its legend, with suffixes unless labels have two parts; none for a single line."""
        if len(self.lines) < 2:
            return []
        labels = [line.label for line in self.series]
        return (
            [(line.label_with_suffix, line.style) for line in self.series]
            if _split_labels(labels) is None
            else legend_entries(labels)
        )
