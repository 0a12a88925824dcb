"""Charts as data: lines and styles, drawn as SVG on pages and by matplotlib in figures."""

from collections.abc import Sequence
from dataclasses import dataclass

from numerate.reports.colour import SERIES

SHAPES = ("circle", "square", "diamond", "triangle", "triangle down", "plus")
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

FLOOR_DASHES = (1.4, 1.8)
"""The dash pattern of a floor."""


@dataclass(frozen=True)
class Style:
    """The style of a series: `colour` indexes `SERIES`, `shape` indexes `SHAPES`. In a legend None is neutral."""

    colour: int | None = 0
    shape: int | None = 0

    @property
    def dashes(self) -> tuple[float, ...]:
        return DASHES[self.shape or 0]


def _two_parts(labels: Sequence[str]) -> tuple[list[str], list[str]] | None:
    """The first parts and the second parts of labels such as "T5: xVal", each once, where series share them."""
    pairs = [label.split(": ", 1) for label in labels]
    if not all(len(pair) == 2 for pair in pairs):
        return None
    first, second = (list(dict.fromkeys(pair[i] for pair in pairs)) for i in (0, 1))
    crossed = len(first) > 1 and len(second) < len(labels)
    most, fewest = max(len(first), len(second)), min(len(first), len(second))
    return (first, second) if crossed and most <= len(SERIES) and fewest <= len(SHAPES) else None


def distinguishable(labels: Sequence[str]) -> bool:
    """Whether the styles are distinguishable: no colour is used for two series, or for two parts of labels."""
    return len(labels) <= len(SERIES) or _two_parts(labels) is not None


def styles(labels: Sequence[str]) -> dict[str, Style]:
    """A style for each label.

    Labels of two parts that several share ("T5: cross-entropy", "decoder: cross-entropy") have the colour of one part
    and the shape of the other; the part with more values has the colours. Others have a colour and a shape each.

    >>> styles(["T5: CE", "T5: WAS", "decoder: CE"])["decoder: CE"]
    Style(colour=0, shape=1)
    """
    parts = _two_parts(labels)
    if parts is None:
        # Repeated colours have other shapes.
        again = len(SERIES)
        return {label: Style(i % again, (i + i // again) % len(SHAPES)) for i, label in enumerate(labels)}
    first, second = parts
    found = {}
    for label in labels:
        one, other = label.split(": ", 1)
        a, b = first.index(one), second.index(other)
        found[label] = Style(b, a) if len(second) >= len(first) else Style(a, b)
    return found


def legend(labels: Sequence[str]) -> list[tuple[str, Style]]:
    """The entries of a legend: each label, or of labels with two parts the colours first and then the shapes.

    >>> legend(["T5: CE", "T5: WAS", "decoder: CE"])[-1]
    ('decoder', Style(colour=None, shape=1))
    """
    parts = _two_parts(labels)
    if parts is None:
        return list(styles(labels).items())
    first, second = parts
    coloured, shaped = (second, first) if len(second) >= len(first) else (first, second)
    return [(name, Style(i, None)) for i, name in enumerate(coloured)] + [
        (name, Style(None, i)) for i, name in enumerate(shaped)
    ]


@dataclass(frozen=True)
class ChartLine:
    """A line of a chart with its band, in the units of the axes; `each` are thin lines behind it, one per seed.

    `label` names the series and has its style; `suffix` follows it in a legend ("5 seeds"). A `floor` is no series
    but a neutral dashed line below the others."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    style: Style = Style()
    suffix: str = ""
    dots: bool = False
    tips: Sequence[str] | None = None
    floor: bool = False
    each: Sequence[Sequence[float]] = ()

    @property
    def named(self) -> str:
        """`rotary (5 seeds)`."""
        return f"{self.label} ({self.suffix})" if self.suffix else self.label


@dataclass(frozen=True)
class Chart:
    """Lines with their axes.

    `shares` fixes the vertical axis at 0 to 100 %, `log` makes it logarithmic, `lengths` puts a tick at every whole
    number, `trained` shades what training covered, called `region`; `zoom` starts the vertical axis near the lowest
    value and cuts values above those after the first tenth. `notes` describe the lines and bands."""

    title: str
    lines: Sequence[ChartLine]
    x_label: str
    y_label: str
    shares: bool = False
    log: bool = False
    lengths: bool = False
    zoom: bool = False
    trained: tuple[float, float] | None = None
    region: str = ""
    notes: Sequence[str] = ()

    @property
    def series(self) -> list[ChartLine]:
        """The lines that are series and have points."""
        return [line for line in self.lines if len(line.x) and not line.floor]

    def legend(self) -> list[tuple[str, Style]]:
        """The entries of its legend, with suffixes unless labels have two parts; none for a single line."""
        if len(self.lines) < 2:
            return []
        labels = [line.label for line in self.series]
        return [(line.named, line.style) for line in self.series] if _two_parts(labels) is None else legend(labels)
