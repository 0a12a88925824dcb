"""What an evaluation found, as tables: every region with its intervals, parts by name, numbers by digits, strata."""

from pathlib import Path
from typing import Any

import pytest

import run_records
from numerate.evaluation.kinds.answers import ExactMatch
from numerate.evaluation.kinds.generated_answers import GeneratedAnswers
from numerate.evaluation.likelihoods import Likelihoods
from numerate.evaluation.number_metrics import NumberScores
from numerate.runs.results import Results
from run_records import write_run


def results(tmp_path: Path, *records: Any, kind: Any = ExactMatch()) -> Results:
    return Results(kind, write_run(tmp_path / "runs" / "sums" / "0123456789ab", {"kind": "Recipe"}, []), records, None)


def cell(sizes: dict[str, int], correct: int, region: str = "in_distribution", **more: Any) -> dict[str, Any]:
    return run_records.cell_record(sizes, correct, 100, region, **more)


def lines(found: Results) -> list[str]:
    return [" ".join(line.split()) for line in found.text().split("\n")]


def test_each_region_is_a_line_with_its_interval_the_nearest_to_training_first_and_the_best_of_several(
    tmp_path: Path,
) -> None:
    regions = ("ood_test", "in_distribution", "ood_validation")
    records = [
        cell({"length": n}, 90, region, checkpoint=name, step=step)
        for name, step in (("best", 4), ("final", 8))
        for n, region in enumerate(regions, 1)
    ]
    shown = lines(results(tmp_path, *records))
    assert [line.partition(" 90 [")[0] for line in shown[2:8]] == [
        f"{begin} {region} 1"
        for begin in ("best 4", "final 8")
        for region in ("in distribution", "OOD validation", "OOD test")
    ]
    assert {line.partition(" 90 [")[2] for line in shown[2:8]} == {"82.6, 94.5]"}


def test_cells_that_may_be_in_training_are_named_and_left_out_unless_a_region_has_no_others(tmp_path: Path) -> None:
    found = results(
        tmp_path,
        cell({"length": 1}, 100, overlaps_training=True),
        cell({"length": 2}, 50),
        cell({"length": 3}, 10, "ood_test", overlaps_training=True),
    )
    assert [line for line in lines(found) if "distribution 1 50 [" in line or "OOD test 1 10 [" in line] == lines(
        found
    )[2:4]
    assert "too few questions to hold any out, so they may occur in training: length 1 and length 3" in lines(found)


def test_position_offsets_are_lines_of_their_own(tmp_path: Path) -> None:
    found = results(tmp_path, *(cell({"length": 1}, 10 * n, position_offset=n) for n in (1, 2)))
    assert [line.split()[2] for line in lines(found)[2:4]] == ["1", "2"]


def test_parts_have_their_names(tmp_path: Path) -> None:
    names = ("sums", "products")
    found = results(tmp_path, *(cell({"module": i}, 50, names={"module": name}) for i, name in enumerate(names)))
    assert [line.split()[2] for line in lines(found) if any(name in line for name in names)] == ["sums", "products"]


def test_numbers_are_also_shown_by_the_digits_of_the_correct_ones_and_others_counted(tmp_path: Path) -> None:
    def numbers(*pairs: tuple[str, str]) -> Any:
        return NumberScores.from_texts(*map(list, zip(*pairs, strict=True))).to_record()

    short, long = [("3", "4"), ("5", "5")], [("100", "110")]
    record = cell({"module": 0}, 2, scores={"ended": 90.0}, numbers=numbers(*short, *long))
    by_digits = {"1": numbers(*short), "3": numbers(*long)}
    shown = lines(results(tmp_path, record | {"numbers_by_digits": by_digits}, kind=GeneratedAnswers()))
    begin = next(i for i, line in enumerate(shown) if "digits of answer" in line)
    assert shown[begin].endswith("digits of answer cells number accuracy, % missing, % mae mape log mae")
    rows = [line.removeprefix("final 100 in distribution ").split()[:3] for line in shown[begin + 2 : begin + 4]]
    assert rows == [["1", "1", "50"], ["3", "1", "0"]]
    assert "Correct answers that are no numbers, and are compared as text: 97" in shown
    assert any(
        line.startswith("number accuracy: correct numbers; ") and "ended: answers that" in line for line in shown
    )
    assert any("ended, %" in line for line in shown)


def test_text_has_its_tokens(tmp_path: Path) -> None:
    one = Likelihoods(nll=2100, tokens=1000, bytes=4000, chunks=3)
    line = cell({"context_length": 16}, 0) | one.record() | {"language": one.sums(), "count": 3}
    del line["correct"]
    assert lines(results(tmp_path, line))[2].startswith("final 100 in distribution 1,000 2.1")


def test_strata_alone_are_a_table(tmp_path: Path) -> None:
    cells = [cell({"first_digits": 9, "second_digits": 1}, 50, "ood_test", stratum="nines_plus_one")]
    shown = lines(results(tmp_path, *cells))
    assert shown[0] == "evaluation questions n = 9"
    assert shown[2].endswith(" 99...9 + 1 50 [40.4, 59.6]")


def test_nothing_of_an_evaluation_without_cells_is_shown(tmp_path: Path) -> None:
    found = results(tmp_path)
    assert (found.text(), len(found.frame)) == ("", 0)


@pytest.mark.parametrize("text", ["<b>", "a & b"])
def test_names_are_escaped_in_notebooks(text: str, tmp_path: Path) -> None:
    found = results(tmp_path, cell({"module": 0}, 1, names={"module": text}))
    assert text not in found._repr_html_()
    assert text in found.text()
