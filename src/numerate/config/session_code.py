"""The hash of a part that is defined in a notebook or an interactive session, in place of that of a file."""

import hashlib

from numerate.config.used_values import used_values


def session_sha256(part: type) -> str:
    """A sha256 of the code of a class of `__main__`, and of all functions, classes and values there that it uses,
    itself or through others: where a cell is changed, the run is another one, as with a changed file."""
    return hashlib.sha256(repr([*used_values(part)]).encode()).hexdigest()
