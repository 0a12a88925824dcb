"""A study makes its runs: in order, once each, and reports them together."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from numerate.cli import main
from numerate.config import identity, override, to_tree
from numerate.errors import UserError
from numerate.recipes.study import Study
from numerate.runs.end import read_end
from numerate.runs.engines.engine import Engine, Failure, Outcome
from numerate.runs.engines.in_process import InProcess
from numerate.runs.engines.local import Local
from numerate.runs.study import preview_study, run_study
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder

# In which order -------------------------------------------------------------------------------------------------------


def test_each_seed_of_all_variants_comes_before_the_next_and_the_costliest_variant_first(
    tiny: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, engine = Study("s", "?", [tiny]).sweep(["model.hidden_size=16,64,32", "seeds=2"]), Watching()
    with pytest.raises(KeyboardInterrupt):
        run_study(study, runs_dir=tmp_path, engine=engine)
    found = [(one.seed, one.recipe_tree()["model"]["hidden_size"]) for one in engine.given]  # type: ignore[attr-defined]
    assert found == [(0, 64), (0, 32), (0, 16), (1, 64), (1, 32), (1, 16)]


class Watching(InProcess):
    """Notes the items, and does them only with `works`."""

    def __init__(self, works: bool = False) -> None:
        object.__setattr__(self, "given", [])
        object.__setattr__(self, "works", works)
        super().__init__()

    def map(self, function: Any, items: Any, **more: Any) -> Any:
        self.given.extend(items)  # type: ignore[attr-defined]
        if not self.works:  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        return super().map(function, items, **more)


# What is done ---------------------------------------------------------------------------------------------------------


def test_what_cannot_be_a_study_is_refused_before_anything_is_written(
    pair: Study, tiny: Recipe, tmp_path: Path
) -> None:
    longer = override(tiny, ["training.steps=8"])
    with pytest.raises(UserError, match=r"training\.steps="):
        run_study(Study("two", "Which budget?", (tiny, longer)), runs_dir=tmp_path)
    with pytest.raises(UserError, match="has no recipes"):
        run_study(Study("empty", "Nothing?", ()), runs_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_study_trains_evaluates_and_reports_and_does_nothing_twice(pair: Study, here: Engine, tmp_path: Path) -> None:
    page, done = run_study(pair, runs_dir=tmp_path, workers=2)
    assert [one.error for one in done] == [None, None]
    assert page is not None
    assert "Which of two?" in page.read_text()
    results = {one.path: (one.path / "cells.jsonl").read_bytes() for one in done if one.path is not None}
    metrics = {path: (path / "metrics.jsonl").read_bytes() for path in results}
    assert all("spawn_main" not in (path / "recipe.yaml").read_text() for path in results)
    assert all((path / "log.txt").stat().st_size for path in results)
    for text in results.values():
        assert len(text.splitlines()) == 8, "the grid's four cells, at the final and at the best checkpoint"
        assert all(text.count(f'"checkpoint": "{name}"'.encode()) == 4 for name in ("final", "best"))
    assert {path.name for path in (tmp_path / "pair").iterdir()} == {
        *("study.json", "study.lock", "log.txt", "report.html", "figure.png"),
    }
    _, again = run_study(pair, runs_dir=tmp_path, engine=Watching())
    assert {one.path for one in again} == set(results)
    assert {path: (path / "cells.jsonl").read_bytes() for path in results} == results
    assert {path: (path / "metrics.jsonl").read_bytes() for path in metrics} == metrics
    wider = [replace(recipe, evaluation=replace(recipe.evaluation, grid="1:3x1:2")) for recipe in pair.recipes]
    run_study(replace(pair, recipes=tuple(wider)), runs_dir=tmp_path, engine=here)
    for path in results:
        assert len((path / "cells.jsonl").read_text().splitlines()) == 12, "the grid now requested is measured"


def test_the_end_of_a_run_says_what_was_measured(pair: Study, here: Engine, tmp_path: Path) -> None:
    _, done = run_study(replace(pair, recipes=pair.recipes[:1]), runs_dir=tmp_path, engine=here)
    assert done[0].path is not None
    end = read_end(done[0].path)
    assert end is not None
    assert end.results is not None
    metrics = [json.loads(line) for line in (done[0].path / "metrics.jsonl").read_text().splitlines()]
    last, record = {line.get("split"): line for line in metrics}, end.results
    assert (end.status, record["stop_reason"], record["step"], record["examples"]) == ("done", "budget", 4, 32)
    assert record["loss"] == last[None]["loss"]
    assert record["validation_exact_match"] == last["validation"]["exact_match"]
    assert record["ood_validation_exact_match"] == last["ood_validation"]["exact_match"]
    assert (end.pid, end.seconds > 0) == (os.getpid(), True)


def test_a_longer_budget_continues_where_the_shorter_ended(pair: Study, here: Engine, tmp_path: Path) -> None:
    one = replace(pair, recipes=pair.recipes[:1])
    run_study(one, runs_dir=tmp_path, engine=here)
    _, done = run_study(one.sweep(["training.steps=6"]), runs_dir=tmp_path, engine=here)
    assert done[0].path is not None
    assert [json.loads(line)["step"] for line in (done[0].path / "metrics.jsonl").read_text().splitlines()][-1] == 6
    end = read_end(done[0].path)
    assert end is not None
    assert (end.results or {})["step"] == 6


def test_runs_that_begin_from_another_run_are_found_again_by_its_id(
    pair: Study, here: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, done = run_study(replace(pair, recipes=pair.recipes[:1]), runs_dir="runs", engine=here)
    assert done[0].path is not None
    later = override(pair.recipes[0], ["seed=1", f"init_from={done[0].path.name[:6]}"])
    for engine in (here, Watching()):
        _, ended = run_study(Study("second", "?", [later]), runs_dir="runs", engine=engine)
        assert [one.error for one in ended] == [None]
        assert ended[0].path is not None
        assert f"began_from: {done[0].path.resolve()}" in (ended[0].path / "recipe.yaml").read_text()


def test_a_survey_says_what_a_command_would_find_and_writes_nothing(pair: Study, here: Engine, tmp_path: Path) -> None:
    study = pair.sweep(["seeds=3"])
    assert list(tmp_path.iterdir()) == []
    found = preview_study(study, runs_dir=tmp_path)
    assert dict(found.counts) == {"new": 6}
    assert list(tmp_path.iterdir()) == []
    wrong = override(pair.recipes[1], ["device=cuda:99"])
    run_study(replace(pair, recipes=(pair.recipes[0], wrong)), runs_dir=tmp_path, engine=here)
    RunFolder.create(tmp_path, "rotary", identity(study.recipes[2]), {"recipe": to_tree(study.recipes[2])})
    found = preview_study(study, runs_dir=tmp_path)
    assert dict(found.counts) == {"done": 1, "unfinished": 1, "failed": 1, "new": 3}
    again = preview_study(study, runs_dir=tmp_path, retry=True)
    assert dict(again.counts) == {"done": 1, "unfinished": 1, "new": 4}
    assert "done" in str(again)


def test_a_run_made_with_another_default_is_refused_when_it_is_planned(
    pair: Study, here: Engine, tmp_path: Path
) -> None:
    """As if the default of `seed` of the evaluation had been 7 when the run was made."""
    study = replace(pair, recipes=pair.recipes[:1])
    _, done = run_study(study, runs_dir=tmp_path, engine=here)
    assert done[0].path is not None
    folder = RunFolder(done[0].path)
    folder.update_metadata(recipe=folder.metadata()["recipe"] | {"init_from": None, "seed": 7})
    run_study(study, runs_dir=tmp_path, engine=Watching())  # its key says that it is done as requested
    (done[0].path / "end.json").unlink()
    with pytest.raises(
        UserError, match=r"was made when the default of seed was 7, not 0.*seed=7 makes a run of its own"
    ):
        run_study(study, runs_dir=tmp_path, engine=Watching())
    with pytest.raises(UserError, match="was made when the default of seed was 7"):
        preview_study(study, runs_dir=tmp_path)


# The command ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local_is_here: None) -> str:
    """The address of a study in a user's file; commands are given in its folder."""
    (tmp_path / "mine.py").write_text(
        "from dataclasses import replace\n"
        "from numerate.config import Span\n"
        "from numerate.evaluation.evaluator import Evaluation\n"
        "from numerate.models.decoder import Decoder\n"
        "from numerate.positions.rotary import Rotary\n"
        "from numerate.recipes.study import Study\n"
        "from numerate.tasks.arithmetic import Arithmetic\n"
        "from numerate.training.recipe import Recipe, Training\n"
        "one = Recipe(\n"
        "    task=Arithmetic(digits=Span(1, 2)),\n"
        "    model=Decoder(hidden_size=16, positions=(Rotary(),)),\n"
        "    training=Training(steps=2, batch_size=8, shuffle_window=2, threads=1, evaluate_every=2),\n"
        "    evaluation=Evaluation(grid='1:2x1:2', examples_per_cell=4, validation_examples=8), title='one')\n"
        "study = Study('mine', 'Does it run?', [one])\n"
        "two = Study('two', 'Does one fail?', [one, replace(one, title='two', device='cuda:99')])\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NUMERATE_RUNS", raising=False)
    return "mine.py:study"


def test_the_command_says_where_the_report_is(mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", mine, "seeds=2", "workers=2"]) == 0
    out, err = capsys.readouterr()
    assert "mine: Does it run?" in out
    assert "report: runs/mine/report.html" in out
    assert "one seed 1: done" in err
    assert (tmp_path / "runs/mine/report.html").is_file()
    assert (tmp_path / "runs/mine/figure.png").is_file()
    assert main(["run", mine, "seeds=2"]) == 0
    assert "done" not in capsys.readouterr().err, "what is done already is not mentioned"


def test_a_failed_run_is_named_at_the_end_and_decides_the_exit_status(
    mine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert main(["run", "mine.py:two"]) == 2
        out, err = capsys.readouterr()
        assert "numerate: two: device: cuda:99" in err
        assert "retry=true runs failed ones again; `numerate status two`" in err
        assert "report: " in out
    assert "two: device" not in err.replace("numerate: two: device", ""), "what failed before is not tried again"
    assert main(["run", "mine.py:two", "retry=true"]) == 2
    assert "\ntwo: device" in capsys.readouterr().err


# Stopped and begun again ----------------------------------------------------------------------------------------------


def test_what_was_stopped_is_counted_and_said_to_resume(
    mine: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = Outcome(0, failure=Failure("stopped", "it was stopped", 143))
    monkeypatch.setattr(Local, "map", lambda *given, **more: iter([stopped]))
    assert main(["run", mine]) == 143
    assert "0 of 1 runs are done, 1 remain; the same command resumes" in capsys.readouterr().err
