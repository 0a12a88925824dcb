"""Studies: recipes crossed with overrides, run side by side, reported together."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from numerate.config import Span
from numerate.errors import Mistake
from numerate.evaluation.evaluator import Evaluation
from numerate.models.decoder import Decoder
from numerate.positions.added import Learned
from numerate.positions.rotary import Rotary
from numerate.studies.newcomer import quickstart
from numerate.studies.study import Study, run_study
from numerate.tasks.arithmetic import Arithmetic
from numerate.training.recipe import Recipe, Training

TINY = Recipe(
    task=Arithmetic(digits=Span(1, 2)),
    model=Decoder(width=16, positions=(Rotary(),)),
    training=Training(steps=4, batch=8, window=2, threads=1, log_every=2, evaluate_every=2, checkpoint_every=2),
    evaluation=Evaluation(grid="1:2x1:2", count=4, during=8),
    title="rotary",
)
LEARNED = replace(TINY, title="learned", model=replace(TINY.model, positions=(Learned(),)))
STUDY = Study("pair", "Which of two?", (TINY, LEARNED))


def test_overrides_cross_every_recipe_with_every_seed() -> None:
    runs = STUDY.crossed(["seeds=3", "model.width=16,32"]).recipes
    assert len(runs) == 12
    assert {(run.title, run.seed, run.model.width) for run in runs} == {
        (title, seed, width) for title in ("rotary", "learned") for seed in (0, 1, 2) for width in (16, 32)
    }


def test_the_same_run_is_not_made_twice() -> None:
    assert len(STUDY.crossed(["training.steps=5,6"]).recipes) == 2


def test_the_quickstart_compares_two_models_that_differ_in_positions_alone() -> None:
    abacus, rotary = quickstart().recipes
    same = replace(
        rotary, model=replace(rotary.model, positions=abacus.model.positions), title=abacus.title, paper="abacus"
    )
    assert same == abacus
    assert abacus.model != rotary.model


def test_a_study_trains_evaluates_and_reports_and_does_nothing_twice(tmp_path: Path) -> None:
    page, done = run_study(STUDY, runs_dir=tmp_path, workers=2)
    assert [one.error for one in done] == [None, None]
    assert page is not None
    assert "Which of two?" in page.read_text()
    results = {one.path: (one.path / "evaluation.jsonl").read_bytes() for one in done if one.path is not None}
    metrics = {path: (path / "metrics.jsonl").read_bytes() for path in results}
    assert all("spawn_main" not in (path / "recipe.yaml").read_text() for path in results)
    assert all((path / "log.txt").stat().st_size for path in results)
    for text in results.values():
        assert len(text.splitlines()) == 8, "the grid's four cells, at the final and at the best checkpoint"
        assert all(text.count(f'"checkpoint": "{name}"'.encode()) == 4 for name in ("final", "best"))
    _, again = run_study(STUDY, runs_dir=tmp_path, workers=1)
    assert {one.path for one in again} == set(results)
    assert {path: (path / "evaluation.jsonl").read_bytes() for path in results} == results
    assert {path: (path / "metrics.jsonl").read_bytes() for path in metrics} == metrics
    wider = [replace(recipe, evaluation=replace(recipe.evaluation, grid="1:3x1:2")) for recipe in STUDY.recipes]
    run_study(replace(STUDY, recipes=tuple(wider)), runs_dir=tmp_path, workers=1)
    for path in results:
        assert len((path / "evaluation.jsonl").read_text().splitlines()) == 12, "the grid now asked for is measured"


def test_a_run_that_cannot_be_trained_takes_no_other_with_it(tmp_path: Path) -> None:
    wrong = replace(LEARNED, device="cuda:99")
    _, done = run_study(replace(STUDY, recipes=(wrong, TINY)), runs_dir=tmp_path, workers=1)
    assert done[0].status == 2
    assert "cuda:99" in str(done[0].error)
    assert done[1].error is None


def test_a_study_without_recipes_is_refused() -> None:
    with pytest.raises(Mistake, match="has no recipes"):
        run_study(Study("empty", "Nothing?", ()))


def test_a_study_that_is_stopped_goes_on_and_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    """SIGTERM to the command in the middle; the same command again; the same weights as an undisturbed one."""
    script = tmp_path / "mine.py"
    script.write_text(
        "from dataclasses import replace\n"
        "from numerate.recipes.abacus import addition_rotary\n"
        "from numerate.studies.study import Study\n"
        "def study():\n"
        "    one = addition_rotary()\n"
        "    model = replace(one.model, width=16)\n"
        "    training = replace(one.training, steps=400, batch=8, window=4, checkpoint_every=50, evaluate_every=400)\n"
        "    evaluation = replace(one.evaluation, grid='1:2x1:2', count=4, during=8)\n"
        "    one = replace(one, model=model, training=training, evaluation=evaluation)\n"
        "    return Study('mine', 'Does it go on?', (one,))\n"
    )
    command = [sys.executable, "-m", "numerate", "run", f"{script}:study"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def weights(place: str) -> bytes:
        return next((tmp_path / place).glob("*/*/checkpoints/step-000400/weights.safetensors")).read_bytes()

    subprocess.run([*command, f"runs_dir={tmp_path / 'whole'}"], check=True, capture_output=True, env=environment)
    stopped = subprocess.Popen(
        [*command, f"runs_dir={tmp_path / 'parts'}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and stopped.poll() is None:
        logs = list((tmp_path / "parts").glob("*/*/metrics.jsonl"))
        if logs and any(json.loads(line)["step"] >= 75 for line in logs[0].read_text().splitlines()):
            break
    stopped.send_signal(signal.SIGTERM)
    stopped.communicate(timeout=60)
    assert not list((tmp_path / "parts").glob("*/*/checkpoints/step-000400"))
    assert stopped.returncode != 0
    subprocess.run([*command, f"runs_dir={tmp_path / 'parts'}"], check=True, capture_output=True, env=environment)
    assert weights("parts") == weights("whole")
