"""`numerate ask RUN QUESTION`: what the model answers, how sure it is, and the truth."""

import argparse

from numerate.commands.words import first, options, settings
from numerate.config import expand
from numerate.errors import UserError
from numerate.laboratory.run import load
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
            said = changed.ask(question, own.get("checkpoint", "final"))
            if changed.exam.running:
                print(f"{said.as_written}{how}   (the likeliest token each time; `numerate generate` draws)")
                continue
            judged = "" if said.gold is None else "right   " if said.right else f"wrong, it is {said.gold}   "
            between = "   " if said.gold is None or " " in said.gold else ""  # labels stand beside what they are of
            words = f"{said.question}{between}{said.said or '(nothing)'}   {judged}{said.probability:.1%} sure"
            print(f"{words}   (as the model writes: {said.as_written}){how}")
    return 0
