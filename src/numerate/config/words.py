"""Checks `Literal` settings, also of recipes made in Python."""

from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from numerate.config.values import is_spec, settings_of
from numerate.errors import UserError, did_you_mean


def refuse_other_words(part: Any, where: str = "") -> None:
    """Checks all settings of a part, recursively.

    >>> refuse_other_words(Loop(input_injection="addd"), "model.backbone.")
    numerate.errors.UserError: model.backbone.input_injection: 'addd' is none of: none, add, linear, ffn. Did you mean
    'add'?

    Raises `UserError` with the path of the first word that the setting does not know.
    """
    for name, (_, hint) in settings_of(type(part)).items():
        value, path = getattr(part, name), f"{where}{name}"
        if is_spec(value):
            refuse_other_words(value, f"{path}.")
        elif isinstance(value, tuple):
            for number, item in enumerate(value):
                if is_spec(item):
                    refuse_other_words(item, f"{path}.{number}.")
        elif isinstance(value, str):
            _refuse(value, hint, path)


def _refuse(value: str, hint: Any, path: str) -> None:
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    words = [word for option in options if get_origin(option) is Literal for word in get_args(option)]
    if words and value not in words and str not in options:
        known = [str(word) for word in words]
        raise UserError(f"{path}: {value!r} is none of: {', '.join(known)}.{did_you_mean(value, known)}")
