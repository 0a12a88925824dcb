"""What reports say over seeds: estimates with their intervals, pairs with their tests, and which seeds count."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from numerate.errors import UserError
from numerate.evaluation.statistics import (
    holm,
    interquartile_mean,
    paired_permutation_test,
    permutation_test,
    stratified_bootstrap_interval,
    wilson_interval,
)
from numerate.reports.compare import comparison_text, write_comparison
from numerate.reports.forest import forest_content, forest_figure, summarize_region
from numerate.reports.grid import ALL_OOD, format_counts
from numerate.reports.groups import Group, different_cells_notes, group_runs
from numerate.reports.html_writer import to_html
from numerate.reports.metrics import MetricKey
from numerate.reports.page import split_by_task
from numerate.reports.pairs import CONVERGED, GroupPair, compare_pairs, pair_table
from numerate.reports.plots import write_plot
from numerate.reports.records import read_run
from run_records import cell_record, write_run

Make = Callable[..., list[Path]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make("abacus", [0.9, 0.8], ...): runs of one recipe, trained on 1 to 4 digits, one per share right at 5 and 6
    digits; `trained` are their shares right of what they were trained on, `lengths` the evaluated ones."""

    def made(
        label: str,
        shares: Sequence[float],
        trained: Sequence[float] = (),
        lengths: Sequence[int] = range(1, 7),
        first: int = 0,
    ) -> list[Path]:
        folders = []
        for i, share in enumerate(shares):
            recipe = {"kind": "Recipe", "task": {"kind": "Task"}, "model": {"kind": label}, "seed": first + i}
            cells = []
            for n in lengths:
                region = "in_distribution" if n <= 4 else "ood_validation" if n == 5 else "ood_test"
                correct = round(1000 * ((trained[i] if trained else 1.0) if n <= 4 else share))
                cells.append(cell_record({"length": n}, correct, 1000, region, seed=first + i))
            folders.append(write_run(tmp_path / "runs" / label / f"{label}{first + i}", recipe, cells))
        return folders

    return made


def pairs_of(*folders: list[Path]) -> dict[str, list[GroupPair]]:
    """The tested pairs by measure."""
    found = compare_pairs(groups_of(*folders))
    return {measure: [pair for pair in found if pair.measure == measure] for measure in {p.measure for p in found}}


def groups_of(*folders: list[Path]) -> list[Group]:
    return group_runs([read_run(folder) for some in folders for folder in some])


@pytest.mark.parametrize("label", ["abacus", "rotary"])
def test_runs_on_different_cells_are_compared_on_those_that_all_have(make: Make, label: str, tmp_path: Path) -> None:
    """Seeds of one group, or two groups."""
    few, all_of_them = make("abacus", [0.8], [0.9], (*range(1, 4), 6)), make(label, [0.6], [0.95], range(1, 8), first=1)
    groups = groups_of(few, all_of_them)
    (note,) = different_cells_notes(groups)
    counts = "abacus on 4 to 7" if label == "abacus" else "abacus on 4 and rotary on 7"
    assert note.startswith(
        f"The runs were evaluated on different cells ({counts}), and means of regions are over the 4 "
    )
    assert note in " ".join(comparison_text(groups).split())
    assert note in write_comparison([*few, *all_of_them], tmp_path / "page.html").read_text()
    assert (note in forest_figure(groups).caption) == (label == "abacus"), "no forest of single seeds"
    (task,) = split_by_task(groups)
    regions = [found for group in task.groups for found in group.region_scores]
    assert [[one.num_cells for one in found.values()] for found in regions] == [[3, 1]] * 2
    metrics = [found for group in task.groups for _, found in group.metrics_by_seed]
    assert [found[MetricKey("ood_test")]["exact_match"] for found in metrics] == [0.8, 0.6]
    assert sum(key.cell is not None for found in metrics for key in found) == (0 if label == "abacus" else 11)
    assert not different_cells_notes(groups_of(all_of_them, make("ALiBi", [0.8, 0.9], lengths=range(1, 8))))


def test_groups_without_a_common_cell_keep_their_own_means_with_a_note(make: Make) -> None:
    groups = groups_of(make("abacus", [0.9], lengths=[1, 5]), make("rotary", [0.8], lengths=[2, 6]))
    (note,) = different_cells_notes(groups)
    assert "(abacus on 2 and rotary on 2), and their means share none" in note
    (task,) = split_by_task(groups)
    assert [len(group.region_scores[0]) for group in task.groups] == [2, 2]


ENDED = {"ended": {"stop_reason": "budget", "step": 100}}


@pytest.mark.filterwarnings("ignore:.*metrics.jsonl")
@pytest.mark.parametrize(
    ("steps", "head", "label"),
    [
        (200, {}, "steps=200"),
        (100, {"extensions": [{"step": 60, "budget": 40}]}, "a (extended from 40 steps)"),
        (100, {"extensions": [{"step": n, "budget": n} for n in (40, 80)]}, "a (extended from 40 and 80 steps)"),
        (100, {"extensions": [{"step": 100, "budget": 100}]}, None),  # evaluated before
        (100, {"ended": {"stop_reason": "budget", "step": 400}}, "a (100 of 400 steps)"),
        (100, {"ended": {"stop_reason": "stopped", "step": 100}}, None),
        (100, {"contents": {"test.jsonl": "123456789"}}, "test.jsonl 12345678"),
    ],
)
def test_runs_that_were_trained_for_another_time_or_on_other_files_are_no_seeds_of_one_group(
    tmp_path: Path, steps: int, head: dict[str, Any], label: str | None
) -> None:
    def run(seed: int, steps: int, **head: Any) -> Path:
        recipe = {"kind": "Recipe", "training": {"kind": "Training", "steps": steps}, "seed": seed, "title": "a"}
        cell = cell_record({"length": 1}, 9, 10, "in_distribution", seed=seed)
        return write_run(tmp_path / "a" / f"{seed}", recipe, [cell], variant="aaaa", **{**ENDED, **head})

    first, second = run(0, 100, contents={"test.jsonl": "0"} if "contents" in head else None), run(1, steps, **head)
    groups = groups_of([first], [second])
    assert [len(group.runs) for group in groups] == ([2] if label is None else [1, 1])
    assert groups[-1].label == (label or "a")


def test_labels_have_what_differs_in_short(tmp_path: Path) -> None:
    def run(name: str, **model: Any) -> Path:
        training = {"kind": "Training", "steps": 10, "log_every": len(name)}  # changes no result
        tree = {"kind": "Recipe", "model": {"kind": "PretrainedDecoder", **model}, "training": training, "seed": 0}
        return write_run(tmp_path / "hf-tiny" / name, tree, name="hf-tiny")

    folders = [run("1", weights="/a/b/tiny", revision="1f"), run("22", weights="/a/c/tiny", revision="2f")]
    assert [group.label for group in groups_of(folders)] == ["weights=b/tiny", "weights=c/tiny"]
    other = write_run(tmp_path / "other" / "1", {"kind": "Recipe"}, name="other")
    assert [group.label for group in groups_of(folders, [other])] == [
        "hf-tiny (weights=b/tiny)",
        "hf-tiny (weights=c/tiny)",
        "other",
    ]
    assert [group.label for group in groups_of([folders[0]], [run("333", weights="/a/b/tiny", revision="3f")])] == [
        "revision=1f",
        "revision=3f",
    ]


def test_records_without_sizes_are_reported(make: Make) -> None:
    (folder,) = make("abacus", [0.9])
    file = folder / "cells.jsonl"
    file.write_text(file.read_text().replace('{"length": 1}', "{}", 1))
    with pytest.warns(UserWarning, match="left out"):
        assert comparison_text(groups_of([folder]))


def test_five_seeds_have_the_bootstrap_interval_of_their_interquartile_mean(make: Make) -> None:
    values = [0.2, 0.4, 0.5, 0.6, 0.9]
    (group,) = groups_of(make("abacus", values))
    estimate = summarize_region(group, "ood_validation")
    assert estimate.values == tuple(values)
    assert estimate.iqm == pytest.approx(interquartile_mean(values))
    assert estimate.interval == stratified_bootstrap_interval([values], "report")
    assert estimate.interval[0] < estimate.iqm < estimate.interval[1]
    assert estimate.text == f"50 [{100 * estimate.interval[0]:g}, {100 * estimate.interval[1]:g}]"


def test_fewer_seeds_have_their_extremes_and_one_seed_has_nothing(make: Make) -> None:
    few, one = groups_of(make("few", [0.2, 0.4, 0.9]), make("one", [0.5]))
    assert summarize_region(few, "ood_validation").interval == (0.2, 0.9)
    assert summarize_region(few, "ood_validation").text == "45, 20 to 90"
    assert summarize_region(one, "ood_validation").text == "50, one seed"
    page = to_html(forest_content([few, one]))
    assert 'class="span"' in page
    assert "Thin line: the lowest to the highest of fewer than 5 seeds" in page
    assert page.count('class="bar"') == 2, "the shares of converged seeds alone"
    assert to_html(forest_content([one])) == ""
    assert not forest_figure([one]).panels
    with pytest.raises(UserError, match="intervals needs groups with several seeds"):
        write_plot("intervals", [one.runs[0].folder], "intervals.png")


def test_a_seed_that_did_not_converge_counts_where_it_was_trained_and_nowhere_else(make: Make) -> None:
    (group,) = groups_of(make("abacus", [0.5, 0.6, 0.7, 0.1], trained=[1.0, 1.0, 0.995, 0.6]))
    assert group.convergence_rate is not None
    assert format_counts(group.convergence_rate) == "3/4"
    assert (group.convergence_rate.low, group.convergence_rate.high) == wilson_interval(3, 4)
    assert summarize_region(group, "in_distribution").values == (1.0, 1.0, 0.995, 0.6)
    assert summarize_region(group, "ood_validation").values == (0.5, 0.6, 0.7)
    assert summarize_region(group, "ood_validation").unconverged_values == (0.1,)
    assert 'class="missed"' in to_html(forest_content([group]))
    assert "Crosses: the seeds that did not" in to_html(forest_content([group]))


def test_a_group_of_which_none_converged_says_so_in_its_row(make: Make) -> None:
    found = groups_of(make("nope", [0.1, 0.2], trained=[0.5, 0.5]), make("abacus", [0.9, 0.8]))
    assert summarize_region(found[0], "ood_validation").text == "none converged"
    assert "none converged" in to_html(forest_content(found))


def test_up_to_four_groups_are_compared_in_all_pairs_and_more_with_the_first(make: Make) -> None:
    found = groups_of(*(make(f"kind{i}", [0.1 * i, 0.1 * i + 0.05]) for i in range(6)))
    pairs = compare_pairs(found[:4])
    assert [pair.label for pair in pairs if pair.measure == ALL_OOD][:2] == ["kind0 / kind1", "kind0 / kind2"]
    assert len([pair for pair in pairs if pair.measure == ALL_OOD]) == 6
    pairs = compare_pairs(found)
    assert [pair.label for pair in pairs if pair.measure == ALL_OOD] == [f"kind{i} / kind0" for i in range(1, 6)]
    assert "Of more than 4 groups each is compared with the first" in pair_table(pairs, "exact match").caption


def test_every_p_of_a_column_is_corrected_for_all_its_pairs(make: Make) -> None:
    scores = {"a": [0.9, 0.8, 0.85, 0.95, 0.99], "b": [0.1, 0.2, 0.3, 0.25, 0.15], "c": [0.5, 0.6, 0.1, 0.2, 0.3]}
    tests = [pair.test for pair in pairs_of(*(make(label, values) for label, values in scores.items()))[ALL_OOD]]
    expected = [permutation_test(scores[one], scores[other]) for one, other in (("a", "b"), ("a", "c"), ("b", "c"))]
    assert [tested.p_value for tested in tests] == pytest.approx(expected)
    assert [tested.adjusted_p_value for tested in tests] == pytest.approx(holm(expected))
    assert tests[0].difference == pytest.approx(0.698)
    assert tests[0].is_significant
    assert not tests[2].is_significant


def test_the_same_seeds_are_compared_seed_by_seed_where_they_are_enough(make: Make) -> None:
    first, second = [0.1 * i for i in range(1, 8)], [0.1 * i - 0.05 for i in range(1, 8)]
    (pair,) = pairs_of(make("a", first)[::-1], make("b", second))[ALL_OOD]
    assert pair.test.test_name == "sign-flip test, seed by seed"
    assert pair.test.p_value == paired_permutation_test(first, second) == 2 / 2**7
    (pair,) = pairs_of(make("c", first), make("d", second, first=1))[ALL_OOD]
    assert pair.test.test_name == "permutation test"
    (pair,) = pairs_of(make("e", first[:5]), make("f", second[:5]))[ALL_OOD]
    assert pair.test.test_name == "permutation test"


def test_seeds_that_did_not_converge_are_compared_in_that_and_in_nothing_beyond(make: Make) -> None:
    able = make("able", [0.5, 0.6, 0.7, 0.5, 0.6])
    unable = make("unable", [0.0] * 5, trained=[0.5] * 5)
    (pair,) = found = compare_pairs(groups_of(able, unable))
    assert pair.measure == CONVERGED
    assert pair.test.p_value == pytest.approx(2 / 252)
    assert "over the converged seeds, where both groups have two" in pair_table(found, "exact match").caption
    (row,) = pair_table(found, "exact match").rows
    assert (row[2], row[-1]) == ("5/5 : 0/5", "0.0079 (0.0079) *")


def test_only_shared_cells_are_compared(make: Make) -> None:
    short = make("short", [0.5, 0.6], lengths=range(1, 6))
    long = make("long", [0.5, 0.6], lengths=range(1, 9))
    (pair,) = pairs_of(short, long)[ALL_OOD]
    assert pair.test.difference == pytest.approx(0.0)
    apart = make("apart", [0.5, 0.6], lengths=[1, 2, 3, 4, 9])
    assert ALL_OOD not in pairs_of(short, apart)


def test_with_too_few_seeds_it_says_how_many_are_required(make: Make) -> None:
    few = compare_pairs(groups_of(make("a", [1.0] * 3), make("b", [0.0] * 3)))
    assert pair_table(few, "exact match").caption.endswith(
        "With these seeds no difference can be significant: the smallest possible p is 0.1; 4 seeds each would suffice."
    )
    enough = compare_pairs(groups_of(make("c", [1.0] * 4), make("d", [0.0] * 4)))
    assert "can be significant" not in pair_table(enough, "exact match").caption


def test_one_seed_each_claims_nothing(make: Make, tmp_path: Path) -> None:
    folders = make("a", [1.0]) + make("b", [0.0])
    assert compare_pairs(groups_of(folders)) == []
    page = write_comparison(folders, tmp_path / "page.html").read_text()
    for heading in ("Over seeds", "more than chance", "Which seeds converged"):
        assert heading not in page
    assert "One seed each" in page


def test_the_page_and_the_terminal_tell_the_pairs_and_the_page_takes_a_baseline(make: Make, tmp_path: Path) -> None:
    folders = [folder for i in range(5) for folder in make(f"kind{i}", [0.1 * i, 0.1 * i + 0.05])]
    page = write_comparison(folders, tmp_path / "page.html", baseline="kind3").read_text()
    assert "kind0 / kind3" in page.replace("\N{NO-BREAK SPACE}", " ")
    text = " ".join(comparison_text(group_runs([read_run(folder) for folder in folders])).split())
    assert "kind4 / kind0" in text
    assert "*: significant, p < 0.05" in text
    with pytest.raises(UserError, match=r"baseline: no group is called 'kind9'; there are: kind0, .*Did you mean"):
        write_comparison(folders, tmp_path / "page.html", baseline="kind9")


def test_the_figure_of_intervals_names_groups_and_says_what_it_shows(make: Make, tmp_path: Path) -> None:
    folders = make("abacus", [0.5, 0.6, 0.7, 0.8, 0.9]) + make("rotary", [0.1, 0.2, 0.3, 0.4, 0.5], [1, 1, 1, 1, 0.5])
    text = write_plot("intervals", folders, tmp_path / "a.svg").read_text()
    for words in ("abacus (5/5", "rotary (4/5", "OOD validation", "bootstrap", "Crosses:"):
        assert words in text


def test_curves_of_a_study_leave_out_what_did_not_converge_and_name_it(make: Make, tmp_path: Path) -> None:
    folders = make("abacus", [0.5, 0.6, 0.7]) + make("nope", [0.1, 0.2, 0.3], [0.5] * 3)
    folders += make("looped", [0.5, 0.6, 0.7], [1.0, 1.0, 0.5])
    svg = write_plot("curves", folders, tmp_path / "a.svg").read_text()
    text = " ".join(re.findall(r">([^<>]+)</text>", svg))
    assert "Not drawn, as no seed converged: nope (0 of 3)" in text
    assert "looped (2 of 3 seeds)" in text
    assert "Medians of 2 to 3 seeds; bands: lowest to highest" in text
    assert "nope (3 seeds)" not in text
    page = write_comparison(folders, tmp_path / "page.html").read_text()
    assert "Not drawn, as no seed converged: nope (0 of 3)." in page
    assert "nope (3 seeds)" not in page


def test_where_nothing_converged_all_is_drawn_and_says_so(make: Make, tmp_path: Path) -> None:
    folders = make("nope", [0.1, 0.2], [0.5] * 2) + make("none", [0.1, 0.2], [0.5] * 2)
    text = write_plot("curves", folders, tmp_path / "a.svg").read_text()
    assert "nope (2 seeds, did not converge)" in text
    assert "Not drawn" not in text


def test_the_curve_of_a_single_run_is_named_and_says_that_it_did_not_converge(make: Make, tmp_path: Path) -> None:
    assert ">abacus<" in write_plot("curves", make("abacus", [0.5]), tmp_path / "a.svg").read_text()
    text = write_plot("curves", make("nope", [0.1], [0.5]), tmp_path / "b.svg").read_text()
    assert ">nope (did not converge)<" in text
