"""`numerate tokens`: trains tokenizers."""

import argparse

from numerate.commands.words import first
from numerate.errors import UserError, did_you_mean

_KNOWN = ("train-vocabulary",)


def command(given: argparse.Namespace) -> int:
    from numerate.commands import corpora

    doing = first(given.words, "what to do with tokens", "numerate tokens train-vocabulary stories.txt size=4096")
    if doing.replace("_", "-") not in _KNOWN:
        raise UserError(f"tokens: there is no {doing!r}; there is: {', '.join(_KNOWN)}.{did_you_mean(doing, _KNOWN)}")
    size = [] if given.size is None else [f"size={given.size}"]
    return corpora.train([*given.words[1:], *size])
