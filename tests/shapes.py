"""What checks the shapes of functions that are annotated with some: of other types mypy is sure."""

import typing
from typing import Any

from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray

_checked = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check(function: Any) -> Any:
    return _checked(function) if any(map(names_shape, function.__annotations__.values())) else function


def names_shape(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(map(names_shape, typing.get_args(hint)))
