"""Figures of a table of cells: each a function of a frame and axes, which it draws on and returns.

    axes = by_length(numerate.cells("abacus_laptop"))
    style.save(axes.figure, "by_length.pdf")

`numerate plot` saves them, a page embeds them, a notebook shows them. Without axes a new figure is as wide as a column.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from numerate.errors import UserError, check_choice, did_you_mean
from numerate.evaluation.labels import LabelCounts
from numerate.evaluation.statistics import seed_band
from numerate.results import style
from numerate.results.rows import LANGUAGE_METRICS, REGIONS, RunEntry, by_task, cells_of, metrics_of
from numerate.results.summary import (
    ALL_OOD,
    MIN_SEEDS,
    check_metric,
    converged,
    default_metric,
    diagonal,
    grid_axes,
    has_parts,
    is_lower_better,
    of_map,
    over_seeds,
    reported,
    scores,
    shared_cells,
    summary,
    with_all_ood,
)
from numerate.results.words import REGION_NAMES, axis_name, cell_percent, is_share, metric_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

    Tasks = Mapping[str, DataFrame]
    Panel = tuple[str, Callable[..., Axes | None]]

MAX_SERIES = 8
"""Variants in one figure, each with a color of its own."""

MAX_NUMBERS = 400
"""Cells of a map with numbers in them; larger maps are pictures on a page."""


def heat_map(frame: "DataFrame", ax: "Axes | None" = None, *, metric: str | None = None, bar: bool = True) -> "Axes":
    """The metric of one variant in each cell of a grid, the median over seeds, with a red border around what was
    trained. Numbers stand in cells where 7 points fit.

        heat_map(frame[frame["variant"] == "Abacus"])

    Raises `UserError` for several variants, and for cells that do not have two axes.
    """
    inside, names = of_map(reported(frame)), grid_axes(frame)
    if inside["variant"].nunique() != 1 or len(names) != 2:
        raise UserError("heat_map: needs the cells of one variant on a grid of two axes")
    if not is_share(metric := metric or default_metric(inside)):
        raise UserError(f"heat_map: {metric} is no share of the questions; by_length draws it")
    found = summary(inside, by=names, metric=metric)
    found = found[found["seeds"] == found["seeds"].max()]
    found = found.merge(inside[[*names, "region"]].drop_duplicates(names))
    found = found.assign(trained=(found["region"] == "in_distribution").astype(float))
    values, trained = (found.pivot(index=names[0], columns=names[1], values=name) for name in ("value", "trained"))
    with style.figure_style():
        ax = ax or style.new_axes(style.COLUMN, 3.0)
        square: Any = "equal" if 0.5 <= len(values) / len(values.columns) <= 2 else "auto"
        ax.imshow(values, cmap=style.ramp(), vmin=0, vmax=1, aspect=square, interpolation="nearest")
        _write_numbers(ax, values.to_numpy())
        _draw_border(ax, trained.fillna(0).to_numpy())
        for axis, sizes in ((ax.xaxis, values.columns), (ax.yaxis, values.index)):
            every = max(1, -(-len(sizes) // 12))
            axis.set_ticks(range(0, len(sizes), every), [f"{size:,}" for size in sizes[::every]])
        ax.set(xlabel=axis_name(names[1]), ylabel=axis_name(names[0]))
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
        if bar:
            add_bar([ax], metric_title(metric))
    return ax


def add_bar(axes: Sequence["Axes"], label: str) -> None:
    """One bar of colors, in per cent, beside axes with maps."""
    bar = axes[0].figure.colorbar(axes[0].images[0], ax=list(axes), fraction=0.05, pad=0.02, aspect=30)
    bar.set_ticks([0, 0.25, 0.5, 0.75, 1], labels=["0", "25", "50", "75", "100"])
    bar.set_label(fill(label, 26))
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2)


def _write_numbers(ax: "Axes", values: Any) -> None:
    """Per cents in the cells of a map where letters of 7 points fit; zeros are pale, so that others stand out."""
    width = 0.8 * 72 * _width(ax) * ax.get_position().width / values.shape[1]
    if values.size > MAX_NUMBERS or width < 11.5:
        return
    for (row, column), value in np.ndenumerate(values):
        if value == value:
            color = "#8d8b82" if value == 0 else "black" if value < 0.55 else "white"
            ax.text(column, row, cell_percent(value), ha="center", va="center", fontsize=7, color=color)


def _width(ax: "Axes") -> float:
    """The width in inches of the figure that axes are in."""
    return float(ax.figure.get_figure(root=True).get_size_inches()[0])


def _draw_border(ax: "Axes", inside: Any) -> None:
    """A red line around the cells of a map that were trained."""
    from matplotlib.collections import LineCollection

    padded = np.pad(inside, 1) - 0.5
    across, down = (np.argwhere(np.diff(padded, axis=axis)) - 0.5 for axis in (0, 1))
    lines = [[(x - 1, y), (x, y)] for y, x in across] + [[(x, y - 1), (x, y)] for y, x in down]
    look: Any = {"colors": style.TRAINED, "linewidths": 1.5, "capstyle": "projecting", "clip_on": False, "zorder": 5}
    ax.add_collection(LineCollection(lines, **look))


def by_length(frame: "DataFrame", ax: "Axes | None" = None, *, metric: str | None = None) -> "Axes":
    """The metric of each variant by length, where all numbers are equally long: the median over the converged seeds
    with a band from the lowest to the highest, or of one seed its 95 % interval over questions. Of several seeds that
    did not all converge, the legend says how many did; where none did, all are drawn in grey.

    What was trained is shaded; the dotted line is the score of memorizing. The axis is logarithmic where lengths reach
    far beyond training. Raises `UserError` for cells without a length.
    """
    frame = reported(frame)
    along, names = diagonal(frame), grid_axes(frame)
    if not len(along) or has_parts(frame):
        raise UserError("by_length: needs cells where all axes have the same size; forest compares parts")
    styles, kept, metric = style.series_styles(along), {*converged(frame)["run"]}, metric or default_metric(along)
    with style.figure_style():
        ax = ax or style.new_axes()
        greys = zip(style.MARKERS * 2, [*style.DASHES, *style.DASHES[1:]], strict=False)
        for variant, own in along.groupby("variant", sort=False):
            runs = {*own["run"]}
            grey: Any = dict(zip(("color", "marker", "linestyle"), (style.GREY, *next(greys)), strict=True))
            options = styles[variant] if runs & kept else grey
            found = summary(own[own["run"].isin(kept & runs or runs)], by=["length"], metric=metric)
            found = found[found["seeds"] == found["seeds"].max()].sort_values("length")
            note = f" ({len(runs & kept)} of {len(runs)} seeds)" if runs & kept else " (did not converge)"
            _draw_line(ax, found["length"], found["value"], (found["low"], found["high"]), options)
            ax.get_lines()[-1].set_label(fill(f"{variant}{note * (not runs <= kept)}", 38))
        lengths, trained = along["length"], along.loc[along["region"] == "in_distribution", "length"]
        known = summary(along, by=["length", "region"], metric=metric).sort_values("length").dropna(subset="baseline")
        if len(known):
            ax.plot(known["length"], known["baseline"], ":", color=style.GREY, linewidth=1, label="memorizing")
        ax.locator_params(axis="x", integer=True)
        if len(trained):
            _shade_training(ax, trained.min(), trained.max())
        if len(trained) and lengths.max() >= 10 * trained.max():
            ax.set_xscale("log")
            ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        ax.set_xlabel(axis_name(names[0]) if len(names) == 1 else "n, digits of each number")
        ax.set_ylabel(fill(metric_title(metric), 26))
        if is_share(metric):
            _percent_axis(ax.yaxis)
        _legend(ax)
    return ax


def by_count(frame: "DataFrame", ax: "Axes | None" = None) -> "Axes":
    """The accuracy of labels at each of their positions, such as the t-th count, over all rows: the median over seeds
    with a band from the lowest to the highest. The dotted line is the score of memorizing, right up to the last trained
    position.

    Raises `UserError` for cells without labels.
    """
    cells, trained = of_map(reported(frame)), 0
    if "accuracy" not in cells or not cells["accuracy"].notna().all():
        raise UserError("by_count: needs cells with labels; by_length draws others")
    curves: dict[str, list[tuple[list[int], list[float]]]] = {}
    for (variant, _), sums in cells.groupby(["variant", "run"], sort=False)["sums"]:
        labels = LabelCounts.merge(one for each in sums if (one := LabelCounts.from_record(each)))
        found = labels.accuracy_by_position()
        curves.setdefault(variant, []).append(([t for t, *_ in found], [right / total for _, right, total in found]))
        trained = max(trained, labels.max_training_labels or 0)
    with style.figure_style():
        ax = ax or style.new_axes()
        _draw_seeds(ax, curves, style.series_styles(frame))
        if trained:
            _shade_training(ax, 1, trained)
            ends = [1, trained + 0.5, trained + 0.5, max(trained + 1, ax.get_xlim()[1])]
            ax.plot(ends, [1, 1, 0, 0], ":", color=style.GREY, linewidth=1, label="memorizing")
        ax.set(xlabel="position of the label in its row", ylabel="accuracy, %")
        _percent_axis(ax.yaxis)
        _legend(ax)
    return ax


def training_curves(
    frame: "DataFrame",
    ax: "Axes | None" = None,
    *,
    y: str = "loss",
    split: str | None = None,
    styles: Mapping[str, Any] = {},
) -> "Axes":
    """What was logged of each variant by step, the median over seeds with a band from the lowest to the highest.

    `frame` is that of `numerate.results.rows.metrics`; `split` is "validation" or "ood_validation", None for training
    itself; `styles` are those of variants in figures beside it. Raises `UserError` for what was not logged.

        training_curves(metrics("quickstart"), y="exact_match", split="validation")
    """
    known = frame[(frame["split"].isna() if split is None else frame["split"] == split)] if y in frame else frame[:0]
    known = known.dropna(subset=[y]) if len(known) else known
    if not len(known):
        raise UserError(f"training_curves: no {y} of {split or 'training'} was logged")
    curves: dict[str, list[tuple[list[int], list[float]]]] = {}
    for (variant, _), own in known.groupby(["variant", "run"], sort=False):
        curves.setdefault(variant, []).append((own["step"].tolist(), own[y].tolist()))
    with style.figure_style():
        ax = ax or style.new_axes()
        _draw_seeds(ax, curves, style.series_styles(frame) | dict(styles))
        name = {None: "training", "ood_validation": "OOD validation"}.get(split, split)
        is_loss = y in ("loss", "validation_loss")
        ax.set(xlabel="step", ylabel=f"{name} {'loss, nats per token' if is_loss else metric_title(y)}")
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" * bool(abs(value - round(value)) < 1e-6))
        if y == "loss" and (known[y] > 0).all() and known[y].max() > 20 * known[y].min():
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter("{x:g}")
        ax.grid(axis="y")
        if is_share(y) and not is_loss:
            _percent_axis(ax.yaxis)
        _legend(ax)
    return ax


def _draw_seeds(ax: "Axes", curves: Mapping[str, Any], styles: Mapping[str, Any]) -> None:
    """For each variant the median of the curves of its seeds, with a band from the lowest to the highest."""
    for variant, own in curves.items():
        steps, median, *band = seed_band(own)
        _draw_line(ax, steps, median, band, styles[variant] | {"label": fill(variant, 38)})


def _draw_line(ax: "Axes", x: Any, y: Any, band: Sequence[Any], options: Mapping[str, Any]) -> None:
    """A line with its band, and with marks if it has few points."""
    ax.fill_between(x, *band, color=options["color"], alpha=0.16, linewidth=0)
    ax.plot(x, y, **{**options, "marker": options["marker"] * (len(x) <= 30)})


def _shade_training(ax: "Axes", low: float, high: float) -> None:
    ax.axvspan(low - 0.5, high + 0.5, color=style.SHADE, linewidth=0, zorder=0)
    ax.axvline(high + 0.5, color=style.TRAINED, linewidth=1, zorder=1)


def _percent_axis(axis: Any) -> None:
    axis.set_ticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100"])
    axis.axes.grid(axis=axis.axis_name)
    (axis.axes.set_ylim if axis.axis_name == "y" else axis.axes.set_xlim)(-0.03, 1.03)


def _legend(ax: "Axes") -> None:
    """A legend of several series below axes, in as many columns as fit."""
    from matplotlib.transforms import offset_copy

    handles, labels = ax.get_legend_handles_labels()
    if len(labels) < 2:
        return
    longest = max(len(line) for label in labels for line in label.split("\n"))
    columns = max(1, int(_width(ax) * ax.get_position().width / (0.5 + 0.06 * longest)))
    below = offset_copy(ax.transAxes, ax.figure.get_figure(root=True), y=-30, units="points")  # the label of the axis
    place: Any = {"bbox_to_anchor": (-0.04, 0), "bbox_transform": below, "loc": "upper left", "borderaxespad": 0.0}
    ax.legend(handles, labels, ncols=columns, **place)


FOREST_NOTE = (
    "Dots: interquartile means over seeds; ticks: single seeds; crosses: seeds that did not converge. Thick lines: "
    "95 % bootstrap intervals over seeds; thin lines: the range of fewer than five, or of one that over questions."
)


def forest(
    frame: "DataFrame", ax: "Axes | None" = None, *, region: str | None = None, metric: str | None = None
) -> "Axes":
    """The metric of each variant over a region: the interquartile mean over seeds with its 95 % bootstrap interval, of
    fewer than five seeds their range, of one its interval over questions; every seed is a tick. Crosses are seeds that
    did not converge, which count in distribution alone.

    `region` is by default all cells out of distribution. Means are over the cells that all runs have. Raises
    `UserError` for a region that was not evaluated.
    """
    cells = with_all_ood(shared_cells(of_map(reported(frame))))
    regions = [name for name in (ALL_OOD, *reversed(REGIONS)) if (cells["region"] == name).any()]
    if not regions or region not in (None, *regions):
        raise UserError(f"region: {region} was not evaluated; there are: {', '.join(regions) or 'none'}")
    if metric is not None:
        check_metric(cells, metric)
    region, metric = region or regions[0], metric or default_metric(cells)
    found, kept = scores(cells[cells["region"] == region], ["variant", "region"], metric), converged(frame)["run"]
    styles = style.series_styles(frame)
    with style.figure_style():
        ax = ax or style.new_axes(style.COLUMN, 0.95 + 0.3 * len(styles))
        for y, (variant, options) in enumerate(styles.items()):
            own, color = found[found["variant"] == variant], options["color"]
            counts = own["run"].isin(kept) | (region == "in_distribution") | (len(own) == 1)
            ticks, crosses = own.loc[counts, "value"], own.loc[~counts, "value"]
            for values, mark, shade in ((crosses, "x", style.GREY), (ticks, "|", color)):
                ax.plot(values, [y + 0.28] * len(values), mark, color=shade, markersize=3.5, markeredgewidth=0.8)
            for _, seeds in over_seeds(own[counts], ["variant"], "iqm", bootstrap=True).iterrows():
                width = 2.2 if seeds["seeds"] >= MIN_SEEDS else 0.9
                ax.plot(seeds[["low", "high"]], [y, y], color=color, linewidth=width)
                ax.plot([seeds["value"]], [y], "o", color=color, markersize=4)
        ax.set(title=REGION_NAMES[region], xlabel=fill(metric_title(metric), 22), ylim=(len(styles) - 0.4, -0.6))
        ax.set_yticks(range(len(styles)), [fill(variant, 26) for variant in styles])
        ax.grid(axis="x")
        if is_share(metric):
            _percent_axis(ax.xaxis)
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
    return ax


def attention_maps(frame: "DataFrame", ax: "Axes | None" = None) -> "Axes":
    """The attention weights of a prompt: a row of maps for each layer, a column for each head; queries downwards, keys
    to the right.

    `frame` has a row for each weight: `layer` (its name), `head`, `query` and `key` (their positions from 0),
    `key_token`, `weight`. The scale begins at 0, or is symmetric around it where weights are negative.
    """
    layers, heads = list(dict.fromkeys(frame["layer"])), sorted(frame["head"].unique())
    height, width = frame["query"].max() + 1, frame["key"].max() + 1
    gap = max(1, width // 12)
    mosaic = np.full((len(layers) * (height + gap) - gap, len(heads) * (width + gap) - gap), np.nan)
    rows = frame["layer"].map(layers.index) * (height + gap) + frame["query"]
    columns = frame["head"].map(heads.index) * (width + gap) + frame["key"]
    mosaic[rows, columns] = frame["weight"]
    bound, is_signed = float(np.nanmax(np.abs(mosaic))) or 1.0, bool(np.nanmin(mosaic) < 0)
    with style.figure_style():
        size = style.PAGE if len(heads) > 3 else style.COLUMN
        ax = ax or style.new_axes(size, min(9.0, 0.7 + size * 0.85 * mosaic.shape[0] / mosaic.shape[1]))
        colors, low = ("PuOr", -bound) if is_signed else (style.ramp(), 0.0)
        image = ax.imshow(mosaic, cmap=colors, vmin=low, vmax=bound, aspect="equal", interpolation="nearest")
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
        ax.set_yticks([i * (height + gap) + (height - 1) / 2 for i in range(len(layers))], layers)
        starts = [i * (width + gap) for i in range(len(heads))]
        ax.set_xticks([start + (width - 1) / 2 for start in starts], [f"head {head}" for head in heads])
        ax.xaxis.tick_top()
        if 72 * 0.85 * _width(ax) / mosaic.shape[1] >= 6.5:  # a letter of 7 points fits below a key
            tokens = frame.drop_duplicates("key").set_index("key")["key_token"]
            for start in starts:
                for key, token in tokens.items():
                    ax.text(start + key, mosaic.shape[0], token_label(token)[:3], ha="center", va="top", fontsize=7)
        ax.figure.colorbar(image, ax=ax, fraction=0.03, pad=0.02).outline.set_visible(False)
    return ax


def maps_figure(rows: Sequence[Any], title: str) -> "Figure":
    """The attention maps of a prompt, one below the other for each kind: attention, cross attention, relations.

    A row has `kind`, `layer`, `weights` (heads x query x key), and the tokens of its `queries` and `keys`.
    """
    from pandas import DataFrame, concat

    frames: dict[tuple[str, int], list[DataFrame]] = {}
    for row in rows:
        head, query, key = np.indices(row.weights.shape).reshape(3, -1)
        frame = DataFrame({"head": head, "query": query, "key": key, "weight": row.weights.ravel()})
        frame = frame.assign(layer=row.layer, key_token=np.array(row.keys)[key])
        frames.setdefault((row.kind, row.weights.shape[0]), []).append(frame)
    with style.figure_style():
        heights = [max(1.6, 1.7 * len(own)) for own in frames.values()]
        figure = style.new_figure(style.PAGE, min(sum(heights) + 0.4, 30))
        figure.suptitle(title, fontsize=8)
        grid = figure.subplots(len(frames), 1, squeeze=False, gridspec_kw={"height_ratios": heights}).flat
        for ((kind, _), own), ax in zip(frames.items(), grid, strict=True):
            attention_maps(concat(own), ax)
            ax.set_title(kind, loc="left")
    return figure


def token_label(token: str) -> str:
    """A token with visible white space, also where tokenizers write it as ▁, Ġ and Ċ."""
    marks: Any = {" ": "␣", "\u2581": "␣", "\u0120": "␣", "\n": "↵", "\u010a": "↵", "\t": "⇥"}
    return token.translate(str.maketrans(marks)) or "∅"


# Several axes ---------------------------------------------------------------------------------------------------------


def panels(
    drawn: "Sequence[Panel]", width: float, *, columns: int = 2, height: float = 2.9, share: str = "", metric: str = ""
) -> "Figure":
    """Small multiples: titled panels, each drawn by a function of its axes, with the axes in `share` ("x", "xy") in
    common; a single one is narrower than a page. Maps have one bar for the colors of `metric`."""
    columns = max(1, min(columns, len(drawn), int(width / 2.2)))
    rows = -(-len(drawn) // columns)
    with style.figure_style():
        figure = style.new_figure(width if columns > 1 else min(width, style.PAGE * 0.75), rows * height)
        grid = figure.subplots(rows, columns, squeeze=False, sharex="x" in share, sharey="y" in share).flat
        for i, ((title, draw), ax) in enumerate(zip(drawn, grid, strict=False)):
            draw(ax=ax)
            if title:
                ax.set_title(fill(title, int(11 * width / columns)))
            ax.tick_params(labelbottom="x" not in share or i + columns >= len(drawn))
            if "x" in share and i + columns < len(drawn):
                ax.set_xlabel("")
            if i % columns and ("y" in share or ax.images):
                ax.set_ylabel("")
        for ax in grid[len(drawn) :]:
            ax.remove()
        if metric:
            add_bar([ax for ax in grid if ax.images], metric_title(metric))
    return figure


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


def maps(tasks: "Tasks", metric: str | None = None, width: float = style.PAGE, *further: "Panel") -> "Figure":
    """A map for each variant, of lists also one of their first label, and further panels; of sizes along one line alone
    the scores by length."""
    frames = [(str(name), own) for cells in tasks.values() for name, own in cells.groupby("variant", sort=False)]
    if any(len(grid_axes(own)) != 2 or len(diagonal(own)) == len(own) for _, own in frames):
        return lengths(tasks, metric, width)
    for name, own in list(frames):
        if metric is None and "items" in own and "first_token_correct" in own:
            frames.append((f"{name}: first label", own.assign(correct=own["first_token_correct"])))
    metric = metric or default_metric(frames[0][1])
    drawn: list[Panel] = [(name, partial(heat_map, own, metric=metric, bar=False)) for name, own in frames]
    drawn += further
    columns = 2 if len(drawn) in (2, 4) else 3
    return panels(drawn, width, columns=columns, height=2.8 if further else 2.6, metric=metric)


def lengths(tasks: "Tasks", metric: str | None = None, width: float = style.PAGE) -> "Figure":
    """Scores by length, a panel for each task."""
    return _series(tasks, partial(by_length, metric=metric), width)


def counts(tasks: "Tasks", metric: str | None = None, width: float = style.PAGE) -> "Figure":
    """The accuracy at each position of labels, a panel for each task."""
    return _series(tasks, by_count, width)


def _series(tasks: "Tasks", draw: Callable[..., "Axes"], width: float) -> "Figure":
    """A panel for each task, of many variants for each eight; a single variant is the title."""
    drawn, most = [], 0
    for name, cells in tasks.items():
        variants = list(dict.fromkeys(cells["variant"]))
        most = max(most, min(len(variants), MAX_SERIES))
        for start in range(0, len(variants), MAX_SERIES):
            title = variants[0] if len(tasks) == len(variants) == 1 else name
            drawn.append((title, partial(draw, cells[cells["variant"].isin(variants[start : start + MAX_SERIES])])))
    return panels(drawn, width, height=max(2.9, 2.3 + 0.15 * most), share="y" if len(tasks) > 1 else "xy")


def compared(tasks: "Tasks", metric: str | None = None, width: float = style.PAGE) -> "Figure":
    """A map of each of the best variants, and all of these by length; of several tasks the lengths alone."""
    if len(tasks) > 1:
        return lengths(tasks, metric, width)
    shown = best_variants(next(iter(tasks.values())), 5)
    return maps({"": shown}, metric, width, ("", partial(by_length, shown, metric=metric)))


def forests(tasks: "Tasks", metric: str | None = None, width: float = style.PAGE) -> "Figure":
    """The regions of all variants side by side; of several tasks those of the first with several seeds or parts."""
    several = [cells for cells in tasks.values() if (cells.groupby("variant")["run"].nunique() > 1).any()]
    several += [cells for cells in tasks.values() if has_parts(cells)]
    if not several:
        raise UserError("plot: intervals needs variants with several seeds; train more with seeds=5")
    cells = shared_cells(of_map(reported(several[0])))
    regions = [name for name in REGIONS if (cells["region"] == name).any()]
    drawn = [("", partial(forest, cells, region=name, metric=metric)) for name in regions]
    return panels(drawn, width, columns=len(regions), height=1.0 + 0.3 * cells["variant"].nunique(), share="y")


def training(
    logged: "DataFrame", kind: str = "training", width: float = style.PAGE, styles: Mapping[str, Any] = {}
) -> "Figure":
    """What was logged in training: the loss, and scores on the validation splits; or the validation loss of text."""
    draw = partial(training_curves, logged, styles=styles)
    if kind == "validation":
        return panels([("", partial(draw, split="validation"))], width, height=3.0)
    known = {split: own.notna().any() for split, own in logged.groupby(logged["split"].fillna("")) if len(logged)}
    score = "accuracy" if "accuracy" in logged else "exact_match"
    wanted = [("", "loss"), ("validation", score), ("ood_validation", score)]
    drawn = [("", partial(draw, y=y, split=name or None)) for name, y in wanted if name in known and known[name].get(y)]
    if not drawn:
        raise UserError(f"plot: {kind} needs runs with metrics; train them first")
    return panels(drawn, width, columns=3, height=2.7)


FIGURES: Mapping[str, Callable[..., "Figure"]] = {
    **{"grid": maps, "curves": lengths, "counts": counts, "compare": compared, "intervals": forests},
    **dict.fromkeys(("training", "validation"), training),
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
    check_choice("size", size, style.WIDTHS)
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
    kind = "validation" if default_metric(cells) in LANGUAGE_METRICS else kind
    if kind in ("training", "validation"):
        return training(logged, kind, style.WIDTHS[size])
    chosen = of_map(reported(cells, checkpoint))
    if not len(chosen):
        where = f" at the {checkpoint} checkpoint" if checkpoint else ""
        raise UserError(f"plot: {kind} needs runs that were evaluated on a grid{where}")
    tasks = {name: chosen[chosen["run"].isin({one.run for one in own})] for name, own in by_task(entries).items()}
    kind = "intervals" if any(map(has_parts, tasks.values())) else kind  # parts have no map and no length
    return FIGURES[kind](tasks, metric, style.WIDTHS[size])
