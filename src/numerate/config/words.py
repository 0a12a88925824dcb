"""Checks `Literal` settings, including those of recipes built in Python."""

from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from numerate.config.values import is_spec, settings_of
from numerate.errors import UserError, did_you_mean


def check_choices(part: Any, path_prefix: str = "") -> None:
    """Checks all settings of a part, recursively.

    >>> from numerate.models import Loop
    >>> check_choices(Loop(input_injection="addd"), "backbone.")
    Traceback (most recent call last):
        ...
    numerate.errors.UserError: backbone.input_injection: 'addd' is none of: none, add, linear, ffn. Did you mean 'add'?

    Raises `UserError` with the path of the first invalid value.
    """
    for name, (_, hint) in settings_of(type(part)).items():
        value, path = getattr(part, name), f"{path_prefix}{name}"
        if is_spec(value):
            check_choices(value, f"{path}.")
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                if is_spec(item):
                    check_choices(item, f"{path}.{index}.")
        elif isinstance(value, str):
            _check_choice(value, hint, path)


def _check_choice(value: str, hint: Any, path: str) -> None:
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    choices = [word for option in options if get_origin(option) is Literal for word in get_args(option)]
    if choices and value not in choices and str not in options:
        choice_texts = [str(word) for word in choices]
        raise UserError(f"{path}: {value!r} is none of: {', '.join(choice_texts)}.{did_you_mean(value, choice_texts)}")
