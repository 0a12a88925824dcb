"""Promises of the table of results: no run is missing, every number is the one that was written, files read back."""

import csv
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pandas import DataFrame, read_csv, read_parquet

from numerate.cli import main
from numerate.errors import UserError
from numerate.evaluation.statistics import stratified_bootstrap_interval, wilson_interval
from numerate.reports.table import text_width
from numerate.runs.study_folder import StudyFolder, StudyRun
from numerate.tables.describing import describe_runs
from numerate.tables.differing import differing_settings
from numerate.tables.grouping import describe_groups, group_results
from numerate.tables.results import cells_of, infer_type, results_of
from numerate.tables.selecting import plain_values, select_columns, sort_rows, where
from numerate.tables.writing import render, to_text, write_table
from run_records import Studies, cell_record

ATTENTION = {"kind": "Attention", "num_heads": 4, "dropout": 0.0}
LSTM = {"kind": "LSTM", "layers": 1, "dropout": 0.0}
ABACUS = {"kind": "Learned", "position_ids": {"kind": "DigitIndex", "max_offset": 20}}
ROTARY = {"kind": "Rotary", "base": 10000.0}


def recipe(title: str = "abacus", seed: int = 0, **changed: Any) -> dict[str, Any]:
    """A recipe as plain data; `hidden_size=64` and the like are of its model, `learning_rate` of its optimiser."""
    return {
        "kind": "Recipe",
        "task": {"kind": "Arithmetic", "digits": changed.get("digits", "1:5")},
        "model": {
            "kind": "Decoder",
            "hidden_size": changed.get("hidden_size", 64),
            "mixer": changed.get("mixer", ATTENTION),
            "positions": changed.get("positions", [ABACUS]),
        },
        "optimizer": {"kind": "AdamW", "learning_rate": changed.get("learning_rate", 0.001), "betas": [0.9, 0.98]},
        "training": {"kind": "Training", "steps": 100, "threads": changed.get("threads")},
        "seed": seed,
        "name": None,
        "title": title,
        "paper": changed.get("paper"),
    }


def region(mean: float) -> dict[str, Any]:
    return {"mean": mean, "low": mean / 2, "high": (mean + 1) / 2, "cells": 9}


def done(trained: float = 1.0, beyond: float | None = 0.5, **more: Any) -> dict[str, Any]:
    """The results of a run that is done."""
    final = {"in_distribution": region(trained)} | ({} if beyond is None else {"ood_test": region(beyond)})
    return {
        "status": "done",
        "stop_reason": "budget",
        "step": 100,
        "examples": 6400,
        "tokens": 51200,
        "flops": 1.5e12,
        "loss": 0.125,
        "validation_exact_match": 1.0,
        "ood_validation_exact_match": 0.25,
        "best_step": 75,
        "final": final,
        "best": {name: region(base["mean"] / 4) for name, base in final.items()},
    } | more


def failed(kind: str = "error", error: str = "ValueError: it broke") -> dict[str, Any]:
    return {"status": "failed", "kind": kind, "error": error}


def seeds(*beyond: float, **changed: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Seeds of one setting, done, with these shares beyond."""
    return [(recipe(seed=seed, **changed), done(beyond=share)) for seed, share in enumerate(beyond)]


def rows_of(frame: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    chosen = select_columns(frame, names) if names else frame
    return list(zip(*(plain_values(chosen[name]) for name in chosen.columns), strict=True))


def first_of(frame: DataFrame) -> dict[str, Any]:
    return dict(zip(frame.columns, rows_of(frame)[0], strict=True))


def text_of(runs: DataFrame, width: int | None = None) -> str:
    """What people see of runs."""
    return to_text(*describe_runs(runs), width)


def header(runs: DataFrame) -> list[str]:
    return text_of(runs).splitlines()[0].split()


def groups_text(runs: DataFrame, by: str = "label", **more: Any) -> str:
    return to_text(*describe_groups(runs, [by], **more))


# Every run has a row -------------------------------------------------------------------------------------------------


def test_every_run_of_the_plan_has_a_row_however_it_stands(study: Studies) -> None:
    table = study(
        [
            (recipe(seed=0), done()),
            (recipe(seed=1), failed()),
            (recipe(seed=2), None),
            (recipe(seed=3), failed("died", "its worker died")),
            (recipe(seed=4), done(stop_reason="minutes")),
        ]
    )
    assert rows_of(table, "seed", "status", "failure", "error", "final.ood_test") == [
        (0, "done", None, None, 0.5),
        (1, "failed", "error", "ValueError: it broke", None),
        (2, "left", None, None, None),
        (3, "failed", "died", "its worker died", None),
        (4, "left", None, None, None),
    ]


def test_a_result_counts_only_for_the_very_recipe_and_while_the_folder_of_the_run_is_there(study: Studies) -> None:
    study([(recipe(seed=0), done()), (recipe(seed=1), done()), (recipe(seed=2), done())])
    folder = StudyFolder.from_title("widths", study.runs)
    keys = ("key0", "another key", "key2")
    plan = zip(folder.read().plan(), keys, strict=True)
    folder.update([StudyRun.of(one.run, key, recipe(seed=one.seed)) for one, key in plan])
    (study.runs / folder.read().plan()[2].run / "recipe.yaml").unlink()
    assert results_of("widths", study.runs)["status"].tolist() == ["done", "left", "failed"]


def test_the_numbers_are_those_that_were_written(study: Studies) -> None:
    table = study([(recipe(), done(trained=0.75, beyond=0.5)), (recipe(seed=1), done())])
    assert first_of(table) == {
        "run": "abacus/000000000000", "label": "abacus", "seed": 0, "status": "done",
        "step": 100, "examples": 6400, "tokens": 51200, "flops": 1.5e12, "loss": 0.125,
        "validation_exact_match": 1.0, "ood_validation_exact_match": 0.25, "best_step": 75,
        "final.in_distribution": 0.75, "final.in_distribution.low": 0.375, "final.in_distribution.high": 0.875,
        "final.ood_test": 0.5, "final.ood_test.low": 0.25, "final.ood_test.high": 0.75,
        "best.in_distribution": 0.1875, "best.in_distribution.low": 0.09375, "best.in_distribution.high": 0.59375,
        "best.ood_test": 0.125, "best.ood_test.low": 0.0625, "best.ood_test.high": 0.5625,
        "seconds": 2.5, "worker": f"{socket.gethostname()}-{os.getpid()}", "stop_reason": "budget",
        "failure": None, "error": None,
    }  # fmt: skip


def test_regions_come_nearest_to_training_first_and_a_run_without_one_has_nothing_there(study: Studies) -> None:
    far = {"100+": region(0.1), "ood_validation": region(0.2), "in_distribution": region(1.0)}
    table = study([(recipe(seed=0), done(final=far, best=far)), (recipe(seed=1), done(beyond=0.5))])
    assert [name for name in table.columns if name.startswith("final.") and name.count(".") == 1] == [
        "final.in_distribution", "final.ood_validation", "final.ood_test", "final.100+",
    ]  # fmt: skip
    assert plain_values(table["final.100+"]) == [0.1, None]
    assert plain_values(table["final.ood_test"]) == [None, 0.5]


def test_a_number_that_is_not_finite_is_missing(study: Studies) -> None:
    assert plain_values(study([(recipe(), done(loss=float("nan")))])["loss"]) == [None]


def test_a_study_is_found_by_title_path_or_itself(study: Studies, monkeypatch: pytest.MonkeyPatch) -> None:
    from numerate.recipes.studies import quickstart

    study([(recipe(), done())], title="quickstart")
    assert len(results_of(quickstart(), study.runs)) == len(results_of(study.runs / "quickstart")) == 1
    monkeypatch.setenv("NUMERATE_RUNS", str(study.runs))
    assert len(results_of("quickstart")) == 1
    with pytest.raises(UserError, match="Did you mean 'quickstart'"):
        results_of("quikstart")


# Settings ------------------------------------------------------------------------------------------------------------


def test_a_setting_in_which_runs_differ_is_a_full_column_and_others_are_none(study: Studies) -> None:
    trees = [recipe(), recipe(seed=1, hidden_size=128), recipe(seed=2, learning_rate=0.01, digits="1:9")]
    table = study([(tree, done()) for tree in trees])
    assert rows_of(table, "hidden_size", "learning_rate", "digits") == [
        (64, 0.001, "1:5"),
        (128, 0.001, "1:5"),
        (64, 0.01, "1:9"),
    ]
    settings = [name for name in table.columns[: table.columns.get_loc("step")] if name != "status"]
    assert settings == ["run", "label", "seed", "task.digits", "model.hidden_size", "optimizer.learning_rate"]


def test_parts_of_other_kinds_are_reported_by_their_kinds_and_parts_of_one_kind_by_their_settings(
    study: Studies,
) -> None:
    mixers = [ATTENTION, ATTENTION | {"num_heads": 8}, LSTM, LSTM | {"dropout": 0.1}]
    table = study([(recipe(mixer=mixer), done()) for mixer in mixers])
    assert rows_of(table, "model.mixer", "model.mixer.num_heads", "model.mixer.dropout") == [
        ("Attention", 4, 0.0), ("Attention", 8, 0.0), ("LSTM", None, 0.0), ("LSTM", None, 0.1),
    ]  # fmt: skip
    assert [name for name in table.columns if name.startswith("model")] == [
        "model.mixer", "model.mixer.num_heads", "model.mixer.dropout",
    ]  # fmt: skip
    apart = study([(recipe("b", mixer=mixer), done()) for mixer in (ATTENTION, LSTM | {"dropout": 0.1})], title="apart")
    assert [name for name in apart.columns if name.startswith("model")] == ["model.mixer"]  # the kind says it already


def test_what_differs_inside_a_list_of_parts_has_a_column(study: Studies) -> None:
    other = {"kind": "Learned", "position_ids": {"kind": "DigitIndex", "max_offset": 0}}
    table = study([(recipe(positions=positions), done()) for positions in ([ABACUS], [other], [], [ABACUS, ROTARY])])
    assert table["model.positions"].tolist() == ["[Learned]", "[Learned]", "[]", "[Learned, Rotary]"]
    assert plain_values(table["model.positions.0.position_ids.max_offset"]) == [20, 0, None, 20]


@pytest.mark.parametrize(
    ("values", "columns"),
    [
        (([0.9, 0.95], [0.9, 0.99]), {"x": ["[0.9, 0.95]", "[0.9, 0.99]"]}),
        (({"kind": "Span", "low": 1, "high": 5}, {"kind": "Span", "low": 1, "high": 6}), {"x": ["1:5", "1:6"]}),
        (([LSTM], [ATTENTION]), {"x.0": ["LSTM", "Attention"]}),
        (([LSTM], []), {"x": ["[LSTM]", "[]"]}),
        ((LSTM, LSTM | {"layers": 2}), {"x.layers": [1, 2]}),
    ],
)
def test_a_difference_of_any_kind_has_one_column(values: tuple[Any, Any], columns: dict[str, list[Any]]) -> None:
    trees = ({"kind": "Recipe", "x": value} for value in values)
    assert differing_settings([StudyRun.of(f"a/{n}", "key", tree) for n, tree in enumerate(trees)]) == columns


def test_settings_that_change_no_result_and_the_seed_are_no_columns(study: Studies) -> None:
    table = study([(recipe(), done()), (recipe(seed=1, threads=2, paper="other"), done())])
    assert table.columns[:5].tolist() == ["run", "label", "seed", "status", "step"]


def test_values_of_several_types_become_text_and_whole_numbers_beside_others_become_decimals(study: Studies) -> None:
    table = study(
        [(recipe(hidden_size="auto", learning_rate=1), done()), (recipe(hidden_size=64, learning_rate=0.5), done())]
    )
    assert rows_of(table, "hidden_size", "learning_rate") == [("auto", 1.0), ("64", 0.5)]
    assert all(isinstance(rate, float) for rate in table["optimizer.learning_rate"])
    assert [infer_type(values) for values in ([1, None], [2**63], [1, True], [None])] == [int, float, str, str]


# Choosing columns and rows -------------------------------------------------------------------------------------------


def test_a_column_may_be_named_by_its_end_where_one_alone_ends_so(study: Studies) -> None:
    table = study([(recipe(hidden_size=width), done()) for width in (64, 128)])
    assert select_columns(table, ["hidden_size", "ood-validation-exact-match"]).columns.tolist() == [
        "model.hidden_size",
        "ood_validation_exact_match",
    ]
    with pytest.raises(UserError, match=r"'ood_test' may be final\.ood_test or best\.ood_test"):
        select_columns(table, ["ood_test"])
    with pytest.raises(UserError, match=re.escape("columns: no column 'hiden_size'. Did you mean 'hidden_size'?")):
        select_columns(table, ["hiden_size"])


def test_the_beginning_of_names_stands_for_all_directly_below(study: Studies) -> None:
    table = study([(recipe(), done())])
    assert select_columns(table, ["seed", "final"]).columns.tolist() == [
        "seed",
        "final.in_distribution",
        "final.ood_test",
    ]
    assert select_columns(table, ["all"]).columns.tolist() == table.columns.tolist()
    assert select_columns(table, ["seed", "seed"]).columns.tolist() == ["seed"]


def test_rows_are_kept_by_equal_values_of_each_type(study: Studies) -> None:
    table = study([(recipe(hidden_size=width, seed=seed), done()) for width in (64, 128) for seed in (0, 1)])
    assert rows_of(where(table, "label=abacus", "hidden_size=128"), "hidden_size", "seed") == [(128, 0), (128, 1)]
    assert len(where(table, "hidden_size=64.0", "status=done")) == 2
    assert len(where(table, "error=null")) == 4
    assert len(where(table, "label='abacus'")) == 4
    assert len(where(table, "status=failed")) == 0
    with pytest.raises(UserError, match=re.escape("no row has model.hidden_size=65. There are: 64 and 128.")):
        where(table, "hidden_size=65")
    with pytest.raises(UserError, match=re.escape("no row has label=Abacus. Did you mean 'abacus'")):
        where(table, "label=Abacus")
    with pytest.raises(UserError, match=re.escape("no row has model.hidden_size=wide. There are: 64 and 128.")):
        where(table, "hidden_size=wide")
    with pytest.raises(UserError, match="'hidden_size' must be a condition"):
        where(table, "hidden_size")


def test_rows_are_kept_by_values_that_they_have_not(study: Studies) -> None:
    table = study([*seeds(0.1, 0.2, hidden_size=64), (recipe(seed=0, hidden_size=128), done(beyond=None))])
    assert rows_of(where(table, "hidden_size!=128", "seed!=0"), "hidden_size", "seed") == [(64, 1)]
    assert rows_of(where(table, "final.ood_test!=null"), "seed") == [(0,), (1,)]
    assert rows_of(where(table, "final.ood_test!=0.1"), "hidden_size") == [(64,), (128,)]
    with pytest.raises(UserError, match=re.escape("no row has label=Abacus. Did you mean 'abacus'")):
        where(table, "label!=Abacus")


def test_sorting_puts_what_is_missing_last_in_both_directions(study: Studies) -> None:
    table = study([(recipe(seed=0), None), *[(recipe(seed=seed), done(beyond=1 / seed)) for seed in (1, 2, 3)]])
    assert sort_rows(table, "final.ood_test")["seed"].tolist() == [3, 2, 1, 0]
    assert sort_rows(table, "-final.ood_test")["seed"].tolist() == [1, 2, 3, 0]
    assert sort_rows(table, "status", "seed")["seed"].tolist() == [1, 2, 3, 0]


# As people see it ----------------------------------------------------------------------------------------------------


def test_shares_are_per_cent_for_people_and_never_round_an_error_away(study: Studies) -> None:
    table = study([(recipe(), done(trained=0.99996, beyond=0.25))]).select(
        "final.in_distribution", "final.ood_test", "loss"
    )
    assert to_text(table).splitlines()[2].split() == ["99.996", "%", "25.0", "%", "0.125"]
    assert render(table, "markdown").splitlines()[2] == "| 99.996 % | 25.0 % | 0.125 |"


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_a_table_fits_a_terminal_and_no_column_is_lost(width: int, study: Studies) -> None:
    table = study([(recipe(hidden_size=width, seed=seed), done()) for width in (64, 128) for seed in (0, 1)])
    lines = text_of(table, width).splitlines()
    assert max(map(text_width, lines)) <= width
    heads = [line.split() for line in lines if line.startswith("seed")]
    assert all(head[:2] == ["seed", "hidden_size"] for head in heads)
    assert [name for head in heads for name in head[2:]] == [
        "final.in_distribution", "final.ood_test", "best.in_distribution", "best.ood_test",
    ]  # fmt: skip


def test_a_table_says_what_it_leaves_out(study: Studies) -> None:
    table = study([(recipe(seed=seed), failed() if seed else done()) for seed in range(40)])
    assert "... and 10 more rows" in to_text(table, max_rows=30)


def test_control_letters_in_an_error_do_not_reach_the_terminal(study: Studies) -> None:
    table = study([(recipe(), failed(error="one\x1b[31m\ntwo")), (recipe(seed=1), done())])
    assert "\x1b" not in text_of(table) + to_text(table[["error"]])
    assert len(to_text(table[["seed", "error"]]).splitlines()) == 4


# Groups --------------------------------------------------------------------------------------------------------------


def test_success_is_the_share_of_ended_runs_that_learned_what_they_were_trained_on(study: Studies) -> None:
    """A run that failed did not succeed; one that has not begun does not count."""
    runs = [(recipe(seed=seed), done(trained=share)) for seed, share in enumerate((1.0, 0.99, 0.98, 0.5))]
    table = study([*runs, (recipe(seed=4), failed()), (recipe(seed=5), None)])
    row = first_of(group_results(table, ["label"]))
    assert [row[name] for name in ("done", "failed", "left", "success", "success.count")] == [4, 1, 1, 0.4, 5]
    assert (row["success.low"], row["success.high"]) == wilson_interval(2, 5)
    assert row["final.ood_test.count"] == 4
    assert first_of(group_results(table, ["label"], threshold=0.6))["success"] == 0.6
    assert "2/5 [12, 77]" in groups_text(table)
    assert "failed runs count as unsuccessful" in groups_text(table)
    assert "at least 60 %" in groups_text(table, threshold=0.6)


@pytest.mark.parametrize(("statistic", "value"), [("median", 0.25), ("mean", 0.375), ("iqm", 0.25)])
def test_groups_have_a_statistic_with_its_interval_and_the_extremes_of_the_done_runs(
    statistic: str, value: float, study: Studies
) -> None:
    values = [0.1, 0.2, 0.3, 0.9]
    table = study([*seeds(*values), (recipe(seed=4), failed()), (recipe(seed=5), None)])
    row = first_of(group_results(table, ["label"], statistic=statistic))
    ends = ("count", statistic, f"{statistic}.low", f"{statistic}.high", "lowest", "highest")
    assert [name for name in row if name.startswith("final.ood_test.")] == [f"final.ood_test.{end}" for end in ends]
    count, middle, low, high, *extremes = (row[f"final.ood_test.{end}"] for end in ends)
    assert (count, middle, extremes) == (4, pytest.approx(value), [0.1, 0.9])
    bounds = stratified_bootstrap_interval([values], "results", "final.ood_test", "iqm")
    assert statistic != "iqm" or (low, high) == bounds
    assert 0.1 <= low < value < high <= 0.9
    assert row[f"step.{statistic}"] == row[f"step.{statistic}.low"] == 100.0
    text = groups_text(table, columns=["final.ood_test"], statistic=statistic)
    assert ("fewer than 5 seeds" in text) == (statistic != "median")
    assert ("25.0 % [10, 90]" in text and "Median of the done runs [lowest, highest]." in text) == (
        statistic == "median"
    )


def test_seeds_are_drawn_within_each_setting_and_what_is_taken_together_is_reported(study: Studies) -> None:
    table = study([*seeds(0.1, 0.1, hidden_size=64), *seeds(0.9, 0.9, hidden_size=128)])
    row = first_of(group_results(table, ["step"], columns=["final.ood_test"], statistic="mean"))
    assert [row[f"final.ood_test.mean{end}"] for end in ("", ".low", ".high")] == [0.5, 0.5, 0.5]
    note = "differ in model.hidden_size are grouped together; group=step,model.hidden_size separates them"
    assert note in groups_text(table, "step")
    assert "grouped together" not in groups_text(table, "hidden_size")
    runs = [(recipe("b", hidden_size=width), done(beyond=width / 100)) for width in (10, 90)]
    only = group_results(study(runs, title="one-seed-each"), ["step"])
    assert first_of(only)["final.ood_test.median.low"] is None  # nothing is known of seeds


def test_a_label_with_several_settings_or_an_extended_run_is_several_groups(study: Studies) -> None:
    runs = [*seeds(0.1, 0.2, hidden_size=64), *seeds(0.9, 0.8, hidden_size=128)]
    runs[3] = (runs[3][0], runs[3][1] | {"extended_from": 40})
    table = study([*runs, (recipe("rotary", positions=[ROTARY]), done())])
    found = group_results(table, ["label"], columns=["final.ood_test"])
    assert rows_of(found, "label", "hidden_size", "extended_from", "done") == [
        ("abacus", 64, None, 2),
        ("abacus", 128, 40, 1),
        ("abacus", 128, None, 1),
        ("rotary", 64, None, 1),
    ]
    for text in (groups_text(table), text_of(table)):
        assert "Its learning rates, which depend on the budget, are not those of a new run." in " ".join(text.split())
    assert "extended_from" in header(table)


def test_a_group_whose_runs_all_failed_is_there_without_success_and_without_numbers(study: Studies) -> None:
    groups = group_results(study([(recipe("a"), done()), (recipe("b"), failed())]), ["label"])
    names = ("done", "failed", "success", "final.ood_test.median")
    assert rows_of(groups, *names)[1] == (0, 1, 0.0, None)


@pytest.mark.parametrize(
    ("by", "words", "message"),
    [
        (["label"], {"columns": ["worker"]}, "columns: worker must be a column of numbers"),
        (["label"], {"statistic": "medain"}, "Did you mean 'median'"),
        (["label"], {"threshold": 99.0}, "threshold: must be above 0 and at most 1, .*, not 99.0"),
        (["label"], {"success_column": "nothing"}, "success: no column"),
        (["label"], {"success_column": "step"}, "success: must be a column of proportions, .*, not step"),
        (["label"], {"success_column": "loss"}, "success: must be a column of proportions, .*, not loss"),
        ([], {}, "group: no column ''. There are: run, label"),
        (["lable"], {}, "group: no column 'lable'"),
    ],
)
def test_groups_refuse_what_they_cannot_do(by: list[str], words: Any, message: str, study: Studies) -> None:
    with pytest.raises(UserError, match=message):
        group_results(study([(recipe(), done())]), by, **words)


# Files ---------------------------------------------------------------------------------------------------------------


def mixed(study: Studies) -> DataFrame:
    """A table with every type, something missing in each, and texts that are hard to write."""
    hard = 'a "quote", a comma\nand ünïcode'
    return study(
        [(recipe(hidden_size=64, mixer=ATTENTION), done()), (recipe(hidden_size=128, mixer=LSTM), failed(error=hard))]
    )


def test_csv_reads_back_as_it_was_also_in_pandas_with_its_types(study: Studies, tmp_path: Path) -> None:
    table = mixed(study)
    path = write_table(table, tmp_path / "deep" / "results.csv")
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[0] == table.columns.tolist()
    expected = [["" if value is None else str(value) for value in row] for row in rows_of(table)]
    assert rows[1:] == expected
    frame = read_csv(path)
    for name, kind in (("seed", "i"), ("model.hidden_size", "i"), ("final.ood_test", "f"), ("step", "f")):
        assert frame[name].dtype.kind == kind
    truths = DataFrame({"yes": [True, False], "text": ["x", None]})
    assert render(truths, "csv") == "yes,text\ntrue,x\nfalse,\n"


def test_json_lines_and_parquet_read_back_as_they_were(study: Studies, tmp_path: Path) -> None:
    table = mixed(study)
    expected = [dict(zip(table.columns, row, strict=True)) for row in rows_of(table)]
    lines = write_table(table, tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == expected
    pytest.importorskip("pyarrow", reason="pyarrow is an extra")
    assert read_parquet(write_table(table, tmp_path / "results.parquet")).equals(table)
    empty = read_parquet(write_table(where(table, "status=left"), tmp_path / "empty.parquet"))
    assert empty.dtypes.tolist() == table.dtypes.tolist()


def test_the_ending_says_the_format_and_a_format_may_be_given(study: Studies, tmp_path: Path) -> None:
    table = select_columns(study([(recipe(), done())]), ["label", "final.ood_test"])
    assert write_table(table, tmp_path / "a.md").read_text().startswith("| label | final.ood_test |\n")
    assert write_table(table, tmp_path / "a.txt").read_text().startswith("label   final.ood_test\n")
    assert write_table(table, tmp_path / "a.tex", notes=["% of all"]).read_text() == (
        "\\begin{table}\n\\centering\n"
        "\\begin{tabular}{lr}\n\\toprule\nlabel & OOD test (final) (\\%) \\\\\n\\midrule\nabacus & 50.0 \\\\\n"
        "\\bottomrule\n\\end{tabular}\n\\caption{\\% of all}\n\\end{table}\n"
    )
    assert write_table(table, tmp_path / "a.dat", "csv").read_text() == "label,final.ood_test\nabacus,0.5\n"
    with pytest.raises(UserError, match=r"a\.dat must be one of .*\.csv"):
        write_table(table, tmp_path / "a.dat")
    with pytest.raises(UserError, match=r"format: must be one of .*, not 'cvs'.*Did you mean 'csv'\?"):
        write_table(table, tmp_path / "a.dat", "cvs")


def latex_rows(table: DataFrame) -> list[str]:
    """The header and the rows of a table in LaTeX."""
    found = render(table, "latex")
    return [line.removesuffix(r" \\") for line in found.splitlines() if line.endswith(r"\\")]


def test_latex_reads_no_letter_of_a_table_as_its_own() -> None:
    table = DataFrame({"model_width": ["50 % & {#1} $x^2~ \\a <b>", "[10, 20]", "* 2"]})
    assert latex_rows(table) == [
        "model width",
        "50 \\% \\& \\{\\#1\\} \\$x\\textasciicircum{}2\\textasciitilde{} \\textbackslash{}a "
        "\\textless{}b\\textgreater{}",
        "{[}10, 20]",
        "{*} 2",
    ]
    counts = DataFrame({"variant": ["a"], "done": [2], "median": ["50 % [40, 60]"]}, dtype=object)
    assert render(counts, "latex").startswith("\\begin{tabular}{lrr}\n")


@pytest.mark.parametrize(
    ("column", "values", "bold"),
    [
        ("final.ood_test", ["93.1 % [88, 97.4]", "90.0 % [85, 92]", "70.0 % [60, 80]"], [0, 1]),
        ("final.ood_test", ["100 % [100, 100]", "99.0 % [98.5, 99.5]"], [0]),
        ("final.in_distribution.log_mae", ["0.25 [0.2, 0.3]", "1.5 [1, 2]"], [0]),
        ("loss", ["3.5 [3, 4]", "-1e-05 [-1, 2]"], [1]),
        ("final.ood_test", ["93.1 % [88, 97.4]", "90.0 % [85, 92]"], []),  # no difference
        ("final.ood_test", ["93.1 %", "70.0 %"], []),  # single seeds
        ("model.hidden_size", ["64 [1, 2]", "32 [3, 4]"], []),
    ],
)
def test_latex_has_the_best_result_in_bold_with_those_that_its_interval_overlaps(
    column: str, values: list[str], bold: list[int]
) -> None:
    _, *rows = latex_rows(DataFrame({column: values}))
    assert [i for i, row in enumerate(rows) if row.startswith(r"\textbf{")] == bold


def test_what_a_run_or_a_study_wrote_itself_is_not_replaced_by_a_table(study: Studies) -> None:
    table = study([(recipe(), done())])
    run = study.runs / str(table["run"][0])
    before = {path: path.read_bytes() for path in study.runs.rglob("*") if path.is_file()}
    for path in (study.runs / "widths/study.json", run / "end.json", run / "recipe.yaml"):
        with pytest.raises(UserError, match="is a file of a run or study and must not be replaced"):
            write_table(table, path, "csv")
    assert {path: path.read_bytes() for path in study.runs.rglob("*") if path.is_file()} == before
    assert write_table(table, study.runs / "widths" / "results.csv").is_file()


def test_a_package_that_is_not_there_is_named_with_what_installs_it_and_the_old_file_stays(
    study: Studies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, path = study([(recipe(), done())]), tmp_path / "a.parquet"
    path.write_text("PAR1 before")

    def refuse(*_: Any, **__: Any) -> None:
        raise ImportError("pyarrow")

    monkeypatch.setattr(DataFrame, "to_parquet", refuse)
    with pytest.raises(UserError, match=r"needs the package pyarrow; pip install 'numerate\[tables\]'"):
        write_table(table, path)
    assert path.read_text() == "PAR1 before"


# Cells ---------------------------------------------------------------------------------------------------------------


def cells(number: int) -> list[dict[str, Any]]:
    """What an evaluation of a run writes: two checkpoints of four cells."""
    return [
        cell_record(
            {"first_digits": first, "second_digits": second},
            (2 * first + second + number) % 5,
            4,
            "in_distribution" if first == 1 else "ood_test",
            **{"low": 0.0, "high": 1.0, "first_token_correct": 4, "digit_accuracy": 0.75},
            **{"overlaps_training": first == 1, "checkpoint": checkpoint, "step": step},
        )
        for checkpoint, step in (("best", 75), ("final", 100))
        for first in (1, 2)
        for second in (1, 2)
    ]


def test_cells_are_one_row_per_done_run_checkpoint_and_cell(study: Studies) -> None:
    table = study([*seeds(0.1, 0.2, hidden_size=64), (recipe(seed=7), failed())], cells=cells)
    table = cells_of("widths", study.runs)
    assert len(table) == 2 * 8
    assert first_of(table) == {
        "run": "abacus/000000000000", "label": "abacus", "seed": 0, "checkpoint": "best", "step": 75,
        "position_offset": 0,
        "settings": None, "region": "in_distribution", "first_digits": 1, "second_digits": 1, "correct": 3, "count": 4,
        "exact_match": 0.75, "low": 0.0, "high": 1.0, "digit_accuracy": 0.75, "first_token_correct": 4,
        "overlaps_training": True, "method": "one pass",
    }  # fmt: skip


def test_cells_of_several_axes_share_columns_and_those_of_strata_and_changed_settings_say_so(study: Studies) -> None:
    def lines(number: int) -> list[dict[str, Any]]:
        one, two, three = cells(number)[:3]
        changed = two | {"cell": {"count": 3}, "settings": {"model.backbone.num_loops": 8}}
        return [one, changed, three | {"stratum": "nines_plus_one", "correct": 4}]

    study(seeds(0.1, 0.2), cells=lines)
    table = cells_of("widths", study.runs)
    assert rows_of(table, "first_digits", "second_digits", "cell.count", "count", "settings", "stratum")[:3] == [
        (1, 1, None, 4, None, None),
        (None, None, 3, 4, "num_loops=8", None),
        (2, 1, None, 4, None, "nines_plus_one"),
    ]
    groups = group_results(table, ["stratum"], columns=["exact_match"])
    assert ("nines_plus_one", 1.0) in rows_of(groups, "stratum", "exact_match.median")


def test_cells_are_grouped_over_seeds_without_an_interval_where_a_run_has_several(study: Studies) -> None:
    study(seeds(0.1, 0.2, 0.3), cells=cells)
    table = cells_of("widths", study.runs)
    by_count = first_of(group_results(table, ["count"], columns=["exact_match"]))
    assert (by_count["count"], by_count["rows"]) == (4, 3 * 8)
    row = first_of(group_results(table, ["checkpoint", "first_digits", "second_digits"]))
    assert (row["count"], row["exact_match.median"], row["exact_match.highest"]) == (3, 0.75, 1.0)
    assert row["exact_match.median.low"] is not None
    together = first_of(group_results(table, ["checkpoint"]))
    assert (together["count"], together["exact_match.median.low"]) == (12, None)


def test_a_file_of_cells_that_is_torn_or_not_there_takes_no_other_with_it(study: Studies) -> None:
    table = study(seeds(0.1, 0.2), cells=cells)
    first, second = (study.runs / str(run) / "cells.jsonl" for run in table["run"])
    first.unlink()
    second.write_bytes(second.read_bytes()[:-30])
    assert len(cells_of("widths", study.runs)) == 7


# On the command line -------------------------------------------------------------------------------------------------


Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture
def results(study: Studies, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    """results("group=label"): `numerate results widths group=label` on a small study, as exit status and output."""
    monkeypatch.setenv("COLUMNS", "120")  # what a table shows depends on it
    runs = [
        *seeds(0.1, 0.2, 0.3, hidden_size=64),
        *seeds(0.5, 0.7, hidden_size=128),
        (recipe(seed=5, hidden_size=128), failed()),
    ]
    study(runs, cells=cells)

    def run(*words: str, address: str = "widths") -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(["results", address, f"runs_dir={study.runs}", *words])
        return status, *capsys.readouterr()

    return run


def test_the_command_shows_the_table_and_what_failed(results: Shell) -> None:
    status, out, err = results()
    assert (status, err) == (0, "")
    regions = [
        f"{checkpoint}.{region}" for checkpoint in ("final", "best") for region in ("in_distribution", "ood_test")
    ]
    assert out.split("\n")[0].split() == ["seed", "status", "hidden_size", *regions]
    assert "6 runs: 5 done, 1 failed" in out
    _, out, _ = results("where=status=failed", "columns=label,seed,failure,error")
    assert out.splitlines()[2].split(maxsplit=3) == ["abacus", "5", "error", "ValueError: it broke"]


def test_columns_rows_and_their_order_are_chosen_by_words(results: Shell) -> None:
    _, out, _ = results(
        "columns=hidden_size,seed,final.ood_test", "where=hidden_size=128,status=done", "sort=-seed", "format=csv"
    )
    assert out == "model.hidden_size,seed,final.ood_test\n128,1,0.7\n128,0,0.5\n"
    assert results("where=hidden_size=64", "where=seed=2", "columns=seed", "format=jsonl")[1] == '{"seed": 2}\n'


def test_files_for_programs_have_every_column_unless_some_are_chosen(results: Shell, tmp_path: Path) -> None:
    status, out, _ = results(f"out={tmp_path / 'a.csv'}")
    assert (status, out) == (0, f"{tmp_path / 'a.csv'}: 6 rows, 30 columns\n")
    head = (tmp_path / "a.csv").read_text().partition("\n")[0].split(",")
    assert head[:5] == ["run", "label", "seed", "status", "model.hidden_size"]
    assert "error" in head
    assert results("format=csv")[1].partition("\n")[0].split(",") == head


def test_groups_are_made_by_words(results: Shell) -> None:
    _, out, _ = results("group=hidden_size", "columns=final.ood_test")
    assert [" ".join(line.split()) for line in out.splitlines()[2:4]] == [
        "64 3 0 3/3 [44, 100] 20.0 % [10, 30]",
        "128 2 1 2/3 [21, 94] 60.0 % [50, 70]",
    ]
    _, out, _ = results("group=hidden_size", "columns=final.ood_test", "statistic=mean", "threshold=1", "format=jsonl")
    first = json.loads(out.splitlines()[0])
    assert first["final.ood_test.mean"] == pytest.approx(0.2)
    assert first["success"] == 1.0


def test_cells_are_written_by_a_word_and_only_those_of_the_runs_wanted_are_read(results: Shell, study: Studies) -> None:
    (study.runs / "abacus/000000000000/cells.jsonl").write_text("")
    where, columns = "where=seed=0,hidden_size=128,checkpoint=final", "columns=first_digits,second_digits,exact_match"
    _, out, _ = results("cells=true", where, columns, "format=csv")
    assert out == "first_digits,second_digits,exact_match\n1,1,0.25\n1,2,0.5\n2,1,0.75\n2,2,1.0\n"  # of the fourth run
    _, out, _ = results("cells=true", f"out={study.runs / 'cells.csv'}")
    assert out.endswith("cells.csv: 32 rows, 20 columns\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("colums=label",), "Did you mean 'columns'"),
        (("columns=",), "columns: the value is missing; for example columns=label,seed,final.ood_test"),
        (("out=a.xls",), "out: the suffix of a.xls must be one of"),
        (("format=parquet",), "out=results.parquet"),
        (("statistic=iqm",), "group=label statistic=iqm"),
        (("group=label", "threshold=two"), "threshold: must be a number, not 'two'"),
        (("cells=perhaps",), "cells: must be true or false, not 'perhaps'"),
    ],
)
def test_a_user_error_is_reported_in_a_line_and_nothing_is_written(
    words: tuple[str, ...], message: str, results: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    status, out, err = results(*words)
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("begin", "commands", "absent"),
    [
        ("import numerate.training.trainer", [["--help"], ["list"], ["status", "widths"]], ["pandas", "scipy"]),
        ("", [["results", "widths", *words] for words in ([], ["group=label", "statistic=iqm"])],
         ["torch", "scipy", "matplotlib"]),
    ],
)  # fmt: skip
def test_commands_import_no_library_that_they_do_not_need(
    begin: str, commands: list[list[str]], absent: list[str], study: Studies
) -> None:
    study(seeds(0.1, 0.2))
    code = (
        f"import sys; from numerate.cli import main; {begin}\n"
        f"for words in {commands}:\n"
        "    try: status = main(words)\n"
        "    except SystemExit as leaving: status = leaving.code\n"
        f"    print(status, {{*sys.modules}} & {{*{absent}}})"
    )
    environment = {**os.environ, "NUMERATE_RUNS": str(study.runs)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.count("\n0 set()") + done.stdout.startswith("0 set()") == len(commands), done.stderr


# Labels --------------------------------------------------------------------------------------------------------------


def labelled(unseen: float, **more: Any) -> dict[str, Any]:
    """What a worker writes of a run on labels: all right in training, `ood_accuracy` beyond, at a floor of a tenth."""
    labels = {
        name: {"value": unseen, "low": 0.0, "high": 1.0, "baseline": 0.1}
        for name in ("ood_accuracy", "last_label", "correct_prefix")
    }
    accuracy = {"accuracy": {"value": 1.0, "low": 0.9, "high": 1.0, "baseline": 1.0}}
    final = {
        "in_distribution": region(1.0) | {"labels": accuracy} | more,
        "ood_test": region(0.0) | {"labels": labels | accuracy} | more,
    }
    return done() | {"final": final, "best": final}


def test_measures_of_labels_are_columns_with_their_floors(study: Studies) -> None:
    table = study([(recipe(), labelled(0.75))])
    assert rows_of(table, "final.ood_test.ood_accuracy", "final.ood_test.ood_accuracy.baseline", "final.ood_test") == [
        (0.75, 0.1, 0.0)
    ]
    assert "final.in_distribution.ood_accuracy" not in table.columns
    assert {"final.in_distribution.accuracy", "final.ood_test.ood_accuracy.baseline"} <= set(header(table))
    assert "baseline: the score of" in text_of(table)


def test_of_labels_success_is_accuracy_on_unseen_counts_unless_another_column_is_named(study: Studies) -> None:
    table = study([(recipe(seed=seed), labelled(share)) for seed, share in enumerate((1.0, 0.99, 0.98, 0.5))])
    for more, success in (({}, 0.5), ({"success_column": "final.in_distribution"}, 1.0), ({"threshold": 0.6}, 0.75)):
        row = first_of(group_results(table, ["label"], **more))  # type: ignore[arg-type]
        assert (row["success"], row["success.count"]) == (success, 4)
    assert "runs with final.ood_test.ood_accuracy of at least 99 %" in groups_text(table)


def test_each_run_on_labels_is_judged_by_its_farthest_region_and_no_failure_is_left_out(study: Studies) -> None:
    """Some were evaluated beyond 100 and some not; a scheme of which a run failed does not look as if none had."""
    far = labelled(0.5)
    unseen = {"ood_accuracy": {"value": 1.0, "low": 0.9, "high": 1.0, "baseline": 0.1}}
    far["final"] = {**far["final"], "100+": region(1.0) | {"labels": unseen}}
    runs: Any = [(recipe("far", seed=seed), far) for seed in (0, 1)]
    runs += [(recipe("near", seed=seed), labelled(1.0)) for seed in (0, 1, 2)] + [(recipe("near", seed=3), failed())]
    table = study([*runs, (recipe("sums", seed=0), done(trained=1.0, beyond=0.0))])
    groups = group_results(table, ["label"])
    assert groups["label"].tolist() == ["far", "near", "sums"]
    assert groups["success.of"].tolist() == [
        "final.100+.ood_accuracy",
        "final.ood_test.ood_accuracy",
        "final.in_distribution",
    ]
    assert groups["success"].tolist() == [1.0, 0.75, 1.0]
    assert groups["success.count"].tolist() == [2, 4, 1]
    text = groups_text(table)
    assert "3/4 [30, 95]" in text
    assert "success.of" in text.splitlines()[0]


def test_of_the_best_checkpoint_the_split_it_was_chosen_on_has_no_column(study: Studies) -> None:
    record = labelled(0.75)
    regions = {**record["final"], "ood_validation": record["final"]["ood_test"]}
    table = study([(recipe(), record | {"final": regions, "best": regions})])
    assert "final.ood_validation.ood_accuracy" in table.columns
    assert "best.ood_test.ood_accuracy" in table.columns
    assert not any(name.startswith("best.ood_validation") for name in table.columns)
    assert "which therefore has no column for it" in " ".join(text_of(table).split())


def test_of_a_run_without_a_claim_no_success_is_counted(study: Studies) -> None:
    runs = [(recipe(seed=0), labelled(1.0)), (recipe(seed=1), labelled(1.0, non_causal_reason="it sees the end"))]
    table = study(runs)
    assert plain_values(table["non_causal_reason"]) == [None, "it sees the end"]
    assert "not comparable (non-causal): it sees the end" in text_of(table)
    row = first_of(group_results(table, ["label"]))
    assert (row["success"], row["success.count"]) == (1.0, 1)
    assert "not comparable (non-causal), and no success counted: it sees the end" in groups_text(table)


def test_cells_have_the_measures_of_their_labels(study: Studies) -> None:
    labels = {"accuracy": 0.8, "ood_accuracy": None, "last_label": 0.5, "correct_prefix": 0.75}
    labels |= {"targets_by_position": [2], "correct_by_position": [1]}
    labels |= {"baseline": {"accuracy": 0.6, "last_label": 0.25}}
    line = cell_record({"count": 7}, 1, 2, "ood_test", labels=labels)
    study([(recipe(), done())], cells=lambda number: [line])
    row = first_of(cells_of("widths", study.runs))
    assert (row["cell.count"], row["count"], row["accuracy"], row["accuracy.baseline"]) == (7, 2, 0.8, 0.6)
    assert (row["ood_accuracy"], row["last_label.baseline"], row["correct_prefix"]) == (None, 0.25, 0.75)
