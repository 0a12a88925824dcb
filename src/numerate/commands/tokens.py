"""`numerate tokens`: trains tokenizers."""

import argparse

from numerate.commands.words import require_word
from numerate.errors import UserError, did_you_mean

_ACTIONS = ("train-vocabulary",)


def command(args: argparse.Namespace) -> int:
    from numerate.commands import corpora

    action = require_word(
        args.words, "what to do with tokens", "numerate tokens train-vocabulary stories.txt size=4096"
    )
    if action.replace("_", "-") not in _ACTIONS:
        raise UserError(
            f"tokens: there is no {action!r}; there is: {', '.join(_ACTIONS)}.{did_you_mean(action, _ACTIONS)}"
        )
    size = [] if args.size is None else [f"size={args.size}"]
    return corpora.train([*args.words[1:], *size])
