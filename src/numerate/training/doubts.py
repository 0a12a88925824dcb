"""Warnings about a recipe, before it is trained or after its first steps: nothing is refused."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from numerate.errors import UserError
from numerate.losses.number_token import NumberTokenPart
from numerate.losses.number_tokens import NumberTable
from numerate.losses.token_level import outweighs
from numerate.tasks.language_modeling import LanguageModeling
from numerate.tasks.plain import plain_text
from numerate.tasks.questions import Example
from numerate.tasks.task import Task
from numerate.tasks.text_task import TextTask
from numerate.tokenizers.coverage import Coverage
from numerate.tokenizers.subwords import Subwords
from numerate.tokenizers.text_number_formats import PerDigit
from numerate.training.objective import ObjectivePart
from numerate.training.recipe import Recipe

LOW = 0.9
"""A smaller share of the digit characters of answers in number tokens gives a warning."""

SAMPLE = 256
"""Training answers that the share is counted on."""

PASSAGES, PASSAGE = 16, 64
"""How many passages of held-out running text, and of how many tokens, are searched for in the training text."""

LOOKED_THROUGH, PORTION = 1 << 23, 1 << 20
"""Training tokens that are searched, and how many at once."""


def rows_left_out(task: Task) -> list[str]:
    """How many rows of a task's files are left out of training, and why; nothing where none is."""
    if not isinstance(task, TextTask) or not task.holdings.left_out:
        return []
    holdings = task.holdings
    whole = len(holdings.train) + holdings.left_out
    keep = "; task.keep_duplicates=true keeps them, and then training has seen those questions" * hasattr(
        task, "keep_duplicates"
    )
    return [
        f"task: {holdings.left_out:,} of {whole:,} rows of training are left out, since their question stands in "
        f"development or a test too{keep} ({holdings.told()})"
    ]


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
    """Warns where many digits of the answers stand in tokens that a loss over number tokens does not see.

    Only tokenizers of texts write several digits as one token."""
    tokenizer, table = recipe.tokenizer, _number_tokens(objective)
    if table is None or not isinstance(tokenizer, Subwords):
        return []
    examples = _sample(recipe.task)
    found = _coverage(recipe.task, tokenizer, table, examples)
    if not found.digits or found.share >= LOW:
        return []
    message = (
        f"objective.loss: {found.share:.0%} of the digit characters of a sample of the training answers stand in "
        "number tokens, and the others get no number loss"
    ).replace("%", " %")
    missed = ", ".join(repr(piece) for piece, _ in found.others[:4])
    message += f" ({missed})" if missed else ""
    try:
        better = _coverage(recipe.task, replace(tokenizer, number_format=PerDigit(), vocabulary="all"), None, examples)
    except UserError:  # a tokenizer without digits
        return [message]
    if better.share > found.share:
        message += f"; tokenizer.number_format=PerDigit makes it {better.share:.0%}".replace("%", " %")
    return [message]


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


def _sample(task: Task) -> list[Example]:
    questions = task.examples("train", 0, 0, SAMPLE)
    if questions.texts is not None:
        return questions.texts.pairs()
    return [Example(*plain_text(questions, row)) for row in range(len(questions))]


def _coverage(task: Task, tokenizer: Subwords, table: NumberTable | None, examples: list[Example]) -> Coverage:
    """Coverage of the answers by the number tokens of a loss; None: by the digits of the vocabulary."""
    vocabulary = tokenizer.build_vocabulary(task)
    table = NumberTable.of_vocabulary(vocabulary) if table is None else table
    rows = replace(tokenizer, max_length=10**9).rows([Example("", one.answer) for one in examples], vocabulary)
    answers = [ids[mask].tolist() for ids, mask in zip(rows.ids, rows.target_mask, strict=True)]
    return Coverage.of([one.answer for one in examples], answers, vocabulary.symbols, set(table.ids.tolist()))
