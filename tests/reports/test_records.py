"""Reading what a run left: whole, corrupted, damaged, or no run at all."""

import json

import pytest

from numerate.reports.records import read_run


def test_a_run_folder_is_read_whole(make_run):
    run = read_run(make_run("abacus", lambda n: 1.0, seed=3))
    assert (run.label, run.id, run.seed, run.operator) == ("addition_abacus", "abacus3", 3, "+")
    assert len(run.cells) == 64
    assert run.cells[0].coordinates == {"first_digits": 1, "second_digits": 1}
    assert run.cells[0].accuracy == 1.0
    assert [line["step"] for line in run.training_metrics()] == [50, 100]
    assert [line["exact_match"] for line in run.split_metrics("ood_validation")] == [0.5, 0.5]
    assert run.samples[0]["prediction"] == "21"
    assert run.warnings == ()


def test_a_truncated_last_line_is_skipped_with_a_warning(make_run):
    folder = make_run("abacus", lambda n: 1.0)
    with open(folder / "cells.jsonl", "a") as file:
        file.write('{"cell": {"first_digits": 9, "sec')
    run = read_run(folder)
    assert len(run.cells) == 64
    assert run.warnings == (
        "cells.jsonl: the last line is truncated (a process was killed while writing) and is skipped",
    )


def test_a_cell_evaluated_with_more_questions_replaces_the_earlier_line(make_run):
    folder = make_run("abacus", lambda n: 1.0)
    line = json.loads((folder / "cells.jsonl").read_text().splitlines()[0])
    with open(folder / "cells.jsonl", "a") as file:
        file.write(json.dumps(line | {"correct": 7, "count": 700, "low": 0.004, "high": 0.021}) + "\n")
    cells = [cell for cell in read_run(folder).cells if cell.coordinates == {"first_digits": 1, "second_digits": 1}]
    assert [cell.correct for cell in cells] == [7]


def test_the_report_is_about_the_final_checkpoint_where_there_are_several(make_run):
    folder = make_run("abacus", lambda n: 1.0)
    lines = [json.loads(line) for line in (folder / "cells.jsonl").read_text().splitlines()]
    with open(folder / "cells.jsonl", "a") as file:
        file.writelines(
            json.dumps(line | {"checkpoint": "best", "step": 900, "correct": 1, "low": 0.0}) + "\n" for line in lines
        )
    run = read_run(folder)
    assert run.checkpoints() == [("final", 100), ("best", 900)]
    assert run.reported_checkpoint() == ("final", 100)
    assert {cell.checkpoint for cell in run.select_cells()} == {"final"}
    assert {cell.correct for cell in run.select_cells(("best", 900))} == {1}


def test_cells_by_other_sizes_than_the_first_ones_are_left_out_and_named(make_run):
    folder = make_run("abacus", lambda n: 1.0)
    line = json.loads((folder / "cells.jsonl").read_text().splitlines()[0])
    sound = read_run(folder).cells
    with open(folder / "cells.jsonl", "a") as file:
        file.writelines(json.dumps(line | {"cell": {"length": n}}) + "\n" for n in (4, 5))
    message = "2 cells by length left out, as the others are by first_digits and second_digits"
    with pytest.warns(UserWarning, match=message):
        found = read_run(folder)
    assert found.cells == sound
    assert any(message in text for text in found.warnings)
