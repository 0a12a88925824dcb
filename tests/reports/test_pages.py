"""The HTML pages: whole, offline, true to the records, safe against what is in them; and figures for papers."""

import json
import os
import re
from html.parser import HTMLParser

import pytest

from numerate.errors import OperationalError, UserError
from numerate.reports.compare import write_comparison
from numerate.reports.figure import Figure, HeatMap
from numerate.reports.groups import group_runs
from numerate.reports.matplotlib_writer import draw_figure, save_figure
from numerate.reports.page import run_iframe, write_run_report
from numerate.reports.plots import compare_figure, write_plot
from numerate.reports.records import read_run
from numerate.reports.summary import headline
from numerate.reports.training import training_charts

VOID = {"meta", "br", "col", "wbr"}


class Outline(HTMLParser):
    """Checks that tags close in order, and collects text, headings and what would be fetched."""

    def __init__(self, html):
        super().__init__()
        self.open, self.text, self.fetched, self.cells, self.tags = [], "", [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href") and not value.startswith("data:"):
                self.fetched.append(value)
            if name == "data-tip":
                self.cells.append((dict(attrs).get("class", ""), value))

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def pair(make_run):
    return [make_run("abacus", lambda n: n <= 7), make_run("rotary", lambda n: n <= 5)]


def outline(path):
    page = Outline(path.read_text())
    assert page.open == []
    return page


def test_a_folder_whose_name_is_no_utf_8_gets_a_page_and_a_figure(make_run, tmp_path):
    made, folder = make_run("abacus", lambda n: n <= 7), tmp_path / os.fsdecode(b"\xe4-sums")
    try:
        made.parent.rename(folder)
    except OSError:
        pytest.skip("this file system has no such names")
    run = folder / made.name
    assert "\N{REPLACEMENT CHARACTER}-sums" in outline(write_run_report(run)).text
    groups = group_runs([read_run(run)])
    save_figure(compare_figure(groups), tmp_path / "a.png")


def test_a_run_gets_one_page_that_fetches_nothing_and_runs_nothing(pair):
    path = write_run_report(pair[0])
    assert path == pair[0] / "report.html"
    page = outline(path)
    assert page.fetched == []
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert "@import" not in path.read_text()
    assert "http" not in re.sub(r"<pre>.*?</pre>", "", path.read_text(), flags=re.S)


def test_the_page_of_a_run_holds_all_that_it_should(make_run):
    page = outline(write_run_report(make_run("abacus", lambda n: n <= 7, bibtex="@article{key, title={T}}")))
    for expected in (
        "Trained on 1 to 5 digits, addition_abacus stays at",
        "in distribution, mean",
        "OOD validation",
        "OOD validation: sizes slightly above those of training",
        "Training loss",
        "Validation, in distribution",
        "12+9=",
        "21+9=12",
        "numerate run addition_abacus",
        "@article{key, title={T}}",
        "model.positions.0.position_ids.max_offset",
        "123,456",
        "0123abc",
    ):
        assert expected in page.text


def test_every_cell_has_a_tooltip_with_value_and_interval(pair):
    cells = outline(write_run_report(pair[0])).cells
    assert len(cells) == 64
    assert cells[-1][1] == "8+8 digits\n0 % correct [0, 3.7]\n0 of 100 questions"


def test_the_same_records_give_the_same_bytes(pair):
    first = write_run_report(pair[0]).read_bytes()
    assert write_run_report(pair[0]).read_bytes() == first


def test_names_and_samples_cannot_break_the_page(make_run):
    evil = '"><script>alert(1)</script>&'
    folder = make_run("abacus", lambda n: 0.5, name=evil, command=evil)
    sample = {
        "cell": {"first_digits": 1, "second_digits": 1},
        "question": evil,
        "correct_answer": "1",
        "prediction": evil,
        "correct": False,
    }
    (folder / "samples.jsonl").write_text(json.dumps(sample | {"model_text": evil}) + "\n")
    page = outline(write_run_report(folder))
    assert "script" not in page.tags
    assert page.text.count(evil) >= 4


def test_a_run_without_results_yet_still_has_a_page(make_run):
    folder = make_run("abacus", lambda n: 1.0)
    for name in ("metrics.jsonl", "cells.jsonl", "samples.jsonl"):
        (folder / name).unlink()
    assert "Nothing has been evaluated yet" in outline(write_run_report(folder)).text


def test_wrong_letters_are_marked_in_samples(make_run):
    folder = make_run("abacus", lambda n: 1.0)
    sample = {
        "cell": {"first_digits": 2, "second_digits": 2},
        "question": "12+34=",
        "correct_answer": "46",
        "prediction": "56",
    }
    (folder / "samples.jsonl").write_text(json.dumps(sample | {"correct": False, "model_text": ""}) + "\n")
    assert "<mark>5</mark>6" in write_run_report(folder).read_text()


def test_several_checkpoints_and_position_offsets_get_a_row_each(make_run):
    folder = make_run("abacus", lambda n: 1.0)
    lines = [json.loads(line) for line in (folder / "cells.jsonl").read_text().splitlines()]
    with open(folder / "cells.jsonl", "a") as file:
        file.writelines(
            json.dumps(line | {"position_offset": 3, "correct": 50, "low": 0.4, "high": 0.6}) + "\n" for line in lines
        )
    page = outline(write_run_report(folder))
    assert "Checkpoints and position offsets" in page.text
    assert len(page.cells) == 64


def test_a_task_with_one_axis_is_a_curve_without_a_map(make_run):
    folder = make_run("abacus", lambda n: 1.0)
    line = json.loads((folder / "cells.jsonl").read_text().splitlines()[0])
    lines = [
        line | {"cell": {"length": n}, "region": "in_distribution" if n < 4 else "ood_test", "overlaps_training": False}
        for n in range(1, 8)
    ]
    (folder / "cells.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = outline(write_run_report(folder))
    assert page.cells == []
    assert "By length" in page.text
    assert "length 1 to 3" in page.text


def test_a_notebook_gets_a_frame_of_its_own(pair):
    assert re.fullmatch(r"<iframe [^<>]*></iframe>", run_iframe(pair[0]))


def test_a_comparison_shows_both_maps_and_what_differs(pair, tmp_path):
    labels = {"addition_abacus": "Abacus", "addition_rotary": "rotary"}
    path = write_comparison(pair, tmp_path / "new" / "report.html", labels=labels)
    page = outline(path)
    assert page.fetched == []
    assert len(page.cells) == 128
    for expected in (
        "; rotary falls to 0",
        "Abacus90 % or more up to 7+7 digits",
        "rotary0 % at 6+6 digits",
        "They differ in this one setting",
        "One seed each, so the variation over seeds is unknown",
        "✓ 21",
    ):
        assert expected in page.text


def test_a_comparison_of_seeds_shows_each_and_how_many_succeed(make_run, tmp_path):
    runs = [make_run("abacus", lambda n, last=last: n <= last, seed=last) for last in (5, 7, 8)]
    runs += [make_run("rotary", lambda n: n <= 5, seed=seed) for seed in range(3)]
    page = outline(write_comparison(runs, tmp_path / "report.html"))
    assert len(page.cells) == 2 * 64
    assert "3/3 : 3/3" in page.text.replace("\N{NO-BREAK SPACE}", " ")
    assert "One seed" not in page.text


def test_a_comparison_warns_of_unequal_budgets(make_run, tmp_path):
    runs = [make_run("abacus", lambda n: 0.3), make_run("rotary", lambda n: n <= 5, examples=12800)]
    text = outline(write_comparison(runs, tmp_path / "report.html")).text
    assert "addition_abacus 6,400 and addition_rotary 12,800" in text


def test_a_comparison_begins_with_the_runs_that_failed_and_the_variants_that_are_not_there(pair, tmp_path):
    failed = [("abacus seed 1", "the loss is nan <b>\n at step 7 " + "x" * 200)]
    text = write_comparison(pair, tmp_path / "one.html", title="Pair", failed_runs=failed).read_text()
    warning = re.search(r'<h1>Pair</h1>\n<p class="warning"><strong>(.*?)</strong></p>\n<p class="summary">', text)[1]
    error = "the loss is nan &lt;b&gt; at step 7 "
    shown = error + "x" * (100 - len("the loss is nan <b> at step 7 ")) + "…"
    assert warning == f"1 of 3 runs failed and is not in anything below: abacus seed 1 ({shown})."
    failed = [(f"lstm seed {seed}", "out of memory") for seed in range(8)]
    text = outline(write_comparison(pair, tmp_path / "many.html", failed_runs=failed, missing_variants=["lstm"])).text
    assert "8 of 10 runs failed and are not in anything below: lstm seed 0 (out of memory), " in text
    assert "lstm seed 5 (out of memory) and 2 others. No run of lstm succeeded." in text
    assert "failed" not in outline(write_comparison(pair, tmp_path / "none.html")).text


def test_a_comparison_of_nothing_or_of_no_runs_is_refused(tmp_path):
    with pytest.raises(UserError, match="no runs are named"):
        write_comparison([], tmp_path / "report.html")
    with pytest.raises(UserError, match="not a run folder"):
        write_comparison([tmp_path], tmp_path / "report.html")


def test_a_full_disk_harms_neither_the_records_nor_an_earlier_page(pair, monkeypatch):
    earlier = write_run_report(pair[0]).read_text()

    def full(self, *args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OperationalError, match=r"report\.html: the disk is full.* The records are unchanged\."):
        write_run_report(pair[0])
    assert (pair[0] / "report.html").read_text() == earlier
    assert not list(pair[0].glob(".tmp*"))


def test_a_figure_has_a_panel_for_each_map_and_one_for_the_lengths(pair):
    groups = group_runs([read_run(run) for run in pair])
    figure = draw_figure(compare_figure(groups))
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:3] == ["addition_abacus", "addition_rotary", "Both numbers n digits long"]
    numbers = [text.get_text() for text in figure.axes[1].texts]
    assert len(numbers) == 64
    assert set(numbers) == {"100", "0"}
    curves = {line.get_label(): list(line.get_ydata()) for line in figure.axes[2].get_lines()}
    assert curves["addition_abacus"] == [1] * 7 + [0]
    assert curves["addition_rotary"] == [1] * 5 + [0] * 3


def test_unequal_sizes_alone_have_no_chart_of_lengths_and_strata_alone_no_figure(pair):
    file = pair[0] / "cells.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    unequal = [one for one in records if one["cell"]["first_digits"] != one["cell"]["second_digits"]]
    strata = [one | {"stratum": "nines_plus_one"} for one in unequal]
    for kept, number in (unequal, 1), (strata, 0):
        file.write_text("".join(json.dumps(one) + "\n" for one in kept))
        figure = compare_figure(groups := group_runs([read_run(pair[0])]))
        assert [type(panel) for panel in figure.drawn_panels] == [HeatMap] * number
        assert not number or draw_figure(figure)
    assert headline(groups) == "Only strata have been evaluated."
    with pytest.raises(UserError, match="compare needs sizes in the grid, and only strata were evaluated"):
        write_plot("compare", pair[:1], pair[0] / "a.png")


def test_a_figure_of_training_has_loss_and_exact_match(pair):
    loss, *exact = draw_figure(Figure(training_charts(group_runs([read_run(pair[0])])))).axes
    assert loss.get_yscale() == "log"
    assert [list(line.get_ydata()) for axes in exact for line in axes.get_lines()] == [[0.5, 0.5], [0.5, 0.5]]


def test_a_figure_of_nothing_is_refused():
    with pytest.raises(UserError, match="evaluate the runs first"):
        draw_figure(Figure([]))
