"""Promises of answers to the same questions: before and after training, and of several runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numerate.evaluation.statistics import paired_difference
from numerate.reports.compare import comparison_text, read_comparison
from numerate.reports.content import Content
from numerate.reports.page import run_page
from numerate.reports.paired import before_and_after, same_questions
from numerate.reports.records import read_run
from numerate.reports.table import TextTable
from run_records import cell_record, write_lines, write_run

CELL = {"test": 1}
RECIPE: dict[str, Any] = {"kind": "Recipe", "task": {"kind": "GSM8K"}}
TARGETS = [3, 40, 700, 9, 12]


def predictions(step: int, answers: list[str], **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "cell": CELL,
            "checkpoint": "final" if step else str(step),
            "step": step,
            "position_offset": 0,
            "method": "decoding",
            "question": f"question {i}",
            "correct_answer": f"so it is {target}",
            "prediction": f"it is {answer}",
            "correct": answer == str(target),
            **more,
        }
        for i, (target, answer) in enumerate(zip(TARGETS, answers, strict=True))
    ]


def run(folder: Path, lines: list[dict[str, Any]], seed: int = 0) -> Path:
    cell = cell_record(CELL, 1, 5, "in_distribution", names={"test": "gsm8k"})
    write_run(folder, RECIPE | {"seed": seed, "title": folder.parent.name}, [cell], name=folder.parent.name)
    write_lines(folder / "predictions.jsonl", lines)
    return folder


BEFORE, AFTER = ["3", "none", "70", "8", "1"], ["3", "40", "699", "7", "12"]


def rows_of(content: Content) -> list[list[str]]:
    (table,) = content
    assert isinstance(table, TextTable)
    return [list(row) for row in table.rows]


def test_a_run_is_compared_with_itself_before_training_over_the_same_questions(tmp_path: Path) -> None:
    folder = run(tmp_path / "tuned" / "1", [*predictions(0, BEFORE), *predictions(100, AFTER)])
    rows = rows_of(before_and_after(read_run(folder)))
    exact, error = rows
    found = paired_difference([1, 0, 0, 0, 0], [1, 1, 0, 0, 1])
    assert exact[1:3] == ["20", "60"]
    assert exact[3] == f"+40 points [{100 * found.low:+.3g}, {100 * found.high:+.3g}]"
    assert exact[4:] == ["2 : 0", "5", "0.5"]
    assert error[4:6] == ["2 : 1", "4"], "without the question to which there was no number"
    assert "Before and after training" in run_page(read_run(folder))


def test_without_a_first_step_or_predictions_there_is_nothing_to_compare(tmp_path: Path) -> None:
    assert not before_and_after(read_run(run(tmp_path / "a" / "1", predictions(100, AFTER))))
    assert not before_and_after(read_run(run(tmp_path / "b" / "1", [])))
    moved = predictions(0, BEFORE, settings={"model.lora": None})
    assert not before_and_after(read_run(run(tmp_path / "c" / "1", [*moved, *predictions(100, AFTER)])))


def test_runs_are_compared_with_the_first_over_the_questions_that_all_were_asked(tmp_path: Path) -> None:
    one = run(tmp_path / "one" / "1", predictions(100, BEFORE)[:4])
    others = [run(tmp_path / "two" / str(seed), predictions(100, AFTER), seed) for seed in (1, 2)]
    subject = read_comparison([one, *others])
    rows = rows_of(same_questions(subject.groups))
    assert rows[0][:3] == ["Exact match, %", "25", "50"]
    assert rows[0][4:6] == ["1 : 0", "4"]
    assert "better : worse" in comparison_text(subject.groups)


def test_the_interval_of_a_difference_is_that_of_pairs(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    first = draw.random(400) < 0.5
    second = first ^ (draw.random(400) < 0.05)
    found = paired_difference(first.astype(float).tolist(), second.astype(float).tolist())
    differences = second.astype(float) - first.astype(float)
    half = 1.96 * differences.std() / 20
    assert found.value == pytest.approx(differences.mean())
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half), abs=0.004)
    assert (found.num_higher, found.num_lower) == ((differences > 0).sum(), (differences < 0).sum())
    assert paired_difference([1.0, 0.0], [1.0, 0.0]) == (0.0, 0.0, 0.0, 0, 0, 1.0)
