"""`numerate ask RUN QUESTION`: the model's answer, its probability, and the correct answer."""

import argparse

from numerate.commands.words import first, options, settings
from numerate.config import expand
from numerate.errors import UserError
from numerate.experiments.run import load
from numerate.reports.groups import settings_words


def command(given: argparse.Namespace) -> int:
    address = first(given.words, "the run", "numerate ask latest '321+654='")
    questions, own = options(given.words[1:], {"runs_dir": str, "checkpoint": str, "device": str})
    questions, changes = settings(questions, "model.")
    if not questions:
        raise UserError("the question is missing; for example: numerate ask latest '321+654='")
    run = load(address, own.get("runs_dir"), own.get("device"))
    for choice in expand(changes):
        changed = run.with_settings(*choice)
        how = f"   {settings_words(changed.settings) or 'as trained'}" if changes else ""
        for question in questions:
            answer = changed.ask(question, own.get("checkpoint", "final"))
            if changed.exam.running:
                print(f"{answer.as_written}{how}   (greedy decoding; `numerate generate` samples)")
                continue
            verdict = "" if answer.gold is None else "right   " if answer.right else f"wrong, it is {answer.gold}   "
            between = "   " if answer.gold is None or " " in answer.gold else ""  # labels stand beside what they are of
            words = f"{answer.question}{between}{answer.said or '(nothing)'}   {verdict}{answer.probability:.1%} sure"
            print(f"{words}   (as the model writes: {answer.as_written}){how}")
    return 0
