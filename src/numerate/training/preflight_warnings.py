"""Warnings about a recipe, before training or after its first steps; they do not stop the run."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from numerate.kernels.number_loss import warn_number_term_dominates
from numerate.kernels.number_table import NumberTokenTable
from numerate.losses.number_token import NumberTokenModule
from numerate.tasks.language_modeling import LanguageModeling
from numerate.tasks.task import Task
from numerate.training.objective import ObjectiveModule
from numerate.training.recipe import Recipe

NUM_PASSAGES, PASSAGE_LENGTH = 16, 64
"""Number of completions of held-out text, and tokens of each, that are searched for in the training text."""

MAX_SEARCHED_TOKENS, SEARCH_CHUNK_TOKENS = 1 << 23, 1 << 20
"""Number of training tokens that are searched, in total and at once."""


def warn_validation_overlap(task: Task) -> list[str]:
    """Warns if at least half of the sampled passages of held-out text are also in the training text. At most 8 million
    training tokens are searched, so overlaps in larger corpora may be missed."""
    if not isinstance(task, LanguageModeling):
        return []
    train, held_out = task.corpus("train"), task.corpus("test")
    passages = [
        shard.ids[start : start + PASSAGE_LENGTH]
        for shard in held_out.shards
        if len(shard) >= PASSAGE_LENGTH
        for start in np.linspace(0, len(shard) - PASSAGE_LENGTH, -(-NUM_PASSAGES // len(held_out.shards)))
        .astype(int)
        .tolist()
    ][:NUM_PASSAGES]
    tokens_left, is_found = MAX_SEARCHED_TOKENS, [False] * len(passages)
    for shard in train.shards:
        for begin in range(0, min(len(shard), tokens_left), SEARCH_CHUNK_TOKENS):
            ids = shard.ids[begin : begin + SEARCH_CHUNK_TOKENS + PASSAGE_LENGTH]
            text = ids.tobytes()
            for number, passage in enumerate(passages):
                is_found[number] = is_found[number] or passage.astype(ids.dtype).tobytes() in text
        tokens_left -= len(shard)
        shard.release_memory()
    if not passages or 2 * sum(is_found) < len(is_found):
        return []
    return [
        f"task.validation: {sum(is_found)} of {len(is_found)} passages of {PASSAGE_LENGTH} tokens are also in the "
        "training text, so that the loss says little about new text; `numerate data prepare` holds out other text"
    ]


def warn_number_coverage(recipe: Recipe, objective: ObjectiveModule) -> list[str]:
    """Warns if many digits of the answers are in tokens that a number token loss ignores."""
    table = _find_number_table(objective)
    return [] if table is None else recipe.tokenizer.coverage_warnings(recipe.task, frozenset(table.ids.tolist()))


def warn_large_number_loss(objective: ObjectiveModule, record: Mapping[str, Any]) -> list[str]:
    """Warns if a number token loss is above cross-entropy in a record of metrics."""
    if _find_number_table(objective) is None or not {"loss_number", "loss_cross_entropy"} <= record.keys():
        return []
    number, cross_entropy = (objective.weights[term] * record[f"loss_{term}"] for term in ("number", "cross_entropy"))
    squash_hint = next((" or objective.loss.squash_factor=20" for part in objective.modules() if _can_squash(part)), "")
    remedy = f"a lower objective.loss.weight (now {objective.weights['number']:g}){squash_hint}"
    return [
        f"objective.loss: {text}"
        for text in warn_number_term_dominates(number, cross_entropy, f"the first {record['step']} steps", remedy)
    ]


def _find_number_table(objective: ObjectiveModule) -> NumberTokenTable | None:
    """The number tokens of an objective's loss; None if there are none."""
    return next((part for part in objective.modules() if isinstance(part, NumberTokenTable)), None)


def _can_squash(part: object) -> bool:
    return (
        isinstance(part, NumberTokenModule)
        and part.number_distance.loss_function == "was"
        and part.number_distance.squash_factor is None
    )
