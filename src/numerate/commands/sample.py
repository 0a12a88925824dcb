"""`numerate sample RECIPE|TASK`: examples as text and, for a recipe, as model inputs and targets."""

import argparse
from typing import Any

import numpy as np

from numerate import catalogue
from numerate.commands.words import first
from numerate.commands.words import options as own_options
from numerate.config import override
from numerate.errors import UserError, did_you_mean
from numerate.tasks.plain import plain_text
from numerate.tasks.task import SPLITS


def command(options: argparse.Namespace) -> int:
    name = first(options.words, "the recipe or task", "numerate sample addition_abacus")
    words, own = own_options(options.words[1:], {"count": _count, "split": str})
    split = own.get("split", "train")
    if split not in SPLITS:
        raise UserError(f"split: there is no {split!r}; there are: {', '.join(SPLITS)}.{did_you_mean(split, SPLITS)}")
    if own.get("count", 1) < 1:
        raise UserError(f"count: {own['count']} examples are none; 1 or more is right")
    kinds = catalogue.kinds()
    ready = catalogue.presets("Task")
    known = [*kinds["Task"], *kinds["Recipe"]]
    if name in kinds["Task"] or name in ready:
        _sample_task(name, words, split, own.get("count", 8))
    elif not (
        _names_a_file(name)
        or (plain := name.replace("-", "_")) in [*known, *kinds["Study"]]
        or catalogue.in_family("Recipe", plain)
    ):
        near, there = did_you_mean(name, [*known, *ready, *catalogue.family_names("Recipe")]), ", ".join(known)
        raise UserError(f"no task or recipe is named {name!r}; there are: {there}; {len(ready)} tasks of papers.{near}")
    else:
        _sample_recipe(name, words, split, own.get("count", 3))
    return 0


def _count(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise UserError(
            f"count: {text!r} is not how many examples are shown, such as 8; task.count={text} sets the count of a task"
        ) from error


def _sample_task(name: str, words: list[str], split: str, count: int) -> None:
    task = override(catalogue.made("Task", name), [word.removeprefix("task.") for word in words])
    if task.running:
        from numerate.commands.language_modeling import sample_of_text

        print(sample_of_text(task, split, 0, count), end="")
        return
    questions = task.examples(split, 0, 0, count)
    for row in range(count):
        question, answer = plain_text(questions, row)
        if questions.texts is not None:
            print(_apart(question, answer))
            continue
        print(f"{question}{answer}" if questions.labels is None else _aligned(question, answer))
    drawn_from = task.beyond() if split == "beyond-development" else task
    if split != "train" and drawn_from is not None and not drawn_from.held_out(split):
        print("some or all of these sizes have too few questions to hold any out: training may meet them too")


def _apart(question: str, answer: str) -> str:
    """A question, its indented answer, and an empty line.

    >>> _apart("How many?", "Two and one.\\n#### 3").splitlines()
    ['How many?', '    Two and one.', '    #### 3', '']
    """
    return "\n".join([question, *(f"    {line}" for line in answer.split("\n")), ""])


def _aligned(question: str, labels: str) -> str:
    """The words of a question with their labels aligned below, and an empty line.

    >>> _aligned("9 a a", ". 10 11").splitlines()
    ['9 a  a', '. 10 11', '']
    """
    tokens, targets = question.split(" "), labels.split(" ")
    if len(tokens) != len(targets):  # a text with a space in it
        return f"{question}\n{labels}\n"
    widths = [max(map(len, pair)) for pair in zip(tokens, targets, strict=True)]
    lines = [" ".join(word.ljust(wide) for word, wide in zip(line, widths, strict=True)) for line in (tokens, targets)]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _sample_recipe(name: str, words: list[str], split: str, count: int) -> None:
    from numerate.batch import StepContext
    from numerate.evaluation.evaluation_data import EvaluationData
    from numerate.studies.naming import named_recipe

    recipe = override(named_recipe(name), words)
    if recipe.task.running:
        _sample_running(recipe, split, count)
        return
    exam = EvaluationData(recipe.task, recipe.tokenizer, recipe.layout)
    questions = recipe.task.examples(split, recipe.seed, 0, count)
    rows = recipe.tokenizer.rows(questions, exam.vocabulary)
    model = recipe.model.build(exam.vocabulary, recipe.seed)
    draw = StepContext(recipe.seed, 0) if split == "train" else StepContext.fixed()
    for row in range(count):
        index = rows.take(slice(row, row + 1))
        batch = recipe.layout.batch(index, np.arange(row, row + 1))
        tokens = model.assign_positions(batch.tokens, draw)
        question, answer = plain_text(questions, row)
        print(f"{question}{answer}" if questions.labels is None else question)
        length = int(tokens.lengths[0])
        lines = {}
        if batch.source is not None:
            lines["question"] = _symbols(exam, batch.source.ids[0], batch.source.values)[: int(batch.source.lengths[0])]
        lines |= {
            "inputs": _symbols(exam, tokens.ids[0], tokens.values)[:length],
            "targets": _symbols(exam, batch.targets[0], batch.target_values)[:length],
        }
        for number, ids in enumerate(tokens.position_ids or ()):
            lines[f"position {number}"] = [f"{p:.4g}" for p in ids[min(0, ids.shape[0] - 1), :length].tolist()]
        lines["token ids"] = [str(i) for i in tokens.ids[0, :length].tolist()]
        width = max(len(text) for line in lines.values() for text in line)
        for label, line in lines.items():
            print(f"  {label:<10} " + " ".join(text.rjust(width) for text in line))
        print()
    positions = ", ".join(
        f"{number}: {type(p).__name__}({type(p.position_ids).__name__})" for number, p in enumerate(_positions(recipe))
    )
    placement = "with the offsets of training step 0" if split == "train" else "as in evaluation"
    encoder = " An encoder reads the question." if batch.source is not None else ""
    print(f"position ids {placement}; positions {positions or 'none'}. A dot: no target there.{encoder}")


def _symbols(exam: Any, ids: Any, values: Any) -> list[str]:
    """The symbols of a row, with the value of number tokens (`[NUM]=12.5`), and a dot for no token."""
    carries, each = exam.carriers.tolist(), [None] * len(ids) if values is None else values[0].tolist()
    return [
        "." if i < 0 else f"{exam.symbols[i]}={value:.7g}" if carries[i] and value is not None else exam.symbols[i]
        for i, value in zip(ids.tolist(), each, strict=True)
    ]


def _sample_running(recipe: Any, split: str, count: int) -> None:
    """Prints chunks of running text, and the first tokens of each as model inputs."""
    from numerate.commands.language_modeling import sample_of_text

    vocabulary = recipe.tokenizer.vocabulary(recipe.task)
    print(sample_of_text(recipe.task, split, recipe.seed, count), end="")
    rows = recipe.tokenizer.rows(recipe.task.examples(split, recipe.seed, 0, count), vocabulary)
    for row in range(len(rows)):
        batch = recipe.layout.batch(rows.take(slice(row, row + 1)), np.arange(row, row + 1))
        symbols = vocabulary.symbols
        lines = {
            "inputs": [symbols[i] for i in batch.tokens.ids[0, :_SHOWN_TOKENS].tolist()],
            "targets": ["." if i < 0 else symbols[i] for i in batch.targets[0, :_SHOWN_TOKENS].tolist()],
            "token ids": [str(i) for i in batch.tokens.ids[0, :_SHOWN_TOKENS].tolist()],
        }
        widths = [max(map(len, column)) for column in zip(*lines.values(), strict=True)]
        print(f"chunk {row + 1}, its first tokens:")
        for label, line in lines.items():
            print(f"  {label:<10} " + " ".join(text.rjust(wide) for text, wide in zip(line, widths, strict=True)))
    print("every position has a target")


_SHOWN_TOKENS = 12
"""Tokens of a chunk that are shown as model inputs."""


def _positions(recipe: Any) -> tuple[Any, ...]:
    return tuple(getattr(recipe.model, "positions", ()))


def _names_a_file(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) or ".py:" in name
