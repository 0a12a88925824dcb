"""`sample`: examples as text and, for a recipe, as model inputs and targets."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from numerate.commands.naming import load_data
from numerate.tasks.plain import format_question
from numerate.tasks.task import Task
from numerate.terminal import output_width, print_wrapped

if TYPE_CHECKING:
    from numerate.evaluation.evaluation_data import EvaluationData
    from numerate.tasks.language_modeling import LanguageModeling

_MAX_SHOWN_TOKENS = 12
"""Tokens of a chunk of text that are shown as model inputs."""


def sample(name: str, *, settings: Sequence[str], count: int | None = None, split: str = "train") -> None:
    """Prints examples of a task or file (8 by default), or recipe (3)."""
    data = load_data(name, settings)
    count = count or (8 if data.recipe is None else 3)
    if data.task.is_language_modeling:
        from numerate.commands.corpora import sample_chunks

        print(sample_chunks(cast("LanguageModeling", data.task), split, data.seed, count), end="")
        if data.recipe is not None:
            _print_chunk_inputs(data.recipe, split, count)
    elif data.recipe is not None:
        _sample_recipe(data.recipe, split, count)
    else:
        _sample_task(data.task, split, count)


def _sample_task(task: Task, split: str, count: int) -> None:
    questions = task.examples(split, 0, 0, count)
    for row in range(count):
        question, answer = format_question(questions, row)
        if questions.texts is not None:
            print("\n".join([question, *(f"    {line}" for line in answer.split("\n")), ""]))
        else:
            print(f"{question}{answer}" if questions.labels is None else _aligned_labels(question, answer))
    drawn_from = task.ood_validation_task() if split == "ood_validation" else task
    if split != "train" and drawn_from is not None and not drawn_from.is_held_out(split):
        print_wrapped("some of these sizes have too few questions for a held-out split: they may occur in training")


def _aligned_labels(question: str, labels: str) -> str:
    """The words of a question with their labels aligned below, and an empty line; of a long one several such lines.

    >>> _aligned_labels("9 a a", ". 10 11").splitlines()
    ['9 a  a', '. 10 11']
    """
    tokens, targets = question.split(" "), labels.split(" ")
    if len(tokens) != len(targets):  # a text with a space in it
        return f"{question}\n{labels}\n"
    return "\n".join("".join(f"{line}\n" for line in lines) for lines in _aligned([tokens, targets], output_width()))


def _aligned(lines: Sequence[Sequence[str]], width: int | None) -> list[list[str]]:
    """Lines of words, the words of each column below each other: as many columns side by side as fit into `width`, the
    others in further lines.

    >>> _aligned([["9", "a", "a"], [".", "10", "11"]], 5)
    [['9 a', '. 10'], ['a', '11']]
    """
    blocks: list[list[str]] = []
    for column in zip_longest(*lines, fillvalue=""):
        words = [word.ljust(max(map(len, column))) for word in column]
        if not blocks or (width is not None and len(blocks[-1][0]) + 1 + len(words[0]) > width):
            blocks.append(words)
        else:
            blocks[-1] = [f"{line} {word}" for line, word in zip(blocks[-1], words, strict=True)]
    return [[line.rstrip() for line in block] for block in blocks]


def _print_lines(lines: Mapping[str, Sequence[str]]) -> None:
    width = output_width()
    for number, block in enumerate(_aligned([*lines.values()], width and width - 13)):
        print("\n" * bool(number), end="")
        for label, line in zip(lines, block, strict=True):
            print(f"  {label:<10} {line}".rstrip())


def _sample_recipe(recipe: Any, split: str, count: int) -> None:
    """Prints examples of a recipe, each above what the model reads. Weights of transformers are not needed for it."""
    from numerate.batch import StepContext
    from numerate.evaluation.evaluation_data import EvaluationData

    data = EvaluationData.from_recipe(recipe)
    questions = recipe.task.examples(split, recipe.seed, 0, count)
    prompted = questions if split == "train" else data.prompted(questions)
    rows = recipe.tokenizer.encode_examples(prompted, data.vocabulary)
    model = None if recipe.model.is_hugging_face else recipe.model.build(data.vocabulary, recipe.seed)
    step_context = StepContext(recipe.seed, 0) if split == "train" else StepContext.for_evaluation()
    for row in range(count):
        batch = recipe.layout.build_batch(rows.take(slice(row, row + 1)), np.arange(row, row + 1))
        tokens = batch.tokens if model is None else model.assign_positions(batch.tokens, step_context)
        question, answer = format_question(questions, row)
        print(f"{question}{answer}" if questions.labels is None else question)
        length, source = int(tokens.lengths[0]), batch.source
        lines = {}
        if source is not None:
            lines["question"] = _symbols(data, source.ids[0], source.number_values)[: int(source.lengths[0])]
        lines["inputs"] = _symbols(data, tokens.ids[0], tokens.number_values)[:length]
        lines["targets"] = _symbols(data, batch.targets[0], batch.target_number_values)[:length]
        for number, ids in enumerate(tokens.position_ids or ()):
            lines[f"position {number}"] = [f"{p:.4g}" for p in ids[min(0, ids.shape[0] - 1), :length].tolist()]
        lines["token ids"] = [str(i) for i in tokens.ids[0, :length].tolist()]
        _print_lines(lines)
        print()
    positions = ", ".join(
        f"{number}: {type(p).__name__}({type(p.position_ids).__name__})"
        for number, p in enumerate(getattr(recipe.model, "positions", ()))
    )
    offsets_text = "with the offsets of training step 0" if split == "train" else "as in evaluation"
    encoder = " An encoder reads the question." if batch.source is not None else ""
    print_wrapped(f"position ids {offsets_text}; positions {positions or 'none'}. A dot: no target.{encoder}")


def _symbols(data: "EvaluationData", ids: Any, values: Any) -> list[str]:
    """The tokens of a row, with the value of number tokens (`[NUM]=12.5`), and a dot for no token."""
    number_values = [None] * len(ids) if values is None else values[0].tolist()
    return [
        "." if i < 0 else str(data.symbols[i]) + (f"={value:.7g}" if is_number and value is not None else "")
        for i, is_number, value in zip(ids.tolist(), data.is_number_token(ids).tolist(), number_values, strict=True)
    ]


def _print_chunk_inputs(recipe: Any, split: str, count: int) -> None:
    """Prints the first tokens of chunks of a corpus as model inputs."""
    symbols = recipe.task.load_tokenizer().symbols
    vocabulary = recipe.tokenizer.build_vocabulary(recipe.task)
    rows = recipe.tokenizer.encode_examples(recipe.task.examples(split, recipe.seed, 0, count), vocabulary)
    for row in range(len(rows)):
        batch = recipe.layout.build_batch(rows.take(slice(row, row + 1)), np.arange(row, row + 1))
        ids, targets = (each[0, :_MAX_SHOWN_TOKENS].tolist() for each in (batch.tokens.ids, batch.targets))
        target_symbols = ["." if i < 0 else symbols[i] for i in targets]
        print(f"chunk {row + 1}, its first tokens:")
        _print_lines(
            {"inputs": [symbols[i] for i in ids], "targets": target_symbols, "token ids": [str(i) for i in ids]}
        )
    print("every position has a target")
