"""Promises of runs that train nothing, and of checkpoints that know the file of their tokenizer."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import small_runs
from numerate.cli import main
from numerate.config import override
from numerate.errors import UserError
from numerate.runs.run import Run, load
from numerate.runs.train import train
from numerate.training.recipe import Recipe

TINY = Path(__file__).parent.parent / "text" / "tiny"

OWN = (
    "task.digits=1:2 model.mixer.num_heads=4 training.batch_size=8 training.log_every=25 "
    "evaluation.validation_examples=8"
)

NONE = ["training.steps=0", "training.best_metric=loss"]


def small(*more: str) -> Recipe:
    return small_runs.small(OWN, *more)


def test_a_run_without_training_is_its_start_evaluated(tmp_path: Path) -> None:
    wanted = small("training.steps=0")
    done = train(wanted, runs_dir=tmp_path, quiet=True)
    assert done.stop_reason == "budget"
    run = done.run
    (found,) = run.checkpoints("all")
    assert (found.step, found.best) == (0, 0)
    blank = wanted.model.build(run.evaluation_data.vocabulary, wanted.seed).state_dict()
    for name, weights in run.load_model("best").state_dict().items():
        assert torch.equal(weights, blank[name]), name
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert {line["step"] for line in lines} == {0}
    assert {"validation"} <= {line["split"] for line in lines}
    results = run.evaluate("1:2x1:2", count=4, checkpoint="final")
    assert [record["step"] for record in results] == [0] * 4
    assert "Nothing was evaluated" not in run.report().read_text()
    assert train(wanted, runs_dir=tmp_path, quiet=True).stop_reason == "done"


def test_the_command_trains_nothing_and_evaluates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "addition_abacus", *small_runs.SMALL.split(), *OWN.split(), *NONE]) == 0
    assert re.search(r": without training: exact match 0.0%, validation loss [0-9.]+", capsys.readouterr().err)
    assert main(["evaluate", "latest", "grid=1:2x1:2", "count=2"]) == 0
    assert "final checkpoint, step 0" in capsys.readouterr().out
    assert main(["train", "addition_abacus", *small_runs.SMALL.split(), *OWN.split(), *NONE]) == 0
    assert "already trained to step 0, with a budget of 0 steps" in capsys.readouterr().err


def test_a_start_that_was_evaluated_can_be_trained_on_and_gives_the_very_same_weights(tmp_path: Path) -> None:
    train(small("training.steps=0"), runs_dir=tmp_path / "a", quiet=True)
    on = train(small("training.steps=5"), runs_dir=tmp_path / "a", quiet=True).run
    once = train(small("training.steps=5"), runs_dir=tmp_path / "b", quiet=True).run
    assert on.path.name == once.path.name, "the budget is no part of what a run is"
    weights = [run.load_model().state_dict() for run in (on, once)]
    for name in weights[0]:
        assert torch.equal(weights[0][name], weights[1][name]), name


# The tokenizer's file -------------------------------------------------------------------------------------------------


def trained_with(folder: Path, runs: Path) -> Run:
    found = override(small("training.steps=2"), ["tokenizer=Subwords"])
    return train(override(found, [f"tokenizer.tokenizer={folder}"]), runs_dir=runs, quiet=True).run


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    pytest.importorskip("tokenizers", reason="subwords are read by tokenizers")
    return Path(shutil.copytree(TINY, tmp_path / "tokenizer"))


def changed(folder: Path) -> None:
    """Another tokenizer under the same name: a piece is worth another number."""
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"padding": None}, indent=3))


def test_another_tokenizer_file_of_the_same_name_is_refused(tokenizer: Path, tmp_path: Path) -> None:
    run = trained_with(tokenizer, tmp_path / "runs")
    known = run.checkpoints()[0].state["tokenizer"]
    assert isinstance(known, str)
    load(run.path).load_model()
    changed(tokenizer)
    with pytest.raises(UserError, match=f"another tokenizer file .*{known[:8]}"):
        load(run.path).load_model()
    with pytest.raises(UserError, match="its ids mean other tokens"):
        load(run.path).evaluate("1:1x1:1", count=1)
    with pytest.raises(UserError, match="another tokenizer file"):
        train(override(run.recipe, ["training.steps=4"]), runs_dir=tmp_path / "runs", quiet=True)
