"""Promises of how series are drawn: colours that everyone tells apart, with one meaning each, on figures for a page."""

import math
import re
from collections.abc import Callable, Iterable
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from numerate.errors import UserError
from numerate.reports.colour import SERIES, SERIES_DARK, Style, assign_styles, luminance, parse_hex_color
from numerate.reports.figure import Chart, ChartLine, Figure
from numerate.reports.groups import group_runs, group_styles
from numerate.reports.html_writer import to_html
from numerate.reports.matplotlib_writer import SIZES, draw_figure, save_figure
from numerate.reports.overview import length_chart
from numerate.reports.plots import FIGURES
from numerate.reports.records import read_run
from run_records import cell_record, write_run

VISION = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
"""Machado, Oliveira and Fernandes (2009), table 1, severity 1, https://doi.org/10.1109/TVCG.2009.113."""


def seen(colour: str, kind: str) -> tuple[float, ...]:
    """A colour as it is seen, in OKLab, https://bottosson.github.io/posts/oklab/."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (part / 255 for part in parse_hex_color(colour))
    ]
    mixed = (sum(a * b for a, b in zip(row, linear, strict=True)) for row in VISION[kind])
    r, g, b = (min(1.0, max(0.0, c)) for c in mixed)
    cones = (
        0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b,
        0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b,
        0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b,
    )
    one, two, three = (cone ** (1 / 3) for cone in cones)
    return (
        0.2104542553 * one + 0.7936177850 * two - 0.0040720468 * three,
        1.9779984951 * one - 2.4285922050 * two + 0.4505937099 * three,
        0.0259040371 * one + 0.7827717662 * two - 0.8086757660 * three,
    )


@pytest.mark.parametrize("kind", VISION)
@pytest.mark.parametrize(("colours", "page"), [(SERIES, "#ffffff"), (SERIES_DARK, "#1a1d24")])
def test_any_two_series_are_distinguishable_on_light_and_dark_pages(
    colours: tuple[str, ...], page: str, kind: str
) -> None:
    assert len(set(colours)) == len(SERIES)
    assert min(math.dist(seen(a, kind), seen(b, kind)) for a, b in combinations(colours, 2)) > 0.105
    assert min(contrast(colour, page) for colour in colours) > 2.7
    styles = assign_styles([str(i) for i in range(2 * len(SERIES))])
    assert len(set(styles.values())) == 2 * len(SERIES)


def contrast(one: str, other: str) -> float:
    """The contrast of two colors, WCAG 2.2."""
    dim, bright = sorted(luminance(parse_hex_color(color)) for color in (one, other))
    return (bright + 0.05) / (dim + 0.05)


def addition_chart(folder: Path, lengths: Iterable[int], operator: str = "+") -> Chart:
    """The chart by length of a run of addition, or of another operator."""
    cells = [cell_record({"first_digits": n, "second_digits": n}, 20, 20, "100+" if n > 100 else "in_distribution")
             for n in lengths]  # fmt: skip
    recipe = {"title": "sums", "task": {"kind": "Arithmetic", "operator": operator}}
    return length_chart(group_runs([read_run(write_run(folder / f"{max(lengths):012x}", recipe, cells))]))


def test_a_few_lengths_far_away_have_a_logarithmic_axis(tmp_path: Path) -> None:
    axis = addition_chart(tmp_path, [1, 5, 10, 100, 1000, 10_000]).x_axis
    assert axis.is_log
    assert [text for _, text in axis.ticks] == ["1", "10", "100", "1,000", "10,000"]
    assert axis.fraction(100) - axis.fraction(10) == pytest.approx(axis.fraction(1000) - axis.fraction(100))
    assert not addition_chart(tmp_path, [1, 5, 10, 20, 200]).x_axis.is_log
    assert not addition_chart(tmp_path, range(1, 301)).x_axis.is_log  # all of them have room


def test_charts_of_addition_mark_the_published_lengths_that_they_reach_with_their_sources(tmp_path: Path) -> None:
    chart = addition_chart(tmp_path, [1, 10, 100, 1000])
    assert chart.reference_lines == [(100, "Abacus"), (200, "position coupling"), (1000, "ALGA*")]
    note = chart.notes[-1]
    assert "Abacus, 100 digits, trained on 20 (McLeish et al., 2024, arxiv.org/abs/2405.17399)" in note
    assert note.endswith("*Of another kind: with a loop outside the model.")
    assert "DFST" not in note
    drawing = to_html([Figure([chart])])
    assert re.findall(r'class="reference-text"[^>]*>([^<]*)<', drawing) == ["Abacus", "position coupling", "ALGA*"]
    (axes,) = draw_figure(Figure([chart])).axes
    assert {"Abacus", "position coupling", "ALGA*"} <= {one.get_text() for one in axes.texts}
    assert axes.get_xscale() == "log"
    assert addition_chart(tmp_path, [150, 900]).reference_lines == [(200, "position coupling")]
    assert addition_chart(tmp_path, [1, 10, 99]).reference_lines == []
    assert addition_chart(tmp_path, [1, 10, 101], operator="-").reference_lines == []


@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_the_figure_of_a_study_is_as_wide_as_a_page_and_its_legend_clear_of_the_curves(
    make_run: Callable[..., Path], count: int
) -> None:
    kinds = [f"a_scheme_with_a_long_name_{i}" for i in range(count)]
    groups = group_runs([read_run(make_run(kind, lambda n: 1.0)) for kind in kinds])
    figure = draw_figure(FIGURES["compare"](groups))
    assert figure.get_figwidth() <= SIZES["page"].width
    figure.canvas.draw()
    charts = [axes.get_window_extent() for axes in figure.axes]
    for shown in figure.legends:
        assert not any(box.overlaps(shown.get_window_extent()) for box in charts)
    assert all(axes.get_title() for axes in figure.axes[: count + 1])


@pytest.mark.parametrize(("kind", "size"), [("compare", "page"), *(("grid", size) for size in SIZES)])
def test_labels_and_titles_of_maps_lie_within_the_figure_and_do_not_touch_each_other(
    make_run: Callable[..., Path], kind: str, size: str
) -> None:
    names = ("a_scheme_with_a_long_name", "a_scheme_with_another_name")
    groups = group_runs([read_run(make_run(name, lambda n: 1.0, high=20)) for name in names])
    figure = draw_figure(FIGURES[kind](groups), SIZES[size])
    figure.canvas.draw()
    maps = figure.axes[:2]
    for axes in maps:
        assert all(one.x1 + figure.dpi / 40 < other.x0 for one, other in pairwise(_boxes(axes.get_xticklabels())))
        assert all(not one.overlaps(other) for one, other in pairwise(_boxes(axes.get_yticklabels())))
    titles = _boxes(axes.title for axes in maps)
    assert all(not one.overlaps(other) for one, other in combinations(titles, 2))
    boxes = [*titles, *(axes.get_tightbbox() for axes in figure.axes)]
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes if box is not None)


def _boxes(texts: Iterable[Text]) -> list[Bbox]:
    return [text.get_window_extent() for text in texts]


CROSS = [("LSTM", "CrossEntropy"), ("LSTM", "NumberToken"), ("RNN", "CrossEntropy"), ("RNN", "NumberToken")]


@pytest.mark.parametrize(
    ("pairs", "styles"),
    [
        (CROSS, [(0, 0), (1, 0), (0, 1), (1, 1)]),
        (CROSS[:3], [(0, 0), (1, 1), (2, 2)]),
        ([("LSTM", loss) for loss in ("CrossEntropy", "NumberToken")], [(0, 0), (1, 1)]),
    ],
    ids=["models x losses", "not all combinations", "one model"],
)
def test_models_crossed_with_losses_have_the_color_of_the_loss_and_the_marker_of_the_model(
    tmp_path: Path, pairs: list[tuple[str, str]], styles: list[tuple[int, int]]
) -> None:
    for i, (mixer, loss) in enumerate(pairs):
        recipe = {"title": f"r{i}", "model": {"kind": "Decoder", "mixer": {"kind": mixer}}, "objective": {"loss": loss}}
        write_run(tmp_path / f"{i:012x}", recipe)
    groups = group_runs([read_run(tmp_path / f"{i:012x}") for i in range(len(pairs))])
    assert [*group_styles(groups).values()] == [Style(*pair) for pair in styles]


@pytest.mark.parametrize("size", SIZES)
def test_a_figure_has_the_width_of_its_size_and_letters_of_eight_points(tmp_path: Path, size: str) -> None:
    lines = [ChartLine(f"series {i}", [1, 2, 3], [0.1 * i, 0.5, 1.0], style=Style(i, i)) for i in range(3)]
    charts = [Chart(title, lines, "length", "exact match, %", is_percent=True) for title in ("first", "second")]
    figure = draw_figure(Figure(charts, columns=2), SIZES[size])
    assert figure.get_figwidth() == SIZES[size].width
    assert figure.axes[0].xaxis.label.get_fontsize() == 8
    figure.canvas.draw()
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width for box in boxes if box is not None)


def test_an_unknown_size_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    figure = Figure([Chart("", [ChartLine("a", [1.0, 2.0], [1.0, 2.0])], "x", "y")])
    with pytest.raises(UserError, match="size: must be one of column, page, slide, not 'colum'"):
        save_figure(figure, tmp_path / "a.png", "colum")
