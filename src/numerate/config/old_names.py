"""What parts, settings and choices of 0.1 are called now.

Identities of runs and keys of random numbers are still made of the names of 0.1, so that no rename changes them."""

from functools import cache

KINDS: dict[str, str] = {}
"""Classes: their name, and that of 0.1."""

SETTINGS: dict[str, str] = {}
"""Settings: the class that declares one, its name, and that of 0.1."""

CHOICES: dict[str, dict[object, object]] = {}
"""Values of settings, and those of 0.1."""


def old_kind(part: type) -> str:
    """The name that a class had in 0.1."""
    return KINDS.get(part.__name__, part.__name__)


@cache
def old_setting(part: type, name: str) -> str:
    """The name that a setting had in 0.1."""
    return next((old for one in part.__mro__ if (old := SETTINGS.get(f"{one.__name__}.{name}"))), name)


def old_value(part: type, name: str, value: object) -> object:
    """The value that said the same in 0.1."""
    for one in part.__mro__:
        if f"{one.__name__}.{name}" in CHOICES:
            return CHOICES[f"{one.__name__}.{name}"].get(value, value)
    return value
