"""Heat maps as data, which `terminal_writer` draws."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from numerate.reports.grid import (
    DIGIT_AXES,
    Point,
    axis_label,
    format_integer_percent,
)


@dataclass(frozen=True)
class HeatCell:
    """A colored cell: `fraction` from 0 to 1 is its color, `text` its number."""

    fraction: float
    text: str
    is_trained: bool = False
    overlaps_training: bool = False


@dataclass(frozen=True)
class HeatMap:
    """Cells by row and column; a strip of one row has an empty `row_axis`."""

    title: str
    row_axis: str
    column_axis: str
    rows: Sequence[int]
    columns: Sequence[int]
    cells: Mapping[tuple[int, int], HeatCell]

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
            point.region == "in_distribution",
            point.overlaps_training,
        )
        for place, point in points.items()
    }
    rows, columns = (sorted(set(values)) for values in zip(*points, strict=True))
    return HeatMap(title, row_axis, column_axis, rows, columns, cells)
