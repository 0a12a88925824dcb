"""Promises of the table of cells: every cell of every run has a row, and no damage passes in silence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pandas import isna

import numerate
from numerate.errors import UserError
from numerate.evaluation.likelihoods import Likelihoods
from numerate.evaluation.number_metrics import NumberScores
from numerate.results.rows import COLUMNS, axes, cells, metrics, settings_columns
from numerate.training import disk
from results_records import done, failed, recipe, seeds, sums
from run_records import Studies, cell_record, write_run


def plain(value: Any) -> Any:
    return None if isna(value) else value


def test_every_cell_of_every_done_run_of_a_study_has_a_row_with_what_tells_runs_apart(study: Studies) -> None:
    study([*seeds(0.1, 0.2, hidden_size=64), (recipe(seed=0, hidden_size=128), done()), (recipe(seed=9), failed())])
    frame = numerate.cells("widths", study.runs)
    assert len(frame) == 3 * 4
    assert list(frame.columns) == [
        *("run", "label", "variant", "seed", "model.hidden_size", "checkpoint", "step", "position_offset", "settings"),
        *("digits", "region", "questions", "correct", "exact_match", "low", "high", "overlaps_training", "method"),
    ]
    assert (settings_columns(frame), axes(frame)) == (["model.hidden_size"], ["digits"])
    assert list(dict.fromkeys(frame["variant"])) == ["abacus (hidden_size=64)", "abacus (hidden_size=128)"]
    last = frame.iloc[3]
    assert (last["checkpoint"], last["digits"], last["correct"], last["exact_match"]) == ("final", 6, 400, 0.1)
    assert set(frame.columns) - {"model.hidden_size", "digits"} <= set(COLUMNS)


def test_axes_strata_settings_and_sizes_that_others_lack_stay_apart(study: Studies) -> None:
    one, two, three = sums(lambda n: 0.5)[:3]
    changed = two | {"cell": {"questions": 3}, "settings": {"model.backbone.num_loops": 8}}
    study([(recipe(), done(cells=[one, changed, three | {"stratum": "complement", "correct": 50}]))])
    frame = cells("widths", study.runs)
    names = ["first_digits", "second_digits", "cell.questions", "questions", "settings", "stratum", "variant"]
    assert [tuple(map(plain, row)) for row in frame[names].itertuples(index=False)] == [
        (1, 1, None, 100, None, None, "abacus"),
        (None, None, 3, 100, "num_loops=8", None, "abacus, num_loops=8"),
        (1, 3, None, 100, None, "complement", "abacus"),
    ]


def test_labels_numbers_text_and_scores_of_ones_own_have_columns_and_sums_to_be_merged(study: Studies) -> None:
    labels = {"metrics": {"accuracy": 0.8, "ood_accuracy": None, "last_label": 0.5}, "target_counts": {}}
    labels |= {"last_label": 1, "correct_prefix": 1.5, "baseline": {"accuracy": 0.6}}
    labels |= {"targets_by_position": [2], "correct_by_position": [1]}
    numbers = NumberScores.from_texts(["3"], ["1"]).to_record()
    text = Likelihoods(64.0, 32, 120, 8, 2, 2049.0, 1024.0, 512, 3840.0, 7200)
    lines = [
        cell_record({"count": 7}, 1, 2, "ood_test", labels=labels),
        cell_record({"count": 8}, 1, 2, "ood_test", numbers=numbers, scores={"polite": 1.0}),
        cell_record({"context_length": 16}, 0, 2, "in_distribution") | text.record() | {"language": text.sums()},
    ]
    del lines[2]["correct"]
    study([(recipe(), done(cells=lines))])
    frame = cells("widths", study.runs)
    first, second, third = (frame.iloc[i] for i in range(3))
    assert (first["accuracy"], first["accuracy.baseline"], first["last_label"]) == (0.8, 0.6, 0.5)
    assert (second["mae"], second["score.polite"]) == (2.0, 0.5)
    assert (third["loss"], third["nats"], third["tokens"], plain(third["exact_match"])) == (2.0, 64.0, 32, None)
    assert [sorted(set(one) - {"count", "correct"}) for one in frame["sums"]] == [
        ["labels"], ["numbers", "scores"], ["language"],
    ]  # fmt: skip


Change = Callable[[bytes], bytes]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda text: text.replace(b'"correct": 50', b'"correct": 500', 1),
            "line 2: damaged: `correct` must be",
        ),
        (lambda text: text.replace(b'"count": 100', b'"count": -1', 1), r"line 1: damaged: `count` must be"),
        (lambda text: text.replace(b'"ood_test"', b'"elsewhere"', 1), r"damaged: `region` must be"),
        (lambda text: b"[]\n" + text, r"line 1: damaged: no JSON object"),
        (lambda text: text + text.splitlines()[1].replace(b"50", b"51", 1) + b"\n", r"it conflicts with line 2"),
        (
            lambda text: text.replace(b'{"cell"', b'{"count": 100, "cell"', 1),
            "line 1: damaged: `count` must be given once",
        ),
        (
            lambda text: text.replace(b'{"cell"', b'{"count": 100, "note": "\\u003a", "cell"', 1),
            "line 1: damaged: `count` must be given once",
        ),
        (lambda text: text.replace(b'{"cell"', b'{"run_id": "other", "cell"', 1), r'`run_id` must be "000000000000"'),
    ],
)
def test_a_damaged_line_is_an_error_with_its_place(change: Change, message: str, study: Studies) -> None:
    table = study([(recipe(), done(cells=sums(lambda n: 0.5 if n > 1 else 1.0)))])
    path = study.runs / table["run"][0] / "cells.jsonl"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=message):
        cells("widths", study.runs)


def test_a_torn_last_line_is_left_out_and_a_later_line_of_a_cell_replaces_an_earlier_one(study: Studies) -> None:
    table = study([(recipe(), done()), (recipe(seed=1), done())])
    first, second = (study.runs / run / "cells.jsonl" for run in table["run"])
    first.write_bytes(first.read_bytes()[:-30])
    disk.append_records(second, [cell_record({"digits": 6}, 7, 10, "ood_test")])
    frame = cells("widths", study.runs)
    assert len(frame) == 3 + 4
    assert frame.loc[(frame["seed"] == 1) & (frame["region"] == "ood_test"), "questions"].tolist() == [4000, 10]


def test_runs_named_one_by_one_share_a_variant_if_they_differ_in_the_seed_alone(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / title / f"{i:012x}", recipe(title, seed, hidden_size=width), sums(lambda n: 0.5))
        for i, (title, seed, width) in enumerate([("a", 0, 64), ("a", 1, 64), ("a", 0, 128), ("b", 0, 64)])
    ]
    frame = cells(folders)
    found = frame.drop_duplicates("run")[["label", "variant", "seed"]]
    assert [tuple(row) for row in found.itertuples(index=False)] == [
        ("a", "a (hidden_size=64)", 0),
        ("a", "a (hidden_size=64)", 1),
        ("a", "a (hidden_size=128)", 0),
        ("b", "b", 0),
    ]
    assert len(cells([folders[0], folders[0] / "."])) == len(cells(one for one in folders[:1])) == 36
    for nothing in (None, [3]):
        with pytest.raises(UserError, match="runs: must be a study, a run, a folder or title"):
            cells(nothing)  # type: ignore[arg-type]
    again = write_run(tmp_path / "elsewhere" / "a" / "000000000000", recipe("a", 0), sums(lambda n: 0.5))
    assert set(cells([folders[0], again])["variant"]) == {"a", "a 2"}, "a seed that was run twice is no second seed"
    with pytest.raises(UserError, match=r"no study in .* is called"):
        cells([tmp_path / "nowhere", folders[0]])


def test_a_renamed_run_keeps_the_id_that_its_records_repeat(tmp_path: Path) -> None:
    line = cell_record({"digits": 6}, 7, 10, "ood_test", run_id="0123456789ab")
    path = write_run(tmp_path / "a" / "0123456789ab", recipe("a"), [line]).rename(tmp_path / "a" / "mine")
    assert len(cells(path)) == 1


def test_what_was_logged_in_training_is_a_table_by_run(tmp_path: Path) -> None:
    score = {"exact_match": 0.5, "low": 0.4, "high": 0.6}
    lines = [{"step": 5, "loss": 2.0}, {"step": 9, "split": "validation"} | score]
    frame = metrics(write_run(tmp_path / "a" / "0123456789ab", recipe("a"), metrics=lines))
    names = ["variant", "step", "split", "loss", "exact_match"]
    assert [tuple(map(plain, row)) for row in frame[names].itertuples(index=False)] == [
        ("a", 5, None, 2.0, None),
        ("a", 9, "validation", None, 0.5),
    ]
