"""`numerate sample RECIPE|TASK`: examples as text and, for a recipe, as model inputs and targets."""

import argparse
from typing import Any

import numpy as np

from numerate import catalogue
from numerate.commands.words import parse_options as own_options
from numerate.commands.words import require_word
from numerate.config import override
from numerate.errors import UserError, did_you_mean
from numerate.tasks.plain import format_question
from numerate.tasks.task import SPLITS


def command(args: argparse.Namespace) -> int:
    name = require_word(args.words, "the recipe or task", "numerate sample addition_abacus")
    words, option_values = own_options(args.words[1:], {"count": _parse_count, "split": str})
    split = option_values.get("split", "train")
    if split not in SPLITS:
        raise UserError(f"split: there is no {split!r}; there are: {', '.join(SPLITS)}.{did_you_mean(split, SPLITS)}")
    if option_values.get("count", 1) < 1:
        raise UserError(f"count: {option_values['count']} must be at least 1")
    kinds = catalogue.parts_by_kind()
    presets = catalogue.presets("Task")
    known = [*kinds["Task"], *kinds["Recipe"]]
    if name in kinds["Task"] or name in presets:
        _sample_task(name, words, split, option_values.get("count", 8))
    elif not (
        _is_recipe_file(name)
        or (plain := name.replace("-", "_")) in [*known, *kinds["Study"]]
        or catalogue.is_in_family("Recipe", plain)
    ):
        near, known_text = did_you_mean(name, [*known, *presets, *catalogue.family_names("Recipe")]), ", ".join(known)
        raise UserError(
            f"no task or recipe is named {name!r}; there are: {known_text}; {len(presets)} tasks of papers.{near}"
        )
    else:
        _sample_recipe(name, words, split, option_values.get("count", 3))
    return 0


def _parse_count(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise UserError(
            f"count: {text!r} must be the number of examples to show, such as 8; task.count={text} sets the count of a "
            "task"
        ) from error


def _sample_task(name: str, words: list[str], split: str, count: int) -> None:
    task = override(catalogue.get_part("Task", name), [word.removeprefix("task.") for word in words])
    if task.is_language_modeling:
        from numerate.commands.language_modeling import sample_chunks

        print(sample_chunks(task, split, 0, count), end="")
        return
    questions = task.examples(split, 0, 0, count)
    for row in range(count):
        question, answer = format_question(questions, row)
        if questions.texts is not None:
            print(_text_example(question, answer))
            continue
        print(f"{question}{answer}" if questions.labels is None else _aligned_labels(question, answer))
    drawn_from = task.ood_validation_task() if split == "ood_validation" else task
    if split != "train" and drawn_from is not None and not drawn_from.is_held_out(split):
        print("some of these sizes have too few questions for a held-out split: they may occur in training")


def _text_example(question: str, answer: str) -> str:
    """A question, its indented answer, and an empty line.

    >>> _text_example("How many?", "Two and one.\\n#### 3").splitlines()
    ['How many?', '    Two and one.', '    #### 3']
    """
    return "\n".join([question, *(f"    {line}" for line in answer.split("\n")), ""])


def _aligned_labels(question: str, labels: str) -> str:
    """The words of a question with their labels aligned below, and an empty line.

    >>> _aligned_labels("9 a a", ". 10 11").splitlines()
    ['9 a  a', '. 10 11']
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
    from numerate.studies.naming import load_recipe

    recipe = override(load_recipe(name), words)
    if recipe.task.is_language_modeling:
        _sample_language_recipe(recipe, split, count)
        return
    evaluation_data = EvaluationData(recipe.task, recipe.tokenizer, recipe.layout)
    questions = recipe.task.examples(split, recipe.seed, 0, count)
    rows = recipe.tokenizer.encode_examples(questions, evaluation_data.vocabulary)
    model = recipe.model.build(evaluation_data.vocabulary, recipe.seed)
    step_context = StepContext(recipe.seed, 0) if split == "train" else StepContext.for_evaluation()
    for row in range(count):
        row_slice = rows.take(slice(row, row + 1))
        batch = recipe.layout.build_batch(row_slice, np.arange(row, row + 1))
        tokens = model.assign_positions(batch.tokens, step_context)
        question, answer = format_question(questions, row)
        print(f"{question}{answer}" if questions.labels is None else question)
        length = int(tokens.lengths[0])
        lines = {}
        if batch.source is not None:
            lines["question"] = _symbols(evaluation_data, batch.source.ids[0], batch.source.number_values)[
                : int(batch.source.lengths[0])
            ]
        lines |= {
            "inputs": _symbols(evaluation_data, tokens.ids[0], tokens.number_values)[:length],
            "targets": _symbols(evaluation_data, batch.targets[0], batch.target_number_values)[:length],
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
    offsets_text = "with the offsets of training step 0" if split == "train" else "as in evaluation"
    encoder = " An encoder reads the question." if batch.source is not None else ""
    print(f"position ids {offsets_text}; positions {positions or 'none'}. A dot: no target.{encoder}")


def _symbols(evaluation_data: Any, ids: Any, values: Any) -> list[str]:
    """The symbols of a row, with the value of number tokens (`[NUM]=12.5`), and a dot for no token."""
    carries_number, number_values = (
        evaluation_data.number_token_mask.tolist(),
        [None] * len(ids) if values is None else values[0].tolist(),
    )
    return [
        "."
        if i < 0
        else f"{evaluation_data.symbols[i]}={value:.7g}"
        if carries_number[i] and value is not None
        else evaluation_data.symbols[i]
        for i, value in zip(ids.tolist(), number_values, strict=True)
    ]


def _sample_language_recipe(recipe: Any, split: str, count: int) -> None:
    """Prints chunks of text, and the first tokens of each as model inputs."""
    from numerate.commands.language_modeling import sample_chunks

    vocabulary = recipe.tokenizer.vocabulary(recipe.task)
    print(sample_chunks(recipe.task, split, recipe.seed, count), end="")
    rows = recipe.tokenizer.rows(recipe.task.examples(split, recipe.seed, 0, count), vocabulary)
    for row in range(len(rows)):
        batch = recipe.layout.batch(rows.take(slice(row, row + 1)), np.arange(row, row + 1))
        symbols = vocabulary.symbols
        lines = {
            "inputs": [symbols[i] for i in batch.tokens.ids[0, :_MAX_SHOWN_TOKENS].tolist()],
            "targets": ["." if i < 0 else symbols[i] for i in batch.targets[0, :_MAX_SHOWN_TOKENS].tolist()],
            "token ids": [str(i) for i in batch.tokens.ids[0, :_MAX_SHOWN_TOKENS].tolist()],
        }
        widths = [max(map(len, column)) for column in zip(*lines.values(), strict=True)]
        print(f"chunk {row + 1}, its first tokens:")
        for label, line in lines.items():
            print(f"  {label:<10} " + " ".join(text.rjust(wide) for text, wide in zip(line, widths, strict=True)))
    print("every position has a target")


_MAX_SHOWN_TOKENS = 12
"""Tokens of a chunk that are shown as model inputs."""


def _positions(recipe: Any) -> tuple[Any, ...]:
    return tuple(getattr(recipe.model, "positions", ()))


def _is_recipe_file(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) or ".py:" in name
