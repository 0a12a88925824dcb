"""Work in the process that asks: no worker, the same outcomes, and scripts without a guard."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import numerate
from numerate.errors import UserError
from numerate.executors.in_process import InProcess
from numerate.training.stopping import Stop

sys.path.append(str(Path(__file__).parent))

from executor_deeds import Deeds, done


def test_items_are_done_one_after_the_other_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    threads = torch.get_num_threads()
    items = [("square", 3), ("mistake",), ("error",), ("exit",), ("where",), ("square", 4)]
    found = list(InProcess(threads=2).run(Deeds(), items))
    assert [one.index for one in found] == [0, 1, 2, 3, 4, 5]
    results = done(found)
    assert [results[index] for index in (0, 1, 2, 3, 5)] == [9, "user error", "error", "error", 16]
    _, pid, environment, _, worker_threads = results[4]
    assert (pid, environment, worker_threads) == (os.getpid(), "2", 2)
    assert (os.environ["OMP_NUM_THREADS"], torch.get_num_threads()) == ("7", threads)


def test_a_stop_leaves_the_further_items_for_the_next_command() -> None:
    stop, ticks = Stop(), []

    def ask() -> None:
        ticks.append(1)
        stop.request()

    found = list(InProcess().run(Deeds(), [("patient",), ("square", 1)], stop=stop, on_tick=ask))
    assert done(found) == {0: "stopped", 1: "not started"}
    assert ticks, "the item is watched while it runs"


@pytest.mark.parametrize("limit", [{"workers": 2}, {"timeout": 5.0}, {"memory": 1e9}])
def test_what_takes_a_worker_is_refused(limit: dict[str, float]) -> None:
    with pytest.raises(UserError, match=f"^{next(iter(limit))}: must be null for InProcess, .*; use Local$"):
        InProcess(**limit)  # type: ignore[arg-type]


UNGUARDED = """
import numerate
from torch import nn
from numerate.training.recipe import Recipe

@numerate.wrap_model
def bigram(vocab_size: int, width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Embedding(vocab_size, width), nn.Linear(width, vocab_size))

print("imported")
short = ["training.steps=2", "training.batch_size=8", "evaluation.validation_examples=8", "evaluation.grid=1:2"]
recipe = numerate.recipe("addition_abacus", *short, "evaluation.examples_per_cell=2", "device=cpu")
recipes = [recipe, numerate.config.override(Recipe(task=recipe.task, model=bigram(), title="bigram"), short)]
page, done = numerate.run_study(numerate.Study("mine", "Which is better?", recipes), workers=1)
print([one.error for one in done], page.name)
"""


@pytest.mark.slow
def test_a_study_script_with_parts_of_its_own_needs_no_guard_with_one_worker(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(UNGUARDED)
    source = Path(numerate.__file__).parents[1]
    for _ in range(2):  # the second time everything is done
        ended = subprocess.run(
            [sys.executable, "script.py"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(source), "NUMERATE_RUNS": "", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout == "imported\n[None, None] report.html\n"
