"""Promises of the columns of numbers and texts in the table of results."""

import json
from pathlib import Path
from typing import Any

import pytest
from pandas import DataFrame

from numerate.cli import main
from numerate.evaluation import answer_metrics
from numerate.evaluation.number_metrics import NumberScores
from numerate.evaluation.text_metrics import TextScores
from numerate.studies.folder import RequestedRun, StudyFolder
from numerate.tables.results import cells_of, results_of
from numerate.tables.selecting import select_columns
from numerate.training import disk


def record(predicted: list[str], right: list[str]) -> dict[str, Any]:
    numbers, texts = (
        NumberScores.from_texts(predicted, right),
        TextScores.from_texts(predicted, right, nll=2.0, num_tokens=4),
    )
    return {"numbers": numbers.to_record(), "texts": texts.to_record()}


def study(runs: Path, *cells: dict[str, Any]) -> DataFrame:
    """A study of one run that is done, with these cells in its trained region."""
    folder = StudyFolder.from_title("numbers", runs)
    tree = {"kind": "Recipe", "task": {"kind": "Arithmetic"}, "seed": 0, "title": "a"}
    (one,) = folder.update_plan([RequestedRun("a/1", "key", tree)], question="How far?", labels=None)
    trained = {"mean": 0.5, "low": 0.4, "high": 0.6, "cells": 2, "answers": answer_metrics.metrics_from_records(cells)}
    base = {"run": one.run, "key": one.key, "label": one.label, "seed": one.seed, "status": "done"}
    folder.add_results("w", [base | {"final": {"in_distribution": trained}}])
    (runs / one.run).mkdir(parents=True)
    (runs / one.run / "recipe.yaml").write_text("format: 3\n")
    place = {"checkpoint": "final", "step": 1, "position_offset": 0, "region": "in_distribution", "method": "decoding"}
    place |= {"correct": 1, "count": 2, "low": 0.1, "high": 0.9, "overlaps_training": False}
    lines = [{"cell": {"module": number}, **place, **cell} for number, cell in enumerate(cells)]
    disk.append_records(runs / one.run / "evaluation.jsonl", lines)
    return results_of("numbers", runs)


@pytest.fixture
def table(tmp_path: Path) -> DataFrame:
    return study(tmp_path, record(["3"], ["1"]), record(["5", "6", "none"], ["5", "6", "7"]))


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
    cells = select_columns(cells_of("numbers", tmp_path), ["module", "mae", "missing", "perplexity", "digit_accuracy"])
    assert cells.columns.tolist() == ["module", "mae", "missing", "perplexity", "digit_accuracy"]
    assert cells["module"].tolist() == [0, 1]
    assert cells["mae"].tolist() == [2.0, 0.0]
    assert cells["missing"].tolist() == [0.0, pytest.approx(1 / 3)]
    assert cells["perplexity"].tolist() == [pytest.approx(1.648721)] * 2
    assert cells["digit_accuracy"].isna().all()


def test_the_command_shows_and_groups_them(
    table: DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["results", "numbers", f"runs_dir={tmp_path}"]
    assert main(where) == 0
    output = capsys.readouterr().out
    assert "final.in_distribution.log_mae" in output
    assert "sign(x) log10(|x| + 1)" in " ".join(output.split())
    assert main([*where, "columns=label,final.in_distribution.mae (mean of modules)", "format=jsonl"]) == 0
    assert json.loads(capsys.readouterr().out)["final.in_distribution.mae (mean of modules)"] == 1.0
    assert main([*where, "group=label", "columns=final.in_distribution.mae"]) == 0
    assert "0.6667" in capsys.readouterr().out
