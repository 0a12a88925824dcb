"""The settings in which the runs of a study differ: a column for each, with a value for every run."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from numerate.studies.folder import SETTINGS_WITHOUT_EFFECT, PlannedRun
from numerate.studies.patch import tree_diff
from numerate.tables.rows import Value

IGNORED_SETTINGS = {
    *SETTINGS_WITHOUT_EFFECT["Recipe"],
    *(f"training.{name}" for name in SETTINGS_WITHOUT_EFFECT["Training"]),
    "seed",
    "kind",
}
"""Settings that do not affect results, such as names and logging intervals. The seed has its own column."""

_MISSING = object()


def differing_settings(plan: Sequence[PlannedRun]) -> dict[str, list[Value]]:
    """Each setting in which runs differ, by its path, in the order of a recipe: its value in every run of the plan.

    If the classes of a part differ, the column of the part has their names (`model.mixer`: "Attention", "LSTM");
    settings that differ among parts of one class have separate columns (`model.mixer.num_heads`), None if a part has no
    such setting. A list of parts is shown by their classes: "[Learned, Rotary]". `IGNORED_SETTINGS` has no columns.
    """
    roots = _roots(plan)
    columns: dict[str, list[Value]] = {}
    for root in roots:
        values = [_setting_of_run(planned, root) for planned in plan]
        distinct: dict[str, int] = {}
        value_ids = [distinct.setdefault(_json_key(value), len(distinct)) for value in values]
        if len(distinct) < 2:
            continue
        for path, column in _expand_columns(root, _first_values(values, value_ids), [0] * len(distinct)):
            if not {path, path.partition(".")[0]} & IGNORED_SETTINGS:
                columns[path] = [column[i] for i in value_ids]
    return columns


def _roots(plan: Sequence[PlannedRun]) -> list[str]:
    """The outermost paths in which the runs, or their base recipes, differ; in the order of a recipe."""
    paths: dict[str, None] = {}
    bases = list({planned.base: planned.base_tree for planned in plan}.values())
    for base in bases[1:]:
        paths.update(dict.fromkeys(tree_diff(bases[0], base)))
    for planned in plan:
        paths.update(dict.fromkeys(planned.diff))
    if "" in paths:
        paths = dict.fromkeys(name for base in bases for name in base)
    roots = [path for path in paths if path and not any(above in paths for above in _parent_paths(path))]
    order = {name: i for i, name in enumerate(dict.fromkeys(name for base in bases for name in base))}
    return sorted(roots, key=lambda path: order.get(path.partition(".")[0], len(order)))


def _parent_paths(path: str) -> Iterator[str]:
    while "." in path:
        path = path.rpartition(".")[0]
        yield path


def _setting_of_run(planned: PlannedRun, path: str) -> Any:
    """The setting of one run, usually from the diff of the plan or from the base."""
    if path in planned.diff:
        return planned.diff[path]
    near = any(not other or other.startswith(f"{path}.") or path.startswith(f"{other}.") for other in planned.diff)
    return _get_path(planned.tree if near else planned.base_tree, path)


def _get_path(tree: Any, path: str) -> Any:
    for part in path.split("."):
        if isinstance(tree, Mapping) and part in tree:
            tree = tree[part]
        elif isinstance(tree, list) and part.isdigit() and int(part) < len(tree):
            tree = tree[int(part)]
        else:
            return _MISSING
    return tree


def _first_values(values: Sequence[Any], index: Sequence[int]) -> list[Any]:
    found: dict[int, Any] = {}
    for i, value in zip(index, values, strict=True):
        found.setdefault(i, value)
    return [found[i] for i in range(len(found))]


def _expand_columns(path: str, values: Sequence[Any], part_ids: Sequence[int]) -> Iterator[tuple[str, list[Value]]]:
    """The columns at and below a path. `part_ids` numbers the parts that contain the values: settings of parts that
    already differ (an LSTM and an Attention) are not compared."""
    column_values = [_column_value(value) for value in values]
    if _differ(column_values, values, part_ids):
        yield path, column_values
    groups: dict[tuple[int, str], int] = {}
    child_part_ids = [groups.setdefault((part_ids[i], str(column_values[i])), len(groups)) for i in range(len(values))]
    names = dict.fromkeys(name for value in values for name in _child_names(value))
    for name in names:
        below = [_get_path(value, name) if _child_names(value) else _MISSING for value in values]
        yield from _expand_columns(f"{path}.{name}", below, child_part_ids)


def _differ(shown: Sequence[Value], values: Sequence[Any], part_ids: Sequence[int]) -> bool:
    first: dict[int, Value] = {}
    return any(
        value is not _MISSING and first.setdefault(group, one) != one
        for one, value, group in zip(shown, values, part_ids, strict=True)
    )


def _column_value(value: Any) -> Value:
    """The value of a setting in a column: numbers, booleans and strings unchanged, a part as its class."""
    if value is _MISSING or value is None:
        return None
    if isinstance(value, Mapping):
        if value.get("kind") == "Span":
            return f"{value.get('low')}:{value.get('high')}"
        return str(value.get("kind", json.dumps(value)))
    if isinstance(value, list):
        return "[" + ", ".join(str(_column_value(item)) for item in value) + "]"
    return value if isinstance(value, bool | int | float | str) else str(value)


def _child_names(value: Any) -> list[str]:
    """The settings inside a part, or the indices of a list of parts."""
    if isinstance(value, Mapping):
        return [] if value.get("kind") == "Span" else [name for name in value if name not in ("kind", "source")]
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        return [str(i) for i in range(len(value))]
    return []


def _json_key(value: Any) -> str:
    return "" if value is _MISSING else json.dumps(value, sort_keys=True)
