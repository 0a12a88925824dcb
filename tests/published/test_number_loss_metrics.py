"""Promises of the published metrics: they are what the published evaluation computes, faults and all."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from cases import published_case
from numerate.errors import UserError
from numerate.evaluation.text_metrics import TextScores
from numerate.published.number_loss_metrics import (
    published_invalid_count,
    published_metrics,
    published_number,
    published_number_metrics,
    published_text_metrics,
)

PREDICTIONS = ["497004", "1,000", "x = 5 - 3", "no number", "99999999999", "-2.5", "1e5"]
LABELS = ["497000", "1000", "-3", "4", "20000000000", "-2.5", "7"]


@pytest.mark.parametrize(
    ("text", "number"),
    [("1,000", 0.0), ("1e5", 5.0), ("5 - 3", -3.0), ("5-3", -3.0), ("-2.50", -2.5), ("+ 7", 7.0), (".5", 5.0)],
)
def test_the_published_reading_is_kept_under_its_own_name(text: str, number: float) -> None:
    assert published_number(text) == number
    assert published_number("none") is None


def test_the_published_counts_of_invalid_numbers_are_those_of_the_case(shared: Path) -> None:
    case = published_case(shared, "number_token_loss.json", "count_invalid_numbers")
    found = [[invalid, int(without)] for invalid, without in map(published_invalid_count, case["inputs"])]
    assert found == case["expected"]["per_text"]


def test_the_vector_of_seven_answers_is_that_of_the_definition() -> None:
    """497004 counts as 497000, 1,000 is read as 0, 99999999999 is cut to 1e10, and `no number` has no error."""
    ours = np.array([497004, 0, -3, 1e10, -2.5, 5])
    theirs = np.array([497000, 1000, -3, 2e10, -2.5, 7])
    error = ours - theirs
    log_ours, log_theirs = (np.sign(x) * np.log10(np.abs(x) + 1) for x in (ours, theirs))
    expected = {
        "number_accuracy": 3 / 7,
        "MAE": np.abs(error).mean(),
        "MSE": (error**2).mean(),
        "R2": 1 - (error**2).sum() / ((theirs - theirs.mean()) ** 2).sum(),
        "median_absolute_error": 3.0,
        "log_mae": np.abs(log_ours - log_theirs).mean(),
        "log_r2": 1 - ((log_ours - log_theirs) ** 2).sum() / ((log_theirs - log_theirs.mean()) ** 2).sum(),
        "pearson": stats.pearsonr(ours, theirs).statistic,
        "spearman": stats.spearmanr(ours, theirs).statistic,
        "count_not_produced_valid_results": 1,
        "average_count_not_produced_valid_results": 1 / 7,
        "count_invalid_number_prediction": 1,  # 1,000 again
        "average_invalid_number_prediction": 1 / 7,
        "count_no_number_prediction": 1,
        "average_no_number_prediction": 1 / 7,
    }
    found = published_number_metrics(PREDICTIONS, LABELS)
    assert found == pytest.approx(expected)
    assert tuple(found) == tuple(expected)


def test_batches_weigh_the_same_whatever_their_size() -> None:
    predictions, labels = ["a b c d e", "a b c d x", "k l m n o"], ["a b c d e", "a b c d e", "v w x y z"]
    each = [
        TextScores.from_texts(predictions[part], labels[part]).metrics()["bleu"] or 0.0
        for part in (slice(0, 2), slice(2, 3))
    ]
    assert published_text_metrics(predictions, labels, batch_size=2)["bleu"] == pytest.approx(sum(each) / 2)
    assert published_text_metrics(predictions, labels, batch_size=2)["bleu"] != pytest.approx(
        published_text_metrics(predictions, labels)["bleu"]
    )
    assert published_metrics(PREDICTIONS, LABELS).keys() == {
        *published_number_metrics(PREDICTIONS, LABELS),
        *published_text_metrics(predictions, labels),
    }


def test_what_is_not_defined_is_nan_or_an_error() -> None:
    silent = published_number_metrics(["none"], ["4"])
    assert silent["number_accuracy"] == 0.0
    assert math.isnan(silent["MAE"])
    assert (silent["pearson"], silent["spearman"]) == (0.0, 0.0)
    with pytest.raises(UserError, match="must contain a number"):
        published_number_metrics(["4"], ["none"])
    with pytest.raises(UserError, match="0 answers"):
        published_number_metrics([], [])
    with pytest.raises(UserError, match="batch"):
        published_text_metrics(["a"], ["a"], batch_size=0)
