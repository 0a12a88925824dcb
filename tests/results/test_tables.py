"""Promises of tables: no run is missing, numbers are those of the cells, files read back, a terminal is wide enough."""

import csv
import json
import os
import re
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
from numerate.results.rows import cells, differing_settings, series
from numerate.results.runs import group_rows, results_of
from numerate.results.selecting import is_shown, plain_values, select_columns, sort_rows, where
from numerate.results.summary import STATISTICS, summary
from numerate.results.tables import (
    Table,
    render,
    table_of,
    table_of_groups,
    table_of_runs,
    to_latex,
    to_text,
    write_table,
)
from numerate.runs.study_folder import StudyFolder, StudyRun
from results_records import done, failed, recipe, seeds
from run_records import Studies, cell_record

LSTM = {"kind": "LSTM", "layers": 1, "dropout": 0.0}
ROTARY = {"kind": "Rotary", "base": 10000.0}


def rows_of(frame: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    chosen = select_columns(frame, names) if names else frame
    return list(zip(*(plain_values(chosen[name]) for name in chosen.columns), strict=True))


def first_of(frame: DataFrame) -> dict[str, Any]:
    return dict(zip(frame.columns, rows_of(frame)[0], strict=True))


def groups_text(runs: DataFrame, by: str = "label", **more: Any) -> str:
    return " ".join(to_text(table_of_groups(runs, [by], **more), 200).split())


# Runs -----------------------------------------------------------------------------------------------------------------


def test_every_run_of_the_plan_has_a_row_however_it_stands(study: Studies) -> None:
    ends = [done(), failed(), None, failed("died", "its worker died"), {"status": "stopped"}]
    table = study([(recipe(seed=seed), end) for seed, end in enumerate(ends)])
    assert rows_of(table, "seed", "status", "failure", "error", "final.ood_test") == [
        (0, "done", None, None, 0.5),
        (1, "failed", "error", "ValueError: it broke", None),
        (2, "left", None, None, None),
        (3, "failed", "died", "its worker died", None),
        (4, "left", None, None, None),
    ]


def test_a_result_counts_only_for_the_very_recipe_and_while_the_folder_of_the_run_is_there(study: Studies) -> None:
    study([(recipe(seed=seed), done()) for seed in range(3)])
    folder = StudyFolder.from_title("widths", study.runs)
    plan = zip(folder.read().plan(), ("key0", "another key", "key2"), strict=True)
    folder.update([StudyRun.of(one.run, key, recipe(seed=one.seed)) for one, key in plan])
    (study.runs / folder.read().plan()[2].run / "recipe.yaml").unlink()
    assert results_of("widths", study.runs)["status"].tolist() == ["done", "left", "failed"]


def test_scores_are_those_of_the_cells_at_both_checkpoints_nearest_to_training_first(study: Studies) -> None:
    far = cell_record({"digits": 100}, 1, 10, "100+")
    table = study([(recipe(), done(trained=0.75)), (recipe(seed=1), done(cells=[*done()["cells"], far]))])
    assert [name for name in table if name.startswith(("final.", "best.")) and name.count(".") == 1] == [
        *("final.in_distribution", "final.ood_test", "final.100+", "best.in_distribution", "best.ood_test"),
    ]
    first = first_of(table)
    assert (first["final.in_distribution"], first["best.in_distribution"], first["final.100+"]) == (0.75, 0.1875, None)
    assert (first["final.ood_test.low"], first["final.ood_test.high"]) == wilson_interval(2000, 4000)
    assert (first["step"], first["flops"], first["best_step"], first["seconds"]) == (100, 1.5e12, 75, 2.5)
    assert plain_values(study([(recipe("nan"), done(loss=float("nan")))], title="nan")["loss"]) == [None]


def test_a_study_is_found_by_title_path_or_itself(study: Studies, monkeypatch: pytest.MonkeyPatch) -> None:
    from numerate.recipes.studies import quickstart

    study([(recipe(), done())], title="quickstart")
    assert len(results_of(quickstart(), study.runs)) == len(results_of(study.runs / "quickstart")) == 1
    monkeypatch.setenv("NUMERATE_RUNS", str(study.runs))
    assert len(results_of("quickstart")) == 1
    with pytest.raises(UserError, match="Did you mean 'quickstart'"):
        results_of("quikstart")


def test_a_setting_in_which_runs_differ_is_a_column_and_others_are_none(study: Studies) -> None:
    attention = recipe()["model"]["mixer"]
    mixers = [attention, attention | {"num_heads": 8}, LSTM, LSTM | {"dropout": 0.1}]
    table = study([(recipe(mixer=mixer, threads=i, paper=str(i)), done()) for i, mixer in enumerate(mixers)])
    assert rows_of(table, "model.mixer") == [
        ("Attention(num_heads=4)",), ("Attention(num_heads=8)",), ("LSTM(dropout=0.0)",), ("LSTM(dropout=0.1)",),
    ]  # fmt: skip
    names = "run label variant seed model.mixer"
    assert list(table.columns[: table.columns.get_loc("status")]) == names.split()
    positions = [recipe()["model"]["positions"], [], [*recipe()["model"]["positions"], ROTARY]]
    lists = study([(recipe("b", positions=one), done()) for one in positions], title="lists")
    assert lists["model.positions"].tolist() == ["[Learned]", "[]", "[Learned, Rotary]"]
    columns = ([1, 2], [1, None], [2**63], [1, True], [None], [1, 0.5], [True, None])
    assert [str(series(values).dtype) for values in columns] == [
        "int64", "Int64", "float64", "str", "str", "float64", "boolean",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "columns"),
    [
        (([0.9, 0.95], [0.9, 0.99]), {"x.1": [0.95, 0.99]}),
        ((ROTARY, None), {"x": ["Rotary", None]}),
        (([{"kind": "LSTM"}], [ROTARY]), {"x.0": ["LSTM", "Rotary"]}),
        (([ROTARY], []), {"x": ["[Rotary]", "[]"]}),
        ((ROTARY, ROTARY | {"base": 500.0}), {"x.base": [10000.0, 500.0]}),
    ],
)
def test_a_difference_of_any_kind_has_one_column(values: tuple[Any, Any], columns: dict[str, list[Any]]) -> None:
    assert differing_settings([{"kind": "Recipe", "x": value} for value in values]) == columns


# Choosing -------------------------------------------------------------------------------------------------------------


def test_columns_are_named_by_their_ends_or_by_what_they_begin_with(study: Studies) -> None:
    table = study([(recipe(hidden_size=width), done()) for width in (64, 128)])
    chosen = select_columns(table, ["hidden_size", "final", "ood-validation-exact-match", "hidden_size"])
    assert chosen.columns.tolist() == [
        *("model.hidden_size", "final.in_distribution", "final.ood_test", "ood_validation_exact_match"),
    ]
    with pytest.raises(UserError, match=r"'ood_test' may be final\.ood_test or best\.ood_test"):
        select_columns(table, ["ood_test"])
    with pytest.raises(UserError, match=re.escape("columns: no column 'hiden_size'. Did you mean 'hidden_size'?")):
        select_columns(table, ["hiden_size"])


def test_rows_are_kept_by_values_that_they_have_or_have_not(study: Studies) -> None:
    table = study([*seeds(0.1, 0.2, hidden_size=64), (recipe(seed=0, hidden_size=128), done(beyond=None))])
    assert rows_of(where(table, "label=abacus", "hidden_size=64.0"), "seed") == [(0,), (1,)]
    assert rows_of(where(table, "hidden_size!=128", "seed!=0"), "hidden_size", "seed") == [(64, 1)]
    assert rows_of(where(table, "final.ood_test!=null"), "seed") == [(0,), (1,)]
    assert where(table, "status=failed").empty
    for condition, message in {
        "status=fialed": "no row has status=fialed. There are: done.",
        "hidden_size=65": "no row has model.hidden_size=65. There are: 64 and 128.",
        "label!=Abacus": "no row has label=Abacus. Did you mean 'abacus'",
        "hidden_size": "'hidden_size' must be a condition",
    }.items():
        with pytest.raises(UserError, match=re.escape(message)):
            where(table, condition)


def test_sorting_puts_what_is_missing_last_in_both_directions(study: Studies) -> None:
    table = study([(recipe(seed=0), None), *[(recipe(seed=seed), done(beyond=1 / seed)) for seed in (1, 2, 4)]])
    assert sort_rows(table, "final.ood_test")["seed"].tolist() == [4, 2, 1, 0]
    assert sort_rows(table, "-final.ood_test")["seed"].tolist() == [1, 2, 4, 0]


# As people see it -----------------------------------------------------------------------------------------------------


def test_shares_are_per_cent_for_people_and_never_round_an_error_away() -> None:
    metrics = ["final.ood_test", "final.ood_test.mae", "final.ood_test.mae (mean of modules)", "final.ood_test.mae.low"]
    assert [name for name in metrics if is_shown(name, ["status", *metrics])] == metrics[:2]
    table = table_of(DataFrame({"final.ood_test": [0.99996, 1.0, 0.25], "loss": [0.125, None, 12345.6]}))
    assert table.texts.to_numpy().tolist() == [["99.996", "0.125"], ["100", ""], ["25", "12,346"]]
    assert render(table, "markdown").splitlines()[:3] == [
        "| final.ood_test, % | loss |",
        "| ---: | ---: |",
        "| 99.996 | 0.125 |",
    ]


@pytest.mark.parametrize(("width", "blocks"), [(200, 1), (80, 1), (40, 2)])
def test_a_table_fits_a_terminal_and_no_column_is_lost(width: int, blocks: int, study: Studies) -> None:
    """Two runs are turned at 40 columns; twenty, of which no more fit beside each other, are stacked."""
    few = study([(recipe(hidden_size=64, seed=seed), done()) for seed in range(2)])
    many = study([(recipe(hidden_size=64, seed=seed), done()) for seed in range(20)], title="many")
    for table in (table_of_runs(few), table_of_runs(many)):
        lines = to_text(table, width).splitlines()
        assert max(map(len, lines)) <= width
        assert all(name in " ".join(lines) for name in ("seed", "final.ood_test, %", "final.in_distribution, %"))
    assert sum(line.startswith("seed") for line in to_text(table_of_runs(many), width).splitlines()) == blocks
    assert "... and 10 more rows" in to_text(table_of_runs(many), width, max_rows=10)


def test_a_table_says_which_runs_are_missing_and_control_letters_do_not_reach_the_terminal(study: Studies) -> None:
    table = study([(recipe(), failed(error="one\x1b[31m\ntwo")), (recipe(seed=1), done()), (recipe(seed=2), None)])
    text = to_text(table_of_runs(table)) + to_text(table_of(table[["error"]]))
    assert "3 runs: 1 done, 1 failed, 1 left" in text
    assert "\x1b" not in text


# Groups ---------------------------------------------------------------------------------------------------------------


def test_success_is_the_share_of_ended_runs_that_learned_what_they_were_trained_on(study: Studies) -> None:
    """A run that failed did not succeed; one that has not begun does not count."""
    runs = [(recipe(seed=seed), done(trained=share)) for seed, share in enumerate((1.0, 0.99, 0.98, 0.5))]
    table = study([*runs, (recipe(seed=4), failed()), (recipe(seed=5), None)])
    row = first_of(group_rows(table, ["label"]))
    assert [row[name] for name in ("done", "failed", "left", "success", "success.seeds")] == [4, 1, 1, 0.4, 5]
    assert (row["success.low"], row["success.high"]) == wilson_interval(2, 5)
    assert "40 [11.8, 76.9]" in groups_text(table)
    assert "at least 60 %" in groups_text(table, threshold=0.6)


@pytest.mark.parametrize(("statistic", "value"), [("median", 0.3), ("mean", 0.4), ("iqm", 0.33)])
def test_groups_have_a_statistic_with_the_extremes_or_its_interval(
    statistic: str, value: float, study: Studies
) -> None:
    values = [0.1, 0.2, 0.3, 0.5, 0.9]
    table = study([*seeds(*values), (recipe(seed=5), failed()), (recipe(seed=6), None)])
    row = first_of(group_rows(table, ["label"], statistic=statistic))
    middle, low, high, count = (row[f"final.ood_test{end}"] for end in ("", ".low", ".high", ".seeds"))
    assert (count, middle) == (5, pytest.approx(value))
    seeds_alone = {"median": (0.1, 0.9)}.get(statistic) or stratified_bootstrap_interval(
        [values], "report", statistic=STATISTICS[statistic]
    )
    assert (low, high) == seeds_alone
    found = summary(cells("widths", study.runs), statistic=statistic, bootstrap=statistic != "median")
    assert found.loc[found["region"] == "ood_test", ["value", "low", "high"]].to_numpy().tolist() == [
        [middle, low, high]
    ]
    fewer = groups_text(table[table["seed"] < 4], columns=["final.ood_test"], statistic=statistic)
    assert ("fewer than 5" in fewer) == (statistic != "median")
    assert "[10, 50]" in fewer


def test_seeds_are_drawn_within_each_setting_and_what_is_taken_together_is_reported(study: Studies) -> None:
    table = study([*seeds(0.1, 0.1, 0.1, hidden_size=64), *seeds(0.9, 0.9, 0.9, hidden_size=128)])
    row = first_of(group_rows(table, ["step"], columns=["final.ood_test"], statistic="mean"))
    assert [row[f"final.ood_test{end}"] for end in ("", ".low", ".high")] == pytest.approx([0.5, 0.5, 0.5])
    assert "differ in model.hidden_size are grouped together" in groups_text(table, "step")
    assert "grouped together" not in groups_text(table, "hidden_size")
    by_label = group_rows(table, ["label"], columns=["final.ood_test"])
    assert rows_of(by_label, "label", "hidden_size", "done") == [("abacus", 64, 3), ("abacus", 128, 3)]


def test_of_labels_runs_are_judged_by_the_farthest_region_that_all_have(study: Studies) -> None:
    def labelled(right: int, *regions: str) -> dict[str, Any]:
        labels = {"max_training_labels": 1, "targets_by_position": [4, 4], "correct_by_position": [4, right]}
        labels |= {"metrics": {"accuracy": 0.5, "ood_accuracy": 0.5}, "baseline": {"ood_accuracy": 0.0}}
        labels |= {"last_label": 1, "correct_prefix": 1.0, "target_counts": {}}
        return done(cells=[cell_record({"count": i}, 0, 4, region, labels=labels) for i, region in enumerate(regions)])

    near = [(recipe("near", seed=seed), labelled(4, "in_distribution", "ood_test")) for seed in (0, 1)]
    far = (recipe("far"), labelled(2, "in_distribution", "ood_test", "100+"))
    table = study([*near, (recipe("near", seed=2), failed()), far])
    groups = group_rows(table, ["label"])
    assert rows_of(groups, "label", "success") == [("near", pytest.approx(2 / 3)), ("far", 0.0)]
    assert "success: runs with final.ood_test.ood_accuracy of" in groups_text(table)
    of_cells = group_rows(cells("widths", study.runs), ["label", "region"])
    assert rows_of(of_cells, "label", "region", "ood_accuracy")[-1] == ("far", "100+", 0.5)
    assert not any(name.endswith("baseline") for name in of_cells)


@pytest.mark.parametrize(
    ("by", "words", "message"),
    [
        (["label"], {"columns": ["worker"]}, "columns: worker must be a column of numbers"),
        (["label"], {"statistic": "medain"}, "Did you mean 'median'"),
        (["label"], {"threshold": 99.0}, r"threshold: must be above 0 and at most 1, .*, not 99\.0"),
        (["label"], {"success": "step"}, r"success: must be a column of proportions, .*, not step"),
        (["lable"], {}, "group: no column 'lable'"),
    ],
)
def test_groups_refuse_what_they_cannot_do(by: list[str], words: Any, message: str, study: Studies) -> None:
    with pytest.raises(UserError, match=message):
        group_rows(study([(recipe(), done())]), by, **words)


def test_the_cells_of_a_run_are_taken_together_before_its_group(study: Studies) -> None:
    study(seeds(0.1, 0.2, 0.3))
    frame = cells("widths", study.runs)
    by_cell = group_rows(frame, ["checkpoint", "digits"])
    assert rows_of(by_cell, "checkpoint", "digits", "runs", "exact_match")[-1] == ("final", 6, 3, 0.2)
    whole = first_of(group_rows(frame, ["label"], columns=["exact_match"]))
    assert (whole["exact_match"], whole["exact_match.seeds"]) == (0.6, 3), "at the last checkpoint"
    with pytest.raises(UserError, match="metric: there is no 'step'"):
        group_rows(frame, ["label"], columns=["step"])


# Files ----------------------------------------------------------------------------------------------------------------


def mixed(study: Studies) -> DataFrame:
    """A table with every type, something missing in each, and texts that are hard to write."""
    hard = 'a "quote", a comma\nand ünïcode'
    return study([(recipe(hidden_size=64), done()), (recipe(hidden_size=128, mixer=LSTM), failed(error=hard))])


def test_files_read_back_as_they_were(study: Studies, tmp_path: Path) -> None:
    table = mixed(study)
    path = write_table(table, tmp_path / "deep" / "results.csv")
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows == [
        list(table.columns),
        *([*map(str, ("" if one is None else one for one in row))] for row in rows_of(table)),
    ]
    assert read_csv(path)["model.hidden_size"].dtype.kind == "i"
    lines = write_table(table, tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [
        dict(zip(table.columns, row, strict=True)) for row in rows_of(table)
    ]
    pytest.importorskip("pyarrow", reason="pyarrow is an extra")
    assert read_parquet(write_table(table, tmp_path / "results.parquet")).equals(table)


def test_the_suffix_says_the_format_and_a_format_may_be_given(study: Studies, tmp_path: Path) -> None:
    table = select_columns(study([(recipe(), done())]), ["label", "final.ood_test"])
    assert write_table(table, tmp_path / "a.md").read_text().startswith("| label | final.ood_test, % |\n")
    assert write_table(table, tmp_path / "a.txt").read_text().startswith("label   final.ood_test, %\n")
    assert r"abacus & 50 \\" in write_table(table, tmp_path / "a.tex").read_text()
    assert write_table(table, tmp_path / "a.dat", "csv").read_text() == "label,final.ood_test\nabacus,0.5\n"
    with pytest.raises(UserError, match=r"a\.dat must be one of .*\.csv"):
        write_table(table, tmp_path / "a.dat")
    run = study.runs / "abacus/000000000000"
    for path in (study.runs / "widths/study.json", run / "end.json", run / "recipe.yaml"):
        with pytest.raises(UserError, match="is a file of a run or study and must not be replaced"):
            write_table(table, path, "csv")


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


def test_latex_reads_no_letter_of_a_table_as_its_own_and_ties_are_bold_together() -> None:
    texts = DataFrame(
        {"model_width": ["50 % & {#1} $x^2~ \\a <b>", "[10, 20]", "* 2"], "final.ood_test, %": ["93", "90", "70"]}
    )
    intervals = {"final.ood_test, %": [(0.93, 0.88, 0.97), (0.9, 0.85, 0.92), (0.7, 0.6, 0.8)]}
    lines = to_latex(Table(texts, intervals, ["% of all; group=a splits them", "where=b", "Seeds: 0."])).splitlines()
    rows = [line.removesuffix(r" \\") for line in lines if line.endswith(r"\\")]
    assert rows == [
        r"model width & OOD test (final), \%",
        r"50 \% \& \{\#1\} \$x\textasciicircum{}2\textasciitilde{} \textbackslash{}a \textless{}b\textgreater{} "
        r"& \textbf{93}",
        r"{[}10, 20] & \textbf{90}",
        r"{*} 2 & 70",
    ]
    assert r"\caption{\% of all. Seeds: 0.}" in lines, "hints of options are for the terminal"
    assert r"\toprule" in lines


# On the command line --------------------------------------------------------------------------------------------------

Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture
def results(study: Studies, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    """results("group=label"): `numerate results widths group=label` on a small study, as exit status and output."""
    monkeypatch.setenv("COLUMNS", "160")  # what a table shows depends on it
    runs = [*seeds(0.1, 0.2, 0.3, hidden_size=64), *seeds(0.5, 0.7, hidden_size=128)]
    study([*runs, (recipe(seed=5, hidden_size=128), failed())])

    def run(*words: str, address: str = "widths") -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(["results", address, f"runs_dir={study.runs}", *words])
        return status, *capsys.readouterr()

    return run


def test_the_command_shows_the_table_its_groups_and_what_failed(results: Shell) -> None:
    status, out, err = results()
    assert (status, err) == (0, "")
    head = " ".join(out.split("\n")[0].split())
    assert head == "seed model.hidden_size status final.in_distribution, % final.ood_test, %"
    assert "6 runs: 5 done, 1 failed" in out
    _, out, _ = results("where=status=failed", "columns=label,seed,failure,error")
    assert out.splitlines()[2].split(maxsplit=3) == ["abacus", "5", "error", "ValueError: it broke"]
    _, out, _ = results("group=hidden_size", "columns=final.ood_test")
    assert [" ".join(line.split()) for line in out.splitlines()[2:4]] == [
        "64 3 0 100 [43.9, 100] 20 [10, 30]",
        "128 2 1 66.7 [20.8, 93.9] 60 [50, 70]",
    ]


def test_columns_rows_order_cells_and_files_are_chosen_by_words(results: Shell, tmp_path: Path) -> None:
    words = ("columns=hidden_size,seed,final.ood_test", "where=hidden_size=128,status=done", "sort=-seed", "format=csv")
    assert results(*words)[1] == "model.hidden_size,seed,final.ood_test\n128,1,0.7\n128,0,0.5\n"
    chosen = ("where=seed=0,hidden_size=128,checkpoint=final", "columns=digits,exact_match", "format=csv")
    assert results("cells=true", *chosen)[1] == "digits,exact_match\n3,1.0\n6,0.5\n"
    status, out, _ = results(f"out={tmp_path / 'a.csv'}")
    assert (status, out) == (0, f"{tmp_path / 'a.csv'}: 6 rows, 31 columns\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("colums=label",), "Did you mean 'columns'"),
        (("out=a.xls",), "out: the suffix of a.xls must be one of"),
        (("format=parquet",), "out=results.parquet"),
        (("statistic=iqm",), "group=label statistic=iqm"),
        (("group=label", "threshold=two"), "threshold: must be a number, not 'two'"),
    ],
)
def test_a_user_error_is_one_line_and_nothing_is_written(
    words: tuple[str, ...], message: str, results: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    status, out, err = results(*words)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert message in err
    assert sorted(tmp_path.rglob("*")) == before


def test_commands_import_no_library_that_they_do_not_need(study: Studies) -> None:
    study(seeds(0.1, 0.2))
    code = (
        "import sys; from numerate.cli import main\n"
        "for words in (['results', 'widths'], ['results', 'widths', 'group=label', 'statistic=iqm']):\n"
        "    print(main(words), {*sys.modules} & {'torch', 'scipy', 'matplotlib'})"
    )
    environment = {**os.environ, "NUMERATE_RUNS": str(study.runs)}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert ended.stdout.count("\n0 set()") == 2, ended.stdout + ended.stderr
