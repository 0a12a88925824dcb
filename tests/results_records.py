"""Recipes and cells of made-up runs of sums, for tests of tables, figures and pages."""

from collections.abc import Callable
from typing import Any

from run_records import cell_record

Lines = list[dict[str, Any]]


def recipe(title: str = "abacus", seed: int = 0, **changed: Any) -> dict[str, Any]:
    """A recipe as plain data; `hidden_size=64` and the like are of its model, `learning_rate` of its optimiser."""
    attention = {"kind": "Attention", "num_heads": 4, "dropout": 0.0}
    abacus = {"kind": "Learned", "position_ids": {"kind": "DigitIndex", "max_offset": 20}}
    return {
        "kind": "Recipe",
        "task": {"kind": "Arithmetic", "operator": "+", "digits": changed.get("digits", "1:3")},
        "model": {
            "kind": "Decoder",
            "hidden_size": changed.get("hidden_size", 64),
            "mixer": changed.get("mixer", attention),
            "positions": changed.get("positions", [abacus]),
        },
        "optimizer": {"kind": "AdamW", "learning_rate": changed.get("learning_rate", 0.001), "betas": [0.9, 0.98]},
        "training": {"kind": "Training", "steps": 100, "threads": changed.get("threads")},
        "seed": seed,
        "name": None,
        "title": title,
        "paper": changed.get("paper"),
    }


def sums(share: Callable[[int], float], high: int = 6, count: int = 100, **more: Any) -> Lines:
    """The cells of a grid of sums trained on 1 to 3 digits: `share(n)` of the questions whose longer number has n
    digits are answered correctly."""
    lines = []
    for first in range(1, high + 1):
        for second in range(1, high + 1):
            n = max(first, second)
            region = "in_distribution" if n <= 3 else "ood_validation" if n == 4 else "ood_test"
            cell = {"first_digits": first, "second_digits": second}
            lines.append(cell_record(cell, round(count * share(n)), count, region, overlaps_training=n == 1, **more))
    return lines


def done(trained: float = 1.0, beyond: float | None = 0.5, **more: Any) -> dict[str, Any]:
    """A run that is done, with the shares of a cell in distribution and of one beyond; a quarter at the best step."""
    lines = []
    for checkpoint, step, part in (("best", 75, 0.25), ("final", 100, 1.0)):
        for digits, region, share in ((3, "in_distribution", trained), (6, "ood_test", beyond)):
            if share is not None:
                at = {"checkpoint": checkpoint, "step": step}
                lines.append(cell_record({"digits": digits}, round(4000 * part * share), 4000, region, **at))
    return {
        "status": "done",
        "stop_reason": "budget",
        "step": 100,
        "examples": 6400,
        "tokens": 51200,
        "flops": 1.5e12,
        "loss": 0.125,
        "validation_exact_match": 1.0,
        "ood_validation_exact_match": 0.25,
        "best_step": 75,
        "cells": lines,
    } | more


def failed(kind: str = "error", error: str = "ValueError: it broke") -> dict[str, Any]:
    return {"status": "failed", "kind": kind, "error": error}


def seeds(*beyond: float, **changed: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Seeds of one setting, done, with these shares beyond."""
    return [(recipe(seed=seed, **changed), done(beyond=share)) for seed, share in enumerate(beyond)]
