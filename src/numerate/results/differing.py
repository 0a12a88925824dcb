"""The settings in which recipes differ, as columns of a table."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from numerate.config.differences import SETTINGS_WITHOUT_EFFECT

IGNORED_SETTINGS = {
    *SETTINGS_WITHOUT_EFFECT["Recipe"],
    *(f"training.{name}" for name in SETTINGS_WITHOUT_EFFECT["Training"]),
    "seed",
    "kind",
}
"""Settings that do not affect results, such as names and logging intervals. The seed has its own column."""

_MISSING = object()


def differing_settings(recipes: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Each setting in which recipes differ, by its path, in the order of a recipe: its value in every recipe.

    If the classes of a part differ, the column of the part has their names (`model.mixer`: "Attention", "LSTM");
    settings that differ among parts of one class have separate columns (`model.mixer.num_heads`), None if a part has no
    such setting. A list of parts is shown by their classes: "[Learned, Rotary]". `IGNORED_SETTINGS` has no columns.

    >>> small, large = ({"seed": seed, "model": {"kind": "Decoder", "hidden_size": 64 + seed}} for seed in (0, 1))
    >>> differing_settings([small, large])
    {'model.hidden_size': [64, 65]}
    """
    columns: dict[str, list[Any]] = {}
    for root in _roots(recipes):
        values = [value_at(recipe, root, _MISSING) for recipe in recipes]
        for path, column in _expand(root, values, [0] * len(values)):
            if not {path, path.partition(".")[0]} & IGNORED_SETTINGS:
                columns[path] = column
    return columns


def _roots(recipes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The outermost paths in which recipes differ from the first, in the order of a recipe."""
    order = {name: i for i, name in enumerate(dict.fromkeys(name for recipe in recipes for name in recipe))}
    paths = dict.fromkeys(path for recipe in recipes[1:] for path in tree_diff(recipes[0], recipe))
    if "" in paths:
        return list(order)
    outermost = [path for path in paths if not any(path.startswith(f"{other}.") for other in paths)]
    return sorted(outermost, key=lambda path: order.get(path.partition(".")[0], len(order)))


def _expand(path: str, values: Sequence[Any], part_ids: Sequence[int]) -> Iterator[tuple[str, list[Any]]]:
    """The columns at and below a path. `part_ids` numbers the parts that contain the values: settings of parts that
    already differ (an LSTM and an Attention) are not compared."""
    if all(value == values[0] for value in values):
        return
    if not _are_alike(values):
        shown = [_shown(value) for value in values]
        first: dict[int, Any] = {}
        present = [
            (one, part) for one, part, value in zip(shown, part_ids, values, strict=True) if value is not _MISSING
        ]
        if any(first.setdefault(part, one) != one for one, part in present):
            yield path, shown
        parts: dict[tuple[int, str], int] = {}
        part_ids = [parts.setdefault((part, str(one)), len(parts)) for part, one in zip(part_ids, shown, strict=True)]
    for name in dict.fromkeys(name for value in values for name in _child_names(value)):
        yield from _expand(f"{path}.{name}".lstrip("."), [_child(value, name) for value in values], part_ids)


def _are_alike(values: Sequence[Any]) -> bool:
    """Whether all values are parts of one class, or lists of as many parts: they differ in what is inside alone."""
    kinds = {value.get("kind") if isinstance(value, Mapping) else len(_child_names(value)) for value in values}
    return all(map(_child_names, values)) and len(kinds) == 1


def _child(value: Any, name: str) -> Any:
    """The setting or the item of a part; `_MISSING` if it has none."""
    if isinstance(value, Mapping):
        return value.get(name, _MISSING)
    return value[int(name)] if isinstance(value, list) and name.isdigit() and int(name) < len(value) else _MISSING


def _shown(value: Any) -> Any:
    """The value of a setting in a column: numbers, booleans and strings unchanged, a part as its class."""
    if value is _MISSING or value is None:
        return None
    if isinstance(value, Mapping):
        if value.get("kind") == "Span":
            return f"{value.get('low')}:{value.get('high')}"
        return str(value.get("kind", json.dumps(value)))
    if isinstance(value, list):
        return f"[{', '.join(str(_shown(item)) for item in value)}]"
    return value if isinstance(value, bool | int | float | str) else str(value)


def _child_names(value: Any) -> list[str]:
    """The settings inside a part, or the indices of a list of parts."""
    if isinstance(value, Mapping):
        return [] if value.get("kind") == "Span" else [name for name in value if name not in ("kind", "source")]
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        return [str(i) for i in range(len(value))]
    return []
