"""What is refused and what is warned of before a recipe is trained: one function each, in the order of `CHECKS`.

A check raises `UserError` for what cannot be trained or evaluated, and returns warnings about what can. What only some
tasks or tokenizers can tell is a method of theirs: `Task.data_warnings`, `Tokenizer.coverage_warnings`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from pathlib import Path
from typing import Any

import torch

from numerate.batch import Batch, Model, StepContext, Tokens
from numerate.errors import UserError, raise_first
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.evaluation.evaluator import resolve_grid
from numerate.kernels.number_loss import warn_number_term_dominates
from numerate.kernels.number_table import NumberTokenTable
from numerate.losses.loss import LossModule
from numerate.losses.number_token import NumberTokenModule
from numerate.positions.position_ids import PositionIds
from numerate.tasks.language_modeling import LanguageModeling
from numerate.tasks.task import Task
from numerate.tokenizers.tokenizer import Tokenizer
from numerate.training.checkpoint import Checkpoint
from numerate.training.objective import ObjectiveModule
from numerate.training.own_parts import (
    MAX_LENGTH,
    draw_questions,
    evaluating,
    first_tokens,
    is_from_library,
    model_problems,
    position_ids_problems,
    task_problems,
)
from numerate.training.recipe import Recipe
from numerate.vocabulary import UNK


@dataclass(frozen=True)
class TrainingParts:
    """The parts built from a recipe, which the checks look at."""

    recipe: Recipe
    device: torch.device
    evaluation_data: EvaluationData
    model: Model
    objective: ObjectiveModule

    @cached_property
    def longest_rows(self) -> Tokens:
        """The longest training rows."""
        return self.evaluation_data.longest_rows(self.recipe.task).to(self.device)

    @cached_property
    def why_not_ood_validation(self) -> str | None:
        """Why the model cannot process the OOD validation of its task; None if it can, or if there is none."""
        ood_task = self.recipe.task.ood_validation_task()
        try:
            if ood_task is not None:
                self.model.check_tokens(self.evaluation_data.longest_rows(ood_task).to(self.device))
        except UserError as error:
            return str(error)
        return None

    @cached_property
    def small_batch(self) -> Batch:
        """A few examples of training; of language modeling, whose rows are long, one."""
        questions = draw_questions(self.recipe.task, 1 if self.recipe.task.is_language_modeling else 4)
        return self.evaluation_data.batch(questions, few_shot=False).to(self.device)

    @cached_property
    def own_position_ids(self) -> dict[int, PositionIds]:
        """The position ids of the model that are parts of a user, by the index of their position."""
        schemes = enumerate(position.position_ids for position in getattr(self.recipe.model, "positions", ()))
        return {index: scheme for index, scheme in schemes if not is_from_library(type(scheme))}

    def validation_splits(self) -> list[str]:
        """The splits evaluated during training: validation, and OOD validation if there is one that the model can
        process. Of language modeling, the files say what is held out."""
        task = self.recipe.task
        has_ood = not task.is_language_modeling and task.ood_validation_task() is not None
        return ["validation", "ood_validation"] if has_ood and self.why_not_ood_validation is None else ["validation"]


def check_precision(parts: TrainingParts) -> list[str]:
    """fp16 needs a GPU, and bf16 on a GPU one that supports it."""
    precision, device = parts.recipe.training.precision, parts.device.type
    if precision == "fp16" and device == "cpu":
        raise UserError("training.precision: must be bf16 or fp32 for device=cpu; fp16 needs a GPU")
    if precision == "bf16" and device == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UserError("training.precision: must be fp16 or fp32; this GPU does not support bf16")
    return []


def check_evaluation_kind(parts: TrainingParts) -> list[str]:
    """A model that sees later tokens cannot answer token by token; answers that are texts are scored by packages that
    must be installed."""
    parts.evaluation_data.kind.check_causal(parts.model, parts.evaluation_data)
    parts.evaluation_data.kind.resolve_method(parts.evaluation_data, "one pass")
    return []


def check_own_task(parts: TrainingParts) -> list[str]:
    """Data that is not a function of its key differs between sessions, processes and splits."""
    nested = (value if isinstance(value, tuple) else (value,) for value in vars(parts.recipe.task).values())
    for task in (parts.recipe.task, *chain.from_iterable(nested)):
        if isinstance(task, Task) and not is_from_library(type(task)):
            raise_first(f"task: {type(task).__name__} {problem}" for problem in task_problems(task))
    return []


def check_own_position_ids(parts: TrainingParts) -> list[str]:
    """Position ids of a user must be usable, and not random but by their context, in evaluation and in training."""
    kinds = torch.from_numpy(parts.evaluation_data.vocabulary.token_kinds).long().to(parts.device)
    for index, scheme in parts.own_position_ids.items():
        evaluations = map(StepContext.for_evaluation, range(scheme.num_position_offsets()))
        contexts = (*evaluations, StepContext(parts.recipe.seed, 0))
        for tokens, step_context in product((parts.small_batch.tokens, parts.longest_rows), contexts):
            raise_first(
                f"model.positions.{index}.position_ids: {type(scheme).__name__}.assign {problem}"
                for problem in position_ids_problems(scheme, tokens, kinds[tokens.ids], step_context)
            )
    return []


def check_own_modules(parts: TrainingParts) -> list[str]:
    """Models, mixers, other modules and position ids of a user must compute each row by itself, must not see later
    tokens, and must decode token by token what they compute for whole rows: otherwise a score is of answers that the
    model has seen.

    Checked on the first tokens of a row.
    """
    model, rows, recipe = parts.model, parts.longest_rows, parts.recipe
    length, own_ids = min(int(rows.lengths[0]), MAX_LENGTH), [*parts.own_position_ids.values()]
    is_own_model = not is_from_library(type(recipe.model))
    modules = [model] if is_own_model else [one for one in model.modules() if not is_from_library(type(one))]
    is_checked = not recipe.model.is_hugging_face and rows.blocked_keys is None and length >= 4
    if not (modules or own_ids) or not is_checked:
        return []
    names = dict.fromkeys(type(one).__name__ for one in ([recipe.model] if is_own_model else modules) + own_ids)
    size, is_causal = parts.evaluation_data.vocabulary.size, recipe.layout.is_autoregressive
    with evaluating(model, modules):
        problems = model_problems(model, first_tokens(rows, length), size, is_causal=is_causal, own_ids=bool(own_ids))
        raise_first(f"model: {' or '.join(names)} {problem}" for problem in problems)
    return []


def check_vocabulary(parts: TrainingParts) -> list[str]:
    """What the alphabet of a user's task lacks would be read, and be right if predicted, as [UNK]."""
    task, tokenizer, vocabulary = parts.recipe.task, parts.recipe.tokenizer, parts.evaluation_data.vocabulary
    if is_from_library(type(task)) or task.is_language_modeling or tokenizer.fingerprint() is not None:
        return []  # a tokenizer of a file has a vocabulary of its own
    warnings = []
    for split in ("train", "ood_validation") if task.ood_validation_task() is not None else ("train",):
        questions = task.examples(split, 0, 0, 256)
        tokenized = tokenizer.encode_examples(questions, vocabulary)
        unknown = tokenized.ids == UNK
        if not unknown.any():
            continue
        characters = {character for text in questions.alphabet for character in text} - {*vocabulary.tokens}
        missing = ", ".join(map(repr, sorted(characters.difference("0123456789")))) or "tokens"
        message = f"task: {type(task).__name__}.alphabet() lacks {missing}, which examples of {split} have"
        if split == "train" and (unknown & tokenized.target_mask).any():
            raise UserError(f"{message}: answers would be [UNK]")
        warnings.append(f"{message}: the model reads [UNK]")
    return warnings


def check_training_rows(parts: TrainingParts) -> list[str]:
    """The longest training rows must fit the position embeddings."""
    return parts.model.check_tokens(parts.longest_rows, parts.longest_rows)


def check_grid(parts: TrainingParts) -> list[str]:
    """A grid that could not be evaluated afterwards is refused now, or a warning if it is the default one."""
    text, task = parts.recipe.evaluation.grid, parts.recipe.task
    if text is None and not task.training_spans():
        return []
    try:
        corner_warnings = []
        grid = resolve_grid(task, text)
        for corner in grid.corners(smallest=True):
            task.at_cell(**dict(corner))
        for corner in grid.corners():
            largest = parts.evaluation_data.longest_rows(task.at_cell(**dict(corner)), split="test").to(parts.device)
            corner_warnings += parts.model.check_tokens(largest, parts.longest_rows)
    except UserError as error:
        reason = str(error).removeprefix("grid: ")
        if text is not None:
            raise UserError(f"evaluation.grid: {reason} (null: the default grid)") from error
        corner_warnings = [f"{reason}; set evaluation.grid to a smaller one"]
    return [f"evaluation.grid {text or '(by default)'}: {warning}" for warning in corner_warnings]


def check_data(parts: TrainingParts) -> list[str]:
    """What lacks held-out questions or OOD validation, rows that are left out of training, and held-out text that is
    also in the training text."""
    task, warnings = parts.recipe.task, []
    if not task.is_language_modeling:
        if not task.splittable_mask(task.examples("validation", 0, 0, 64)).any():
            what = "all sizes have too few questions to hold any out, so validation scores include training questions"
            warnings.append(f"task: {what}")
        if (reason := parts.why_not_ood_validation) is not None:
            what = "the model cannot process OOD validation, so the best step is selected in distribution"
            warnings.append(f"{what}: {reason}")
    return warnings + task.data_warnings()


def check_number_coverage(parts: TrainingParts) -> list[str]:
    """Digits of the answers in tokens that a number token loss ignores get no number loss."""
    table = _find_number_table(parts.objective)
    if table is None:
        return []
    return parts.recipe.tokenizer.coverage_warnings(parts.recipe.task, frozenset(table.ids.tolist()))


def check_digit_order(parts: TrainingParts) -> list[str]:
    """A loss that reads numbers, and not single digits, reads them in the order in which they are written."""
    task = parts.recipe.task
    orders = [part.required_digit_order() for part in parts.objective.modules() if isinstance(part, LossModule)]
    if not task.is_language_modeling and any(orders):
        written = parts.recipe.tokenizer.answer_digit_order(task.examples("validation", 0, 0, 64))
        if written is not None and (wrong := {*orders} - {None, written}):
            raise UserError(
                f"objective.loss.digit_order: must be {written}, as tokenizer.number_format writes the numbers of "
                f"answers, not {wrong.pop()}"
            )
    return []


CHECKS: tuple[Callable[[TrainingParts], list[str]], ...] = (
    check_precision,
    check_evaluation_kind,
    check_own_task,
    check_vocabulary,
    check_own_position_ids,
    check_training_rows,
    check_own_modules,
    check_grid,
    check_data,
    check_number_coverage,
    check_digit_order,
)
"""All checks of a new run, in the order of their warnings."""


def preflight(parts: TrainingParts) -> list[str]:
    """Runs all checks and returns their warnings. Raises `UserError` for what cannot be trained or evaluated."""
    return [text for check in CHECKS for text in check(parts)]


def tokenizer_fingerprint(tokenizer: Tokenizer, task: Task) -> str | None:
    """The hash of the tokenizer's file (for language modeling, of the task's tokenizer); None without a file."""
    return task.load_tokenizer().fingerprint if isinstance(task, LanguageModeling) else tokenizer.fingerprint()


def check_same_tokenizer(tokenizer: Tokenizer, task: Task, last_checkpoint: Checkpoint) -> None:
    """Raises `UserError` if a checkpoint was trained with another tokenizer file of the same name, whose ids have other
    meanings."""
    previous, current = last_checkpoint.state.get("tokenizer"), tokenizer_fingerprint(tokenizer, task)
    if previous not in (None, current):
        name = getattr(tokenizer, "tokenizer", type(tokenizer).__name__)
        raise UserError(
            f"tokenizer: {last_checkpoint.path} was trained with another tokenizer file called {name} ({previous[:8]}, "
            f"this one {(current or 'none')[:8]}), so that its ids mean other tokens; use the file it was trained with"
        )


def check_unchanged_files(task: Task, metadata: Mapping[str, Any], path: Path) -> None:
    """Raises `UserError` if the files of a task have changed since the start of the run with this `metadata` and
    `path`: its position in the data would refer to other questions."""
    then = metadata.get("contents") or {}
    now = task.file_hashes() if then else {}
    changed = [
        str(task.files().get(name, f"task.{name}")) for name in {**then, **now} if then.get(name) != now.get(name)
    ]
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise UserError(
            f"task: the contents of {', '.join(changed[:3])}{more} have changed since {path} was started, so the run "
            "cannot resume; restore the files, or start a new run with the new ones (another runs_dir= or seed=)"
        )


def warn_large_number_loss(objective: ObjectiveModule, record: Mapping[str, Any]) -> list[str]:
    """Warns if a number token loss is above cross-entropy in a record of metrics."""
    if _find_number_table(objective) is None or not {"loss_number", "loss_cross_entropy"} <= record.keys():
        return []
    number, cross_entropy = (objective.weights[term] * record[f"loss_{term}"] for term in ("number", "cross_entropy"))
    distances = (part.number_distance for part in objective.modules() if isinstance(part, NumberTokenModule))
    can_squash = any(one.loss_function == "was" and one.squash_factor is None for one in distances)
    remedy = f"a lower objective.loss.weight (now {objective.weights['number']:g})"
    remedy += " or objective.loss.squash_factor=20" * can_squash
    warnings = warn_number_term_dominates(number, cross_entropy, f"the first {record['step']} steps", remedy)
    return [f"objective.loss: {text}" for text in warnings]


def _find_number_table(objective: ObjectiveModule) -> NumberTokenTable | None:
    """The number tokens of an objective's loss; None if there are none."""
    return next((part for part in objective.modules() if isinstance(part, NumberTokenTable)), None)
