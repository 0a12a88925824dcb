"""Attention maps as one figure: a row for each layer and kind of map, a column for each head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from numerate.reports.colour import COLORMAP_LIGHT
from numerate.reports.matplotlib_writer import figure_style, new_drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 7.2
"""Width of the figure in inches, unless its heads need more."""

MAX_LABELS = 64
"""Maximum number of token labels below a row of heads."""

_VISIBLE_WHITESPACE = str.maketrans({" ": "␣", "\u2581": "␣", "\u0120": "␣", "\n": "↵", "\u010a": "↵", "\t": "⇥"})


class MapRow(NamedTuple):
    """The maps of one kind in one layer: `weights` (heads x query x key), with a label for each query and key."""

    title: str
    weights: NDArray[np.float32]
    queries: Sequence[str]
    keys: Sequence[str]


def token_label(token: str) -> str:
    """A token as a label with visible whitespace, also where tokenizers write it as ▁, Ġ and Ċ."""
    return token.translate(_VISIBLE_WHITESPACE) or "∅"


def maps_figure(rows: Sequence[MapRow], title: str) -> Figure:
    """Heat maps of all heads, queries downwards and keys to the right, each row with its own color scale.

    The scale begins at 0, or is symmetric around it in a row with numbers below 0. Tokens are named where they fit.
    """
    from matplotlib.colors import LinearSegmentedColormap

    positive = LinearSegmentedColormap.from_list("attention", COLORMAP_LIGHT)
    panel_widths = [WIDTH / max(len(row.weights), 4) for row in rows]
    heights = [
        width * min(max(len(row.queries) / len(row.keys), 0.2), 2) + 0.55
        for width, row in zip(panel_widths, rows, strict=True)
    ]
    with figure_style():
        drawing = new_drawing(WIDTH + 0.8, sum(heights) + 0.3)
        drawing.suptitle(title, fontsize=9)
        every: Any = drawing.subplots(len(rows), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
        for axes, row in zip(every.flat, rows, strict=True):
            heads, num_queries, num_keys = row.weights.shape
            gap = max(1, num_keys // 12)
            image = np.pad(row.weights, ((0, 0), (0, 0), (0, gap)), constant_values=np.nan)
            image = image.transpose(1, 0, 2).reshape(num_queries, -1)[:, :-gap]
            bound = float(np.abs(row.weights).max(initial=0.0)) or 1.0
            has_negative = bool(row.weights.min(initial=0.0) < 0)
            shown = axes.imshow(
                image,
                aspect="auto",
                interpolation="nearest",
                cmap="PuOr" if has_negative else positive,
                vmin=-bound if has_negative else 0.0,
                vmax=bound,
            )
            drawing.colorbar(shown, ax=axes, fraction=0.02, pad=0.01)
            axes.set_title(row.title, loc="left", fontsize=8, pad=12)
            axes.spines[:].set_visible(False)
            starts = np.arange(heads) * (num_keys + gap)
            for head, start in enumerate(starts.tolist()):
                name = f"head {head}" if heads <= 8 else str(head)
                axes.text(start + (num_keys - 1) / 2, -0.7, name, ha="center", va="bottom", fontsize=6)
            labels = [token_label(key) for key in row.keys]
            columns = (starts[:, None] + np.arange(num_keys)).ravel() if heads * num_keys <= MAX_LABELS else []
            axes.set_xticks(columns, (labels * heads)[: len(columns)])
            names = [token_label(query) for query in row.queries] if num_queries <= MAX_LABELS // 2 else []
            axes.set_yticks(range(len(names)), names)
            axes.tick_params(length=0, labelsize=6)
            if max(map(len, labels)) > 2:
                axes.tick_params(axis="x", labelrotation=90)
    return drawing
