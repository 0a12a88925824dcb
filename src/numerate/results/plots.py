"""The figures of `numerate plot` and of pages: panels for several variants, tasks, regions or measures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from numerate.errors import UserError, check_choice, did_you_mean
from numerate.results.figures import add_bar, by_count, by_length, draw_forest, heat_map, training_curves
from numerate.results.rows import LANGUAGE_METRICS, REGIONS, RunEntry, by_task, cells_of, metrics_of
from numerate.results.style import PAGE, WIDTHS, figure_style, new_figure, series_styles
from numerate.results.summary import (
    ALL_OOD,
    check_metric,
    converged,
    default_metric,
    diagonal,
    grid_axes,
    has_parts,
    is_lower_better,
    of_map,
    reported,
    shared_cells,
    summary,
)
from numerate.results.words import metric_title, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

    Tasks = Mapping[str, DataFrame]
    Panel = tuple[str, Callable[..., Axes | None]]

MAX_SERIES = 8
"""Variants in one figure, each with a color of its own."""


def panels(
    drawn: "Sequence[Panel]", width: float = PAGE, *, columns: int = 2, height: float = 2.9, share: str = ""
) -> "Figure":
    """Small multiples: titled panels, each drawn by a function of its axes, all but maps with the axes in `share`
    ("x", "xy") in common; a single one is narrower than a page."""
    columns = max(1, min(columns, len(drawn), int(width / 2.2)))
    rows = -(-len(drawn) // columns)
    with figure_style():
        figure = new_figure(width if columns > 1 else min(width, PAGE * 0.75), rows * height)
        grid = figure.subplots(rows, columns, squeeze=False, sharex="x" in share, sharey="y" in share).flat
        for i, ((title, draw), ax) in enumerate(zip(drawn, grid, strict=False)):
            draw(ax=ax)
            if title:
                ax.set_title(wrapped(title, int(11 * width / columns)))
            ax.tick_params(labelbottom="x" not in share or i + columns >= len(drawn))
            if "x" in share and i + columns < len(drawn):
                ax.set_xlabel("")
            if i % columns and ("y" in share or ax.images):
                ax.set_ylabel("")
        for ax in grid[len(drawn) :]:
            ax.remove()
    return figure


def is_text(cells: "DataFrame") -> bool:
    """Whether all cells are of language modeling."""
    return default_metric(cells) in LANGUAGE_METRICS


def best_variants(frame: "DataFrame", most: int = MAX_SERIES) -> "DataFrame":
    """The cells of so many variants: the first, and those with the best scores out of distribution."""
    variants = list(dict.fromkeys(frame["variant"]))
    if len(variants) <= most:
        return frame
    found, order = summary(frame), [ALL_OOD, *reversed(REGIONS)]
    found = found.assign(rank=[order.index(name) if name in order else len(order) for name in found["region"]])
    found = found.sort_values("rank", kind="stable").drop_duplicates("variant")
    best = found.sort_values("value", ascending=is_lower_better(default_metric(frame)), kind="stable")["variant"]
    return frame[frame["variant"].isin([variants[0], *(name for name in best if name != variants[0])][:most])]


def maps(tasks: "Tasks", metric: str | None = None, width: float = PAGE) -> "Figure":
    """A map for each variant; strips of equal lengths below each other. Parts have no map: see `forests`."""
    if any(map(has_parts, tasks.values())):
        return forests(tasks, metric, width)
    frames = [(str(name), own) for cells in tasks.values() for name, own in cells.groupby("variant", sort=False)]
    is_strip = all(len(grid_axes(own)) == 1 or len(diagonal(own)) == len(own) for _, own in frames)
    columns, height = (1, 1.1) if is_strip else (2 if len(frames) in (2, 4) else 3, 2.6)
    drawn: list[Panel] = [(name, partial(heat_map, own, metric=metric, bar=False)) for name, own in frames]
    return _with_bar(panels(drawn, width, columns=columns, height=height), metric or default_metric(frames[0][1]))


def _with_bar(figure: "Figure", metric: str) -> "Figure":
    """A figure with one bar of colors for all of its maps."""
    with figure_style():
        add_bar([ax for ax in figure.axes if ax.images], metric_title(metric))
    return figure


def lengths(tasks: "Tasks", metric: str | None = None, width: float = PAGE) -> "Figure":
    """Scores by length, a panel for each task; more than eight variants in several panels."""
    if any(map(has_parts, tasks.values())):
        return forests(tasks, metric, width)
    drawn = [(title, partial(by_length, cells, metric=metric)) for title, cells in _split(tasks)]
    return panels(drawn, width, share="y" if len(tasks) > 1 else "xy")


def _split(tasks: "Tasks") -> "Iterator[tuple[str, DataFrame]]":
    """The cells of each task, of many variants in parts of eight; a single variant is the title."""
    for name, cells in tasks.items():
        variants = list(dict.fromkeys(cells["variant"]))
        for start in range(0, len(variants), MAX_SERIES):
            title = variants[0] if len(tasks) == len(variants) == 1 else name
            yield title, cells[cells["variant"].isin(variants[start : start + MAX_SERIES])]


def counts(tasks: "Tasks", metric: str | None = None, width: float = PAGE) -> "Figure":
    """The accuracy at each position of labels."""
    labelled = {name: cells for name, cells in tasks.items() if "accuracy" in cells}
    if not labelled:
        raise UserError("plot: counts needs runs whose answers are labels; use curves for others")
    drawn = [(title, partial(by_count, cells)) for title, cells in _split(labelled)]
    return panels(drawn, width, share="y" if len(labelled) > 1 else "xy")


def compared(tasks: "Tasks", metric: str | None = None, width: float = PAGE) -> "Figure":
    """A map of each of the best variants, and all of these by length."""
    (cells, *others) = tasks.values()
    if others or has_parts(cells) or len(grid_axes(cells)) != 2 or len(diagonal(cells)) == len(cells):
        return lengths(tasks, metric, width)
    shown = best_variants(cells, 5)
    drawn: list[Panel] = [
        (str(name), partial(heat_map, own, metric=metric, bar=False))
        for name, own in shown.groupby("variant", sort=False)
    ]
    drawn.append(("", partial(by_length, shown, metric=metric)))
    return panels(drawn, width, columns=2 if len(drawn) in (2, 4) else 3, height=2.8)


def forests(tasks: "Tasks", metric: str | None = None, width: float = PAGE) -> "Figure":
    """The regions of all variants side by side; of several tasks those of the first with several seeds or parts."""
    several = [cells for cells in tasks.values() if (cells.groupby("variant")["run"].nunique() > 1).any()]
    several += [cells for cells in tasks.values() if has_parts(cells)]
    if not several:
        raise UserError("plot: intervals needs variants with several seeds; train more with seeds=5")
    cells = shared_cells(of_map(reported(several[0])))
    styles, kept, metric = series_styles(cells), {*converged(cells)["run"]}, metric or default_metric(cells)
    regions = [own for name in REGIONS if len(own := cells[cells["region"] == name])]
    drawn = [("", partial(draw_forest, own, styles=styles, kept=kept, metric=metric)) for own in regions]
    return panels(drawn, width, columns=len(regions), height=1.0 + 0.3 * len(styles), share="y")


def training(logged: "DataFrame", kind: str = "training", width: float = PAGE) -> "Figure":
    """What was logged in training: the loss, and scores on the validation splits; or the validation loss of text."""
    if not len(logged):
        raise UserError(f"plot: {kind} needs runs with metrics; train them first")
    if kind == "validation":
        return panels([("", partial(training_curves, logged, split="validation"))], width, height=3.0)
    score = "accuracy" if "accuracy" in logged else "exact_match"
    scored = logged.loc[logged[score].notna(), "split"].unique() if score in logged else ()
    drawn: list[Panel] = [("", partial(training_curves, logged))]
    drawn += [
        ("", partial(training_curves, logged, y=score, split=name))
        for name in ("validation", "ood_validation")
        if name in scored
    ]
    return panels(drawn, width, columns=len(drawn), height=2.7)


FIGURES: Mapping[str, Callable[..., "Figure"]] = {
    "grid": maps,
    "curves": lengths,
    "counts": counts,
    "compare": compared,
    "intervals": forests,
    "training": training,
    "validation": training,
}
"""The figures of `numerate plot`."""


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
    if kind in ("training", "validation") or is_text(cells):
        return training(logged, "validation" if is_text(cells) else kind, WIDTHS[size])
    chosen = of_map(reported(cells, checkpoint))
    if not len(chosen):
        where = f" at the {checkpoint} checkpoint" if checkpoint else ""
        raise UserError(f"plot: {kind} needs runs that were evaluated on a grid{where}")
    tasks = {name: chosen[chosen["run"].isin({one.run for one in own})] for name, own in by_task(entries).items()}
    return FIGURES[kind](tasks, metric, WIDTHS[size])
