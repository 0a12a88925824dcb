"""Promises of reports on labels: the curve by count, the baseline beside every number beyond training, and no
comparison where a model looks ahead."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numerate.config import to_tree
from numerate.errors import UserError
from numerate.evaluation.labels import METRICS, LabelCounts
from numerate.mixers.recurrent import LSTM
from numerate.models.decoder import Decoder
from numerate.reports.compare import comparison_text, write_comparison
from numerate.reports.counts import baseline_line, count_lines, counts_content
from numerate.reports.grid import baseline_curve, is_clearly_above
from numerate.reports.groups import Group, group_runs, with_metric
from numerate.reports.html_writer import to_html
from numerate.reports.matplotlib_writer import draw_figure
from numerate.reports.page import run_page
from numerate.reports.plots import counts_figure, training_figure, write_plot
from numerate.reports.records import read_run, read_runs
from numerate.reports.success import success_table
from numerate.reports.summary import group_result, headline
from numerate.tasks.counting import Counting
from numerate.tokenizers.words import Words
from run_records import cell_record, write_run

TRAINED, LONGEST = 5, 12
RECIPE: dict[str, Any] = {
    "kind": "Recipe",
    "task": to_tree(Counting(count=TRAINED, modulus=3)),
    "tokenizer": to_tree(Words()),
    "model": to_tree(Decoder(mixer=LSTM())),
}

Make = Callable[..., Path]


def cell(count: int, knows: int | None, **more: Any) -> dict[str, Any]:
    """Two rows of `count` symbols, of which the first is counted right up to `knows` and the second to one less; with
    None the answer is 3 everywhere."""
    places = np.arange(count)
    right = np.stack([places % 3 == 2] * 2 if knows is None else [places < knows, places < knows - 1])
    answers = np.broadcast_to((places % 3 + 1).astype(str), right.shape)
    labels = LabelCounts.from_arrays(right, np.ones_like(right), answers, TRAINED)
    region = "in_distribution" if count <= TRAINED else "ood_validation" if count <= TRAINED + 1 else "ood_test"
    own = {"overlaps_training": region == "in_distribution", "first_error_counts": [], "labels": labels.record()}
    return cell_record({"count": count}, labels.exact_match, 2, region, **(own | more))


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make("lstm", knows=12, seed=0, position_offsets=..., recipe=...) -> the folder of a run that counts so far."""

    def run(
        name: str,
        knows: int | Sequence[int] | None,
        seed: int = 0,
        recipe: Any = RECIPE,
        best: bool = False,
        **more: Any,
    ) -> Path:
        folder = tmp_path / "runs" / name / f"{name}{seed}"
        each = [knows] if isinstance(knows, int | None) else knows
        cells = [
            cell(count, far, position_offset=position_offset, seed=seed, checkpoint=checkpoint, **more)
            for checkpoint in ("final", "best")[: 1 + best]
            for position_offset, far in enumerate(each)
            for count in range(1, LONGEST + 1)
        ]
        metrics = [
            {"step": step, "split": "ood_validation", "exact_match": 0.0, "accuracy": step / 200} for step in (50, 100)
        ]
        return write_run(folder, recipe | {"seed": seed, "title": name}, cells, metrics=metrics)

    return run


def group_of(*folders: Path) -> Group:
    (group,) = group_runs(read_runs(folders))
    return group


def test_labels_are_measured_on_unseen_counts_unless_another_metric_is_chosen(make: Make) -> None:
    """Known up to 8 and 7: of the labels 6 to 12 of 7 lengths in two rows, those up to these are right."""
    group = group_of(make("lstm", 8))
    assert group.resolved_metric == "ood_accuracy"
    (regions,) = group.region_scores
    right = sum(min(8, n) - 5 + min(7, n) - 5 for n in range(6, 13))
    count = sum(2 * (n - 5) for n in range(6, 13))
    assert regions["ood"].score.value == pytest.approx(right / count)
    assert regions["in_distribution"].score.value == 1.0
    assert group.diagonal[12].score == pytest.approx((3 + 2) / 14)
    for metric in METRICS:
        chosen = replace(group, metric=metric)
        share = regions["ood"].labels.score(metric) if regions["ood"].labels else None
        assert chosen.region_scores[0]["ood"].score.value == pytest.approx(share)
    with pytest.raises(UserError, match="there is no 'fist'; there are: exact_match, ood_accuracy"):
        with_metric([group], "fist")  # type: ignore[arg-type]


def test_runs_without_labels_have_exact_match_alone(make: Make, make_run: Make) -> None:
    group = group_of(make_run("abacus", lambda n: 1.0))
    assert (group.resolved_metric, group.baseline, group.labels) == ("exact_match", None, [])
    assert counts_content([group]) == []
    with pytest.raises(UserError, match="metric: must be exact_match for addition_abacus, whose answers"):
        with_metric([group], "ood_accuracy")


def test_the_baseline_stands_beside_every_number_beyond_training(make: Make) -> None:
    """Of the labels beyond 5 those of the 7 lengths are 3 (the 6th) to 3 (the 12th), of which 1 is most common."""
    folder = make("lstm", 8)
    group = group_of(folder)
    wanted = [(t - 1) % 3 + 1 for n in range(6, 13) for t in range(6, n + 1)]
    baseline = max(wanted.count(answer) for answer in (1, 2, 3)) / len(wanted)
    assert group.baseline == pytest.approx(baseline)
    page = run_page(read_run(folder))
    assert f"baseline {100 * baseline:.1f}" in page
    assert "up to count 7 (100 % [34.2, 100] there, baseline 50 %)" in headline([group])
    facts = page[page.index('class="facts"') :].split("</dl>")[0]
    assert facts.count("baseline") == 3, "OOD validation, OOD test and all OOD; not in distribution"
    table = success_table([group])
    header, rows = table.header, table.rows
    assert rows[-1][0] == "baseline"
    lengths = [int(name.removeprefix("n=").split()[0]) for name in header[3:]]
    assert [bool(text) for text in rows[-1][3:]] == [n > TRAINED for n in lengths]


BASELINES = {6: 1.0, 7: 1 / 2, 8: 1 / 3, 9: 2 / 4, 10: 2 / 5, 11: 2 / 6, 12: 3 / 7}
"""What the best single answer gives of the labels 6 to n."""


def test_at_each_length_stands_the_baseline_of_that_length(make: Make) -> None:
    folders = [make("lstm", 12, seed) for seed in (0, 1)]
    group = group_of(*folders)
    assert {n: point.baseline for n, point in group.diagonal.items() if n > TRAINED} == pytest.approx(BASELINES)
    assert all(group.diagonal[n].baseline is None for n in range(1, TRAINED + 1))
    assert replace(group, metric="accuracy").diagonal[10].baseline == pytest.approx(5 / 10)
    table = success_table([group])
    header, rows = table.header, table.rows
    row = dict(zip(header, rows[-1], strict=True))
    assert {name: row[name] for name in ("n=5 (in distribution)", "n=7", "n=10", "n=12")} == {
        "n=5 (in distribution)": "", "n=7": "50 %", "n=10": "40 %", "n=12": "42.9 %"
    }  # fmt: skip
    assert "n=6" not in header, "memorising alone has all of it"
    across, baselines = baseline_curve([group.diagonal])
    assert (across, baselines) == ([1.0, 5.5, *BASELINES], pytest.approx([1.0, 1.0, *BASELINES.values()]))


def test_a_model_at_its_baseline_goes_nowhere_and_one_above_it_is_not_held_up(make: Make) -> None:
    """All that says 3 everywhere has right of the 6th label; at 6 that is all, and of 6 and 7 it is a half."""
    chance = group_of(make("chance", None))
    found = group_result(chance)
    assert chance.diagonal[6].score == 1.0
    assert found.farthest_point is None
    assert found.first_ood_point is not None
    assert found.first_ood_point.coordinates == {"count": 7}
    assert ", 50 % [9.5, 90.5] at count 7, baseline 50 %)" in headline([chance])
    reach = group_result(group_of(make("lstm", 13))).farthest_point
    assert reach is not None
    assert reach.coordinates == {"count": 12}


def test_clearly_above_a_baseline_is_at_least_half_of_what_it_leaves() -> None:
    assert is_clearly_above(0.99, 0.98)
    assert not is_clearly_above(0.985, 0.98)
    assert not is_clearly_above(1.0, 1.0), "nothing is left"
    assert is_clearly_above(0.0, None)


def test_the_baseline_of_the_curve_by_count_is_the_same_whatever_is_measured(make: Make) -> None:
    group = group_of(make("lstm", 8))
    lines = []
    for metric in METRICS:
        lines.append(baseline_line([replace(group, metric=metric)], LONGEST))
        assert lines[-1] is not None
        assert lines[-1].y[-1] == group.baseline
    assert all(line == lines[0] for line in lines)


def test_having_learned_what_was_trained_is_about_all_its_labels(make: Make) -> None:
    """As where an addend stands behind the symbols: the last label of the longest trained row has place 6."""

    def with_sums(folder: Path) -> Path:
        path = folder / "cells.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if line["cell"]["count"] == TRAINED:
                right = np.array([[True] * TRAINED + [False]] * 2)
                line["labels"] = LabelCounts.from_arrays(
                    right, np.ones_like(right), max_training_labels=TRAINED
                ).record()
                line |= {"correct": 0, "low": 0.0}
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    group = group_of(with_sums(make("lstm", 12)))
    assert group.resolved_metric == "ood_accuracy"
    trained = group.region_scores[0]["in_distribution"]
    assert trained.labels is not None
    assert trained.labels.score("ood_accuracy") == 0.0
    assert trained.score.value == trained.labels.score("accuracy") == pytest.approx(30 / 32)
    assert group.diagonal[TRAINED].score == pytest.approx(5 / 6)


def test_of_the_best_checkpoint_the_lengths_it_was_chosen_on_are_left_out(make: Make, tmp_path: Path) -> None:
    folders = [make("lstm", 12, seed, best=True, step=100 + seed) for seed in (0, 1)]
    best = replace(group_of(*folders), checkpoint="best")
    assert 6 not in best.diagonal
    assert {7, 12} <= set(best.diagonal)
    assert 6 in group_of(*folders).diagonal
    page = write_comparison(folders, tmp_path / "page.html").read_text()
    assert "never on the lengths tested" not in page
    assert "best score on OOD validation, which is excluded from its results" in page
    report = run_page(read_run(folders[0]))
    table = report[report.index("<h2>Checkpoints and position offsets") :].split("</table>")[0]
    validation = table.split("</th>")[:-1].index(
        next(cell for cell in table.split("</th>") if "OOD validation" in cell)
    )
    found = {row.split("</td>")[0]: row.split("</td>") for row in table.split("<tr><td>")[1:]}
    assert "baseline" not in found["best"][validation]
    assert "baseline" in found["final"][validation]
    assert "chosen on OOD validation" in report


def test_figures_have_a_panel_for_each_task_and_say_what_they_leave_out(make: Make) -> None:
    def recipe(modulus: int, width: int) -> dict[str, Any]:
        task = to_tree(Counting(count=TRAINED, modulus=modulus))
        return RECIPE | {"task": task, "model": to_tree(Decoder(mixer=LSTM(), hidden_size=width))}

    folders = [make(f"three{i}", 8, recipe=recipe(3, 8 * i)) for i in range(1, 15)]
    folders += [make(f"four{i}", 8, recipe=recipe(4, 8 * i)) for i in (1, 2)]
    groups = group_runs(read_runs(folders))
    figure = counts_figure(groups)
    three, four = draw_figure(figure).axes
    assert len(four.get_legend().get_texts()) == 2
    assert len(three.get_legend().get_texts()) == 8
    assert "These are 8 of 14 groups" in figure.notes
    assert "baseline" in [text.get_text().split(" ")[0] for text in four.texts]
    assert (
        len(draw_figure(training_figure([*groups[:1], *groups[-1:]])).axes) == 2
    )  # nothing but one validation set was logged


def test_a_metric_of_what_was_not_evaluated_is_refused_as_not_evaluated(make: Make) -> None:
    folder = make("lstm", 8)
    (folder / "cells.jsonl").unlink()
    with pytest.raises(UserError, match="lstm must be evaluated first"):
        with_metric([group_of(folder)], "ood_accuracy")
    both = [group_of(folder), group_of(make("rnn", 8))]
    assert "lstm is not evaluated yet" in headline(with_metric(both, "ood_accuracy"))


def test_the_curve_has_a_place_for_each_count_and_the_spread_of_seeds(make: Make) -> None:
    folders = [make("lstm", knows, seed) for seed, knows in enumerate((8, 12, 10))]
    (found,) = count_lines([group_of(*folders)])
    assert list(found.x) == list(range(1, LONGEST + 1))
    assert found.low is not None
    assert found.high is not None
    ninth = [0.0, 1.0, 1.0]
    assert (found.y[8], found.low[8], found.high[8]) == (1.0, min(ninth), max(ninth))
    page = to_html(counts_content([group_of(*folders)]))
    assert page.count('class="baseline"') == 2, "the line and its key"
    assert "score of memorization" in page
    assert ">in distribution</text>" in page


def test_means_over_position_offsets_are_taken_and_noted(make: Make) -> None:
    folder = make("sine", [12, 5])
    group = group_of(folder)
    alone = [group_of(make(f"alone{knows}", knows)).diagonal[12].score for knows in (12, 5)]
    assert group.diagonal[12].score == pytest.approx(sum(alone) / 2)
    page = run_page(read_run(folder))
    assert "means over 2 fixed position offsets" in page
    assert ">mean of 2</td>" in page.replace("\N{NO-BREAK SPACE}", " ")
    for metric in METRICS:
        assert replace(group, metric=metric).diagonal[12].count == 2, "two rows, at every position offset"


def test_a_model_that_looks_ahead_has_no_claim_on_any_page(make: Make, tmp_path: Path) -> None:
    why = "its positions see the length of the row"
    zoomed = [make("zoom", 12, seed, non_causal_reason=why) for seed in (0, 1)]
    plain = [make("lstm", 12, seed) for seed in (0, 1)]
    assert headline([group_of(*zoomed)]) == f"zoom: not comparable (non-causal): {why}."
    assert f"zoom: not comparable (non-causal): {why}" in run_page(read_run(zoomed[0]))
    text = " ".join(comparison_text(group_runs(read_runs([*plain, *zoomed]))).split())
    assert f"zoom: not comparable (non-causal): {why}" in text
    assert "lstm / zoom" not in text, "no test of a pair"
    rows = success_table(group_runs(read_runs([*plain, *zoomed]))).rows
    found = {row[0]: row[3] for row in rows}
    assert found["zoom"] == f"not comparable (non-causal): {why}"
    assert found["lstm"].startswith("2/2")
    path = write_comparison([*plain, *zoomed], tmp_path / "page.html")
    assert f"<strong>zoom: not comparable (non-causal): {why}</strong>" in path.read_text()


def test_a_comparison_has_the_curve_the_baseline_and_all_measures(make: Make, tmp_path: Path) -> None:
    folders = [make("lstm", 12, seed) for seed in (0, 1)] + [make("nope", 5, seed) for seed in (0, 1)]
    page = write_comparison(folders, tmp_path / "page.html").read_text()
    for words in ("Accuracy per count", "correct prefix, %", "baseline", "accuracy at positions beyond training"):
        assert words in page
    last = write_comparison(folders, tmp_path / "last.html", metric="last_label").read_text()
    assert "last label correct" in last


def test_a_figure_of_counts_is_drawn_twice_the_same_and_refused_without_labels(
    make: Make, make_run: Make, tmp_path: Path
) -> None:
    folders = [make("lstm", 8, seed) for seed in (0, 1)]
    first, again = (write_plot("counts", folders, tmp_path / f"{name}.svg").read_text() for name in "ab")
    assert "baseline" in first
    assert first == again
    with pytest.raises(UserError, match="plot: counts needs runs whose answers are labels"):
        write_plot("counts", [make_run("abacus", lambda n: 1.0)], tmp_path / "c.svg")
