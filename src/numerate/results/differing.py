"""The settings in which recipes differ, as columns of a table."""

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from numerate.config.differences import SETTINGS_WITHOUT_EFFECT

_IGNORED = {
    *SETTINGS_WITHOUT_EFFECT["Recipe"],
    *(f"training.{name}" for name in SETTINGS_WITHOUT_EFFECT["Training"]),
    "seed",
    "kind",
}
"""Settings that do not affect results, such as names and logging intervals. The seed has its own column."""


def differing_settings(recipes: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Each setting in which recipes differ, by its path: its value in every recipe.

    If the classes of a part differ, the column of the part has their names (`model.mixer`: "Attention", "LSTM");
    settings that differ among parts of one class have separate columns (`model.mixer.num_heads`), None if a part has no
    such setting. A list of parts is shown by their classes: "[Learned, Rotary]". Seeds and what has no
    effect on results have no columns.

    >>> small, large = ({"seed": seed, "model": {"kind": "Decoder", "hidden_size": 64 + seed}} for seed in (0, 1))
    >>> differing_settings([small, large])
    {'model.hidden_size': [64, 65]}
    """
    paths = [path for path in dict.fromkeys(_differing("", recipes)) if not {path, path.partition(".")[0]} & _IGNORED]
    return {path: [_shown(_at(recipe, path)) for recipe in recipes] for path in paths}


def _differing(path: str, values: Sequence[Any]) -> Iterator[str]:
    """The paths of the columns at and below a path, by the values that recipes have there. What is inside of parts is
    compared among those of one class alone, and of lists among those of one length."""
    if all(value == values[0] for value in values):
        return
    groups: dict[Hashable, list[Any]] = {}
    for value in values:
        groups.setdefault(_form(value), []).append(value)
    if len(groups) > 1 or None in groups:
        yield path
    for inner in (list(map(_inner, own)) for form, own in groups.items() if form is not None):
        for name in dict.fromkeys(name for value in inner for name in value):
            yield from _differing(f"{path}.{name}".lstrip("."), [value[name] for value in inner if name in value])


def _at(value: Any, path: str) -> Any:
    """The value of a setting by its path; None if a recipe has none."""
    for name in path.split("."):
        value = _inner(value).get(name) if _form(value) is not None else None
    return value


def _form(value: Any) -> Hashable:
    """The class of a part, the length of a list of parts; None for all else."""
    if isinstance(value, Mapping):
        return None if value.get("kind") == "Span" else str(value.get("kind", "mapping"))
    is_of_parts = isinstance(value, list) and any(isinstance(item, Mapping) for item in value)
    return len(value) if is_of_parts else None


def _inner(value: Any) -> dict[str, Any]:
    """The settings inside a part, or the items of a list by their indices."""
    if isinstance(value, Mapping):
        return {name: one for name, one in value.items() if name not in ("kind", "source")}
    return {str(i): item for i, item in enumerate(value)}


def _shown(value: Any) -> Any:
    """The value of a setting in a column: numbers, booleans and strings unchanged, a part as its class."""
    if isinstance(value, Mapping):
        if value.get("kind") == "Span":
            return f"{value.get('low')}:{value.get('high')}"
        return str(value.get("kind", json.dumps(value)))
    if isinstance(value, list):
        return f"[{', '.join(str(_shown(item)) for item in value)}]"
    return value if isinstance(value, bool | int | float | str | None) else str(value)
