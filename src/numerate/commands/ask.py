"""`numerate ask RUN QUESTION`: the model's answer, its probability, and the correct answer."""

import argparse

from numerate.commands.words import parse_options, require_word, split_settings
from numerate.config import expand_sweep
from numerate.errors import UserError
from numerate.experiments.run import load
from numerate.reports.groups import format_settings


def command(args: argparse.Namespace) -> int:
    address = require_word(args.words, "the run", "numerate ask latest '321+654='")
    questions, option_values = parse_options(args.words[1:], {"runs_dir": str, "checkpoint": str, "device": str})
    questions, changes = split_settings(questions, "model.")
    if not questions:
        raise UserError("the question is missing; for example: numerate ask latest '321+654='")
    run = load(address, option_values.get("runs_dir"), option_values.get("device"))
    for choice in expand_sweep(changes):
        run_with_settings = run.with_settings(*choice)
        settings_text = f"   {format_settings(run_with_settings.changed_settings) or 'as trained'}" if changes else ""
        for question in questions:
            answer = run_with_settings.ask(question, option_values.get("checkpoint", "final"))
            if run_with_settings.recipe.task.is_language_modeling:
                print(f"{answer.model_text}{settings_text}   (greedy decoding; `numerate generate` samples)")
                continue
            verdict = (
                ""
                if answer.correct_answer is None
                else "correct   "
                if answer.correct
                else f"wrong, correct: {answer.correct_answer}   "
            )
            separator = (
                "   " if answer.correct_answer is None or " " in answer.correct_answer else ""
            )  # labels are aligned with their symbols
            answer_text = (
                f"{answer.question}{separator}{answer.prediction or '(nothing)'}   {verdict}probability "
                f"{answer.probability:.1%}"
            )
            print(f"{answer_text}   (as the model writes: {answer.model_text}){settings_text}")
    return 0
