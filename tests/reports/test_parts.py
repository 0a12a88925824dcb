"""Promises of reports of tasks whose cells are parts with names: modules, test sets."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from numerate.cli import main
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.evaluation.evaluator import evaluate_cell
from numerate.evaluation.number_metrics import NumberScores
from numerate.evaluation.statistics import wilson_interval
from numerate.models.decoder import Decoder
from numerate.reports.compare import write_comparison
from numerate.reports.grid import cell_label
from numerate.reports.groups import SAME_CHECKPOINT, group_runs, have_unordered_cells
from numerate.reports.metric_tables import metric_table
from numerate.reports.metrics import MetricKey
from numerate.reports.page import run_page
from numerate.reports.plots import FIGURES, write_plot
from numerate.reports.records import read_run, read_runs
from numerate.reports.summary import headline
from numerate.tasks.arithmetic import Arithmetic
from numerate.text.tasks.generated_mathematics import GeneratedMathematics
from numerate.tokenizers.layout import Continuation
from numerate.tokenizers.tokenizer import Characters
from run_records import cell_record, write_run

NAMES = ("add", "mul_of_two_numbers_and_three_more_of_them", "add_big", "mul_big")
TRAINED = 2

Right = Callable[[int], int]


def part_line(part: int, right: int, *, count: int = 20, off: int = 1, name: str | None = None, **more: Any) -> Any:
    """The record of a part: so many answers right, the others off by so much."""
    truth = [10 * (i + 1) for i in range(count)]
    predictions = [str(number + off * (i >= right)) for i, number in enumerate(truth)]
    own = {"names": {"module": name}} if name else {}
    own |= {"method": "decoding", "numbers": NumberScores.from_texts(predictions, list(map(str, truth))).to_record()}
    region = "in_distribution" if part <= TRAINED else "ood_test"
    return cell_record({"module": part}, right, count, region, **(own | more))


def make(
    folder: Path,
    loss: str,
    right: Right,
    *,
    seed: int = 0,
    width: int = 64,
    off: int = 1,
    names: Sequence[str] | None = NAMES,
    best: tuple[int, Right] | None = None,
) -> Path:
    """A run of one loss: how many of 20 are right of each part, and at the best step of another."""
    model = {"kind": "Decoder", "hidden_size": width}
    recipe = {"kind": "Recipe", "task": {"kind": "GeneratedMathematics"}, "model": model, "seed": seed}
    recipe |= {"objective": {"kind": "Supervised", "loss": {"kind": loss}}}
    cells = [
        part_line(i + 1, found(i + 1), off=off, name=names and names[i], seed=seed, checkpoint=checkpoint, step=step)
        for checkpoint, step, found in (("final", 100, right), ("best", *(best or (100, right))))
        for i in range(len(NAMES))
    ]
    sample = {"cell": {"module": 3}, "question": "1+2?", "correct_answer": "3", "prediction": "3"}
    samples = [sample | {"correct": True, "model_text": "3"}]
    return write_run(folder / f"{loss}_{width}" / f"{loss}{width}{seed}", recipe, cells, samples=samples)


def losses(folder: Path, seeds: int, names: Sequence[str] = ("CrossEntropy", "NumberToken")) -> list[Path]:
    """Runs of losses of which each next is right more often, and off by less where it is wrong."""
    return [
        make(folder, name, lambda part, i=i, s=seed: 4 + 3 * i + s % 3 - part // 3, seed=seed, off=9 - 2 * i)
        for i, name in enumerate(names)
        for seed in range(seeds)
    ]


def test_the_record_of_a_part_has_its_name_and_that_of_a_length_has_none() -> None:
    for task, wanted in ((GeneratedMathematics(), {"names": {"module": "mul_big"}}), (Arithmetic(), {})):
        exam = EvaluationData(task, Characters(), Continuation())
        model = Decoder(hidden_size=16).build(exam.vocabulary, 0)
        cell = {"module": 6} if wanted else {"first_digits": 2, "second_digits": 2}
        record = evaluate_cell(model, exam, cell, count=2)
        assert {name: record[name] for name in ("names",) if name in record} == wanted


def test_a_part_is_called_by_its_name_and_in_old_records_by_its_number(tmp_path: Path) -> None:
    run = read_run(make(tmp_path, "CrossEntropy", lambda part: 5))
    assert {cell_label(cell.coordinates, None, cell.names) for cell in run.cells} == set(NAMES)
    assert run.samples[0]["names"] == {"module": "add_big"}
    old = read_run(make(tmp_path / "old", "CrossEntropy", lambda part: 5, names=None))
    (group,) = group_runs([old])
    assert have_unordered_cells([group])
    page = run_page(old)
    assert "module 3" in page
    assert "<polyline" not in page.split("<h2>Training")[0]


def test_parts_have_no_length_and_no_line_joins_them(tmp_path: Path) -> None:
    folders = losses(tmp_path / "runs", 2)
    groups = group_runs(read_runs(folders))
    assert all(group.has_unordered_cells and not group.diagonal for group in groups)
    page = write_comparison(folders, tmp_path / "a.html").read_text()
    assert "<polyline" not in page
    for word in ("length", "OOD validation", "converged", "n ="):
        assert word not in re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL).replace(
            "All seeds, whether they converged or not", ""
        ), word
    for name in NAMES:
        assert name in page.replace("<wbr>", "")
    assert "in-distribution modules" in page


def test_a_point_is_the_median_of_the_seeds_from_the_lowest_to_the_highest(tmp_path: Path) -> None:
    (one,) = group_runs(read_runs(losses(tmp_path, 3, ("CrossEntropy",))))
    first = MetricKey("in_distribution", (1,))
    assert sorted(one.metric_estimate(first, "exact_match").values) == [0.2, 0.25, 0.3]
    assert one.metric_estimate(first, "exact_match").interval == (0.2, 0.3)
    (alone,) = group_runs([read_run(make(tmp_path / "b", "CrossEntropy", lambda part: 4))])
    assert alone.metric_estimate(first, "exact_match").interval == pytest.approx(wilson_interval(4, 20))
    low, high = alone.metric_estimate(first, "log_mae").interval or (0.0, 0.0)
    assert 0 < low < alone.metric_estimate(first, "log_mae").values[0] < high
    assert alone.metric_estimate(first, "r2").interval is None


def test_regions_have_pooled_metrics_and_the_mean_of_their_parts(tmp_path: Path) -> None:
    run = make(tmp_path, "CrossEntropy", lambda part: 4 * part)
    file = run / "cells.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines = [part_line(1, 9, count=10, name="add")] + [line for line in lines if line["cell"] != {"module": 1}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (one,) = group_runs([read_run(run)])
    trained = MetricKey("in_distribution")
    assert list(one.metric_estimate(trained, "exact_match").values) == [pytest.approx((9 + 8) / 30)]
    assert list(one.metric_estimate(trained, "exact_match (mean of modules)").values) == [
        pytest.approx(fmean([9 / 10, 8 / 20]))
    ]
    assert list(one.metric_estimate(trained, "mae").values) == [pytest.approx((1 + 12) / 30)]
    assert list(one.metric_estimate(trained, "mae (mean of modules)").values) == [
        pytest.approx(fmean([1 / 10, 12 / 20]))
    ]


def test_final_and_best_are_both_shown_and_once_where_they_are_the_same(tmp_path: Path) -> None:
    same = group_runs([read_run(make(tmp_path, "CrossEntropy", lambda part: 5))])
    assert [one.checkpoint_label for group in same for one in group.at_checkpoints] == [SAME_CHECKPOINT]
    apart = group_runs([read_run(make(tmp_path, "NumberToken", lambda part: 5, best=(40, lambda part: 15)))])
    found = {
        one.checkpoint_label: list(one.metric_estimate(MetricKey("ood_test"), "exact_match").values)
        for one in apart[0].at_checkpoints
    }
    assert found == {"final": [0.25], "best": [0.75]}
    page = run_page(apart[0].runs[0])
    assert "exact match, %, best" in page
    assert "exact match, %, final" in page
    assert "exact match, %, best" not in run_page(same[0].runs[0])


def test_losses_are_tested_by_numbers_without_asking(tmp_path: Path) -> None:
    page = write_comparison(losses(tmp_path / "runs", 6), tmp_path / "a.html").read_text()
    section = page.split("<h2>Significant differences</h2>")[1].split("<h2>")[0]
    assert "Means of log_mae." in section
    assert "Means of exact_match." in section
    assert "sign-flip test, seed by seed" in section


def test_the_finding_names_the_parts_and_both_measures(tmp_path: Path) -> None:
    text = headline(group_runs(read_runs(losses(tmp_path, 2))))
    assert text.startswith("Exact match on the in-distribution modules (add, mul_of")
    assert "; on the OOD test modules (add_big, mul_big) is CrossEntropy_64 " in text
    assert text.endswith("Means over the modules; medians of 2 seeds each (brackets: range over seeds).")
    many = headline(
        group_runs(
            read_runs([make(tmp_path / "b", name, lambda part, i=i: 4 + i) for i, name in enumerate("ABCDEFGHIJK")])
        )
    )
    assert "is highest, of 11, with K_64" in many
    assert "is partly the best by chance" in many


@pytest.mark.parametrize("kind", sorted(set(FIGURES) - {"counts", "training", "validation"}))
def test_every_figure_of_parts_can_be_drawn(kind: str, tmp_path: Path) -> None:
    for seeds in (1, 2):
        folders = losses(tmp_path / f"{seeds}", seeds)
        assert "in-distribution modules" in write_plot(kind, folders, tmp_path / f"{kind}.svg").read_text()


def test_a_terminal_has_parts_by_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = losses(tmp_path / "runs", 2)
    groups = group_runs(read_runs(folders))
    table = metric_table(groups, "exact_match", groups)
    assert table.header == ["module", "region", "CrossEntropy_64", "NumberToken_64"]
    assert [row[0] for row in table.rows] == [*NAMES[:2], "all", "mean", *NAMES[2:], "all", "mean"]
    assert main(["compare", *map(str, folders)]) == 0
    assert "mul_big" in capsys.readouterr().out
