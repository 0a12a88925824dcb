"""Promises of pages: one file that needs nothing else, the same each time, that says nothing beyond its cells."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numerate.api import compare
from numerate.errors import UserError
from numerate.evaluation.labels import LabelCounts
from numerate.evaluation.number_metrics import NumberScores
from numerate.results.figures import plot
from numerate.results.page import MAX_ROWS, page, run_page, write_study_page
from numerate.results.rows import find_runs
from numerate.runs.engines.engine import Failure
from numerate.runs.status import study_status
from numerate.runs.study_folder import StudyFolder
from results_records import done, failed, recipe, sums
from run_records import Studies, cell_record, write_lines, write_run


def make(tmp_path: Path, title: str = "a", seed: int = 0, share: float = 0.5, high: int = 6, **more: Any) -> Path:
    metrics = [{"step": step, "loss": 1.0 / step} for step in (50, 100)]
    metrics += [{"step": 100, "split": "validation", "exact_match": 0.5, "low": 0.4, "high": 0.6}]
    sample = {"cell": {"first_digits": 2, "second_digits": 1}, "question": "12+<9>=", "correct_answer": "21"}
    known = {"command": f"numerate run {title}", "bibtex": "@misc{a}", "parameters": 123456, "times": {"ended": "2026"}}
    known |= {"ended": more.pop("ended", {})}
    lines = more.pop("cells", None) or sums(lambda n: 1.0 if n <= 3 else share, high=high)
    samples = [sample | {"prediction": "20", "correct": False}]
    folder = tmp_path / "runs" / title / f"{seed:012x}"
    return write_run(folder, recipe(title, seed, **more), lines, metrics=metrics, samples=samples, **known)


def text_of(html: str) -> str:
    body = re.sub(r"<style>.*?</style>|<svg.*?</svg>", "", html, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", body).replace("\N{NO-BREAK SPACE}", " ").split())


def test_a_page_of_a_run_has_its_headline_results_training_samples_command_and_citation(tmp_path: Path) -> None:
    html = run_page(make(tmp_path))
    text = text_of(html)
    for part in (
        "With 1 to 3 digits in distribution, a falls to 50 % [40.4, 59.6] at 4+4 digits.",
        "in distribution, % OOD validation, % OOD test, % all OOD, % a 100 [99.5, 100] 50 [46.3, 53.7]",
        "2+1 digits 12+&lt;9&gt;= 21 ✗ 20",
        "numerate run a",
        "@misc{a}",
        "parameters 123,456",
        "model.hidden_size 64",
    ):
        assert part in text
    assert html.count("<figure>") == 3


def test_two_savings_are_the_same_bytes_with_unique_ids_and_nothing_from_elsewhere(tmp_path: Path) -> None:
    folders = [make(tmp_path, title, seed) for title in ("a", "b") for seed in (0, 1)]
    html = page(find_runs(folders), "a and b")
    assert html == page(find_runs(folders), "a and b")
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len({*ids}) > 0
    assert {*re.findall(r'(?:url\(#|href="#)([^")]+)', html)} <= {*ids}
    loaded = re.findall(r'(?:src|href)="(?!#|data:)([^"]*)"', html)
    assert not loaded and "<script" not in html and "@import" not in html  # noqa: PT018
    assert 'name="viewport"' in html and "prefers-color-scheme:dark" in html  # noqa: PT018


def test_large_maps_are_pictures(tmp_path: Path) -> None:
    html = run_page(make(tmp_path, high=21))
    assert html.count("data:image/png;base64,") >= 1
    assert len(html) < 500_000


def test_a_page_of_a_study_asks_its_question_and_names_what_failed_and_what_differs(study: Studies) -> None:
    def seed(share: float) -> dict[str, Any]:
        return done(cells=sums(lambda n: 1.0 if n <= 3 else share))

    runs = [(recipe(seed=i), seed(0.9 - i / 10)) for i in range(3)]
    runs += [(recipe(seed=i, hidden_size=128), seed(0.1 + i / 10)) for i in range(3)]
    study([*runs, (recipe(seed=9), failed(error="ValueError:\nit broke"))])
    text = text_of(page(find_runs("widths", study.runs), "widths", question="How wide?", kind="a study"))
    assert "numerate · a study · 6 runs widths How wide?" in text
    assert (
        "1 of 7 runs failed and is not in anything below: abacus (hidden_size=64) seed 9 (ValueError: it broke)."
        in text
    )
    assert "They differ in this one setting; all others are equal." in text
    assert "abacus (hidden_size=64) / abacus (hidden_size=128)" in text
    assert "With so few seeds no difference can be significant." in text
    assert "abacus (hidden_size=64) 3/3 100 [100, 100]" in text


def test_the_page_of_a_study_says_why_a_run_was_left(study: Studies) -> None:
    study([(recipe(), done()), (recipe(seed=1), None)])
    folder = StudyFolder.from_title("widths", study.runs)
    finished, left = study_status(folder).states
    left = replace(left, failure=Failure("stopped", "its Slurm task ended (NODE_FAIL)"))
    text = text_of(write_study_page(folder.path, "How wide?", [finished, left]).read_text())
    assert "1 of 2 runs failed and is not in anything below: abacus seed 1 (its Slurm task ended (NODE_FAIL))." in text


def test_strata_stand_after_regions_and_tasks_that_differ_are_not_compared(tmp_path: Path) -> None:
    fails = cell_record({"first_digits": 5, "second_digits": 5}, 0, 100, "ood_test", stratum="complement")
    one = make(tmp_path, cells=[*sums(lambda n: 1.0), fails])
    other = make(tmp_path, "b", mixer={"kind": "LSTM"})
    text = text_of(run_page(one))
    assert text.index("Results") < text.index("Strata variant questions n = 5") < text.index("Training")
    assert "a + (10^n - a) 0 [0, 3.7]" in text
    products = write_run(
        tmp_path / "runs" / "c" / "0123456789ab",
        recipe("c") | {"task": {"kind": "Arithmetic", "operator": "x", "digits": "1:3"}},
        sums(lambda n: 1.0),
    )
    text = text_of(page(find_runs([one, other, products]), "all"))
    assert text.count("in distribution,") >= 2
    assert "Differences" not in text


def test_settings_of_an_evaluation_differ_too(tmp_path: Path) -> None:
    changed = sums(lambda n: 0.5, settings={"model.backbone.num_loops": 8})
    text = text_of(run_page(make(tmp_path, cells=[*sums(lambda n: 1.0), *changed])))
    assert "What differs variant changed for the evaluation a a, num_loops=8 num_loops=8" in text


def labelled(right: int, region: str, count: int) -> dict[str, Any]:
    """Two rows of `count` labels, trained on 2: `right` of them correct in each."""
    correct = np.array([[t < right for t in range(count)]] * 2)
    found = LabelCounts.from_arrays(correct, np.ones((2, count), bool), max_training_labels=2)
    return cell_record({"count": count}, found.exact_match, 2, region, labels=found.record())


def test_labels_have_all_metrics_beside_those_of_memorizing_and_a_curve_by_count(tmp_path: Path) -> None:
    html = run_page(make(tmp_path, cells=[labelled(2, "in_distribution", 2), labelled(3, "ood_test", 4)]))
    text = text_of(html)
    assert "region exact match, % exact match of memorizing, % accuracy at positions beyond training, %" in text
    assert "a OOD test 0 [0, 65.8] 0 50 [9.5, 90.5] 0 75 [19.8, 97.3] 50 0 [0, 65.8] 0 75 [" in text
    assert "position of the label in its row" in html


def test_modules_have_all_metrics_of_numbers_and_variants_may_lack_some(tmp_path: Path) -> None:
    places = (("sums", "in_distribution", ["3", "5"]), ("products", "in_distribution", ["", "5"]))
    lines = [
        cell_record({"module": i}, 1, 2, region, names={"module": name}, numbers=scores.to_record())
        for i, (name, region, answers) in enumerate(places)
        for scores in [NumberScores.from_texts(answers, ["1", "5"])]
    ]
    plain = [{name: value for name, value in line.items() if name != "numbers"} for line in lines]
    folders = [make(tmp_path, "a", cells=lines), make(tmp_path, "b", cells=plain)]
    text = text_of(run_page(folders[0]))
    assert "By region variant region exact match, % correct numbers, %" in text
    assert "By module variant module exact match, % correct numbers, %" in text
    assert "a in distribution, mean of modules 50 " in text
    assert "a products 50 [9.5, 90.5] 50 [9.5, 90.5]" in text
    assert "Questions (cells) of a run: in distribution 4 (2)." in text
    assert "An answer without a number has no error" in text
    for metric in (None, "mae", "log_mae"):
        text = text_of(page(find_runs(folders), "both", metric=metric))
        assert ("b 50 [15, 85]" in text) == (metric is None)
        assert ("Without a value: b." in text) == (metric is not None)
        assert "nan" not in text.lower()


def test_a_page_says_how_many_questions_there_were_and_what_training_took(tmp_path: Path) -> None:
    folder = make(tmp_path, ended={"stop_reason": "budget", "step": 100, "tokens": 51200, "flops": 10**12})
    text = text_of(page(find_runs([folder, make(tmp_path, "b")]), "both"))
    sizes = (
        "in distribution 800 (8, 1 more may be in training); OOD validation 700 (7); OOD test 2,000 (20); all OOD 2,700"
    )
    assert sizes in text
    few = make(tmp_path, "c", cells=[line for line in sums(lambda n: 1.0) if line["overlaps_training"]])
    text = text_of(page(find_runs([folder, few]), "both"))
    assert "of a run: in distribution 100 (1, which may be in training)." in text
    assert "evaluated on different cells" in text
    assert "ended stop reason budget, step 100, tokens 51,200, flops 1,000,000,000,000 a times" in text
    assert "Every setting of a setting value" in text
    assert "optimizer.learning_rate 0.001" in text


def test_a_run_that_was_not_evaluated_has_its_training(tmp_path: Path) -> None:
    folder = make(tmp_path)
    (folder / "cells.jsonl").unlink()
    text = text_of(run_page(folder))
    assert "Nothing has been evaluated yet." in text
    assert "Training" in text
    text = text_of(page(find_runs([folder, make(tmp_path, "b")]), "both"))
    assert "1 of 2 runs was not evaluated: a seed 0." in text


def test_runs_without_a_cell_in_common_are_said_not_to_compare(tmp_path: Path) -> None:
    halves = [[line for line in sums(lambda n: 1.0) if line["cell"]["first_digits"] % 2 == i] for i in range(2)]
    folders = [make(tmp_path, name, cells=half) for name, half in zip("ab", halves, strict=True)]
    assert "The runs have no cell in common" in text_of(page(find_runs(folders), "both"))


def test_a_comparison_in_python_needs_a_run_and_replaces_pages_alone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="compare: needs at least one run"):
        compare([], tmp_path / "none.html")
    (tmp_path / "mine.csv").write_text("a,b\n")
    with pytest.raises(UserError, match="exists and is no html file"):
        compare(make(tmp_path), tmp_path / "mine.csv")
    assert compare(make(tmp_path, "b"), tmp_path / "b.html").is_file()


def test_a_variant_of_equal_sizes_alone_takes_no_map_from_others(tmp_path: Path) -> None:
    equal = [line for line in sums(lambda n: 1.0) if len({*line["cell"].values()}) == 1]
    html = page(find_runs([make(tmp_path), make(tmp_path, "b", cells=equal)]), "both")
    assert html.count("Red: the sizes of training.") == html.count("digits of the first number") == 1


def test_a_run_that_logged_no_number_has_no_curve(tmp_path: Path) -> None:
    folder = make(tmp_path)
    for lines in ([], [{"step": 1, "loss": "nan"}]):
        write_lines(folder / "metrics.jsonl", lines)
        assert "<h2>Training</h2>" not in run_page(folder)
        with pytest.raises(UserError, match="plot: training needs runs with metrics; train them first"):
            plot("training", find_runs([folder]))


@pytest.mark.parametrize("num_variants", [MAX_ROWS + 1])
def test_a_page_of_many_variants_stays_small_and_folds_its_tables(num_variants: int, study: Studies) -> None:
    cell = cell_record({"first_digits": 3, "second_digits": 3}, 100, 100, "in_distribution")
    study([(recipe(hidden_size=8 * i), done(cells=[cell])) for i in range(1, num_variants + 1)])
    html = page(find_runs("widths", study.runs), "widths")
    assert f"<summary>{num_variants} rows</summary>" in html
    assert len(html) < 200_000
