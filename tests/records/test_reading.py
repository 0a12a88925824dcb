"""Reading files of records: what is sound, what a kill cut, and what was damaged."""

import json
from pathlib import Path
from typing import Any

import pytest

from numerate.errors import UserError
from numerate.records.heads import missing_steps_message
from numerate.records.kinds import EVALUATION, METRICS, RESULT, RUN_FILE_SCHEMAS, TASK
from numerate.records.reading import Tail, parse_lines, read_records
from numerate.records.schema import BOOLEAN, Array, Fields, Integer, MapOf, Number, Schema, one_of

COUNTS = Schema(
    Fields(
        {
            "count": Integer(),
            "correct": Integer(high="count"),
            "loss?": Number(0),
            "counted_at?": Array(Integer()),
            "correct_by_position?": Array(Integer(), bound_field="counted_at"),
            "cell?": MapOf(Integer()),
            "status?": one_of("done", "failed"),
            "overlaps_training?": BOOLEAN,
            "low?": Number(0, "correct / count"),
            "high?": Number("correct / count", 1),
        }
    ),
    "Remove the line.",
)
SOUND = {"count": 4, "correct": 3}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, None),
        ({"loss": None, "note": "whatever"}, None),
        ({"correct": 900}, "`correct` must be an integer from 0 to `count` (4), not 900"),
        ({"correct": -1}, "`correct` must be an integer from 0 to `count` (4), not -1"),
        ({"correct": True}, "`correct` must be an integer from 0 to `count` (4), not true"),
        ({"count": "4"}, '`count` must be an integer of at least 0, not "4"'),
        ({"count": None}, "`count` must be an integer of at least 0, not null"),
        ({"loss": float("inf")}, "`loss` must be a finite number of at least 0, not Infinity"),
        ({"cell": {"digits": 1.5}}, "`cell.digits` must be an integer of at least 0, not 1.5"),
        (
            {"counted_at": [4, 4], "correct_by_position": [4]},
            "`correct_by_position` must be a list as long as `counted_at`, not [4]",
        ),
        (
            {"counted_at": [4, 4], "correct_by_position": [4, 5]},
            "`correct_by_position.1` must be at most `counted_at.1` (4), not 5",
        ),
        ({"status": "gone"}, "`status` must be 'done' or 'failed', not \"gone\""),
        ({"overlaps_training": 1}, "`overlaps_training` must be a boolean, not 1"),
        ({"low": 0.75, "high": 0.75}, None),
        ({"correct": 1, "count": 3, "low": 0.333333, "high": 0.333333}, None),
        ({"correct": 0, "count": 0, "low": 0.0, "high": 1.0}, None),
        ({"low": 0.8}, "`low` must be a finite number from 0 to `correct / count` (0.75), not 0.8"),
        ({"high": 0.7}, "`high` must be a finite number from `correct / count` (0.75) to 1, not 0.7"),
        ({"high": 1.5}, "`high` must be a finite number from `correct / count` (0.75) to 1, not 1.5"),
    ],
)
def test_a_record_is_checked_against_its_schema(more: dict[str, Any], message: str | None) -> None:
    assert COUNTS.find_violation(SOUND | more) == message


@pytest.mark.parametrize(
    ("schema", "record", "message"),
    [
        (METRICS, {"step": 1, "split": "validation", "exact_match": 0.5, "low": 0.6, "high": 0.9}, "`low` must be "),
        (METRICS, {"step": 1, "split": "validation", "loss": 2.0, "low": 1.9, "high": 2.1}, None),
        (
            RESULT,
            {"run": "a/1", "key": "k", "status": "done", "final": {"ood_test": {"mean": 0.9, "low": 0.1, "high": 0.8}}},
            "`final.ood_test.high` must be a finite number from `mean` (0.9) to 1, not 0.8",
        ),
    ],
)
def test_an_interval_contains_its_share(schema: Schema, record: dict[str, Any], message: str | None) -> None:
    found = schema.find_violation(record)
    assert found is None if message is None else found is not None and found.startswith(message)


def test_a_field_that_is_missing_is_named_with_what_it_should_hold() -> None:
    assert COUNTS.find_violation({"count": 4}) == "`correct` must be an integer from 0 to `count` (4), and is missing"


def written(path: Path, *lines: Any) -> Path:
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


def test_a_damaged_line_is_named_with_its_number_and_what_the_user_can_do(tmp_path: Path) -> None:
    file = written(tmp_path / "counts.jsonl", SOUND, "\n", {"count": 4, "correct": 5}, SOUND)
    with pytest.raises(UserError) as error:
        read_records(file, COUNTS)
    right = "`correct` must be an integer from 0 to `count` (4), not 5"
    assert str(error.value) == f"{file}, line 3: damaged: {right}. Remove the line."


@pytest.mark.parametrize("odd", ["{oops\n", "[]\n", "3\n", "\0\0\0\n", '{"count": 4, "cor\n', "\xff\n"])
def test_a_whole_line_that_is_no_object_is_damage_wherever_it_stands(odd: str, tmp_path: Path) -> None:
    for lines in ([odd, SOUND], [SOUND, odd]):
        with pytest.raises(UserError, match="damaged: no JSON object"):
            read_records(written(tmp_path / "counts.jsonl", *lines), COUNTS)


@pytest.mark.parametrize("rest", ['{"count": 4, "cor', "\0" * 5000, "3", '{"count": 4}'])
def test_a_last_line_without_its_end_was_cut_by_a_kill_and_is_left_out(rest: str, tmp_path: Path) -> None:
    messages: list[str] = []
    assert read_records(written(tmp_path / "counts.jsonl", SOUND, rest), COUNTS, on_truncated_line=messages.append) == [
        SOUND
    ]
    assert messages == ["counts.jsonl: the last line is truncated (a process was killed while writing) and is skipped"]


def test_a_sound_last_line_that_only_lacks_its_end_counts(tmp_path: Path) -> None:
    assert read_records(written(tmp_path / "counts.jsonl", SOUND, json.dumps(SOUND)), COUNTS) == [SOUND, SOUND]


def test_damage_that_nothing_depends_on_is_warned_of_and_the_sound_lines_are_read(tmp_path: Path) -> None:
    file = written(
        tmp_path / "metrics.jsonl",
        {"step": 1, "loss": 2.0},
        "oops\n",
        {"step": 2, "loss": "x"},
        {"step": 3, "loss": 1.0},
    )
    with pytest.warns(UserWarning, match=r"line \d: damaged") as warned:
        assert [line["step"] for line in read_records(file, METRICS)] == [1, 3]
    assert len(warned) == 2
    assert 'metrics.jsonl, line 3: damaged: `loss` must be a finite number, not "x".' in str(warned[1].message)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"step": 2, "lss": 2.0}, "`loss` must be a finite number, and is missing"),
        ({"stp": 2, "loss": 2.0}, "`step` must be an integer of at least 0, and is missing"),
        ({"step": 2, "splt": "validation", "exact_match": 0.5}, "`loss` must be a finite number, and is missing"),
        (
            {"step": 2, "split": "validation", "exact_mtch": 0.5, "correct": 1, "count": 2},
            "`exact_match` or `loss` must be given, and is missing",
        ),
    ],
)
def test_a_misspelt_key_of_metrics_is_warned_of(line: dict[str, Any], problem: str, tmp_path: Path) -> None:
    file = written(tmp_path / "metrics.jsonl", {"step": 1, "loss": 2.0, "a_later_version": 1}, line)
    with pytest.warns(UserWarning, match="damaged") as warned:
        assert [record["step"] for record in read_records(file, METRICS)] == [1]
    assert [str(one.message) for one in warned] == [f"{file}, line 2: damaged: {problem}. {METRICS.remedy}"]


def test_a_validation_whose_loss_is_not_finite_is_no_damage() -> None:
    assert METRICS.find_violation({"step": 1, "split": "validation", "loss": None, "tokens": 9}) is None


def test_a_file_that_grows_is_read_once_and_damage_has_the_number_of_its_line(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "counts.jsonl", COUNTS)
    assert tail.read_new() == []
    written(tail.path, SOUND, SOUND)
    assert tail.read_new() == [SOUND, SOUND]
    with open(tail.path, "a") as file:
        file.write('{"count": 4, ')
        file.flush()
        assert tail.read_new() == []
        file.write('"correct": 1}\nwhat is this\n')
    with pytest.raises(UserError, match="line 4: damaged"):
        tail.read_new()


def test_lines_know_where_they_begin() -> None:
    content = b'{"count": 1, "correct": 1}\n\noops\n{"count": 2, "correct": 0}'
    found = list(parse_lines(content, Path("x"), COUNTS))
    assert [(line.number, line.offset, line.record is None) for line in found] == [
        (1, 0, False),
        (3, 28, True),
        (4, 33, False),
    ]
    assert all(content[line.offset :].startswith(line.text) for line in found)


def test_every_kind_says_what_its_user_can_do() -> None:
    for schema in RUN_FILE_SCHEMAS.values():
        assert schema.remedy.endswith(".")


def test_an_answer_of_a_task_that_was_over_is_checked_as_one_of_an_item() -> None:
    assert TASK.find_violation({"item": 0, "seconds": -1, "worker": "a"}) == (
        "`seconds` must be a finite number of at least 0, not -1"
    )
    assert TASK.find_violation({"finished": True}) is None
    assert EVALUATION.find_violation({"finished": True}) == "`cell` must be an object, and is missing"


@pytest.mark.parametrize(
    ("steps", "ended", "message"),
    [
        ([10, 20], {"stop_reason": "budget", "step": 20}, None),
        ([10, 20, 30], {"stop_reason": "budget", "step": 20}, None),
        ([10], {"stop_reason": "stopped", "step": 20}, None),
        ([], {"stop_reason": "budget", "step": 0}, None),
        ([], None, None),
        ([10], {"stop_reason": "budget", "step": 20}, "it ends at step 10, and the run was trained to step 20"),
        ([], {"stop_reason": "target", "step": 2000}, "it is missing, and the run was trained to step 2,000"),
    ],
)
def test_metrics_are_checked_against_the_step_of_the_head(
    steps: list[int], ended: Any, message: str | None, tmp_path: Path
) -> None:
    found = missing_steps_message(tmp_path / "metrics.jsonl", [{"step": step} for step in steps], {"ended": ended})
    assert found is None if message is None else message in str(found)
