"""`numerate plot`: the figures of runs by name, several panels where there are several variants, tasks or measures."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numerate.errors import UserError, check_choice, did_you_mean
from numerate.results.figures import (
    MAX_SERIES,
    best_variants,
    by_count,
    by_length,
    forests,
    heat_map,
    panels,
    training_curves,
)
from numerate.results.rows import RunEntry, by_task, cells_of, metrics_of
from numerate.results.style import PAGE, WIDTHS, figure_style, new_axes, new_figure
from numerate.results.summary import check_metric, diagonal, grid_axes, has_parts, of_map, reported

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


def plot(
    kind: str,
    entries: Sequence[RunEntry],
    *,
    checkpoint: str | None = None,
    labels: Sequence[str] = (),
    metric: str | None = None,
    size: str = "page",
) -> "Figure":
    """One of `FIGURES` of some runs. `checkpoint` is final or best, by default as reported; `labels` names the variants
    in their order; `size` is column, page or slide.

    Raises `UserError` for another kind or size, for runs without the records of the kind or the metric, and for a wrong
    number of labels.
    """
    if kind not in FIGURES:
        raise UserError(f"plot: there is no {kind!r}; there are: {', '.join(FIGURES)}.{did_you_mean(kind, FIGURES)}")
    check_choice("size", size, WIDTHS)
    if not entries:
        raise UserError(f"plot: no runs are named; for example numerate plot {kind} latest out=figure.png")
    cells, logged = cells_of(entries), metrics_of(entries)
    names = list(dict.fromkeys([*cells["variant"], *(logged["variant"] if len(logged) else ())]))
    if labels and len(labels) != len(names):
        known = "; ".join(names)
        raise UserError(f"labels: {len(labels)} for {len(names)} variants; in this order they name: {known}")
    if labels:
        renamed = dict(zip(names, labels, strict=True))
        cells, logged = (frame.assign(variant=frame["variant"].map(renamed)) for frame in (cells, logged))
    if metric is not None:
        check_metric(cells, metric)
    is_text = "nats" in cells and bool(cells["nats"].notna().all())
    if kind in ("training", "validation") or is_text:
        return _curves_by_step(logged, "validation" if is_text else kind, WIDTHS[size])
    chosen = of_map(reported(cells, checkpoint))
    if not len(chosen):
        where = f" at the {checkpoint} checkpoint" if checkpoint else ""
        raise UserError(f"plot: {kind} needs runs that were evaluated on a grid{where}")
    tasks = {name: chosen[chosen["run"].isin({one.run for one in own})] for name, own in by_task(entries).items()}
    return FIGURES[kind](tasks, metric, WIDTHS[size])


def _maps(tasks: Mapping[str, "DataFrame"], metric: str | None, width: float) -> "Figure":
    """A map for each variant; strips of equal lengths below each other."""
    frames = [(name, own) for cells in tasks.values() for name, own in cells.groupby("variant", sort=False)]
    if any(has_parts(own) for _, own in frames):
        return _forests(tasks, metric, width)
    is_strip = all(len(grid_axes(own)) == 1 or len(diagonal(own)) == len(own) for _, own in frames)
    columns = 1 if is_strip else 2 if len(frames) in (2, 4) else 3
    options: Any = {"metric": metric, "bar": False, "width": width, "columns": columns}
    return panels([(str(name), own) for name, own in frames], heat_map, height=1.1 if is_strip else 2.6, **options)


def _by_length(tasks: Mapping[str, "DataFrame"], metric: str | None, width: float) -> "Figure":
    """Scores by length, a panel for each task; more than eight variants in several panels."""
    if any(has_parts(cells) for cells in tasks.values()):
        return _forests(tasks, metric, width)
    return panels(_split(tasks), by_length, metric=metric, width=width, height=2.9, share_x=len(tasks) == 1)


def _split(tasks: Mapping[str, "DataFrame"]) -> list[tuple[str, "DataFrame"]]:
    """The cells of each task, of many variants in parts of eight; a single variant is the title."""
    found = []
    for name, cells in tasks.items():
        variants = list(dict.fromkeys(cells["variant"]))
        for start in range(0, len(variants), MAX_SERIES):
            title = variants[0] if len(tasks) == len(variants) == 1 else name
            found.append((title, cells[cells["variant"].isin(variants[start : start + MAX_SERIES])]))
    return found


def _by_count(tasks: Mapping[str, "DataFrame"], metric: str | None, width: float) -> "Figure":
    labelled = {name: cells for name, cells in tasks.items() if "accuracy" in cells}
    if not labelled:
        raise UserError("plot: counts needs runs whose answers are labels; use curves for others")
    return panels(_split(labelled), by_count, width=width, height=2.9, share_x=len(labelled) == 1)


def _compared(tasks: Mapping[str, "DataFrame"], metric: str | None, width: float) -> "Figure":
    """A map of each of the best variants, and all of these by length."""
    (cells, *others) = tasks.values()
    shown = best_variants(cells, 5)
    frames = [(str(name), own) for name, own in shown.groupby("variant", sort=False)]
    if others or has_parts(cells) or len(grid_axes(cells)) != 2 or len(diagonal(cells)) == len(cells):
        return _by_length(tasks, metric, width)
    with figure_style():
        columns = 2 if len(frames) in (1, 3) or width < PAGE else 3
        figure = new_figure(width, 2.8 * -(-(len(frames) + 1) // columns))
        grid = figure.subplots(-(-(len(frames) + 1) // columns), columns, squeeze=False).flat
        for (name, own), ax in zip(frames, grid, strict=False):
            heat_map(own, ax, metric=metric, bar=False)
            ax.set_title(name)
        by_length(shown, grid[len(frames)], metric=metric)
        for ax in grid[len(frames) + 1 :]:
            ax.remove()
    return figure


def _forests(tasks: Mapping[str, "DataFrame"], metric: str | None, width: float) -> "Figure":
    """The regions of all variants side by side; of several tasks those of the first with several seeds."""
    several = [cells for cells in tasks.values() if (cells.groupby("variant")["run"].nunique() > 1).any()]
    several = several or [cells for cells in tasks.values() if has_parts(cells)]
    if not several:
        raise UserError("plot: intervals needs variants with several seeds; train more with seeds=5")
    return forests(several[0], metric=metric, width=width)


def _curves_by_step(logged: "DataFrame", kind: str, width: float) -> "Figure":
    """What was logged in training: the loss, and scores on the validation splits; or the validation loss of text."""
    if not len(logged):
        raise UserError(f"plot: {kind} needs runs with metrics; train them first")
    if kind == "validation":
        ax = training_curves(logged, new_axes(min(width, PAGE * 0.75), 3.0), split="validation")
        return ax.get_figure()  # type: ignore[return-value]
    score = "accuracy" if "accuracy" in logged else "exact_match"
    drawn = [("loss", None), *((score, name) for name in ("validation", "ood_validation"))]
    drawn = [
        (y, split) for y, split in drawn if y in logged and (split is None or (logged.get("split") == split).any())
    ]
    rows = 1 if width >= PAGE else len(drawn)
    with figure_style():
        figure = new_figure(width, 2.7 * rows)
        for (y, split), ax in zip(drawn, figure.subplots(rows, len(drawn) // rows, squeeze=False).flat, strict=True):
            training_curves(logged, ax, y=y, split=split)
    return figure


FIGURES: Mapping[str, Callable[..., "Figure"]] = {
    "grid": _maps,
    "curves": _by_length,
    "counts": _by_count,
    "compare": _compared,
    "intervals": _forests,
    "training": _curves_by_step,
    "validation": _curves_by_step,
}
"""The figures of `numerate plot`."""
