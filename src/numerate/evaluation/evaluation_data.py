"""The evaluation data of a recipe: questions as batches, and batches split for the forward pass."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from numerate import catalogue
from numerate.batch import Batch, Model, Tokens
from numerate.config import add_packaged_part
from numerate.errors import UserError
from numerate.evaluation.generation_settings import Generation
from numerate.tasks.counter_rng import CounterRNG, random_key
from numerate.tasks.plain import plain_examples, with_few_shot
from numerate.tasks.questions import Example, Questions
from numerate.tasks.task import Task
from numerate.tokenizers.layout import Continuation, Layout
from numerate.tokenizers.tokenizer import Tokenizer
from numerate.vocabulary import DIGIT, NUMBER

MAX_TOKENS_PER_BATCH = 32_768
"""Tokens per batch (rows x time): a fixed number, so that a cell is always computed in the same batches."""

MAX_TOKENS_PER_CPU_FORWARD = 4_096
"""Tokens of one forward pass of `split_batch` on a CPU, so that the activations of a layer fit into the CPU cache."""

EXTRA_TEXT_TOKENS = 10
"""Number of tokens that a generated text answer, and any of beam search, may be longer than the longest correct answer
of its batch: as in the published evaluation of the number token loss."""


def kind_of(task: Task, layout: Layout, generation: Generation | None = None) -> Any:
    """The `EvaluationKind` of a task: the one that it names, otherwise `TokenLabels` for a layout with a label per
    token, `GeneratedAnswers` with a `generation`, `TextAnswers` for questions that are texts in files, and `ExactMatch`
    for all others."""
    name = task.named_evaluation_kind()
    if name is None and not layout.is_autoregressive and not layout.has_mask_tokens:
        name = "TokenLabels"
    elif name is None and generation is not None and layout.is_autoregressive:
        name = "GeneratedAnswers"
    elif name is None:
        has_texts = task.draw(CounterRNG(random_key("cost")), np.arange(1)).texts is not None
        name = "TextAnswers" if has_texts else "ExactMatch"
    add_packaged_part(name)
    return catalogue.get_class("EvaluationKind", name)()


class EvaluationData:
    """The evaluation data of a recipe: questions as batches."""

    def __init__(self, task: Task, tokenizer: Tokenizer, layout: Layout, generation: Generation | None = None) -> None:
        self.task, self.tokenizer, self.generation = task, tokenizer, generation
        self.layout = replace(layout, targets="answer") if isinstance(layout, Continuation) else layout
        self.vocabulary = tokenizer.build_vocabulary(task)
        self.symbols = np.array(self.vocabulary.tokens)
        kinds, values = self.vocabulary.token_kinds, self.vocabulary.number_values
        self._digit_mask = torch.from_numpy(kinds == DIGIT)
        self._number_mask = torch.from_numpy((kinds == NUMBER) & np.isnan(values))
        self.has_number_tokens = bool(self._number_mask.any())

    @classmethod
    def from_recipe(cls, recipe: Any) -> "EvaluationData":
        return cls(recipe.task, recipe.tokenizer, recipe.layout, recipe.evaluation.generation)

    @cached_property
    def kind(self) -> Any:
        return kind_of(self.task, self.layout, self.generation)

    @cached_property
    def few_shot_examples(self) -> tuple[Example, ...]:
        """The training examples before every question. Raises `UserError` for a tokenizer without prompts, and if there
        are not as many."""
        count, problem = 0 if self.generation is None else self.generation.num_fewshot, ""
        if count and not self.tokenizer.has_prompts:
            problem = f"0 for {type(self.tokenizer).__name__}, which has no prompts; the tokenizer Subwords has"
        elif count > (num_rows := limit_count(self.task, count, "train")):
            problem = f"at most {num_rows:,}, the number of training questions, not {count:,}"
        if problem:
            raise UserError(f"evaluation.generation.num_fewshot: must be {problem}")
        return plain_examples(self.task.examples("train", 0, 0, count)) if count else ()

    def prompted(self, questions: Questions) -> Questions:
        """The questions, each after the few-shot examples."""
        return with_few_shot(questions, self.few_shot_examples) if self.few_shot_examples else questions

    @cached_property
    def token_bytes(self) -> Any:
        return self.task.token_bytes()  # type: ignore[attr-defined]

    def batch(self, questions: Questions, first_row_index: int = 0, *, few_shot: bool = True) -> Batch:
        """All questions as one batch, each after the few-shot examples; example indices start at `first_row_index`."""
        rows = self.tokenizer.encode_examples(self.prompted(questions) if few_shot else questions, self.vocabulary)
        return self.layout.build_batch(rows, np.arange(first_row_index, first_row_index + len(questions)))

    def is_digit(self, ids: Tensor) -> Tensor:
        return self._digit_mask.to(ids.device)[ids.clamp(min=0)] & (ids >= 0)

    def is_number_token(self, ids: Tensor) -> Tensor:
        """Mask of the ids that stand for any number, whose value is given separately."""
        return self._number_mask.to(ids.device)[ids.clamp(min=0)] & (ids >= 0)

    def longest_rows(self, task: Task, split: str = "validation", count: int = 64) -> Tokens:
        """Tokens of the longest questions of a task without few-shot examples, to check position embeddings."""
        largest = {axis: span.high for axis, span in task.training_spans().items()}
        largest_task = task.at_cell(**largest) if largest else task
        longest = largest_task.longest_questions()
        questions = largest_task.examples(split, 0, 0, count) if longest is None else longest
        return self.batch(questions, few_shot=False).tokens


def split_batch(batch: Batch, max_rows: int | None = None) -> Sequence[Batch]:
    """Splits a batch into groups of consecutive rows: on a CPU so small that activations stay in its cache, elsewhere
    of at most `MAX_TOKENS_PER_BATCH` tokens and `max_rows` rows."""
    rows, time = batch.tokens.ids.shape
    if batch.tokens.ids.device.type == "cpu":
        step = max(1, MAX_TOKENS_PER_CPU_FORWARD // max(1, time))
    else:
        step = min(max(1, MAX_TOKENS_PER_BATCH // max(1, time)), max_rows or rows)
    return [batch] if rows <= step else [slice_rows(batch, slice(at, at + step)) for at in range(0, rows, step)]


def slice_rows(batch: Batch, row_slice: slice) -> Batch:
    """These rows of a batch, without truncation."""
    tokens, source = select_rows(batch.tokens, row_slice), batch.source and select_rows(batch.source, row_slice)
    names = ("targets", "target_positions", "target_ids", "target_number_values")
    return replace(batch, tokens=tokens, source=source, **_rows_of(batch, names, row_slice))


def select_rows(tokens: Tokens, rows: slice | Tensor) -> Tokens:
    """The selected rows, in the given order, without position ids."""
    names = ("ids", "lengths", "example_indices", "number_values", "blocked_keys")
    return replace(tokens, position_ids=None, **_rows_of(tokens, names, rows))


def _rows_of(owner: Any, names: Sequence[str], rows: slice | Tensor) -> dict[str, Any]:
    return {name: value[rows] for name in names if (value := getattr(owner, name)) is not None}


def extract_prompts(batch: Batch) -> tuple[Tokens, int]:
    """The questions of a batch without their answers, and the number of tokens of the longest answer."""
    tokens, lengths = batch.tokens, batch.target_positions[:, 0] + 1
    longest = int(lengths.max())
    is_prompt = torch.arange(longest, device=lengths.device)[None, :] < lengths[:, None]
    values, blocked = tokens.number_values, tokens.blocked_keys
    prompts = replace(
        tokens,
        ids=torch.where(is_prompt, tokens.ids[:, :longest], 0),
        lengths=lengths,
        number_values=None if values is None else torch.where(is_prompt, values[:, :longest], 1.0),
        blocked_keys=None if blocked is None else blocked[:, :longest],
        position_ids=None,
    )
    return prompts, batch.target_ids.shape[1]


def make_batches(evaluation_data: EvaluationData, questions: Questions, model: Model) -> Iterator[Batch]:
    """Batches of a fixed number of tokens, on the model's device."""
    device = next(model.parameters()).device
    whole = evaluation_data.batch(questions)
    rows = max(1, MAX_TOKENS_PER_BATCH // whole.tokens.ids.shape[1])
    for start in range(0, len(questions), rows):
        is_whole = len(questions) <= rows
        batch = whole if is_whole else evaluation_data.batch(questions.take(slice(start, start + rows)), start)
        yield batch.to(device)


def cell_questions(task: Task, cell: Mapping[str, Any], *, count: int, seed: int = 0, split: str = "test") -> Questions:
    """The questions of a cell: `count` questions of a split, or all if there are no more."""
    cell_task = task.at_cell(**cell) if cell else task
    all_questions = cell_task.all_questions(split)
    if all_questions is not None and len(all_questions) <= count:
        return all_questions
    return cell_task.examples(split, seed, 0, limit_count(cell_task, count, split))


def num_cell_questions(task: Task, cell: Mapping[str, Any], count: int, split: str = "test") -> int:
    """The number of questions that `cell_questions` returns."""
    cell_task = task.at_cell(**cell) if cell else task
    all_questions = cell_task.all_questions(split)
    return limit_count(cell_task, count, split) if all_questions is None else min(count, len(all_questions))


def limit_count(task: Task, count: int, split: str) -> int:
    """`count`, but at most the number of rows of a split in files."""
    rows = task.num_rows(split)
    return count if rows is None else min(count, rows)


def question_facts(task: Task, questions: Questions) -> list[dict[str, int]]:
    """`Task.question_facts` by question, as columns of predictions."""
    facts = task.question_facts(questions)
    return [{name: values[row].item() for name, values in facts.items()} for row in range(len(questions))]
