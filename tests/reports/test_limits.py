"""Pages of large studies: still small and readable, and they say what they leave out."""

import base64
import re
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from numerate.reports import limits
from numerate.reports.colour import COLORMAP_DARK, COLORMAP_LIGHT, colormap
from numerate.reports.compare import comparison_text, write_comparison
from numerate.reports.figure import Figure, heat_maps
from numerate.reports.groups import Group, group_runs
from numerate.reports.html_writer import to_html
from numerate.reports.limits import groups_to_draw
from numerate.reports.matplotlib_writer import draw_figure
from numerate.reports.plots import FIGURES
from numerate.reports.records import read_run
from run_records import cell_record, write_run


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """make("v1", seed, reach): trained on 1 to 3, correct up to `reach`, evaluated on `high` x `high` lengths."""

    def made(label: str, seed: int, reach: int, high: int = 6) -> Path:
        recipe = {"kind": "Recipe", "task": {"kind": "Task"}, "model": {"kind": label}, "seed": seed}
        cells = []
        for a in range(1, high + 1):
            for b in range(1, high + 1):
                n = max(a, b)
                correct = 100 if n <= max(reach, 3) else (37 * a + 11 * b + seed) % 40
                region = "in_distribution" if n <= 3 else "ood_test"
                cells.append(cell_record({"first_digits": a, "second_digits": b}, correct, 100, region, seed=seed))
        metrics = [{"step": step, "loss": 1.0 / step} for step in range(1, 301)]
        return write_run(tmp_path / "runs" / label / f"s{seed}", recipe, cells, metrics=metrics, name=label)

    return made


@pytest.fixture
def large(make: Callable[..., Path]) -> list[Path]:
    """Forty variants of five seeds; the best are v10, v11, ... by their reach."""
    return [make(f"v{v:02d}", seed, 3 + v % 4 * (v >= 10)) for v in range(40) for seed in range(5)]


def test_the_page_of_two_hundred_runs_is_small_and_says_what_it_leaves_out(large: list[Path], tmp_path: Path) -> None:
    page = write_comparison(large, tmp_path / "page.html")
    assert page.stat().st_size < 1_500_000
    text = page.read_text()
    assert "200 runs, 5 seeds each" in text
    assert "These are 8 of 40 groups: the first, and those with the highest median" in text
    tables = re.sub(r"<section><h2>Training</h2>.*?</section>", "", text, flags=re.S)
    for v in range(40):
        assert f"v{v:02d}" in tables


def test_one_run_each_of_two_hundred_makes_a_short_finding(make: Callable[..., Path], tmp_path: Path) -> None:
    runs = [make(f"v{v:03d}", 0, 3 + v % 3, high=5) for v in range(60)]
    text = write_comparison(runs, tmp_path / "page.html").read_text()
    finding = re.search(r'<p class="summary">(.*?)</p>', text)
    assert finding is not None
    assert "60 of 60 groups converged in every seed" in finding[1]
    assert "40 stay at 90" in finding[1]
    assert "v002, v005" in finding[1]
    assert "and 11 others" in finding[1]
    assert len(finding[1]) < 600
    terminal = comparison_text(group_runs([read_run(run) for run in runs]))
    assert "These are 8 of 60 groups" in terminal
    assert len(terminal.splitlines()) < 200


def test_drawn_are_the_first_and_the_best_in_their_order(make: Callable[..., Path]) -> None:
    groups = group_runs([read_run(make(f"v{v}", 0, reach)) for v, reach in enumerate([3, 4, 6, 3, 5])])
    assert groups_to_draw(groups, 5) == groups
    assert [group.label for group in groups_to_draw(groups, 3)] == ["v0", "v2", "v4"]


def test_maps_that_are_too_large_become_pictures(
    make: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [make(label, seed, 5) for label in ("a", "b") for seed in (0, 1)]
    page = write_comparison(runs, tmp_path / "page.html").read_text()
    assert "data:image/png" not in page
    assert page.count("data-tip=") == 2 * 36
    monkeypatch.setattr("numerate.reports.overview.MAX_MAP_CELLS", 50)
    page = write_comparison(runs, tmp_path / "page.html").read_text()
    assert page.count('class="small-map"') == 2
    assert "The maps are too large for tooltips with numbers" in page


def test_a_picture_of_a_map_has_the_colour_of_each_cell(make: Callable[..., Path]) -> None:
    (found,) = heat_maps(group_runs([read_run(make("a", 0, 4))])[0].points)
    drawing = to_html([Figure([replace(found, columns=[*found.columns, 99], as_image=True)])])
    for text, ramp in zip(re.findall(r"base64,([^\"]+)", drawing), (COLORMAP_LIGHT, COLORMAP_DARK), strict=True):
        picture = Image.open(BytesIO(base64.b64decode(text))).convert("RGBA")
        assert picture.size == (7, 6)
        assert all(picture.getpixel((6, i))[3] == 0 for i in range(6)), "not evaluated: transparent"
        for (row, column), one in found.cells.items():
            share = round(100 * one.fraction) / 100
            assert picture.getpixel((column - 1, row - 1)) == (*colormap(share, ramp), 255)
    frame = re.search(r'class="frame" d="([^"]*)"', drawing)
    assert frame is not None
    assert frame[1].count("M") == 4 * 3  # the border of three by three trained cells


def test_curves_by_step_are_thinned_and_keep_both_ends(make: Callable[..., Path], tmp_path: Path) -> None:
    text = write_comparison([make("a", 0, 4)], tmp_path / "page.html").read_text()
    drawing = re.search(
        r'aria-label="loss, nats per token by step".*?<polyline class="line" points="([^"]*)"', text, re.S
    )
    assert drawing is not None
    at = [float(pair.split(",")[0]) for pair in drawing[1].split()]
    assert len(at) == limits.MAX_CURVE_POINTS
    assert (at[0], at[-1]) == (pytest.approx(50 + 324 / 300, abs=0.1), 374.0)


def test_the_study_figure_of_many_groups_has_curves_and_no_row_of_maps(large: list[Path]) -> None:
    groups: list[Group] = group_runs([read_run(folder) for folder in large])
    figure = draw_figure(FIGURES["compare"](groups))
    assert figure.get_figwidth() < 8
    assert len(figure.axes) == 1
    lines = [line for line in figure.axes[0].get_lines() if str(line.get_label()).startswith("v")]
    assert len(lines) == 8
    few = draw_figure(FIGURES["compare"](groups[:3]))
    assert len(few.axes) == 3 + 1 + 1
