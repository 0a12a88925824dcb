"""Promises of reports about numbers and texts in answers: pooled metrics, means over cells, and tests of them."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from numerate.cli import main
from numerate.errors import UserError
from numerate.evaluation.kinds.answers import ExactMatch
from numerate.evaluation.number_metrics import NumberScores
from numerate.evaluation.text_metrics import TextScores
from numerate.reports.compare import write_comparison
from numerate.reports.evaluation_results import Results
from numerate.reports.groups import group_runs
from numerate.reports.metric_tables import metric_tables
from numerate.reports.metrics import MetricKey, format_metric, metrics_of_cells
from numerate.reports.page import run_page
from numerate.reports.pairs import compare_pairs
from numerate.reports.records import read_run, read_runs

Make = Callable[..., Path]


def scored(folder: Path, off: Callable[[dict[str, int]], Sequence[int]]) -> Path:
    """The same run, where right answers are 10, 20, ... and `off` says by how much each of a cell's answers is off."""
    file = folder / "cells.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        errors = off(line["cell"])
        right = [10 * (i + 1) for i in range(len(errors))]
        predictions = [str(number + error) for number, error in zip(right, errors, strict=True)]
        line |= {
            "method": "decoding",
            "numbers": NumberScores.from_texts(predictions, list(map(str, right))).to_record(),
        }
        line["texts"] = TextScores.from_texts(
            predictions, list(map(str, right)), nll=len(predictions) * 0.5, num_tokens=len(predictions)
        ).to_record()
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def as_long(cell: dict[str, int]) -> list[int]:
    return [0, max(cell.values())]


def test_a_page_has_the_pooled_metrics_and_the_means_over_cells(make_run: Make) -> None:
    run = read_run(
        scored(make_run("abacus", lambda n: 0.9), lambda cell: [3] if cell["first_digits"] == 2 else [0, 0, 1])
    )
    metrics = metrics_of_cells(run.select_cells())
    cells = [cell for cell in run.select_cells() if cell.region == "in_distribution" and not cell.overlaps_training]
    twos = [cell for cell in cells if cell.coordinates["first_digits"] == 2]
    pooled = (3 * len(twos) + len(cells) - len(twos)) / (len(twos) + 3 * (len(cells) - len(twos)))
    assert metrics[MetricKey("in_distribution")]["mae"] == pytest.approx(pooled)
    mean = (3 * len(twos) + (len(cells) - len(twos)) / 3) / len(cells)
    assert metrics[MetricKey("in_distribution")]["mae (mean of modules)"] == pytest.approx(mean)
    assert {"in_distribution", "ood_validation", "ood_test", "ood"} <= {key.region for key in metrics}
    page = run_page(run)
    assert "<h2>All metrics</h2>" in page
    assert re.search(rf">{format_metric('mae', pooled)}\s.*\[", page), "with its interval"
    assert f">{format_metric('mae', mean)}</td>" in page
    assert "Cell by cell" in page


def test_a_page_of_answers_that_were_not_decoded_is_as_it_always_was(make_run: Make) -> None:
    run = read_run(make_run("abacus", lambda n: 0.9))
    assert "All metrics" not in run_page(run)
    assert metric_tables(group_runs([run])) == []


def two_groups(make_run: Make, seeds: int) -> list[Path]:
    """Two groups of which the second is off by ten times as much in every seed."""
    return [
        scored(make_run(kind, lambda n: 0.9, seed=seed), lambda cell, s=seed, t=times: [t * (s + 1)] * 2)
        for kind, times in (("abacus", 1), ("rotary", 10))
        for seed in range(seeds)
    ]


def test_groups_are_compared_by_any_metric_seed_by_seed(make_run: Make, tmp_path: Path) -> None:
    folders = two_groups(make_run, 6)
    groups = group_runs(read_runs(folders))
    found = compare_pairs(groups, "log_mae")
    assert [pair.measure for pair in found] == ["in_distribution", "ood_validation", "ood_test", "ood"]
    assert {(pair.test.test_name, pair.test.p_value, pair.test.is_significant) for pair in found} == {
        ("sign-flip test, seed by seed", 2 / 2**6, True)
    }
    page = write_comparison(folders, tmp_path / "a.html", metric="log_mae").read_text()
    assert "Which groups differ in log_mae" in page
    shares = compare_pairs(groups, "number_accuracy (mean of modules)")
    assert not any(pair.test.is_significant for pair in shares), "nobody has any number right"


def test_compare_takes_a_metric_of_numbers(
    make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = list(map(str, two_groups(make_run, 2)))
    assert main(["compare", *folders, "metric=mae", "out=a.html"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"means of seeds +difference +better, %", text)
    assert "Means of mae." in text
    assert "1.5 : 15" in text
    assert main(["compare", *folders, "metric=maee", "out=a.html"]) == 2
    assert "of numbers and texts number_accuracy" in capsys.readouterr().err
    assert main(["compare", *folders, "metric=mae", "out=a.png"]) == 2
    assert "metric: must be a metric of labels for a figure" in capsys.readouterr().err


def test_a_metric_that_runs_lack_is_refused(make_run: Make, tmp_path: Path) -> None:
    plain = make_run("abacus", lambda n: 0.9)
    with pytest.raises(UserError, match="method=decoding"):
        write_comparison([plain], tmp_path / "a.html", metric="log_mae")


def test_a_record_with_numbers_that_cannot_be_is_named_by_its_line(make_run: Make) -> None:
    folder = scored(make_run("abacus", lambda n: 0.9), as_long)
    file = folder / "cells.jsonl"
    file.write_text(file.read_text().replace('"absolute_error": "', '"absolute_error": "x', 1))
    with pytest.raises(UserError, match=r"line 1: damaged: `numbers\.linear\.absolute_error` must be"):
        read_run(folder)


def test_an_evaluation_tells_the_metrics_of_each_region(make_run: Make) -> None:
    run = scored(make_run("abacus", lambda n: 0.9), as_long)
    records = [json.loads(line) for line in (run / "cells.jsonl").read_text().splitlines()]
    results = Results(ExactMatch(), records, (), None)
    (trained,) = [line for line in results.regions() if line["region"] == "in_distribution"]
    assert trained["answers"]["number_accuracy"] == 1 / 2
    assert trained["answers"]["number_accuracy.low"] < 1 / 2 < trained["answers"]["number_accuracy.high"]
    assert "log_mae" in str(results)
    assert "mean absolute error" in str(results)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("number_accuracy", 0.125, "12.5"),
        ("log_mae (mean of modules)", 0.12344, "0.1234"),
        ("mae", 123456.7, "123,457"),
        ("mse", 1e12, "1e+12"),
        ("r2", None, ""),
    ],
)
def test_metrics_as_people_read_them(name: str, value: Any, text: str) -> None:
    assert format_metric(name, value) == text
