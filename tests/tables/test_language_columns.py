"""Promises of the table of a language-modeling study."""

from pathlib import Path

import numpy as np
import pytest
from pandas import DataFrame

from numerate.cli import main
from numerate.evaluation.likelihoods import Likelihoods
from numerate.studies.folder import RequestedRun, StudyFolder
from numerate.tables.results import cells_of, results_of
from numerate.tables.selecting import informative_columns
from numerate.training import disk


def sums(loss: float) -> Likelihoods:
    """Of two chunks of 16 tokens and 60 bytes."""
    nll = 16 * loss
    return Likelihoods(2 * nll, 32, 120, 8, 2, 2 * nll**2 + 1, 32 * nll, 512, 120 * nll, 7200)


def study(runs: Path, losses: list[float]) -> DataFrame:
    """A study of one recipe that is done with a seed for each loss; at the best checkpoint 0.1 less."""
    folder = StudyFolder.from_title("texts", runs)
    requested = [
        RequestedRun(f"a/{seed}", f"key{seed}", {"kind": "Recipe", "task": {"kind": "LanguageModeling"}, "seed": seed})
        for seed in range(len(losses))
    ]
    for one, loss in zip(folder.update_plan(requested, question="How low?", labels=None), losses, strict=True):
        record = {"run": one.run, "key": one.key, "label": "a", "seed": one.seed, "status": "done"}
        record |= {
            "validation": None,
            "validation_loss": loss - 0.2,
            "validation_bits_per_byte": 0.5,
            "loss": loss - 0.3,
        }
        regions = {
            name: {"in_distribution": {"language": sums(loss - less).record()}}
            for name, less in (("final", 0.0), ("best", 0.1))
        }
        folder.add_results("w", [record | regions])
        (runs / one.run).mkdir(parents=True)
        (runs / one.run / "recipe.yaml").write_text("format: 3\n")
        place = {
            "checkpoint": "final",
            "step": 1,
            "position_offset": 0,
            "region": "in_distribution",
            "count": 2,
            "overlaps_training": False,
        }
        place |= {"method": "one pass"}
        found = sums(loss)
        line = {"cell": {"context_length": 16, "chunk": 0}, **found.record(), "language": found.sums(), **place}
        disk.append_records(runs / one.run / "evaluation.jsonl", [line])
    return results_of("texts", runs)


@pytest.fixture
def table(tmp_path: Path) -> DataFrame:
    return study(tmp_path, [2.0, 2.5, 3.0])


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
    cells = cells_of("texts", tmp_path)
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
    where = ["results", "texts", f"runs_dir={tmp_path}"]
    assert main(where) == 0
    output = capsys.readouterr().out
    assert "final.in_distribution.bits_per_byte" in output
    assert "xact match" not in output
    assert main([*where, "group=label"]) == 0
    output = capsys.readouterr().out
    assert "2.5 [2, 3]" in output
    assert "success" not in output
