"""A trained model run otherwise than it was trained: what may be changed, and that results are kept apart."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from numerate.config import Span
from numerate.errors import UserError
from numerate.mixers.attention import Attention
from numerate.models.backbone import Loop
from numerate.models.decoder import Decoder
from numerate.positions.rotary import Rotary
from numerate.results.rows import cells
from numerate.runs.run import Run
from numerate.runs.train import train
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.mixture import Mixture
from numerate.text.tasks.example_file import ExampleFile
from small_runs import ADDING

RECIPE = replace(ADDING, model=Decoder(hidden_size=32, positions=(Rotary(),)), name="turning")
BASE = "model.positions.0.base"


def settings_of(records: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for record in records:
        if (one := record.get("settings", {})) not in found:
            found.append(one)
    return found


def test_the_same_weights_are_run_with_another_setting(run: Run) -> None:
    other = run.with_settings(f"{BASE}=3")
    assert other.recipe.model == replace(RECIPE.model, positions=(Rotary(base=3.0),))
    assert other.changed_settings == {BASE: 3.0}
    weights, own = (one.load_model().state_dict() for one in (other, run))
    assert all(bool((weights[name] == own[name]).all()) for name in own)
    batches = [one.evaluation_data.batch(one.evaluation_data.task.examples("test", 0, 0, 8)) for one in (run, other)]
    logits = [one.load_model()(batch.tokens).logits for one, batch in zip((run, other), batches, strict=True)]
    assert not logits[0].allclose(logits[1], atol=1e-3)
    assert run.with_settings() is run


def test_a_sweep_leaves_records_that_say_how_the_model_was_run(run: Run) -> None:
    results = run.evaluate("1:2", settings=[f"{BASE}=20,3,10000"])
    assert settings_of(results) == [{BASE: 20.0}, {BASE: 3.0}, {}]
    kept = run.folder.records("cells.jsonl")
    assert len(kept) == 12
    assert settings_of(kept) == [{}, {BASE: 3.0}, {BASE: 20.0}], "as trained first, then by size"
    assert all(("settings" in record) == bool(record.get("settings")) for record in kept)
    assert list(results.frame["settings"].fillna("").unique()) == ["base=20", "base=3", ""]
    assert "base=20" in str(results)
    assert "as trained" in str(results)


def test_twice_the_same_sweep_leaves_the_same_bytes_and_computes_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numerate.runs import plan

    sweep = [f"{BASE}=3,20", "model.dropout=0.5"]
    run.evaluate("1:2", settings=sweep, predictions=True)
    files = [run.folder.file(name) for name in ("cells.jsonl", "predictions.jsonl")]
    before = [file.read_bytes() for file in files]
    monkeypatch.setattr(plan.EvaluationPlan, "score", None)
    run.evaluate("1:2", settings=sweep, predictions=True)
    assert [file.read_bytes() for file in files] == before
    assert not run.folder.file("samples.jsonl").exists(), "samples are those of the model as trained"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model.hidden_size=64", r"model.hidden_size=64: these settings change the weights"),
        ("model.positions=[]", None),
        ("model.backbone.num_layers=3", r"model.backbone.num_layers=3: these settings change the weights"),
        ("task.digits=1:9", r"task.digits: an evaluation changes how the model is run, by settings below model\."),
        ("seed=3", r"seed: an evaluation changes how the model is run"),
        ("model.hiden_size=3", r"model.hiden_size: .*Did you mean 'hidden_size'"),
        (f"{BASE}=", r"."),
        ("nothing", r"an override must be path=value"),
    ],
)
def test_what_would_need_other_weights_is_refused_before_any_work(run: Run, setting: str, words: str | None) -> None:
    if words is None:
        assert run.with_settings(setting).changed_settings == {"model.positions": []}, (
            "rotary positions have no weights"
        )
        return
    with pytest.raises(UserError, match=words):
        run.evaluate(settings=[setting])
    assert not run.folder.file("cells.jsonl").exists()


def test_a_question_is_answered_by_the_model_as_it_is_run(run: Run) -> None:
    as_trained, other = run.ask("12+9="), run.ask("12+9=", settings=[f"{BASE}=3"])
    assert as_trained.probability != other.probability
    assert run.with_settings(f"{BASE}=3").ask("12+9=") == other


def test_best_that_is_final_is_not_computed_twice(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from numerate.runs import plan

    best = run.evaluate("1:2", checkpoint="best")
    assert best.records[0]["step"] == 8, "nothing is right beyond at any step, and ties go to the later one"
    monkeypatch.setattr(plan.EvaluationPlan, "score", None)
    final = run.evaluate("1:2")
    assert [{**one, "checkpoint": ""} for one in final] == [{**one, "checkpoint": ""} for one in best]
    assert {one["checkpoint"] for one in final} == {"final"}
    assert {one["checkpoint"] for one in run.folder.records("cells.jsonl")} == {"best", "final"}


def test_reports_keep_the_ways_of_running_apart(run: Run, tmp_path: Path) -> None:
    run.evaluate(settings=[f"{BASE}=10000,3,20"])
    frame = cells(run.path)
    assert list(dict.fromkeys(frame["variant"])) == ["turning", "turning, base=3", "turning, base=20"]
    assert set(frame.groupby("variant").size()) == {9}
    page = run.report().read_text()
    assert all(f"turning, base={base}" in page for base in (3, 20))
    assert "a run" in page
    assert "changed for the evaluation" in page


def test_the_command_sweeps_and_labels(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    from numerate.cli import main

    assert main(["evaluate", str(run.path), "grid=1:2", f"{BASE}=3,20"]) == 0
    text = capsys.readouterr().out
    assert "final checkpoint, step 8, base=3" in text
    assert "final checkpoint, step 8, base=20" in text
    assert main(["ask", str(run.path), "12+9=", f"{BASE}=3,10000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.rsplit("   ", 1)[1] for line in lines] == ["base=3", "as trained"]
    assert main(["evaluate", str(run.path), "task.digits=1:3"]) == 2
    assert "task.digits: an evaluation changes how the model is run" in capsys.readouterr().err


def test_a_loop_goes_round_more_often_and_attention_gets_sharper(tmp_path: Path) -> None:
    looped = replace(
        RECIPE, model=Decoder(hidden_size=16, mixer=Attention(num_heads=2), backbone=Loop(num_layers=1, num_loops=2))
    )
    run = train(looped, runs_dir=tmp_path, quiet=True).run
    sweep = ["model.backbone.num_loops=2,3", "model.mixer.logit_scale=1,1.4,log"]
    results = run.evaluate("diagonal:1:3", settings=sweep)
    assert settings_of(results) == [
        {},
        {"model.mixer.logit_scale": 1.4},
        {"model.mixer.logit_scale": "log"},
        {"model.backbone.num_loops": 3},
        {"model.mixer.logit_scale": 1.4, "model.backbone.num_loops": 3},
        {"model.mixer.logit_scale": "log", "model.backbone.num_loops": 3},
    ]
    labels = list(dict.fromkeys(cells(run.path)["variant"]))
    assert labels[0] == "turning"
    assert "turning, num_loops=3, logit_scale=1.4" in labels
    tokens = run.evaluation_data.batch(run.evaluation_data.task.examples("test", 0, 0, 8)).tokens
    ways = [run.with_settings(*choice).load_model()(tokens).logits for choice in ([], ["model.backbone.num_loops=3"])]
    assert not ways[0].allclose(ways[1], atol=1e-4)


def test_the_tasks_of_a_mixture_are_distinguished(tmp_path: Path) -> None:
    both = Mixture((Arithmetic(digits=Span(1, 2)), Arithmetic("-", digits=Span(1, 2))))
    run = train(replace(RECIPE, task=both), runs_dir=tmp_path, quiet=True).run
    results = run.evaluate("2x2", count=20, settings=["task.task_index=0,1"])
    assert settings_of(results) == [{"task.task_index": 0}, {"task.task_index": 1}]
    examples = run.with_settings("task.task_index=1").evaluation_data.task.examples("test", 0, 0, 20)
    assert set(examples.metadata["task"].tolist()) == {1}
    with pytest.raises(UserError, match=r"task\.task_index: must be from 0 to 1, not 2"):
        run.evaluate("2x2", settings=["task.task_index=2"])
    with pytest.raises(UserError, match=r"^task\.weights: an evaluation changes how the model is run"):
        run.evaluate("2x2", settings=["task.weights=[1,3]"])


def test_a_file_with_sizes_missing_is_evaluated_on_those_it_has(tmp_path: Path) -> None:
    rows = tmp_path / "rows.txt"
    rows.write_text(
        "".join(f"{a}+{b}={str(a + b)[::-1]}\n" for a in range(1, 6) for b in range(1, 6)) + "0001+0002=3\n"
    )
    recipe = replace(RECIPE, task=ExampleFile(path=str(rows)), evaluation=replace(RECIPE.evaluation, grid=None))
    run = train(recipe, runs_dir=tmp_path / "runs", quiet=True).run
    assert [record["cell"] for record in run.evaluate()] == [{"question_length": 4}, {"question_length": 10}]
    with pytest.raises(UserError, match=r"^grid: 4:7: no question has question_length=5; the task has 4\+10$"):
        run.evaluate("4:7")
