"""Parses the words of a command: options, settings, missing or unknown words. Imports nothing heavy."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numerate.errors import UserError, did_you_mean


def options(words: Sequence[str], own: Mapping[str, Callable[[str], Any]]) -> tuple[list[str], dict[str, Any]]:
    """Splits the words of a command into other words, and its own parsed `key=value` options.

    >>> options(["latest", "count=200"], {"count": int})
    (['latest'], {'count': 200})
    """
    rest, found = [], {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key.replace("-", "_")
        if equals and key in own:
            try:
                found[key] = own[key](value)
            except ValueError as error:
                raise UserError(f"{key}: {value!r} is not right ({error})") from error
        else:
            rest.append(word)
    return rest, found


def settings(words: Sequence[str], begin: str = "") -> tuple[list[str], list[str]]:
    """Splits words into other words, and settings of a recipe: `path.to.it=value`.

    >>> settings(["latest", "model.backbone.num_loops=4,8"])
    (['latest'], ['model.backbone.num_loops=4,8'])
    """
    found = [word for word in words if "." in word.partition("=")[0] and "=" in word and word.startswith(begin)]
    return [word for word in words if word not in found], found


def truth(text: str) -> bool:
    """`true` or `false`, as text."""
    if text.lower() in ("true", "yes", "1"):
        return True
    if text.lower() in ("false", "no", "0"):
        return False
    raise ValueError("true or false")


def first(words: Sequence[str], what: str, example: str) -> str:
    """The first word of a command, or a `UserError` that says what it should be."""
    if not words or not words[0].strip() or "=" in words[0]:
        raise UserError(f"{what} is missing; for example: {example}")
    return words[0]


def no_more(words: Sequence[str], own: Sequence[str]) -> None:
    """Raises `UserError` for unknown words."""
    if words:
        key = words[0].partition("=")[0]
        options = f"; options are {', '.join(f'{name}=' for name in own)}" if own else ""
        raise UserError(f"{words[0]!r} is not understood here{options}.{did_you_mean(key, own)}")
