"""The settings in which the runs of a study differ: a column for each, with a value for every run."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from numerate.reports.settings import SETTINGS_WITHOUT_EFFECT
from numerate.runs.patch import tree_diff, value_at
from numerate.runs.study_folder import StudyContent, StudyRun

IGNORED_SETTINGS = {
    *SETTINGS_WITHOUT_EFFECT["Recipe"],
    *(f"training.{name}" for name in SETTINGS_WITHOUT_EFFECT["Training"]),
    "seed",
    "kind",
}
"""Settings that do not affect results, such as names and logging intervals. The seed has its own column."""

_MISSING = object()


def differing_settings(content: StudyContent, runs: Sequence[StudyRun]) -> dict[str, list[Any]]:
    """Each setting in which runs of a study differ, by its path, in the order of a recipe: its value in every run.

    If the classes of a part differ, the column of the part has their names (`model.mixer`: "Attention", "LSTM");
    settings that differ among parts of one class have separate columns (`model.mixer.num_heads`), None if a part has no
    such setting. A list of parts is shown by their classes: "[Learned, Rotary]". `IGNORED_SETTINGS` has no columns.
    """
    columns: dict[str, list[Any]] = {}
    trees = list(map(content.tree, runs))
    for root in _roots(content, runs):
        values = [value_at(tree, root, _MISSING) for tree in trees]
        for path, column in _expand_columns(root, values, [0] * len(values)):
            if not {path, path.partition(".")[0]} & IGNORED_SETTINGS:
                columns[path] = column
    return columns


def _roots(content: StudyContent, runs: Sequence[StudyRun]) -> list[str]:
    """The outermost paths in which the runs, or their base recipes, differ; in the order of a recipe."""
    bases = [content.bases[title] for title in dict.fromkeys(one.base for one in runs)]
    order = {name: i for i, name in enumerate(dict.fromkeys(name for base in bases for name in base))}
    paths = dict.fromkeys(path for base in bases[1:] for path in tree_diff(bases[0], base))
    paths |= dict.fromkeys(path for one in runs for path in one.diff)
    if "" in paths:
        paths = dict.fromkeys(order)
    outermost = [path for path in paths if not any(path.startswith(f"{other}.") for other in paths)]
    return sorted(outermost, key=lambda path: order.get(path.partition(".")[0], len(order)))


def _expand_columns(path: str, values: Sequence[Any], part_ids: Sequence[int]) -> Iterator[tuple[str, list[Any]]]:
    """The columns at and below a path. `part_ids` numbers the parts that contain the values: settings of parts that
    already differ (an LSTM and an Attention) are not compared."""
    shown = [_column_value(value) for value in values]
    first: dict[int, Any] = {}
    present = [(one, part) for one, value, part in zip(shown, values, part_ids, strict=True) if value is not _MISSING]
    if any(first.setdefault(part, one) != one for one, part in present):
        yield path, shown
    parts: dict[tuple[int, str], int] = {}
    below = [parts.setdefault((part, str(one)), len(parts)) for part, one in zip(part_ids, shown, strict=True)]
    for name in dict.fromkeys(name for value in values for name in _child_names(value)):
        children = [value_at(value, name, _MISSING) if _child_names(value) else _MISSING for value in values]
        yield from _expand_columns(f"{path}.{name}", children, below)


def _column_value(value: Any) -> Any:
    """The value of a setting in a column: numbers, booleans and strings unchanged, a part as its class."""
    if value is _MISSING or value is None:
        return None
    if isinstance(value, Mapping):
        if value.get("kind") == "Span":
            return f"{value.get('low')}:{value.get('high')}"
        return str(value.get("kind", json.dumps(value)))
    if isinstance(value, list):
        return f"[{', '.join(str(_column_value(item)) for item in value)}]"
    return value if isinstance(value, bool | int | float | str) else str(value)


def _child_names(value: Any) -> list[str]:
    """The settings inside a part, or the indices of a list of parts."""
    if isinstance(value, Mapping):
        return [] if value.get("kind") == "Span" else [name for name in value if name not in ("kind", "source")]
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        return [str(i) for i in range(len(value))]
    return []
