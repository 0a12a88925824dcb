"""A user's script, and the example of a plug-in, pass the strict type checker with the types of the package: of this
checkout, or with `make test-wheel` of the wheel."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import numerate

TOP = Path(__file__).parents[1]
SCRIPT = """
import random
from pathlib import Path

import torch
from torch import Tensor, nn

import numerate
from numerate.config import override
from numerate.runs.engines.local import Local
from numerate.training.recipe import Recipe


@numerate.wrap_model
def bigram(vocab_size: int, width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Embedding(vocab_size, width), nn.Linear(width, vocab_size))


@numerate.wrap_loss
def focal(logits: Tensor, targets: Tensor, gamma: float = 2.0) -> Tensor:
    each = nn.functional.cross_entropy(logits, targets, reduction="none")
    return (1 - (-each).exp()) ** gamma * each


def main() -> None:
    recipe = numerate.recipe("addition_abacus", "training.steps=10")
    own = Recipe(model=bigram(width=16), seed=1)
    files = Recipe(task=numerate.wrap_data([("1+1=", "2")], "sums"))
    run = numerate.train(override(own, ["training.steps=10"]), quiet=True)
    results = run.evaluate("1:3", count=10)
    means = numerate.summary(results.frame, by=["region"])["value"]
    answer: str = run.ask("1+2=").prediction
    page: Path = run.report()
    study = numerate.Study("mine", "Which?", [recipe, own, files]).sweep(["seeds=2"])
    _, outcomes = numerate.run_study(study, engine=Local(workers=2))
    errors: list[str] = [one.error for one in outcomes if one.error is not None]
    tables = numerate.results_of("mine")
    loss = numerate.NumberTokenLoss({digit: float(digit) for digit in range(10)}, weight=0.3)
    value: Tensor = loss(torch.zeros(1, 2, 10), torch.zeros(1, 2, dtype=torch.long))
    print(results, means, answer, page, errors, tables, value, focal(gamma=1.0))


main()
"""

MISTAKES = {"bigram(width=16)": 'bigram(width="wide")'}
"""What the checker must find, or it has no types."""


@pytest.mark.slow
def test_a_script_with_everything_public_is_checked_strictly(tmp_path: Path) -> None:
    for name, text in {"right.py": SCRIPT, "wrong.py": SCRIPT}.items():
        for right, wrong in MISTAKES.items() if name == "wrong.py" else ():
            assert text.count(right) == 1
            text = text.replace(right, wrong)
        (tmp_path / name).write_text(text)
    (tmp_path / "acme.py").write_text((TOP / "examples" / "plugin" / "acme.py").read_text())
    source = str(Path(numerate.__file__).parents[1])  # on the path like an installed package, found by its py.typed
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "right.py", "wrong.py", "acme.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": source, "MYPY_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    lines = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert not [line for line in lines if not line.startswith("wrong.py:")], done.stdout + done.stderr
    assert len(lines) == len(MISTAKES), done.stdout
