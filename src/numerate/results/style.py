"""The style of all figures: sizes, letters, colors, and the file that a figure is written to.

The ramp of maps runs from a color near the page (nothing right) to the farthest from it (everything right), with
lightness falling all the way, so that it survives color-blind eyes and grey printing. Any two colors of series are at
least 0.12 apart in OKLab, with normal vision and without one kind of cone (the matrices of Machado et al., 2009,
https://doi.org/10.1109/TVCG.2009.113). All letters have 7 points or more at the width that a figure is made for.
"""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numerate.errors import UserError
from numerate.results.rows import settings_columns
from numerate.training.output_files import check_output_file, write_output

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

COLUMN, PAGE = 3.4, 7.2
WIDTHS = {"column": COLUMN, "page": PAGE, "slide": 5.6}
"""Widths in inches of a figure for a column of a paper, for its page, and for a slide."""

RAMP = ("#f6f4ec", "#cfe5d0", "#7cc4bd", "#3a8fb7", "#24599c", "#12275c")
"""Equally spaced stops of the color of a share, from 0 to 1."""

SERIES = ("#083EA9", "#BD3D08", "#017C6D", "#E247BA", "#A69903", "#4B91FE", "#36006A", "#6A2E31")
MARKERS = "osD^vP"
DASHES: Sequence[Any] = ("-", "--", ":", "-.", (0, (2.2, 1.2)), (0, (4.0, 1.2, 1.2, 1.2)))
"""The colors of series, and the mark and the dashes of each model."""

TRAINED, GREY, SHADE = "#D1242F", "#63666f", "#f0efe9"
"""The border of what was trained, red as in the published maps; lines that are no series; what was trained, behind
lines."""

SUFFIXES: Mapping[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Suffixes of files with their metadata, which has no time."""

_SETTINGS: Any = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#444444",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.2,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "numerate",
    "pdf.fonttype": 42,
    "text.parse_math": False,
}


@contextmanager
def figure_style() -> Iterator[None]:
    """matplotlib with the style of numerate's figures, for drawing and for saving."""
    import matplotlib

    with matplotlib.rc_context(_SETTINGS):
        yield


def new_figure(width: float = COLUMN, height: float = 2.6) -> "Figure":
    """An empty figure of so many inches, without pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def new_axes(width: float = COLUMN, height: float = 2.6) -> "Axes":
    """The axes of an empty figure of so many inches; the figure is `axes.get_figure()`."""
    with figure_style():
        axes: Axes = new_figure(width, height).add_subplot()
    return axes


def ramp() -> Any:
    """The color map of shares."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("numerate", RAMP)


def series_styles(frame: "DataFrame") -> dict[str, dict[str, Any]]:
    """The color, the mark and the dashes of each variant of a frame.

    Where variants are all combinations of models and of other settings (losses, data), the color is that of the method
    and the mark that of the model. Otherwise each has its own color, and where these are used up another mark.
    """
    variants = frame.drop_duplicates("variant")
    settings = [name for name in settings_columns(frame) if variants[name].nunique(dropna=False) > 1]
    of_model = [name for name in settings if name.partition(".")[0] in ("model", "tokenizer")] or settings[:1]
    of_model = settings[:1] if len(of_model) == len(settings) else of_model
    models, methods = (
        [str(values) for values in variants[names].itertuples(index=False)] if names else [""] * len(variants)
        for names in (of_model, [name for name in settings if name not in of_model])
    )
    shapes, colors = list(dict.fromkeys(models)), list(dict.fromkeys(methods))
    pairs = [(colors.index(method), shapes.index(model)) for method, model in zip(methods, models, strict=True)]
    is_cross = len({*pairs}) == len(pairs) == len(shapes) * len(colors) and min(len(shapes), len(colors)) > 1
    if not is_cross or len(colors) > len(SERIES) or len(shapes) > len(MARKERS):
        pairs = [(i % len(SERIES), (i + i // len(SERIES)) % len(MARKERS)) for i in range(len(variants))]
    return {
        name: {"color": SERIES[color], "marker": MARKERS[shape], "linestyle": DASHES[shape]}
        for name, (color, shape) in zip(variants["variant"], pairs, strict=True)
    }


def content(figure: "Figure", kind: str, dpi: int = 300) -> bytes:
    """A figure as a file of one of the `SUFFIXES`, the same each time."""
    file = io.BytesIO()
    with figure_style():
        figure.savefig(file, format=kind, dpi=dpi, metadata=SUFFIXES[kind])
    return file.getvalue()


def svg(figure: "Figure", name: str) -> str:
    """A figure as SVG for a page, larger than on paper (letters of 12 to 14 pixels), with ids that begin with `name`,
    since all figures of a page share one space of ids."""
    text = content(figure, "svg").decode()
    text = text[text.index("<svg") :]
    size = r'width="([\d.]+)pt" height="[\d.]+pt"'
    text = re.sub(size, lambda found: f'width="{float(found[1]) * 1.75:.0f}"', text, count=1)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)


def save(figure: "Figure", path: str | Path, dpi: int = 300) -> Path:
    """Writes a figure as .png, .svg or .pdf, as its name ends, without a date; returns the path.

    Raises `UserError` for another suffix, and for an existing file that is no such figure.
    """
    return write_output(path, content(figure, check_path(path), dpi))


def check_path(path: str | Path) -> str:
    """The kind of file that a path names. Raises `UserError` for one that no figure is written as."""
    kind = Path(path).suffix.lstrip(".").lower()
    if kind not in SUFFIXES:
        example = Path(path).with_suffix(".svg").name
        raise UserError(f"{path}: the suffix must be one of {', '.join(SUFFIXES)}; for example {example}")
    check_output_file(path, kind)
    return kind
