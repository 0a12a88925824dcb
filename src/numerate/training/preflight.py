"""Refuses what cannot be trained or evaluated afterwards, before anything is written; warns of what is doubtful."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from numerate.batch import Model, Tokens
from numerate.errors import OperationalError, UserError
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.evaluation.evaluator import grid_of, replaced_grid
from numerate.tasks.language_modeling import LanguageModeling
from numerate.tasks.task import Task
from numerate.tokenizers.tokenizer import Tokenizer
from numerate.training.checkpoint import Checkpoint
from numerate.training.distributed import World
from numerate.training.recipe import Recipe


def refuse_precision(precision: str, device: torch.device) -> None:
    """Raises `UserError` for a precision that the device does not have."""
    if precision == "fp16" and device.type == "cpu":
        raise UserError("training.precision: fp16 needs a GPU; bf16 or fp32 are right for device=cpu")
    if precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise UserError("training.precision: this GPU has no bf16; fp16 or fp32 are right")


def refuse_grid(recipe: Recipe, exam: EvaluationData, model: Model, longest: Tokens) -> list[str]:
    """Raises `UserError` for a grid that could not be evaluated afterwards. Returns warnings."""
    text, task, device = recipe.evaluation.grid, recipe.task, longest.ids.device
    if text is None and not task.trained():
        return []
    requested: tuple[int, ...] = ()
    try:
        grid = grid_of(task, text)
        found = []
        for corner in grid.corners():
            requested = tuple(dict(corner).values())
            largest = exam.longest(task.pinned(**dict(corner)), split="test").to(device)
            found += model.check(largest, longest)
    except UserError as error:
        reason = str(error).removeprefix("grid: ")
        if text is not None:
            there = task.cells() if requested else None
            hint = "" if there is None or requested in there else "; evaluation.grid=null takes all parts there are"
            raise UserError(f"evaluation.grid: {reason}{hint}") from error
        found = [f"{reason}; evaluation.grid= names a smaller one"]
    replaced = replaced_grid(task, text)
    warnings = [] if replaced is None else [replaced]
    return warnings + [f"evaluation.grid {text or '(by default)'}: {warning}" for warning in found]


def splits_of(recipe: Recipe, exam: EvaluationData, model: Model, device: torch.device) -> tuple[list[str], list[str]]:
    """What is evaluated during training: the trained sizes, and OOD validation where the model can read it. And
    warnings."""
    if recipe.task.running:  # the files say what is held out
        return ["development"], []
    warnings = []
    if not recipe.task.divided(recipe.task.examples("development", 0, 0, 64)).any():
        warnings.append(
            "task: all of its sizes have too few questions to hold any out: development scores are on questions "
            "that training meets too"
        )
    beyond = recipe.task.beyond()
    if beyond is None:
        return ["development"], warnings
    try:
        model.check(exam.longest(beyond).to(device))
    except UserError as error:
        warnings.append(f"OOD validation cannot be read, so the best step is chosen in distribution: {error}")
        return ["development"], warnings
    return ["development", "beyond-development"], warnings


def fingerprint_of(tokenizer: Tokenizer, task: Task) -> str | None:
    """The hash of a tokenizer's file, the task's for running text; None for a tokenizer that is all in the recipe."""
    return task.pieces().fingerprint if isinstance(task, LanguageModeling) else tokenizer.fingerprint()


def refuse_other_tokenizer(tokenizer: Tokenizer, task: Task, found: Checkpoint) -> None:
    """Raises `UserError` where a checkpoint was trained with another tokenizer file of the same name, whose ids mean
    something else. Checkpoints written before this was kept are taken as they are."""
    before = found.state.get("tokenizer")
    if before is not None and before != (now := fingerprint_of(tokenizer, task)):
        name = getattr(tokenizer, "tokenizer", type(tokenizer).__name__)
        raise UserError(
            f"tokenizer: {found.path} was trained with another tokenizer file called {name} (fingerprint {before[:8]}, "
            f"this one {(now or 'none')[:8]}), so that its ids mean other tokens; the file it was trained with is right"
        )


def refuse_other_contents(task: Task, head: Mapping[str, Any], path: Path) -> None:
    """Raises `UserError` where the files of a task have changed since the run was begun whose `head` and `path` these
    are: its place in the data means other questions there, and its results are about others.

    Runs that were begun before contents were kept are taken as they are.
    """
    before = head.get("contents")
    if not before or (now := task.contents()) == before:
        return
    changed = [name for name in now if name in before and now[name] != before[name]]
    changed += sorted(set(now) ^ set(before))
    name, created = changed[0], head.get("times", {}).get("created")
    file = task.files().get(name, f"task.{name}")
    then, here = (sums[name][:8] if name in sums else "none" for sums in (before, now))
    more = f", and of {len(changed) - 1} more" if len(changed) > 1 else ""
    raise UserError(
        f"task: the contents of {file}{more} have changed since {path} was begun{f' on {created}' if created else ''} "
        f"(sha256 {then} then, {here} now), and it cannot resume with others; restore them, or train a run of its own "
        "on the new ones (another runs_dir= or seed=)"
    )


def refuse_broken_weights(model: Model, world: World) -> None:
    """Raises `OperationalError`, in every process, for weights that are not finite before any training."""
    own = [getattr(weight, "to_local", lambda weight=weight: weight)() for _, weight in model.named_parameters()]
    broken = [name for (name, _), part in zip(model.named_parameters(), own, strict=True) if not _finite(part)]
    if world.sum_counts({"broken": len(broken)})["broken"]:
        some = f": {', '.join(broken[:3])}{' ...' if len(broken) > 3 else ''}" if broken else " in another process"
        raise OperationalError(
            f"step 0: the model starts with weights that are not finite{some}; nothing can be trained from them, so "
            "the file that they come from is to be replaced"
        )


def _finite(part: torch.Tensor) -> bool:
    return bool(part.isfinite().all())
