"""Promises of the pages of language-modeling runs, from records written by hand."""

from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from numerate.errors import UserError
from numerate.reports.compare import comparison_text
from numerate.reports.groups import group_runs
from numerate.reports.language import welch_difference
from numerate.reports.page import comparison_page, run_page
from numerate.reports.plots import write_plot
from numerate.reports.records import Records, read_runs
from numerate.reports.training import metric_curve
from numerate.training import disk
from run_records import write_run

Make = Callable[..., Path]


def cell_of(step: int, checkpoint: str, loss: float) -> dict[str, Any]:
    """The record of an evaluated text."""
    sums = {"nll": 160 * loss, "tokens": 160, "bytes": 640, "correct_tokens": 9, "chunks": 10}
    place = {"cell": {"context_length": 16, "chunk": 0}, "count": 10, "region": "in_distribution"}
    place |= {"overlaps_training": False, "method": "one pass", "position_offset": 0}
    return place | {"checkpoint": checkpoint, "step": step, "loss": loss, "language": sums}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes a run: its title, its budget, its seed, its losses by checkpoint; what is logged of its speed."""

    def write(
        title: str, steps: int, seed: int, losses: dict[str, float], timings: dict[str, Any] | None = None
    ) -> Path:
        folder = tmp_path / "runs" / title / f"{seed:012x}"
        task = {"kind": "LanguageModeling", "context_length": 16}
        recipe = {"kind": "Recipe", "task": task, "training": {"steps": steps}, "seed": seed, "title": title}
        metrics = [
            {"step": steps, "loss": 2.0, "tokens": 16 * steps, "flops": 2_660_000_000},
            {"step": steps, "split": "validation", "loss": 2.0, "perplexity": 7.39},
        ]
        cells = [cell_of(steps, name, loss) for name, loss in losses.items()]
        return write_run(
            folder,
            recipe,
            cells,
            metrics=metrics,
            samples=[{"step": steps, "prompt": "", "text": " a cat"}],
            timings=[] if timings is None else [{"step": steps, **timings}],
            **{"seed": seed, "variant": "aaaaaaaaaaaa", "label": title},
        )

    return write


QUICK = {
    "tokens_per_second": 12345,
    "flops_utilization": 0.312,
    "peak": {"flops_per_second": 1e11, "precision": "fp32"},
    "peak_memory_bytes": 454_328_320,
}


def test_one_experiment_with_two_budgets_under_two_titles_is_two_groups(make: Make) -> None:
    folders = [make("equal_width", 100, seed, {"final": 2.0 + seed / 100}) for seed in (0, 1)]
    folders += [make("equal_time", 170, seed, {"final": 1.5 + seed / 100}) for seed in (0, 1)]
    groups = group_runs(read_runs(folders), {"equal_width": "equal width", "equal_time": "equal time"})
    assert [(group.label, len(group.runs)) for group in groups] == [("equal width", 2), ("equal time", 2)]
    assert len(group_runs(read_runs(folders))) == 2
    page = comparison_page(groups)
    assert "It is lowest, before equal width, by 0.5000 nats per token" in page
    assert "training.steps" in page


def test_two_labels_of_a_study_are_two_groups_even_where_no_seed_is_twice(make: Make) -> None:
    folders = [make("equal_width", 100, 0, {"final": 2.0}), make("equal_time", 100, 1, {"final": 1.5})]
    runs = read_runs(folders)
    assert len(group_runs(runs)) == 1
    assert [group.label for group in group_runs(runs, {"equal_width": "a", "equal_time": "b"})] == ["a", "b"]


def test_a_final_checkpoint_that_is_the_best_is_shown_once(make: Make) -> None:
    one = make("one", 100, 0, {"final": 2.0, "best": 2.0}, QUICK)
    assert "final, best" in comparison_text(group_runs(read_runs([one])))
    other = make("two", 100, 0, {"final": 2.0, "best": 1.9}, QUICK)
    assert "final, best" not in comparison_text(group_runs(read_runs([other])))


def test_speed_share_of_the_limit_and_memory_of_a_run_and_of_several(make: Make) -> None:
    one, other = make("one", 100, 0, {"final": 2.0}, QUICK), make("two", 100, 0, {"final": 1.9})
    (run,) = read_runs([one])
    body = run_page(run).replace("\N{NO-BREAK SPACE}", " ")
    text = comparison_text(group_runs(read_runs([one, other])))
    for words in ("FLOPs utilization", "31 %", "peak memory", "454.3 MB", "12,345"):
        assert words in body
        assert words in text
    assert "2.66 gigaFLOP" in text
    assert "float32, as its maker states" in " ".join(text.split())


def test_a_column_of_which_nothing_is_known_is_left_out(make: Make) -> None:
    runs: list[Records] = read_runs([make("one", 100, 0, {"final": 2.0}), make("two", 100, 0, {"final": 1.9})])
    text = comparison_text(group_runs(runs))
    assert "tokens/s" not in text
    assert "peak memory" not in text


def test_a_comparison_tells_of_runs_that_were_not_evaluated_and_how_they_are(make: Make) -> None:
    folders = [make("stories", 40, 0, {"final": 4.0}), make("stories", 40, 1, {}), make("others", 40, 0, {})]
    text = " ".join(comparison_text(group_runs(read_runs(folders))).split())
    assert "2 of 3 runs are not evaluated on the whole validation text yet and not compared" in text
    assert f"run `numerate evaluate {folders[1]}`, and so on." in text


def test_a_figure_of_answers_is_refused_for_language_modeling_and_other_runs_are_not_left_out_in_silence(
    make: Make, tmp_path: Path
) -> None:
    text = make("text", 100, 0, {"final": 2.0})
    with pytest.raises(UserError, match="use validation for language modeling runs"):
        write_plot("grid", [text], tmp_path / "pair.png")
    sums = tmp_path / "runs" / "sums" / "5461dba59ebf"
    write_run(sums, {"task": {"kind": "Addition"}, "seed": 0})
    with pytest.warns(UserWarning, match="plot: sums: not language modeling"):
        assert write_plot("training", [text, sums], tmp_path / "both.png").stat().st_size > 10_000
    shown = comparison_text(group_runs(read_runs([text, sums])))
    assert "sums\n====" in shown
    assert ">sums</h1>" in comparison_page(group_runs(read_runs([text, sums])))


def test_contexts_beside_that_of_training_are_named_by_their_region(make: Make) -> None:
    folder = make("stories", 100, 0, {"final": 2.0})
    (trained,) = (folder / "cells.jsonl").read_text().splitlines()
    shorter, longer = (
        trained.replace('"context_length": 16', f'"context_length": {length}').replace("in_distribution", region)
        for length, region in ((8, "below"), (32, "ood_test"))
    )
    (folder / "cells.jsonl").write_text("\n".join([trained, shorter, longer, ""]))
    page = run_page(read_runs([folder])[0])
    assert "8 (shorter than in training)" in page
    assert "OOD" in page.partition("shorter than")[2].partition("</table>")[0]


def test_a_difference_of_means_has_the_interval_of_welchs_test() -> None:
    first, second = [2.0, 2.5, 3.5], [1.0, 1.1, 0.8, 1.3]
    expected = stats.ttest_ind(first, second, equal_var=False).confidence_interval()
    found = welch_difference(first, second)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("loss", [nan, inf])
def test_a_loss_that_is_not_finite_is_shown_and_never_the_lowest_and_curves_leave_it_out(
    make: Make, loss: float, tmp_path: Path
) -> None:
    folders = [make(title, 100, seed, {}) for title in ("diverged", "sound") for seed in (0, 1)]
    for folder, value in zip(folders, [loss, loss, 2.0, 2.1], strict=True):
        disk.append_records(folder / "cells.jsonl", [cell_of(100, "final", value)])
        measured = {"step": 50, "split": "validation", "loss": value, "perplexity": value, "low": value, "high": value}
        disk.append_records(folder / "metrics.jsonl", [{"step": 50, "loss": value, "grad_norm": value}, measured])
    groups = group_runs(read_runs(folders))
    text = comparison_text(groups)
    assert "sound (2 seeds): loss 2.050" in text
    assert f"diverged  final        100      2  {loss}" in text
    comparison_page(groups)
    run_page(groups[0].runs[0])
    assert metric_curve(groups[0].runs[0].training_metrics(), "loss") == ([100.0], [2.0], None, None)
    write_plot("training", folders, tmp_path / "training.png")
