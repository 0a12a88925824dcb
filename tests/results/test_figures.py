"""Promises of figures: functions of a frame and axes, short, readable where they are printed, the same each time."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pandas import DataFrame

from numerate.errors import UserError
from numerate.evaluation.likelihoods import Likelihoods
from numerate.evaluation.number_metrics import NumberScores
from numerate.results import figures, style
from numerate.results.figures import (
    attention_maps,
    best_variants,
    by_length,
    forest,
    heat_map,
    lengths,
    maps,
    plot,
    training_curves,
)
from numerate.results.rows import cells, find_runs, metrics
from numerate.results.summary import converged
from results_records import done, recipe, seeds, sums
from run_records import Studies, cell_record, write_run


@pytest.fixture
def frame(study: Studies) -> DataFrame:
    """Two variants of three seeds, of which one did not converge."""

    def seed(share: float, trained: float = 1.0) -> dict[str, Any]:
        return done(cells=sums(lambda n: trained if n <= 3 else share))

    runs = [(recipe("near", seed=i), seed(share)) for i, share in enumerate((0.9, 0.5, 0.7))]
    runs += [(recipe("far", seed=i), seed(*shares)) for i, shares in enumerate([(0.1,), (0.0,), (0.3, 0.5)])]
    study(runs)
    return cells("widths", study.runs)


@pytest.fixture
def logged(tmp_path: Path) -> DataFrame:
    lines = [{"step": step, "loss": 10.0 / step} for step in (1, 10, 100)]
    lines += [{"step": 100, "split": "validation", "exact_match": 0.5, "low": 0.4, "high": 0.6}]
    folders = [write_run(tmp_path / "a" / f"{i:012x}", recipe("a", i), metrics=lines) for i in (0, 1)]
    return metrics(folders)


def attention() -> DataFrame:
    """Two layers of two heads over three tokens."""
    places = [(layer, head, i, j) for layer in (0, 1) for head in (0, 1) for i in range(3) for j in range(3)]
    table = DataFrame(places, columns=["layer", "head", "query", "key"])
    weight = np.where(table["key"] <= table["query"], 1 / (table["query"] + 1), 0.0)
    return table.assign(
        weight=weight, layer="layer " + table["layer"].astype(str), key_token=table["key"].map("a b".__getitem__)
    )


def drawn(frame: DataFrame, logged: DataFrame) -> dict[str, Any]:
    return {
        "heat_map": heat_map(frame[frame["variant"] == "near"]),
        "by_length": by_length(frame),
        "training_curves": training_curves(logged),
        "forest": forest(frame),
        "attention_maps": attention_maps(attention()),
    }


def test_all_text_of_a_figure_has_seven_points_or_more_at_the_width_that_it_is_made_for(
    frame: DataFrame, logged: DataFrame
) -> None:
    for name, ax in drawn(frame, logged).items():
        figure = ax.get_figure()
        texts = [text for text in figure.findobj(lambda artist: hasattr(artist, "get_fontsize")) if text.get_text()]
        assert min(text.get_fontsize() for text in texts) >= 7, name
        assert figure.get_size_inches()[0] in (style.COLUMN, style.PAGE), name


def test_a_figure_is_a_short_function_of_a_frame_and_axes_which_it_returns(frame: DataFrame, logged: DataFrame) -> None:
    for name in drawn(frame, logged):
        function = getattr(figures, name)
        assert list(inspect.signature(function).parameters)[:2] == ["frame", "ax"]
        assert len(inspect.getsource(function).splitlines()) <= 80, name
    ax = style.new_axes()
    assert by_length(frame, ax) is ax


def test_a_figure_is_the_same_file_each_time_and_has_no_date(
    frame: DataFrame, logged: DataFrame, tmp_path: Path
) -> None:
    for suffix in ("svg", "pdf", "png"):
        for i in (1, 2):
            for name, ax in drawn(frame, logged).items():
                style.save(ax.get_figure(), tmp_path / f"{i}-{name}.{suffix}")
        for once in tmp_path.glob(f"1-*.{suffix}"):
            assert once.read_bytes() == (tmp_path / f"2{once.name[1:]}").read_bytes(), once.name
    with pytest.raises(UserError, match=r"a\.gif: the suffix must be one of png, svg, pdf; for example a\.svg"):
        style.save(style.new_figure(), tmp_path / "a.gif")


def test_a_map_has_the_median_of_the_seeds_with_the_sizes_of_training_inside_the_border(frame: DataFrame) -> None:
    ax = heat_map(frame[frame["variant"] == "near"])
    image = np.asarray(ax.images[0].get_array())
    assert image.shape == (6, 6)
    assert (image[0, 0], image[5, 5]) == (1.0, 0.7)
    assert len(ax.collections[0].get_segments()) == 4 * 3  # the four sides of a square of three cells
    with pytest.raises(UserError, match="needs the cells of one variant"):
        heat_map(frame)
    with pytest.raises(UserError, match="metric: there is no 'nope'"):
        forest(frame, metric="nope")


def test_lines_are_of_the_converged_seeds_with_a_band_and_the_legend_says_how_many(frame: DataFrame) -> None:
    ax = by_length(frame)
    lines = {line.get_label(): line for line in ax.get_lines() if not str(line.get_label()).startswith("_")}
    assert list(lines) == ["near", "far (2 of 3 seeds)"]
    assert list(lines["far (2 of 3 seeds)"].get_ydata()) == [1.0, 1.0, 1.0, 0.05, 0.05, 0.05]
    band = ax.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (0.5, 1.0)
    assert ax.get_xscale() == "linear"


def test_variants_that_did_not_converge_are_grey_and_differ_in_marks_and_dashes(study: Studies) -> None:
    study([(recipe(name, hidden_size=size), done(cells=sums(lambda n: 0.1))) for name in "ab" for size in (32, 64)])
    drawn = [one for one in by_length(cells("widths", study.runs)).get_lines() if "did not" in str(one.get_label())]
    assert {one.get_color() for one in drawn} == {style.GREY}
    assert len({(one.get_marker(), one.get_linestyle()) for one in drawn}) == len(drawn) == 4


def test_steps_of_training_are_whole_numbers(tmp_path: Path) -> None:
    lines = [{"step": step, "loss": 10.0 / step} for step in (2, 3, 4)]
    folder = write_run(tmp_path / "a" / "0123456789ab", recipe("a"), metrics=lines)
    ax = training_curves(metrics([folder]))
    ax.get_figure().canvas.draw()  # type: ignore[union-attr]
    texts = [text.get_text() for text in ax.get_xticklabels() if text.get_text()]
    assert len(texts) == len({*texts}) >= 3


def test_the_regions_of_intervals_are_those_that_all_runs_have(study: Studies) -> None:
    few = [line for line in sums(lambda n: 1.0) if line["region"] == "in_distribution"]
    study([(recipe("a", i), done(cells=sums(lambda n: 1.0))) for i in (0, 1)] + [(recipe("b"), done(cells=few))])
    figure = plot("intervals", find_runs("widths", study.runs))
    assert [ax.get_title() for ax in figure.axes] == ["in distribution"]


def test_lengths_far_beyond_training_have_a_logarithmic_axis(study: Studies) -> None:
    far = [
        {**line, "cell": {"first_digits": n, "second_digits": n}}
        for line, n in zip(sums(lambda n: 1.0)[-2:], (60, 600), strict=True)
    ]
    study([(recipe(), done(cells=[*sums(lambda n: 1.0), *far]))])
    assert by_length(cells("widths", study.runs)).get_xscale() == "log"


def test_a_forest_has_every_seed_and_an_interval_of_those_that_converged(frame: DataFrame) -> None:
    ax = forest(frame, region="ood_test")
    ticks, dots, crosses = (
        [list(map(float, line.get_xdata())) for line in ax.get_lines() if line.get_marker() == marker]
        for marker in "|ox"
    )
    assert (ticks, crosses[1]) == ([[0.9, 0.5, 0.7], [0.1, 0.0]], [0.3])
    assert dots[0] == [pytest.approx(0.7)]
    with pytest.raises(UserError, match="region: nowhere was not evaluated; there are: ood, ood_test"):
        forest(frame, region="nowhere")


def test_what_was_not_logged_is_refused(logged: DataFrame) -> None:
    assert training_curves(logged, y="exact_match", split="validation").get_ylabel() == "validation exact match, %"
    with pytest.raises(UserError, match="no accuracy of training was logged"):
        training_curves(logged, y="accuracy")


def test_of_many_variants_the_first_and_the_best_are_drawn_each_in_its_color(study: Studies) -> None:
    runs = [(recipe(f"v{i}"), done(cells=sums(lambda n, i=i: 1.0 if n <= 3 else i / 20))) for i in range(12)]  # type: ignore[misc]
    study(runs)
    frame = cells("widths", study.runs)
    shown = list(dict.fromkeys(best_variants(frame)["variant"]))
    assert shown == ["v0", "v5", "v6", "v7", "v8", "v9", "v10", "v11"]
    assert len({each["color"] for each in style.series_styles(best_variants(frame)).values()}) == 8


def language(*losses: float) -> list[dict[str, Any]]:
    """Runs of one seed with these losses of text in the context of training, and the same in a longer one."""
    runs = []
    for i, loss in enumerate(losses):
        lines = []
        for length, region in ((16, "in_distribution"), (32, "ood_test")):
            one = Likelihoods(nll=10 * loss, tokens=10, bytes=40, chunks=1)
            line = cell_record({"context_length": length}, 0, 1, region) | one.record() | {"language": one.sums()}
            lines.append({name: value for name, value in line.items() if name != "correct"})
        runs.append((recipe(f"v{i}"), done(cells=lines)))
    return runs


def test_of_many_variants_of_text_those_with_the_lowest_loss_are_drawn_and_no_loss_fails_to_converge(
    study: Studies,
) -> None:
    study(language(*(0.5 + i / 10 for i in range(10))))
    frame = cells("widths", study.runs)
    assert list(dict.fromkeys(best_variants(frame, 3)["variant"])) == ["v0", "v1", "v2"]
    assert len(converged(frame)) == len(frame)


def test_what_is_no_share_of_the_questions_has_no_map_and_no_axis_in_per_cent(study: Studies) -> None:
    errors = NumberScores.from_texts(["30", "5"], ["1", "5"]).to_record()
    study([(recipe(), done(cells=sums(lambda n: 1.0, numbers=errors)))])
    frame = cells("widths", study.runs)
    with pytest.raises(UserError, match="heat_map: mae is no share of the questions; by_length draws it"):
        heat_map(frame, metric="mae")
    ax = by_length(frame, metric="mae")
    assert ax.get_ylabel() == "mean absolute error"
    assert ax.get_ylim()[1] > 2


def test_lists_have_a_second_map_of_their_first_label_and_sizes_along_one_line_have_none(study: Studies) -> None:
    lines = [
        cell_record({"digits": n, "items": m}, 0, 10, "ood_test", first_token_correct=5) for n in (1, 2) for m in (1, 2)
    ]
    study([(recipe(), done(cells=lines))])
    figure = plot("grid", find_runs("widths", study.runs))
    titles = [ax.get_title() for ax in figure.axes if ax.images]
    assert titles == ["abacus", "abacus: first label"]
    assert [{text.get_text() for text in ax.texts} for ax in figure.axes if ax.images] == [{"0"}, {"50"}]
    study([(recipe("b"), done())], title="lines")
    assert not [ax for ax in plot("grid", find_runs("lines", study.runs)).axes if ax.images]


def test_methods_have_colors_and_models_marks_where_all_combinations_are_there(study: Studies) -> None:
    runs = [
        run for width in (64, 128) for rate in (0.1, 0.2) for run in seeds(0.5, hidden_size=width, learning_rate=rate)
    ]
    study(runs)
    styles = list(style.series_styles(cells("widths", study.runs)).values())
    assert [styles.index(one) for one in styles] == [0, 1, 2, 3]
    assert styles[0]["marker"] == styles[1]["marker"] != styles[2]["marker"]
    assert styles[0]["color"] == styles[2]["color"] != styles[1]["color"]


def test_a_legend_stands_below_the_label_of_its_axis(frame: DataFrame) -> None:
    figure = lengths({str(i): frame for i in range(4)})
    figure.draw_without_rendering()
    for ax in figure.axes:
        legend, label = ax.get_legend().get_window_extent(), ax.xaxis.label.get_window_extent()
        assert legend.y1 <= label.y0


@pytest.mark.parametrize("draw", [lengths, maps])
def test_panels_share_axes_but_those_of_maps(draw: Callable[..., Any], frame: DataFrame) -> None:
    figure = draw({name: frame[frame["variant"] == name] for name in ("near", "far")})
    first, second = figure.axes[:2]
    assert first.get_shared_y_axes().joined(first, second) == (draw is lengths)
    assert [ax.get_title() for ax in (first, second)] == ["near", "far"]
