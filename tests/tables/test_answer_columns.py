"""Promises of the columns of numbers and texts in the table of results."""

from pathlib import Path
from typing import Any

import pytest
from pandas import DataFrame

from numerate.evaluation import answer_metrics
from numerate.evaluation.number_metrics import NumberScores
from numerate.evaluation.text_metrics import TextScores
from numerate.tables.results import cells_of
from numerate.tables.selecting import select_columns
from run_records import Studies, cell_record


def record(predicted: list[str], right: list[str]) -> dict[str, Any]:
    numbers, texts = (
        NumberScores.from_texts(predicted, right),
        TextScores.from_texts(predicted, right, nll=2.0, num_tokens=4),
    )
    return {"numbers": numbers.to_record(), "texts": texts.to_record()}


@pytest.fixture
def table(study: Studies) -> DataFrame:
    """A study of one run that is done, with two modules in its trained region."""
    cells = [record(["3"], ["1"]), record(["5", "6", "none"], ["5", "6", "7"])]
    trained = {"mean": 0.5, "low": 0.4, "high": 0.6, "cells": 2, "answers": answer_metrics.metrics_from_records(cells)}
    tree = {"kind": "Recipe", "task": {"kind": "Arithmetic"}, "seed": 0, "title": "a"}
    lines = [cell_record({"module": i}, 1, 2, "in_distribution", **cell) for i, cell in enumerate(cells)]
    return study([(tree, {"status": "done", "final": {"in_distribution": trained}})], cells=lambda number: lines)


def test_every_metric_has_a_column_pooled_and_as_the_mean_of_modules(table: DataFrame) -> None:
    row = table.iloc[0]
    assert row["final.in_distribution"] == 0.5
    assert row["final.in_distribution.mae"] == pytest.approx(2 / 3)
    assert row["final.in_distribution.mae (mean of modules)"] == 1.0
    assert row["final.in_distribution.number_accuracy"] == 0.5
    assert row["final.in_distribution.number_accuracy.low"] < 0.5
    assert row["final.in_distribution.within_1e-2"] == 0.5
    assert row["final.in_distribution.perplexity"] == pytest.approx(1.648721, abs=1e-5)
    assert "final.in_distribution.spearman" not in table.columns, "no run has one"
    assert row["final.in_distribution.r2 (mean of modules)"] == 1.0


def test_cells_have_the_metrics_of_their_own(table: DataFrame, tmp_path: Path) -> None:
    cells = select_columns(
        cells_of("widths", tmp_path / "runs"), ["module", "mae", "missing", "perplexity", "digit_accuracy"]
    )
    assert cells.columns.tolist() == ["module", "mae", "missing", "perplexity", "digit_accuracy"]
    assert cells["module"].tolist() == [0, 1]
    (file,) = (tmp_path / "runs").rglob("cells.jsonl")
    file.write_bytes(2 * file.read_bytes())
    assert cells_of("widths", tmp_path / "runs")["module"].tolist() == [0, 1], "a line that is there twice counts once"
    assert cells["mae"].tolist() == [2.0, 0.0]
    assert cells["missing"].tolist() == [0.0, pytest.approx(1 / 3)]
    assert cells["perplexity"].tolist() == [pytest.approx(1.648721)] * 2
    assert cells["digit_accuracy"].isna().all()
