"""Reading files of records: what is sound, what a kill cut, and what was damaged or edited."""

import json
from collections.abc import Iterator
from math import inf, isnan, nan
from pathlib import Path
from typing import Any

import pytest

from numerate.errors import UserError
from numerate.records.heads import read_metrics
from numerate.records.kinds import EVALUATION, METRICS, RUN_FILE_SCHEMAS
from numerate.records.reading import parse_lines, read_records
from numerate.results.rows import RunEntry, cells_of
from numerate.runs.store import with_checksum
from numerate.training import disk

CELL: dict[str, Any] = {
    **{"cell": {"digits": 2}, "correct": 3, "count": 4, "low": 0.3, "high": 0.95, "region": "ood_test", "seed": 0},
    **{"checkpoint": "final", "step": 100, "position_offset": 0, "overlaps_training": False, "method": "one pass"},
    **{"settings": {"model.x": 1}, "run_id": "3f2a9c01b7de"},
}
SUMS = "absolute_error squared_error target target_squared prediction prediction_squared product"
ERRORS = {"count": 3, **dict.fromkeys(SUMS.split(), "1.5")}
NUMBERS = {
    **{"count": 4, "correct": 3, "missing": 0, "invalid": 1, "within": {"0.1": 3}},
    **{"linear": ERRORS, "log": ERRORS, "of_cell": {"spearman": 0.5}},
    **{"clipped": 0, "nonzero": 4, "relative_error": "0.1", "metrics": {"mae": 0.5}},
}
TEXTS = {
    **{"count": 4, "prediction_words": 9, "reference_words": 8, "tokens": 20, "totals": [9, 8], "matches": [7, 8]},
    **{"rouge": {"rouge1": 2.5, "rouge2": 2.0, "rougeL": 2.5}, "nll": 3.5, "correct_tokens": 18, "ended": 4},
}
LABELS = {"targets_by_position": [4, 4], "correct_by_position": [4, 3], "last_label": 3, "correct_prefix": 3.5}
LABELS |= {"max_training_labels": 1, "target_counts": {"last_label": {"3": 4}}}
LIKELIHOODS = {"nll": 300.0, "tokens": 160, "bytes": 640, "chunks": 10, "correct_tokens": 9}
LANGUAGE = {name: value for name, value in CELL.items() if name not in ("correct", "low", "high")} | {
    **{"cell": {"context_length": 16, "chunk": 0}, "loss": 1.9, "perplexity": 6.7, "language": LIKELIHOODS},
}
STEP = {"step": 10, "examples": 80, "tokens": 900, "flops": 1e9, "loss": 2.0, "grad_norm": 0.5, "padding": 0.1}
VALIDATION = {
    "step": 10,
    "split": "validation",
    "exact_match": 0.75,
    "low": 0.3,
    "high": 0.95,
    "correct": 3,
    "count": 4,
}
TEXT = {"step": 10, "split": "validation", "loss": 2.0, "low": 1.9, "high": 2.1, "perplexity": 7.4, "tokens": 160}
ANSWER = {
    **{"cell": {"test": 1}, "checkpoint": "final", "step": 100, "position_offset": 0, "method": "decoding"},
    **{"question": "1+1", "correct_answer": "2", "prediction": "2", "correct": True},
}
SOUND = [
    *(("cells", CELL), ("cells", CELL | {"numbers": NUMBERS, "texts": TEXTS, "labels": LABELS})),
    *(("cells", LANGUAGE), ("metrics", STEP), ("metrics", VALIDATION), ("metrics", TEXT)),
    *(("predictions", with_checksum(ANSWER)), ("timings", {"step": 10, "seconds": 1.5})),
    ("samples", {"cell": {"digits": 2}, "question": "1+1", "prediction": "2", "correct": True}),
]


def written(path: Path, *lines: Any) -> Path:
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


# An edited field ------------------------------------------------------------------------------------------------------

MISSING = object()
VALUES = [
    MISSING,
    None,
    True,
    -1,
    0,
    1,
    10**30,
    0.5,
    -0.5,
    1e300,
    "",
    "x",
    "nan",
    "-inf",
    [],
    [-1],
    [1, 2],
    {},
    {"a": -1},
]


def edits(value: Any) -> Iterator[tuple[list[str], Any]]:
    """Every version of plain data with one value changed, with the names of its field."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        for names, new in [([], new) for new in VALUES] + list(edits(item)):
            edited = value.copy()
            edited[key] = new
            if new is MISSING:
                del edited[key]
            yield [str(key), *names], edited


def is_possible(line: dict[str, Any]) -> bool:
    """The bounds, written again by hand."""
    ratio = line["correct"] / line["count"] if line.get("correct") is not None and line.get("count") else None
    share = line.get("exact_match", ratio)
    texts, labels, numbers = (line.get(name) or {} for name in ("texts", "labels", "numbers"))
    pairs = [
        *([(line.get("low") or 0, share + 1e-6), (share - 1e-6, line.get("high") or 1)] if share is not None else []),
        *([(line["correct"], line["count"])] if ratio is not None else []),
        *zip(labels.get("correct_by_position", ()), labels.get("targets_by_position", ()), strict=True),
        *zip(texts.get("matches", ()), texts.get("totals", ()), strict=True),
        *((numbers[name], numbers["count"]) for name in numbers.keys() & {"correct", "missing", "invalid"}),
        *((one["correct_tokens"], one["tokens"]) for one in (texts, line.get("language") or {}) if one),
    ]
    at_least_0 = [
        line[name] or 0 for name in ("step", "count", "tokens", "flops", "seconds", "padding") if name in line
    ]
    return all(low <= high for low, high in pairs) and min(at_least_0) >= 0


@pytest.mark.filterwarnings("ignore:.*damaged")
@pytest.mark.parametrize(("name", "record"), SOUND)
def test_an_edited_field_is_refused_with_its_line_and_remedy_or_within_all_bounds_and_readable(
    name: str, record: dict[str, Any], tmp_path: Path
) -> None:
    schema, path = RUN_FILE_SCHEMAS[f"{name}.jsonl"], tmp_path / f"{name}.jsonl"
    assert read_records(written(path, record), schema) == [record]
    num_refused, entry = 0, RunEntry(tmp_path, "run", "label", "variant", 0, {}, "id")
    for names, edited in edits(record):
        (line,) = parse_lines(json.dumps(edited).encode() + b"\n", path, schema)
        if line.record is None:
            num_refused += 1
            assert str(line.problem).startswith(f"{path}, line 1: damaged: ")
            assert str(line.problem).endswith(f". {schema.remedy}")
            assert any(name in str(line.problem) for name in [*names, "checksum", "missing"])
        else:
            assert name == "samples" or is_possible(line.record), edited
            assert name != "predictions" or names[0] in ("checkpoint", "checksum") or edited == record
            if name == "cells":
                assert len(cells_of([entry], [[line.record]])) == (line.record["count"] > 0)
    assert num_refused > 20


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"correct": 900}, "`correct` must be at most 4 (`count`), not 900"),
        ({"correct": True}, "`correct` must be `int`, not true"),
        ({"count": "4"}, '`count` must be `int`, not "4"'),
        ({"low": 0.8}, "`low` must be at most 0.75 (`correct / count`), not 0.8"),
        ({"high": 0.7}, "`high` must be at least 0.75 (`correct / count`), not 0.7"),
        ({"high": 1.5}, "`high` must be `float` <= 1.0, not 1.5"),
        ({"correct": 1, "count": 3, "low": 0.333333, "high": 0.333333}, None),
        ({"correct": 0, "count": 0, "low": 0.0, "high": 1.0}, None),
        ({"cell": {"digits": 1.5}}, '`cell[...]` must be `int`, not {"digits": 1.5}'),
        ({"region": "mars"}, "`region` must be `str` matching regex '^(in_distribution|ood_validation|ood_test|100"),
        (
            {"labels": LABELS | {"correct_by_position": [4]}},
            "`correct_by_position` must be as long as `targets_by_posi",
        ),
        (
            {"labels": LABELS | {"correct_by_position": [4, 5]}},
            "`correct_by_position.1` must be at most 4 (`targets_by",
        ),
    ],
)
def test_a_violation_says_which_field_must_be_what(edit: dict[str, Any], message: str | None) -> None:
    found = EVALUATION.find_violation(CELL | edit)
    assert found == message if message is None else str(found).startswith(message)


# Lines ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("odd", "problem"),
    [
        *((odd, "no JSON object") for odd in ("{oops\n", "[]\n", "3\n", "\0\0\0\n", '{"count": 4, "cor\n')),
        (json.dumps(CELL)[:-1] + ', "correct": 4}\n', "`correct` must be given once"),
        (json.dumps(CELL).replace("}", ', "digits": 2}', 1) + "\n", "`digits` must be given once"),
        (json.dumps(CELL | {"low": nan}) + "\n", 'NaN is no JSON: write "nan", "inf" or "-inf"'),
        (json.dumps(CELL).replace("0.95", "1e999") + "\n", "`high` must be `float` <= 1.0, not Infinity"),
    ],
)
def test_a_whole_line_that_cannot_be_read_is_damage_wherever_it_stands(odd: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    for lines in ([odd, CELL], [CELL, "\n", odd]):
        where = f"{path}, line {lines.index(odd) + 1}"
        with pytest.raises(UserError) as error:
            read_records(written(path, *lines), EVALUATION)
        assert str(error.value) == f"{where}: damaged: {problem}. {EVALUATION.remedy}"


@pytest.mark.parametrize("rest", ['{"count": 4, "cor', "\0" * 5000, "3"])
def test_a_last_line_without_its_end_was_cut_by_a_kill_and_is_left_out(rest: str, tmp_path: Path) -> None:
    messages: list[str] = []
    path = written(tmp_path / "cells.jsonl", CELL, rest)
    assert read_records(path, EVALUATION, on_truncated_line=messages.append) == [CELL]
    cut = "the last line is truncated (a process was killed while writing) and is skipped"
    assert messages == [f"cells.jsonl: {cut}"]
    assert read_records(written(path, json.dumps(CELL)), EVALUATION) == [CELL], "it only lacks its end"


@pytest.mark.parametrize(
    ("rest", "problem"),
    [
        (json.dumps(CELL | {"correct": 900}), "`correct` must be at most 4 (`count`), not 900"),
        (json.dumps(CELL | {"correct": 2}), "it conflicts with line 1, which has the same cell"),
        (json.dumps(CELL)[:-1] + ', "correct": 4}', "`correct` must be given once"),
    ],
)
def test_a_complete_last_line_without_its_end_is_refused_like_any_other(
    rest: str, problem: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "cells.jsonl", CELL, rest)
    with pytest.raises(UserError) as error:
        read_records(path, EVALUATION)
    assert str(error.value) == f"{path}, line 2: damaged: {problem}. {EVALUATION.remedy}"


def test_a_line_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    other = CELL | {"step": 200}
    assert read_records(written(tmp_path / "cells.jsonl", CELL, other, CELL, other), EVALUATION) == [CELL, other]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (LANGUAGE | {"correct": 3}, "`correct` must be `null`, not 3"),
        (CELL | {"language": None}, "`correct` must be `null`, not 3"),
        (LANGUAGE | {"language": None}, "`language` must be `object`, not null"),
    ],
)
def test_a_cell_is_of_the_kind_that_it_is_checked_as(record: dict[str, Any], message: str) -> None:
    assert str(EVALUATION.find_violation(record)).startswith(message)


def test_two_records_of_one_cell_that_differ_are_in_conflict(tmp_path: Path) -> None:
    path = written(tmp_path / "cells.jsonl", CELL, CELL | {"count": 5}, CELL, CELL | {"correct": 2})
    with pytest.raises(UserError, match="line 4: damaged: it conflicts with line 1, which has the same cell"):
        read_records(path, EVALUATION)


@pytest.mark.parametrize("name", ["cells", "predictions"])
def test_a_line_of_another_run_is_refused(name: str, tmp_path: Path) -> None:
    schema, record = (
        RUN_FILE_SCHEMAS[f"{name}.jsonl"],
        {**CELL, **ANSWER, "run_id": "aaa"} if name == "predictions" else CELL | {"run_id": "aaa"},
    )
    other = record | {"run_id": "bbb", "step": 9}
    path = written(tmp_path / f"{name}.jsonl", record, other)
    with pytest.raises(UserError, match='line 2: damaged: `run_id` must be "aaa", not "bbb": it is of another run'):
        read_records(path, schema)
    with pytest.raises(UserError, match='line 1: damaged: `run_id` must be "bbb"'):
        read_records(path, schema, run_id="bbb")


def test_damage_that_nothing_depends_on_is_warned_of_and_the_sound_lines_are_read(tmp_path: Path) -> None:
    lines = [STEP, "oops\n", STEP | {"loss": "x"}, STEP | {"loss": 1.0}, VALIDATION, {"step": 12, "lss": 2.0}]
    lines += [{"step": 12, "split": "validation", "exact_mtch": 0.5}, STEP | {"step": 12, "later": 1}]
    path = written(tmp_path / "metrics.jsonl", *lines)
    with pytest.warns(UserWarning, match=r"line \d: damaged") as warned:
        assert [line["step"] for line in read_records(path, METRICS)] == [10, 10, 12]
    assert [str(one.message) for one in warned] == [
        f"{path}, line {number}: damaged: {problem}. {METRICS.remedy}"
        for number, problem in [
            (2, "no JSON object"),
            (3, "`loss` must be `str` matching regex '^(nan|-?inf)\\\\Z', not \"x\""),
            (4, "it conflicts with line 1, which has the same step"),
            (6, "Object missing required field `loss`"),
            (7, "Object missing required field `loss`"),
        ]
    ]


def test_numbers_that_are_not_finite_come_back_where_they_may_be_and_other_texts_stay(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    norms = STEP | {"loss": nan, "layer_grad_norms": {"0": inf, "1": 0.5}, "note": nan}
    disk.append_records(path, [norms, TEXT | {"loss": inf, "low": -inf}])
    step, text = read_records(path, METRICS)
    assert isnan(step["loss"])
    assert (step["layer_grad_norms"], step["note"]) == ({"0": inf, "1": 0.5}, "nan")
    assert (text["loss"], text["low"], text["high"]) == (inf, -inf, 2.1)
    disk.append_records(path := tmp_path / "cells.jsonl", [LANGUAGE | {"language": LIKELIHOODS | {"nll": inf}}])
    assert read_records(path, EVALUATION)[0]["language"] == LIKELIHOODS | {"nll": inf}


@pytest.mark.parametrize(
    ("steps", "ended", "message"),
    [
        ([10, 20, 30], {"stop_reason": "budget", "step": 20}, None),
        ([10], {"stop_reason": "stopped", "step": 20}, None),
        ([], {"stop_reason": "budget", "step": 0}, None),
        ([], None, None),
        ([10], {"stop_reason": "budget", "step": 20}, "it ends at step 10, and the run was trained to step 20"),
        ([], {"stop_reason": "target", "step": 2000}, "it ends at step 0, and the run was trained to step 2,000"),
        (
            None,
            {"stop_reason": "target", "step": 2},
            "it is missing, so it ends at step 0, and the run was trained to step 2",
        ),
    ],
)
def test_metrics_are_checked_against_the_step_of_the_head(
    steps: list[int] | None, ended: Any, message: str | None, tmp_path: Path
) -> None:
    if steps is not None:
        written(tmp_path / "metrics.jsonl", *({"step": step, "loss": 2.0} for step in steps))
    warned: list[str] = []
    read_metrics(tmp_path, {"ended": ended}, warned.append)
    expected = [f"{tmp_path / 'metrics.jsonl'}: damaged: {message}. {METRICS.remedy}"]
    assert warned == ([] if message is None else expected)
