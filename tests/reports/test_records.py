"""Reading what a run left: whole, corrupted, damaged, or no run at all."""

import json

import pytest

from numerate.errors import UserError
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


def test_a_damaged_line_of_metrics_is_left_out_and_warned_of(make_run):
    folder = make_run("abacus", lambda n: 1.0)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join([lines[0], "{oops", *lines[1:]]) + "\n")
    with pytest.warns(UserWarning, match=r"metrics\.jsonl, line 2: damaged: no JSON object"):
        run = read_run(folder)
    assert len(run.metrics) == len(lines)
    assert "line 2: damaged" in run.warnings[0]


def test_a_cell_that_cannot_be_is_refused_with_its_line_and_what_is_right(make_run):
    folder = make_run("abacus", lambda n: 1.0)
    lines = (folder / "cells.jsonl").read_text().splitlines()
    lines[4] = json.dumps(json.loads(lines[4]) | {"correct": 101})
    (folder / "cells.jsonl").write_text("\n".join(lines) + "\n")
    message = r"`correct` must be at most 100 \(`count`\), not 101"
    with pytest.raises(UserError, match=rf"cells\.jsonl, line 5: damaged: {message}.*numerate evaluate"):
        read_run(folder)


def test_a_cell_of_another_run_is_refused(make_run):
    folder = make_run("abacus", lambda n: 1.0)
    line = json.loads((folder / "cells.jsonl").read_text().splitlines()[0])
    with open(folder / "cells.jsonl", "a") as file:
        file.write(json.dumps(line | {"run_id": "another", "step": 200}) + "\n")
    with pytest.raises(UserError, match=rf'line 65: damaged: `run_id` must be "{folder.name}", not "another"'):
        read_run(folder)


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


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"not a run folder: it holds no recipe\.yaml"):
        read_run(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        read_run(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["recipe: [", "- just a list"])
def test_a_head_that_cannot_be_read_is_damaged(make_run, text):
    folder = make_run("abacus", lambda n: 1.0)
    (folder / "recipe.yaml").write_text(text)
    with pytest.raises(UserError, match=r"recipe\.yaml.*: damaged: "):
        read_run(folder)


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
