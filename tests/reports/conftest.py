"""A run of sums with a chosen accuracy per cell."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from run_records import cell_record, write_run

TRAINED = 5


def positions(kind: str) -> dict[str, Any]:
    if kind == "abacus":
        return {"kind": "Learned", "position_ids": {"kind": "DigitIndex", "max_offset": 10}}
    return {"kind": "Rotary", "base": 10000.0}


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """make_run("abacus", lambda n: share of cells whose longer number has n digits, seed=0, ...) -> its folder."""

    def make(
        kind: str,
        accuracy: Callable[[int], float],
        *,
        seed: int = 0,
        high: int = 8,
        count: int = 100,
        examples: int = 6400,
        trained: bool = True,
        **head: Any,
    ) -> Path:
        recipe = {"kind": "Recipe", "task": {"kind": "Arithmetic", "operator": "+", "digits": "1:5"}}
        recipe |= {"model": {"kind": "Decoder", "hidden_size": 64, "positions": [positions(kind)]}, "seed": seed}
        known = {"name": None, "command": f"numerate run addition_{kind}", "parameters": 123456}
        known |= {"git": {"commit": "0123abc", "dirty": False}, "versions": {"torch": "2.13.0"}}
        metrics = [{"step": step, "examples": examples * step // 100, "loss": 1.0 / step} for step in (50, 100)]
        metrics += [
            {"step": step, "split": split, "exact_match": 0.5, "low": 0.4, "high": 0.6, "correct": 50, "count": 100}
            for step in (50, 100)
            for split in ("validation", "ood_validation")
        ]
        cells = []
        for first in range(1 if trained else TRAINED + 1, high + 1):
            for second in range(1 if trained else TRAINED + 1, high + 1):
                n = max(first, second)
                region = "in_distribution" if n <= TRAINED else "ood_validation" if n == TRAINED + 1 else "ood_test"
                cell, correct = {"first_digits": first, "second_digits": second}, round(count * accuracy(n))
                more = {"seed": seed, "overlaps_training": n == 1, "digit_accuracy": correct / count}
                cells.append(cell_record(cell, correct, count, region, first_error_counts=None, **more))
        sample = {"cell": {"first_digits": 2, "second_digits": 1}, "question": "12+9=", "correct_answer": "21"}
        sample |= {"prediction": "21", "correct": True, "model_text": "21+9=12"}
        folder = tmp_path / "runs" / f"addition_{kind}" / f"{kind}{seed}"
        return write_run(folder, recipe, cells, metrics=metrics, samples=[sample], **(known | head))

    return make
