"""Promises of answers to the same questions: what differs between two runs, with intervals of pairs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numerate.errors import UserError
from numerate.evaluation.statistics import paired_difference
from numerate.results.answers import same_questions
from numerate.results.page import text
from numerate.results.rows import cells_of, find_runs
from numerate.results.tables import Table
from numerate.runs.store import with_checksum
from run_records import cell_record, write_lines, write_run

CELL = {"test": 1}
RECIPE: dict[str, Any] = {"kind": "Recipe", "task": {"kind": "GSM8K"}}
TARGETS = [3, 40, 700, 9, 12]


def predictions(step: int, answers: list[str], **more: Any) -> list[dict[str, Any]]:
    lines = [
        {
            "cell": CELL,
            "checkpoint": "final",
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
    return [with_checksum(line) for line in lines]


def run(folder: Path, lines: list[dict[str, Any]], seed: int = 0, recipe: dict[str, Any] = RECIPE) -> Path:
    step = 100 if not lines or lines[0]["step"] == 50 else lines[0]["step"]
    last = [line["correct"] for line in lines if line.get("count") == lines[-1].get("count")]
    cell = cell_record(CELL, sum(last), len(last) or 5, "in_distribution", names={"test": "gsm8k"}, step=step)
    write_run(folder, recipe | {"seed": seed, "title": folder.parent.name}, [cell], name=folder.parent.name)
    write_lines(folder / "predictions.jsonl", lines)
    return folder


BEFORE, AFTER = ["3", "none", "70", "8", "1"], ["3", "40", "699", "7", "12"]


def asked(*folders: Path) -> Table | None:
    entries = find_runs(folders)
    return same_questions(entries, cells_of(entries))


def compared(*folders: Path) -> list[list[str]]:
    """The rows of the table."""
    table = asked(*folders)
    return [] if table is None else table.texts.to_numpy().tolist()


def test_the_difference_of_two_runs_has_a_paired_interval(tmp_path: Path) -> None:
    before = run(tmp_path / "before" / "1", predictions(0, BEFORE))
    after = run(tmp_path / "after" / "1", predictions(100, AFTER))
    exact, error = compared(before, after)
    found = paired_difference([1, 1, 0, 0, 1], [1, 0, 0, 0, 0])
    assert exact[:3] == ["after / before", "correct, %", "60 : 20"]
    assert exact[3] == f"+40 points [{100 * found.low:+.3g}, {100 * found.high:+.3g}]"
    assert exact[4:] == ["2 : 0", "5", "0.5"]
    assert error[1] == "log error"
    assert error[4:6] == ["2 : 1", "4"], "without the question to which there was no number"
    assert "better : worse" in text(find_runs([before, after]), 120)


def test_numbers_are_those_of_the_evaluation(tmp_path: Path) -> None:
    """In boxes, with units; an answer that is no number has no error."""
    generation = {"kind": "Generation", "answer_pattern": "boxed{(.*?)}"}
    recipe = RECIPE | {"evaluation": {"kind": "Evaluation", "generation": generation}}
    folders = []
    for step, answer in ((0, r"\boxed{2} of 3"), (100, r"\boxed{1} or \boxed{3} of 7")):
        asked_for = zip(predictions(step, [answer] * 5), ["3%", "4 km", "x = 3", "7 of 8", "5."], strict=True)
        lines = [
            with_checksum(line | {"row": row, "correct_answer": right, "correct": step == 100 and right == "3%"})
            for row, (line, right) in enumerate(asked_for)
        ]
        folders.append(run(tmp_path / f"{step}" / "1", lines, recipe=recipe))
    assert compared(*folders)[1][1:3] == ["correct numbers, %", "33.3 : 0"]


def test_without_predictions_of_the_same_checkpoint_and_settings_there_is_nothing_to_compare(tmp_path: Path) -> None:
    after = run(tmp_path / "after" / "1", predictions(100, AFTER))
    assert not compared(after, run(tmp_path / "none" / "1", []))
    assert not compared(after, run(tmp_path / "earlier" / "1", predictions(50, BEFORE)))
    assert not compared(after, run(tmp_path / "changed" / "1", predictions(100, BEFORE, settings={"model.x": 1})))


def test_answers_that_are_missing_or_were_never_kept_are_not_compared(tmp_path: Path) -> None:
    before, after = (run(tmp_path / name / "1", predictions(100, BEFORE)) for name in ("before", "after"))
    assert len(compared(before, after)) == 2
    whole = predictions(100, BEFORE)
    unsigned = [{name: value for name, value in line.items() if name != "checksum"} for line in whole]
    write_lines(after / "predictions.jsonl", unsigned)
    assert asked(before, after) is None
    write_lines(after / "predictions.jsonl", whole[1:])
    assert compared(before, after)[0][5] == "4"
    (after / "predictions.jsonl").unlink()
    assert asked(before, after) is None


def test_which_generated_answers_are_correct_is_computed_again(tmp_path: Path) -> None:
    recipe = RECIPE | {"evaluation": {"kind": "Evaluation", "generation": {"kind": "Generation"}}}
    folders = []
    for name, answers in (("before", BEFORE), ("after", AFTER)):
        lines = [line | {"row": row} for row, line in enumerate(predictions(100, answers))]
        folders.append(run(tmp_path / name / "1", [with_checksum(line) for line in lines], recipe=recipe))
    wanted = compared(*folders)
    earlier = [
        with_checksum(line | {"correct": True})
        for line in map(json.loads, (folders[0] / "predictions.jsonl").read_text().splitlines())
    ]
    write_lines(file := folders[0] / "predictions.jsonl", earlier)  # by another rule
    assert compared(*folders) == wanted
    for one in (folder / "predictions.jsonl" for folder in folders):
        one.write_bytes(one.read_bytes() * 2)
    assert compared(*folders) == wanted, "two processes wrote each answer, and nothing sorted the file yet"
    file.write_text(file.read_text().replace('"it is none"', '"it is 40"'))
    with pytest.raises(UserError, match=r"predictions\.jsonl, line 2: damaged: `checksum` must be that of the line"):
        compared(*folders)


def test_questions_that_stand_twice_in_a_test_count_twice_and_evaluations_of_fewer_not_again(tmp_path: Path) -> None:
    def lines(step: int, answers: list[str]) -> list[dict[str, Any]]:
        twice = predictions(step, answers, count=10) * 2
        return [*predictions(step, answers, count=5), *twice]

    unfinished = write_run(tmp_path / "unfinished" / "1", RECIPE, name="not evaluated yet")
    exact, _ = compared(
        run(tmp_path / "before" / "1", lines(0, BEFORE)), run(tmp_path / "after" / "1", lines(100, AFTER)), unfinished
    )
    assert exact[4:6] == ["4 : 0", "10"]


def test_few_groups_are_compared_in_pairs_over_the_questions_that_all_seeds_were_asked(tmp_path: Path) -> None:
    one = run(tmp_path / "one" / "1", predictions(100, BEFORE)[:4])
    others = [run(tmp_path / "two" / str(seed), predictions(100, AFTER), seed) for seed in (1, 2)]
    third = run(tmp_path / "three" / "1", predictions(100, BEFORE))
    rows = compared(one, *others, third)
    pairs = ["two / one", "three / one", "three / two"]
    assert [row[0] for row in rows] == [pair for pair in pairs for _ in ("correct", "log error")]
    assert rows[0][1:3] == ["correct, %", "50 : 25"]
    assert rows[0][4:6] == ["1 : 0", "4"]


def test_the_interval_of_right_and_wrong_answers_is_that_of_agresti_and_min() -> None:
    """Their example: of 1,600 people 794 approve twice, 150 at first alone, 86 later alone."""
    counts = {(1, 1): 794, (1, 0): 150, (0, 1): 86, (0, 0): 570}
    first, second = zip(*(pair for pair, count in counts.items() for _ in range(count)), strict=True)
    found = paired_difference(first, second)
    assert (found.value, found.num_higher, found.num_lower) == (0.04, 150, 86)
    assert (found.low, found.high) == pytest.approx((0.0212, 0.0587), abs=5e-5)
    same = paired_difference([1, 0], [1, 0])
    assert same.low == -same.high < 0
    assert same.p_value == 1


def test_the_interval_of_other_scores_is_that_of_pairs() -> None:
    draw = np.random.default_rng(0)
    first = draw.normal(size=400)
    second = first + 0.1 * draw.normal(size=400) + 0.01
    found, differences = paired_difference(first.tolist(), second.tolist()), first - second
    half = 1.96 * differences.std() / 20
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half), abs=0.002)
    assert found.num_higher == (differences > 0).sum()
