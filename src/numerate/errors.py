"""What the program says when something is wrong.

Two kinds, because they end differently: a `Mistake` is the user's (exit status 2), a `Fault` is the world's or the
run's (exit status 1). Both carry one or two lines that say what, where, and what would be right.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class _Told(Exception):
    speaker: bool | None = None
    """Whether this process says it, of several that it ends; None: the first one does."""


class Mistake(_Told):
    """Something the user can put right: a mistyped name, an impossible value, a folder that is no run."""


class Fault(_Told):
    """Something that went wrong while working: a full disk, a loss that is not finite, a checkpoint that is torn."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A closing hint, or nothing: `did_you_mean("Lstm", ["LSTM"])` is `" Did you mean 'LSTM'?"`.

    Case and the difference between `-` and `_` are ignored when looking for the nearest name.
    """
    folded = {name.lower().replace("-", "_"): name for name in known}
    near = get_close_matches(word.lower().replace("-", "_"), folded, n=1, cutoff=0.6)
    return f" Did you mean {folded[near[0]]!r}?" if near else ""
