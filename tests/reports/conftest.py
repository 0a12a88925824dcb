"""Made-up runs: folders of records with a chosen accuracy per cell, as an evaluator would have left them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from numerate.evaluation.statistics import wilson_interval
from numerate.training.run_folder import header_yaml

TRAINED = 5


def positions(kind: str) -> dict[str, Any]:
    if kind == "abacus":
        return {"kind": "Learned", "position_ids": {"kind": "DigitIndex", "max_offset": 10}}
    return {"kind": "Rotary", "base": 10000.0}


def cell_line(first: int, second: int, correct: int, count: int, **more: Any) -> dict[str, Any]:
    low, high = wilson_interval(correct, count)
    longest = max(first, second)
    region = "in_distribution" if longest <= TRAINED else "ood_validation" if longest == TRAINED + 1 else "ood_test"
    line = {"cell": {"first_digits": first, "second_digits": second}, "correct": correct, "count": count}
    line |= {"low": low, "high": high, "digit_accuracy": correct / count, "first_error_counts": None, "seed": 0}
    line |= {
        "checkpoint": "final",
        "step": 100,
        "position_offset": 0,
        "region": region,
        "overlaps_training": longest == 1,
    }
    return line | {"method": "one pass"} | more


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


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
        name: str | None = None,
        examples: int = 6400,
        trained: bool = True,
        **head: Any,
    ) -> Path:
        folder = tmp_path / "runs" / f"addition_{kind}" / f"{kind}{seed}"
        folder.mkdir(parents=True)
        recipe = {"kind": "Recipe", "task": {"kind": "Arithmetic", "operator": "+", "digits": "1:5"}}
        recipe |= {"model": {"kind": "Decoder", "hidden_size": 64, "positions": [positions(kind)]}, "seed": seed}
        record = {"recipe": recipe, "name": name, "id": folder.name, "command": f"numerate run addition_{kind}"}
        record |= {"git": {"commit": "0123abc", "dirty": False}, "versions": {"torch": "2.13.0"}, "parameters": 123456}
        (folder / "recipe.yaml").write_bytes(header_yaml(record | head))
        write_lines(
            folder / "metrics.jsonl",
            [{"step": step, "examples": examples * step // 100, "loss": 1.0 / step} for step in (50, 100)]
            + [
                {"step": step, "split": split, "exact_match": 0.5, "low": 0.4, "high": 0.6, "correct": 50, "count": 100}
                for step in (50, 100)
                for split in ("validation", "ood_validation")
            ],
        )
        cells = [
            cell_line(first, second, round(count * accuracy(max(first, second))), count, seed=seed)
            for first in range(1 if trained else TRAINED + 1, high + 1)
            for second in range(1 if trained else TRAINED + 1, high + 1)
        ]
        write_lines(folder / "evaluation.jsonl", cells)
        sample = {
            "cell": {"first_digits": 2, "second_digits": 1},
            "question": "12+9=",
            "correct_answer": "21",
            "prediction": "21",
        }
        write_lines(folder / "samples.jsonl", [sample | {"correct": True, "model_text": "21+9=12"}])
        return folder

    return make
