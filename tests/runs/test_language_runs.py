"""Promises of language-modeling runs from the outside: evaluation in portions, tables, reports, what a terminal
shows."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from numerate import cli
from numerate.errors import UserError
from numerate.evaluation.kinds import text_likelihood as language
from numerate.results.page import page, text
from numerate.results.rows import cells, find_runs
from numerate.results.summary import summary
from numerate.runs.run import Run, load
from numerate.runs.train import train
from numerate.training.run_folder import RunFolder

pytest.importorskip("tokenizers", reason="the extra huggingface has it")

from text_corpus import recipe_of, task_in

PORTION = 8 * 16
"""Tokens of a portion here: eight chunks."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two seeds, never evaluated, in `runs/`."""
    place = tmp_path_factory.mktemp("text")
    recipe = recipe_of(task_in(place))
    for seed in (0, 1):
        train(replace(recipe, seed=seed, name=f"seed{seed}"), runs_dir=place / "runs", quiet=True)
    return place / "runs"


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(language, "MAX_TOKENS_PER_PORTION", PORTION)
    shutil.copytree(trained, tmp_path / "runs")
    return load("seed0", tmp_path / "runs")


def chunks_of(run: Run) -> int:
    return run.recipe.task.num_chunks("test")  # type: ignore[attr-defined, no-any-return]


def test_the_whole_text_is_read_in_portions_that_any_way_of_spreading_leaves_the_same(run: Run, trained: Path) -> None:
    results = run.evaluate()
    chunks = chunks_of(run)
    assert len(results) == -(-chunks // 8)
    assert results.frame["questions"].sum() == chunks
    assert {*results.frame["region"]} == {"in_distribution"}
    left = run.folder.file("cells.jsonl").read_bytes()
    for number in (1, 2, 3):
        run.folder.file("cells.jsonl").unlink(missing_ok=True) if number == 1 else None
        run.evaluate(shard=f"{number}/3")
    run.evaluate()
    assert run.folder.file("cells.jsonl").read_bytes() == left


def test_fewer_chunks_and_other_contexts_are_records_of_their_own_and_none_counts_twice(run: Run) -> None:
    assert run.evaluate(count=10).frame["questions"].sum() == 10
    results = run.evaluate("8+16+32")
    regions = results.frame.groupby("context_length")["region"].unique().map(list).to_dict()
    assert regions == {8: ["below"], 16: ["in_distribution"], 32: ["ood_test"]}
    shown = re.findall(r"^final +\d+ +(\D+( \d+)?) +[\d,]+  ", str(results), re.MULTILINE)
    assert [name.strip() for name, _ in shown] == ["in distribution", "context 8", "context 32"]
    by_context = cells(run.path).groupby("context_length")["questions"].sum()
    assert by_context[16] == chunks_of(run)
    with pytest.raises(UserError, match="method: must be 'one pass' for TextLikelihood"):
        run.evaluate(method="decoding")


def test_predictions_are_the_loss_of_every_chunk(run: Run) -> None:
    (loss,) = summary(run.evaluate(predictions=True).frame, metric="loss")["value"]
    lines = run.folder.records("predictions.jsonl")
    assert [one["chunk"] for one in lines] == list(range(chunks_of(run)))
    nll = sum(one["loss"] * one["tokens"] for one in lines)
    assert nll / sum(one["tokens"] for one in lines) == pytest.approx(loss, abs=1e-4)


def test_the_terminal_shows_loss_perplexity_and_bits_and_nothing_of_exact_match(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    where = f"runs_dir={run.path.parents[1]}"
    for words in (["evaluate", "seed0", "checkpoint=best"], ["evaluate", "seed0"], ["compare", "seed0"]):
        more = [f"out={run.path / 'compare.html'}"] if words[0] == "compare" else []
        assert cli.main([*words, *more, where]) == 0
        captured = capsys.readouterr()
        text = captured.out + captured.err
        assert "perplexity" in text
        assert "bits per byte" in text
        assert "exact_match" not in text
        assert "0.0%" not in text
    log = run.folder.file("log.txt").read_text()
    assert "validation loss" in log
    assert "right" not in log


def test_groups_are_compared_by_seeds_and_by_bits_per_byte_where_tokenizers_differ(run: Run, tmp_path: Path) -> None:
    folders = [run.path, load("seed1", tmp_path / "runs").path]
    for folder in folders:
        load(folder).evaluate()
    alike = text(find_runs(folders), 120)
    assert "Loss, nats per token: text " in alike
    others = []
    for folder in folders:
        other = tmp_path / "runs" / "other" / folder.name
        shutil.copytree(folder, other)
        _changed(other / "cells.jsonl", lambda line: line | {"tokenizer": "another"})
        RunFolder(other).update_metadata(variant="another")
        others.append(other)
    entries = find_runs([*folders, *others])
    assert len({one.variant for one in entries}) == 2
    for shown in (text(entries, 120), page(entries, "both")):
        assert "The tokenizers differ: losses and perplexities do not compare" in " ".join(shown.split())
        assert "bits per byte" in shown
    assert cli.main(["plot", "validation", *map(str, [*folders, *others]), f"out={tmp_path / 'curves.svg'}"]) == 0
    assert (tmp_path / "curves.svg").stat().st_size > 10_000


def _changed(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(change(line)) + "\n" for line in lines))


def test_a_question_to_a_run_of_language_modeling_is_gone_on_with(run: Run) -> None:
    answer = run.ask("Story")
    assert (answer.question, answer.correct_answer, answer.correct) == ("Story", None, None)
    assert answer.model_text.startswith("Story")
