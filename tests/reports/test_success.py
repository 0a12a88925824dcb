"""The table of a study: who converged, how many of those go how far, and what is not held against whom."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from numerate.errors import UserError
from numerate.evaluation.statistics import wilson_interval
from numerate.reports.compare import comparison_text, write_comparison
from numerate.reports.figure import heat_maps
from numerate.reports.groups import group_runs
from numerate.reports.page import write_run_report
from numerate.reports.plots import FIGURES, write_plot
from numerate.reports.records import read_run
from numerate.reports.success import success_content, success_table, table_lengths
from run_records import cell_record, write_run

Share = Callable[[int], float]


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """make("abacus", share by length, seed, best=share): trained on 1 to 6 digits, evaluated on 1 to 18."""

    def made(
        kind: str, share: Share, seed: int = 0, best: Share | None = None, axes: Any = None, longest: int = 18
    ) -> Path:
        folder = tmp_path / "runs" / kind / f"{kind}{seed}"
        recipe = {"kind": "Recipe", "task": {"kind": "Task"}, "model": {"kind": kind}, "seed": seed}
        metrics = [{"step": 100, "loss": 0.1}]
        metrics.append({"step": 100, "split": "validation", "exact_match": 0.9, "low": 0.8, "high": 1.0})
        cells = []
        for checkpoint, found in (("final", share), ("best", best)):
            for n in range(1, longest + 1) if found else ():
                correct, cell = round(100 * found(n)), dict.fromkeys(axes or ("first_digits", "second_digits"), n)  # type: ignore[misc]
                region = "in_distribution" if n <= 6 else "ood_validation" if n == 7 else "ood_test"
                more = {"seed": seed, "checkpoint": checkpoint, "step": 100 if checkpoint == "final" else 60}
                more |= {"overlaps_training": n == 1, "first_token_correct": min(100, correct + 10)}
                cells.append(cell_record(cell, correct, 100, region, **more))
        return write_run(folder, recipe, cells, metrics=metrics)

    return made


@pytest.fixture
def study(make: Callable[..., Path]) -> list[Path]:
    """Abacus goes to 9 + seed, best farther; rotary stays; one looped seed and all of NoPE do not converge."""
    folders = []
    for seed in range(3):
        folders.append(make("abacus", lambda n, s=seed: n <= 9 + s, seed, best=lambda n, s=seed: n <= 11 + s))
        folders.append(make("rotary", lambda n: n <= 6, seed))
        folders.append(make("looped", lambda n, s=seed: 1.0 if s else 0.7, seed))
        folders.append(make("nope", lambda n: 0.4, seed))
    return folders


def test_the_table_counts_converged_seeds_and_among_those_the_successes(study: list[Path]) -> None:
    found = success_table(group_runs([read_run(folder) for folder in study]))
    lengths = ["n=6 (in distribution)", *(f"n={n}" for n in (7, 8, 9, 12, 15, 18))]
    assert found.header == ["group", "checkpoint", "converged", *lengths]
    table = {(row[0], row[1]): row[2:] for row in found.rows}
    assert list(table) == [(s, c) for s, c in (("abacus", "final"), ("abacus", "best"))] + [
        (scheme, "final") for scheme in ("rotary", "looped", "nope")
    ]
    assert table["abacus", "final"][0] == "3/3 [44, 100]"
    assert table["abacus", "final"][4] == "3/3 [44, 100]\n100 %"
    assert table["abacus", "best"][5] == "2/3 [21, 94]\n100 %"
    assert table["rotary", "final"][1:3] == ["3/3 [44, 100]\n100 %", "0/3 [0, 56]\n0 %"]


def test_what_did_not_converge_is_listed_and_no_failure(study: list[Path]) -> None:
    groups = group_runs([read_run(folder) for folder in study])
    rows = {row[0]: row for row in success_table(groups).rows}
    assert rows["looped"][2:4] == ["2/3 [21, 94]\nseed 0: 70 %", "2/2 [34, 100]\n100 %"]
    failed = "seed 0: 40 %, seed 1: 40 % and seed 2: 40 %"
    assert rows["nope"][2:5] == [f"0/3 [0, 56]\n{failed}", "did not converge", ""]


def test_a_table_of_lengths_has_powers_of_ten_times_the_trained_length(tmp_path: Path) -> None:
    cells = [
        cell_record({"length": n}, 20, 20, "in_distribution" if n < 11 else "100+")
        for n in (1, 10, 20, 50, 100, 500, 1000, 5000, 20_000)
    ]
    found = group_runs([read_run(write_run(tmp_path / "a", {"title": "a"}, cells))])
    assert table_lengths(found) == [10, 20, 100, 1000, 20_000]
    assert success_table(found).header[-1] == "n=20,000"


def test_the_page_and_the_terminal_have_the_table(study: list[Path], tmp_path: Path) -> None:
    page = write_comparison(study, tmp_path / "page.html").read_text()
    assert "Converged seeds by length" in page
    assert "seed 0: 40 %, seed 1: 40 % and seed 2: 40 %" in page
    assert "did not converge" in comparison_text(group_runs([read_run(folder) for folder in study]))
    assert success_content(group_runs([read_run(folder) for folder in study[:2]])) == [], "none of one seed each"


def test_equal_lengths_make_a_strip_and_not_a_map_of_holes(study: list[Path]) -> None:
    (grid,) = heat_maps(group_runs([read_run(study[0])])[0].points)
    assert (grid.row_axis, grid.column_axis, len(grid.columns)) == ("", "digits of each number", 18)


@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        *((kind, "svg") for kind in FIGURES if kind not in ("counts", "validation")),
        ("curves", "png"),
        ("compare", "pdf"),
    ],
)
def test_every_kind_of_figure_is_drawn_twice_the_same(
    kind: str, ending: str, study: list[Path], tmp_path: Path
) -> None:
    first = write_plot(kind, study, tmp_path / f"one.{ending}").read_bytes()
    assert len(first) > 1000
    assert write_plot(kind, study, tmp_path / f"two.{ending}").read_bytes() == first


def test_a_figure_states_its_seeds_and_takes_labels(study: list[Path], tmp_path: Path) -> None:
    names = ["Abacus", "rotary", "looped", "none"]
    text = write_plot("curves", study, tmp_path / "a.svg", labels=names).read_text()
    for words in (">Abacus (3 seeds)<", ">looped (2 of 3 seeds)<", "none (0 of 3)", "digits of each number"):
        assert words in text
    best = write_plot("curves", study, tmp_path / "b.svg", checkpoint="best").read_text()
    assert "abacus" not in text
    assert "One seed" not in best


def test_sorting_shows_everything_right_beside_the_first_label(make: Callable[..., Path], tmp_path: Path) -> None:
    run = make("sorting", lambda n: 0.5, axes=("digits", "items"))
    first = group_runs([read_run(run)])[0].first_token_points
    assert {point.score for point in first} == {0.6}
    assert (first[0].low, first[0].high) == wilson_interval(60, 100)
    lines = [json.loads(line) for line in (run / "cells.jsonl").read_text().splitlines()]
    square = [line | {"cell": {"digits": n, "items": m}} for line in lines[:1] for n in (1, 2) for m in (1, 2)]
    (run / "cells.jsonl").write_text("".join(json.dumps(line) + "\n" for line in square))
    page = write_run_report(run).read_text()
    assert "First label right, %" in page
    text = write_plot("grid", [run], tmp_path / "grid.svg").read_text()
    assert "First label right, %" in text
    assert ">digits<" in text
    assert ">items<" in text


def test_an_older_record_tells_its_first_tokens_by_where_it_went_wrong(make: Callable[..., Path]) -> None:
    run = make("old", lambda n: 0.5)
    line = json.loads((run / "cells.jsonl").read_text().splitlines()[0])
    del line["first_token_correct"]
    (run / "cells.jsonl").write_text(json.dumps(line | {"first_error_counts": [30, 20]}) + "\n")
    assert [cell.first_token_correct for cell in read_run(run).cells] == [70]
    (run / "cells.jsonl").write_text(json.dumps(line) + "\n")
    assert read_run(run).cells[0].with_first_token() is None


def test_what_cannot_be_drawn_is_refused(study: list[Path], make: Callable[..., Path], tmp_path: Path) -> None:
    for arguments, words in [
        (("gird", study, "a.png"), r"plot: there is no 'gird'; there are: grid, .*Did you mean 'grid'"),
        (("grid", [], "a.png"), r"plot: no runs are named"),
        (("grid", study, "a.jpg"), r"a.jpg: the suffix must be one of png, svg, pdf"),
    ]:
        with pytest.raises(UserError, match=words):
            write_plot(*arguments)
    with pytest.raises(UserError, match=r"labels: 1 for 4 groups; in this order they name: abacus; rotary"):
        write_plot("grid", study, tmp_path / "a.png", labels=["one"])
    blank = make("blank", lambda n: 1.0)
    (blank / "cells.jsonl").write_text("")
    (blank / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="curves needs runs that were evaluated"):
        write_plot("curves", [blank], tmp_path / "a.png")
    with pytest.raises(UserError, match="needs runs with metrics"):
        write_plot("training", [blank], tmp_path / "a.png")


def test_a_run_that_is_named_twice_is_one_seed(make: Callable[..., Path], tmp_path: Path) -> None:
    one, other = make("abacus", lambda n: 1.0), make("abacus", lambda n: 1.0, 1)
    again = one.parent / ".." / one.parent.name / one.name
    text = write_plot("curves", [one, again, one], tmp_path / "a.svg").read_text()
    assert "One seed" in text
    page = write_comparison([one, other, again], tmp_path / "page.html").read_text()
    assert "2 runs, 2 seeds each" in page
    assert "3 seeds" not in page


def test_a_seed_is_no_success_at_a_length_at_which_a_stratum_fails(make_run):
    folders = [make_run("abacus", lambda n: 1.0, seed=seed) for seed in (0, 1)]
    for seed, folder in enumerate(folders):
        cell = {"first_digits": 8, "second_digits": 1}
        with (folder / "cells.jsonl").open("a") as file:
            file.write(json.dumps(cell_record(cell, seed, 1, "ood_test", seed=seed, stratum="nines_plus_one")) + "\n")
    table = success_table(group_runs([read_run(folder) for folder in folders]))
    row = dict(zip(table.header, table.rows[0], strict=True))
    assert (row["n=7"][:3], row["n=8"][:3]) == ("2/2", "1/2")
    assert "in every stratum measured there" in table.caption
