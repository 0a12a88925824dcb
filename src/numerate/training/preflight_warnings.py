"""Warnings about a recipe, before it is trained or after its first steps: nothing is refused."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from numerate.kernels.number_loss import outweighs
from numerate.kernels.number_table import NumberTable
from numerate.losses.number_token import NumberTokenPart
from numerate.tasks.language_modeling import LanguageModeling
from numerate.tasks.task import Task
from numerate.training.objective import ObjectivePart
from numerate.training.recipe import Recipe

PASSAGES, PASSAGE = 16, 64
"""How many passages of held-out running text, and of how many tokens, are searched for in the training text."""

LOOKED_THROUGH, PORTION = 1 << 23, 1 << 20
"""Training tokens that are searched, and how many at once."""


def validation_trained_on(task: Task) -> list[str]:
    """Warns where half or more of some passages of held-out running text stand in the training text too. At most
    8 million training tokens are searched, so that a part of a larger corpus may be missed."""
    if not isinstance(task, LanguageModeling):
        return []
    train, held_out = task.corpus("train"), task.corpus("test")
    passages = [
        shard.ids[begin : begin + PASSAGE]
        for shard in held_out.shards
        if len(shard) >= PASSAGE
        for begin in np.linspace(0, len(shard) - PASSAGE, -(-PASSAGES // len(held_out.shards))).astype(int).tolist()
    ][:PASSAGES]
    left, found = LOOKED_THROUGH, [False] * len(passages)
    for shard in train.shards:
        for begin in range(0, min(len(shard), left), PORTION):
            ids = shard.ids[begin : begin + PORTION + PASSAGE]
            text = ids.tobytes()
            for number, passage in enumerate(passages):
                found[number] = found[number] or passage.astype(ids.dtype).tobytes() in text
        left -= len(shard)
        shard.release()
    if not passages or 2 * sum(found) < len(found):
        return []
    return [
        f"task.validation: {sum(found)} of {len(found)} passages of it, {PASSAGE} tokens each, stand in what is "
        "trained on too, so that its loss says little of new text; `numerate data prepare` holds other text out"
    ]


def numbers_uncovered(recipe: Recipe, objective: ObjectivePart) -> list[str]:
    """Warns where many digits of the answers stand in tokens that a loss over number tokens does not see."""
    table = _number_tokens(objective)
    return [] if table is None else recipe.tokenizer.coverage_warnings(recipe.task, frozenset(table.ids.tolist()))


def number_term_large(objective: ObjectivePart, record: Mapping[str, Any]) -> list[str]:
    """Warns where a loss over number tokens is above cross-entropy in a line of metrics."""
    if _number_tokens(objective) is None or not {"loss number", "loss cross_entropy"} <= record.keys():
        return []
    number, entropy = (objective.weights[term] * record[f"loss {term}"] for term in ("number", "cross_entropy"))
    squash = next((" or objective.loss.squash_factor=20" for part in objective.modules() if _could_squash(part)), "")
    remedy = f"a lower objective.loss.weight (now {objective.weights['number']:g}){squash}"
    return [
        f"objective.loss: {text}" for text in outweighs(number, entropy, f"the first {record['step']} steps", remedy)
    ]


def _number_tokens(objective: ObjectivePart) -> NumberTable | None:
    """The number tokens of an objective's loss; None where it is over none."""
    return next((part for part in objective.modules() if isinstance(part, NumberTable)), None)


def _could_squash(part: object) -> bool:
    return isinstance(part, NumberTokenPart) and part.measure.kind == "was" and part.measure.squash is None
