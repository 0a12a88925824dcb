"""Checks a recipe before anything is written: errors for what cannot be trained or evaluated, warnings otherwise."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from numerate.batch import Model, Tokens
from numerate.errors import OperationalError, UserError
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.evaluation.evaluator import resolve_grid, warn_replaced_grid
from numerate.tasks.language_modeling import LanguageModeling
from numerate.tasks.task import Task
from numerate.tokenizers.tokenizer import Tokenizer
from numerate.training.checkpoint import Checkpoint
from numerate.training.distributed import World
from numerate.training.recipe import Recipe


def check_precision(precision: str, device: torch.device) -> None:
    """Raises `UserError` for a precision that the device does not support."""
    if precision == "fp16" and device.type == "cpu":
        raise UserError("training.precision: must be bf16 or fp32 for device=cpu; fp16 needs a GPU")
    if precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise UserError("training.precision: must be fp16 or fp32; this GPU does not support bf16")


def check_grid(recipe: Recipe, evaluation_data: EvaluationData, model: Model, longest: Tokens) -> list[str]:
    """Raises `UserError` for what could not be evaluated afterwards: the grid, or texts without the packages that score
    them. Returns warnings."""
    evaluation_data.kind.resolve_method(evaluation_data, "one pass")
    text, task, device = recipe.evaluation.grid, recipe.task, longest.ids.device
    if text is None and not task.training_spans():
        return []
    requested: tuple[int, ...] = ()
    try:
        grid = resolve_grid(task, text)
        warnings_of_corners = []
        for corner in grid.corners():
            requested = tuple(dict(corner).values())
            largest = evaluation_data.longest_rows(task.at_cell(**dict(corner)), split="test").to(device)
            warnings_of_corners += model.check_tokens(largest, longest)
    except UserError as error:
        reason = str(error).removeprefix("grid: ")
        if text is not None:
            cells = task.cells() if requested else None
            hint = "" if cells is None or requested in cells else "; evaluation.grid=null evaluates all cells"
            raise UserError(f"evaluation.grid: {reason}{hint}") from error
        warnings_of_corners = [f"{reason}; set evaluation.grid to a smaller one"]
    replaced_warning = warn_replaced_grid(task, text)
    warnings = [] if replaced_warning is None else [replaced_warning]
    return warnings + [f"evaluation.grid {text or '(by default)'}: {warning}" for warning in warnings_of_corners]


def validation_splits(
    recipe: Recipe, evaluation_data: EvaluationData, model: Model, device: torch.device
) -> tuple[list[str], list[str]]:
    """The splits evaluated during training: validation, and OOD validation if there is one that the model can process;
    and warnings."""
    if recipe.task.is_language_modeling:  # the files say what is held out
        return ["validation"], []
    warnings = []
    if not recipe.task.splittable_mask(recipe.task.examples("validation", 0, 0, 64)).any():
        warnings.append(
            "task: all sizes have too few questions to hold any out, so validation scores include training questions"
        )
    ood_task = recipe.task.ood_validation_task()
    if ood_task is None:
        return ["validation"], warnings
    try:
        model.check_tokens(evaluation_data.longest_rows(ood_task).to(device))
    except UserError as error:
        warnings.append(
            f"the model cannot process OOD validation, so the best step is selected in distribution: {error}"
        )
        return ["validation"], warnings
    return ["validation", "ood_validation"], warnings


def tokenizer_fingerprint(tokenizer: Tokenizer, task: Task) -> str | None:
    """The hash of the tokenizer's file (for language modeling, of the task's tokenizer); None without a file."""
    return task.load_tokenizer().fingerprint if isinstance(task, LanguageModeling) else tokenizer.fingerprint()


def check_same_tokenizer(tokenizer: Tokenizer, task: Task, last_checkpoint: Checkpoint) -> None:
    """Raises `UserError` if a checkpoint was trained with another tokenizer file of the same name, whose ids have other
    meanings. Checkpoints without a fingerprint are accepted."""
    previous_fingerprint = last_checkpoint.state.get("tokenizer")
    if previous_fingerprint is not None and previous_fingerprint != (
        fingerprint := tokenizer_fingerprint(tokenizer, task)
    ):
        name = getattr(tokenizer, "tokenizer", type(tokenizer).__name__)
        raise UserError(
            f"tokenizer: {last_checkpoint.path} was trained with another tokenizer file called {name} (fingerprint "
            f"{previous_fingerprint[:8]}, this one {(fingerprint or 'none')[:8]}), so that its ids mean other tokens; "
            "use the file it was trained with"
        )


def check_unchanged_files(task: Task, metadata: Mapping[str, Any], path: Path) -> None:
    """Raises `UserError` if the files of a task have changed since the start of the run with this `metadata` and
    `path`: its position in the data would refer to other questions.

    Runs without recorded hashes are accepted.
    """
    previous_checksums = metadata.get("contents")
    if not previous_checksums or (checksums := task.file_hashes()) == previous_checksums:
        return
    changed = [name for name in checksums if name in previous_checksums and checksums[name] != previous_checksums[name]]
    changed += sorted(set(checksums) ^ set(previous_checksums))
    name, created = changed[0], metadata.get("times", {}).get("created")
    file = task.files().get(name, f"task.{name}")
    previous_sum, current_sum = (sums[name][:8] if name in sums else "none" for sums in (previous_checksums, checksums))
    more = f", and of {len(changed) - 1} more" if len(changed) > 1 else ""
    raise UserError(
        f"task: the contents of {file}{more} have changed since {path} was "
        f"started{f' on {created}' if created else ''} (sha256 {previous_sum} then, {current_sum} now), so the run "
        "cannot resume; restore the files, or start a new run with the new ones (another runs_dir= or seed=)"
    )


def check_finite_weights(model: Model, world: World) -> None:
    """Raises `OperationalError`, in every process, for weights that are not finite before any training."""
    local_tensors = [
        getattr(weight, "to_local", lambda weight=weight: weight)() for _, weight in model.named_parameters()
    ]
    non_finite_names = [
        name for (name, _), part in zip(model.named_parameters(), local_tensors, strict=True) if not _is_finite(part)
    ]
    if world.sum_counts({"broken": len(non_finite_names)})["broken"]:
        names_text = (
            f": {', '.join(non_finite_names[:3])}{' ...' if len(non_finite_names) > 3 else ''}"
            if non_finite_names
            else " in another process"
        )
        raise OperationalError(
            f"step 0: the model starts with weights that are not finite{names_text}; it cannot be trained; "
            "replace the weights file"
        )


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(tensor.isfinite().all())
