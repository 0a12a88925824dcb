"""Promises of the metrics of numbers: they are the textbook's, exact where it counts, and cells pool exactly."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numerate.errors import UserError
from numerate.evaluation import answer_metrics
from numerate.evaluation.number_metrics import (
    NUMBER_METRICS,
    TOLERANCES,
    NumberScores,
    is_close,
)
from numerate.evaluation.numbers_in_texts import ParsedNumber
from numerate.evaluation.sums import spearman
from numerate.published.number_loss_metrics import published_number_metrics

PREDICTIONS = ["12", "it is -3.5", "1,000", "nothing", "1.2.3", "7", "1e5", "40"]
TARGETS = ["12", "-3.5", "990", "5", "6", "9", "100000", "41.5"]

WHOLE = st.integers(-(10**6), 10**6)
ANSWER = st.one_of(
    st.tuples(WHOLE.map(str), WHOLE.map(str)),
    st.tuples(st.sampled_from(["", "none", "1.2.3", "1/3", "-0.001", "9" * 40]), WHOLE.map(str)),
    st.tuples(WHOLE.map(str), st.just("no number is the target")),
)


def floats(predictions: Sequence[str], targets: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    pairs = [
        (float(a.replace(",", "").split()[-1]), float(b))
        for a, b in zip(predictions, targets, strict=True)
        if a not in ("nothing", "1.2.3")
    ]
    ours, theirs = np.array(pairs).T
    return ours, theirs


@pytest.mark.parametrize("log", [False, True])
def test_errors_and_correlations_are_the_textbooks(log: bool) -> None:
    from scipy import stats

    metrics = NumberScores.from_texts(PREDICTIONS, TARGETS).metrics()
    ours, theirs = floats(PREDICTIONS, TARGETS)
    name = "log_" if log else ""
    if log:
        ours, theirs = (np.sign(x) * np.log10(np.abs(x) + 1) for x in (ours, theirs))
    error = ours - theirs
    expected = {
        "mae": np.abs(error).mean(),
        "mse": (error**2).mean(),
        "median_error": np.median(np.abs(error)),
        "r2": 1 - (error**2).sum() / ((theirs - theirs.mean()) ** 2).sum(),
        "pearson": stats.pearsonr(ours, theirs).statistic,
    }
    assert {key: metrics[f"{name}{key}"] for key in expected} == pytest.approx(expected, rel=1e-9, abs=1e-11)
    assert metrics["spearman"] == pytest.approx(stats.spearmanr(ours, theirs).statistic)


def test_shares_are_of_all_that_ask_for_a_number() -> None:
    scores = NumberScores.from_texts([*PREDICTIONS, "3"], [*TARGETS, "no number"])
    metrics = scores.metrics()
    assert (scores.count, scores.correct, scores.missing, scores.invalid) == (8, 3, 1, 1)
    assert {name: metrics[name] for name in ("number_accuracy", "within_1e-2", "missing", "invalid")} == {
        "number_accuracy": 3 / 8,
        "within_1e-2": 3 / 8,  # 1000 for 990 is off by 1.01 %, 40 for 41.5 by 3.6 %
        "missing": 1 / 8,
        "invalid": 1 / 8,
    }
    assert set(metrics) == set(NUMBER_METRICS)


def test_numbers_that_no_float_tells_apart_differ() -> None:
    big = "123456789012345678901234567890"
    scores = NumberScores.from_texts([big, big[:-1] + "1"], [big, big])
    assert float(big) == float(big[:-1] + "1")
    assert scores.correct == 1
    assert scores.metrics()["mae"] == 0.5
    assert scores.metrics()["mse"] == 0.5


def test_numbers_that_no_float_holds_leave_the_other_metrics() -> None:
    metrics = NumberScores.from_texts(["1", "7", "9"], ["1e400", "7", "8"]).metrics()
    assert metrics["mae"] is None
    assert metrics["mse"] is None
    assert metrics["log_mae"] == pytest.approx((400 - np.log10(2) + np.log10(10 / 9)) / 3)
    assert metrics["number_accuracy"] == 1 / 3
    json.dumps(NumberScores.from_texts(["1"], ["1e400"]).to_record(), allow_nan=False)


def test_an_endless_run_of_digits_is_clipped_as_published_and_counted() -> None:
    predictions, targets = [*map(str, range(99)), "3" * 126], [*map(str, range(99)), "7"]
    scores = NumberScores.from_texts(predictions, targets)
    metrics, theirs = scores.metrics(), published_number_metrics(predictions, targets)
    assert (scores.clipped, metrics["clipped"], metrics["missing"]) == (1, 0.01, 0.0)
    ours = {"MAE": "mae", "MSE": "mse", "R2": "r2", "log_mae": "log_mae", "log_r2": "log_r2", "pearson": "pearson"}
    assert {name: metrics[ours[name]] for name in ours} == pytest.approx(
        {name: theirs[name] for name in ours}, rel=1e-9
    )
    assert metrics["mae"] == pytest.approx((1e10 - 7) / 100)
    assert metrics["log_mae"] == pytest.approx((10 - np.log10(8)) / 100, rel=1e-6)
    assert metrics["number_accuracy"] == 0.99
    negative = NumberScores.from_texts(["-" + "3" * 126], ["7"])
    assert (negative.clipped, negative.metrics()["mae"]) == (1, 1e10 + 7)


def test_relative_errors_leave_out_zeros() -> None:
    predictions, targets = ["12", "8", "5", "1"], ["10", "10", "0", "4"]
    scores = NumberScores.from_texts(predictions, targets)
    assert scores.metrics()["mape"] == pytest.approx((0.2 + 0.2 + 0.75) / 3)
    halves = [NumberScores.from_texts(predictions[half], targets[half]) for half in (slice(2), slice(2, 4))]
    assert NumberScores.merge(halves).metrics()["mape"] == scores.metrics()["mape"]
    again = NumberScores.from_record({"numbers": scores.to_record()})
    assert again is not None
    assert again.metrics()["mape"] == scores.metrics()["mape"]


def test_intervals_of_mean_errors_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    scores = NumberScores.from_texts(["12", "8", "5", "1"], ["10", "10", "0", "4"])
    errors = [2, 2, 5, 3]
    expected = stats.norm.interval(0.95, np.mean(errors), stats.sem(errors))
    found = scores.intervals()
    assert (found["mae.low"], found["mae.high"]) == pytest.approx(expected)
    assert answer_metrics.pooled_metrics([scores])["mae.low"] == found["mae.low"]
    assert "mae.low" not in NumberScores.from_texts(["1"], ["2"]).intervals()


def test_large_targets_are_not_clipped() -> None:
    target = "5" * 40
    for prediction, clipped in ((target, 0), ("4" + target[1:], 0), (target + "0", 0), (target + "00", 1), ("1e10", 0)):
        assert NumberScores.from_texts([prediction], [target]).clipped == clipped, prediction
    assert NumberScores.from_texts([target], [target]).metrics()["mae"] == 0.0
    assert NumberScores.from_texts(["10000000000.5"], ["3"]).clipped == 1


def test_a_tolerance_is_decided_exactly() -> None:
    hundredth = TOLERANCES["within_1e-2"]
    assert is_close(Decimal("101"), Decimal(100), *hundredth)
    assert not is_close(Decimal("101.0000000000000000000000000001"), Decimal(100), *hundredth)
    assert is_close(Fraction(1, 2), Decimal(0), Fraction(0), Fraction(1, 2))
    assert NumberScores.from_texts(["497004"], ["497000"]).metrics()["within_1e-5"] == 1.0
    assert NumberScores.from_texts(["497004"], ["497000"]).metrics()["number_accuracy"] == 0.0


def test_nothing_is_made_up_where_nothing_can_be_measured() -> None:
    nothing = NumberScores.from_texts([], []).metrics()
    assert set(nothing.values()) == {None}
    one = NumberScores.from_texts(["3"], ["4"]).metrics()
    assert [one[name] for name in ("r2", "pearson", "log_r2")] == [None] * 3
    constant = NumberScores.from_texts(["3", "4"], ["7", "7"]).metrics()
    assert (constant["r2"], constant["pearson"]) == (None, None)
    silent = NumberScores.from_texts(["none"], ["7"]).metrics()
    assert (silent["mae"], silent["number_accuracy"]) == (None, 0.0)
    assert NumberScores.from_record({"correct": 1}) is None
    with pytest.raises(ValueError, match="must have"):
        NumberScores.from_record({"numbers": {"count": 1}})
    with pytest.raises(UserError, match="2 answers to 1"):
        NumberScores.from_texts(["1", "2"], ["1"])


@given(st.lists(st.lists(ANSWER, max_size=6), min_size=1, max_size=5))
def test_cells_taken_together_are_all_their_questions_at_once(cells: list[list[tuple[str, str]]]) -> None:
    """Also after they were written and read: every sum to the last digit, and so every metric."""
    every = NumberScores.from_texts(*([pair[side] for cell in cells for pair in cell] for side in (0, 1)))
    each = [NumberScores.from_texts([one for one, _ in cell], [two for _, two in cell]) for cell in cells]
    written = [
        NumberScores.from_record({"numbers": json.loads(json.dumps(scores.to_record(), allow_nan=False))})
        for scores in each
    ]
    for parts in (each, [scores for scores in written if scores is not None]):
        whole = NumberScores.merge(parts)
        assert replace(whole, of_cell={}) == replace(every, of_cell={})
        ours, theirs = whole.metrics(), every.metrics()
        for name in set(NUMBER_METRICS) - {"spearman", "median_error", "log_median_error"}:
            assert ours[name] == theirs[name], name


def test_pooled_and_the_mean_of_modules_have_names_of_their_own() -> None:
    few, many = NumberScores.from_texts(["3"], ["1"]), NumberScores.from_texts(["5", "6", "none"], ["5", "6", "7"])
    metrics = answer_metrics.pooled_metrics([few, many])
    assert (metrics["mae"], metrics["mae (mean of modules)"]) == (2 / 3, (2 + 0) / 2)
    assert (metrics["number_accuracy"], metrics["number_accuracy (mean of modules)"]) == (2 / 4, (0 + 2 / 3) / 2)
    assert metrics["r2 (mean of modules)"] == 1.0, "of the cells that have one"


def test_what_was_found_is_scored_without_a_text() -> None:
    scores = NumberScores.from_numbers(
        [ParsedNumber(Fraction(1, 3)), ParsedNumber(None, invalid=True)], [Fraction(1, 3), Decimal(2)]
    )
    assert (scores.correct, scores.invalid, scores.metrics()["mae"]) == (1, 1, 0.0)


def test_the_page_names_every_metric_and_its_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    named = {
        name
        for line in re.findall(r"^\| (`[^|]*`)[^|]*\|", page, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", line)
    }
    assert set(answer_metrics.ANSWER_METRICS) <= named
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out.split("\n")[:2] == ["5.0 1", "0.6666666666666666"]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=20))
def test_ranks_that_are_equal_share_their_middle_rank(pairs: list[tuple[int, int]]) -> None:
    from scipy import stats

    predictions, targets = ([Decimal(pair[side]) for pair in pairs] for side in (0, 1))
    found = spearman(predictions, targets)
    if len(set(predictions)) == 1 or len(set(targets)) == 1:
        assert found is None
    else:
        assert found == pytest.approx(stats.spearmanr(predictions, targets).statistic)
