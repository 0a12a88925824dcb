"""Differences between nested dicts, by path, so that the recipes of a large sweep are stored as short lines."""

from collections.abc import Mapping
from typing import Any


def tree_diff(base: Any, tree: Any) -> dict[str, Any]:
    """The values by path that turn `base` into `tree`.

    >>> tree_diff({"kind": "A", "model": {"hidden_size": 64}}, {"kind": "A", "model": {"hidden_size": 128}})
    {'model.hidden_size': 128}

    Parts of another kind or with other settings, and lists of another length, are replaced as a whole; if the roots are
    of different kinds, everything is, under the path "".
    """
    changes: dict[str, Any] = {}
    _compare(base, tree, "", changes)
    return changes


def apply_diff(base: Any, changes: Mapping[str, Any]) -> Any:
    """Applies the changes of `tree_diff`; `base` is not modified, and unchanged parts are shared with it.

    >>> apply_diff({"model": {"hidden_size": 64}, "list": [1, 2]}, {"model.hidden_size": 128, "list.1": 3})
    {'model': {'hidden_size': 128}, 'list': [1, 3]}
    """
    tree = base
    for path, value in changes.items():
        tree = _replace_at(tree, path.split(".") if path else [], value)
    return tree


def value_at(tree: Any, path: str, default: Any = None) -> Any:
    """The value at a path of a nested dict, or `default` if there is none.

    >>> value_at({"list": [{"base": 500}]}, "list.0.base")
    500
    """
    for segment in path.split("."):
        if isinstance(tree, Mapping) and segment in tree:
            tree = tree[segment]
        elif isinstance(tree, list) and segment.isdigit() and int(segment) < len(tree):
            tree = tree[int(segment)]
        else:
            return default
    return tree


def _compare(base: Any, tree: Any, path: str, changes: dict[str, Any]) -> None:
    if base is tree:
        return
    if isinstance(base, dict) and isinstance(tree, dict):
        if list(base) == list(tree) and base.get("kind") == tree.get("kind") and _has_plain_keys(base):
            for key, value in tree.items():
                _compare(base[key], value, f"{path}.{key}" if path else key, changes)
            return
    elif isinstance(base, list) and isinstance(tree, list) and len(base) == len(tree) and path:
        for index, value in enumerate(tree):
            _compare(base[index], value, f"{path}.{index}", changes)
        return
    elif type(base) is type(tree) and not isinstance(tree, list) and base == tree:  # [True] == [1], but they differ
        return
    changes[path] = tree


def _has_plain_keys(tree: dict[str, Any]) -> bool:
    return all(key and "." not in key for key in tree)


def _replace_at(tree: Any, segments: list[str], value: Any) -> Any:
    if not segments:
        return value
    head, rest = segments[0], segments[1:]
    if isinstance(tree, list):
        index = int(head)
        return [*tree[:index], _replace_at(tree[index], rest, value), *tree[index + 1 :]]
    return {key: _replace_at(item, rest, value) if key == head else item for key, item in tree.items()}
