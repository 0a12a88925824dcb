"""Parses the words of a command: options, settings, missing or unknown words. Imports nothing heavy."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numerate.errors import UserError, did_you_mean


def parse_options(
    words: Sequence[str], parsers: Mapping[str, Callable[[str], Any]]
) -> tuple[list[str], dict[str, Any]]:
    """Splits the words of a command into other words, and its own parsed `key=value` options.

    >>> parse_options(["latest", "count=200"], {"count": int})
    (['latest'], {'count': 200})
    """
    other_words, option_values = [], {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key.replace("-", "_")
        if equals and key in parsers:
            try:
                option_values[key] = parsers[key](value)
            except ValueError as error:
                raise UserError(f"{key}: invalid value {value!r} ({error})") from error
        else:
            other_words.append(word)
    return other_words, option_values


def split_settings(words: Sequence[str], prefix: str = "") -> tuple[list[str], list[str]]:
    """Splits words into other words, and settings of a recipe: `path.to.it=value`.

    >>> split_settings(["latest", "model.backbone.num_loops=4,8"])
    (['latest'], ['model.backbone.num_loops=4,8'])
    """
    setting_words = [
        word for word in words if "." in word.partition("=")[0] and "=" in word and word.startswith(prefix)
    ]
    return [word for word in words if word not in setting_words], setting_words


def parse_bool(text: str) -> bool:
    """`true` or `false`, as text."""
    if text.lower() in ("true", "yes", "1"):
        return True
    if text.lower() in ("false", "no", "0"):
        return False
    raise ValueError("true or false")


def require_word(words: Sequence[str], description: str, example: str) -> str:
    """The first word of a command; raises `UserError` with a description if it is missing."""
    if not words or not words[0].strip() or "=" in words[0]:
        raise UserError(f"{description} is missing; for example: {example}")
    return words[0]


def check_no_more_words(words: Sequence[str], option_names: Sequence[str]) -> None:
    """Raises `UserError` for unknown words."""
    if words:
        key = words[0].partition("=")[0]
        options = f"; options are {', '.join(f'{name}=' for name in option_names)}" if option_names else ""
        raise UserError(f"{words[0]!r} is not a known option{options}.{did_you_mean(key, option_names)}")
