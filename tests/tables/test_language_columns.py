"""Promises of the table of a language-modeling study."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pandas import DataFrame

from numerate.cli import main
from numerate.evaluation.likelihoods import Likelihoods
from numerate.tables.results import cells_of
from numerate.tables.selecting import informative_columns
from run_records import Studies


def sums(loss: float) -> Likelihoods:
    """Of two chunks of 16 tokens and 60 bytes."""
    nll = 16 * loss
    return Likelihoods(2 * nll, 32, 120, 8, 2, 2 * nll**2 + 1, 32 * nll, 512, 120 * nll, 7200)


@pytest.fixture
def table(study: Studies) -> DataFrame:
    """A study of one recipe that is done with three seeds; at the best checkpoint the loss is 0.1 less."""
    losses, runs = [2.0, 2.5, 3.0], []
    for seed, loss in enumerate(losses):
        tree = {"kind": "Recipe", "title": "a", "task": {"kind": "LanguageModeling"}, "seed": seed}
        record = {"status": "done", "validation": None, "validation_loss": loss - 0.2, "loss": loss - 0.3}
        regions = {
            name: {"in_distribution": {"language": sums(loss - less).record()}}
            for name, less in (("final", 0.0), ("best", 0.1))
        }
        runs.append((tree, record | {"validation_bits_per_byte": 0.5} | regions))

    def cells(number: int) -> list[dict[str, Any]]:
        found = sums(losses[number])
        place = {"checkpoint": "final", "step": 1, "position_offset": 0, "region": "in_distribution", "count": 2}
        place |= {"overlaps_training": False, "method": "one pass"}
        cell = {"context_length": 16, "chunk": 0}
        return [{"cell": cell, **found.record(), "language": found.sums(), **place}]

    return study(runs, cells=cells)


def test_runs_have_loss_perplexity_and_bits_per_byte_at_both_checkpoints(table: DataFrame) -> None:
    first = table.iloc[0]
    assert first["final.in_distribution.loss"] == 2.0
    assert first["best.in_distribution.loss"] == 1.9
    assert first["final.in_distribution.perplexity"] == pytest.approx(np.exp(2.0), rel=1e-5)
    assert first["final.in_distribution.bits_per_byte"] == pytest.approx(32 * 2 / np.log(2) / 120, rel=1e-5)
    assert first["final.in_distribution.loss.low"] < 2.0 < first["final.in_distribution.loss.high"]
    assert first["validation_loss"] == 1.8
    assert "final.in_distribution" not in table.columns, "nothing of text is right or wrong"


def test_portions_have_measures_of_their_own_and_no_exact_match(table: DataFrame, tmp_path: Path) -> None:
    cells = cells_of("widths", tmp_path / "runs")
    row = cells.iloc[0]
    names = ["context_length", "chunk", "loss", "bits_per_byte", "tokens"]
    assert row[names].tolist() == [16, 0, 2.0, pytest.approx(0.76944, abs=1e-4), 32]
    assert cells["exact_match"].isna().all()
    shown = informative_columns(cells)
    assert "exact_match" not in shown
    assert {"loss", "perplexity", "bits_per_byte"} <= set(shown)


def test_the_command_shows_them_and_groups_them_over_seeds(
    table: DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["results", "widths", f"runs_dir={tmp_path / 'runs'}"]
    assert main(where) == 0
    output = capsys.readouterr().out
    assert "final.in_distribution.bits_per_byte" in output
    assert "xact match" not in output
    assert main([*where, "group=label"]) == 0
    output = capsys.readouterr().out
    assert "2.5 [2, 3]" in output
    assert "success" not in output
