"""Groups by task: scores and curves are compared within a task only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numerate.reports.groups import Group
from numerate.reports.settings import format_setting

TRAINING_SETTINGS = frozenset({"digits", "lengths", "held_out_starts", "eval_count", "weights", "prefix", "helper"})
"""Settings of the amount and the format of training data, which do not change the task; nor do the axes of its grid
and `SIZE_SETTINGS`."""

SIZE_SETTINGS = {"BitwiseOr": frozenset({"max_examples"})}


@dataclass(frozen=True)
class TaskGroups:
    """The groups of one task in order. `settings` are those of the task of the first group."""

    name: str
    groups: tuple[Group, ...]
    settings: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The task as Python code, training settings included."""
        return format_setting(self.settings)


def group_by_task(groups: Sequence[Group]) -> list[TaskGroups]:
    """The groups by evaluated task, in order of appearance; all together for one task, or where some task is unknown.

    Auxiliary tasks are ignored; task settings changed by an evaluation, such as the index of one of several tasks,
    apply. Settings that older records lack count as equal. A task is named by the common part of its labels before a
    colon ("modulo 10: LSTM"), or by its only label, else by its settings.
    """
    trees = [_evaluated_task(group) for group in groups]
    axes: dict[str, set[str]] = {}
    for group, tree in zip(groups, trees, strict=True):
        axes.setdefault(str(tree.get("kind")), set()).update(*(point.coordinates for point in group.points[:1]))
    reduced = [_without_training_settings(tree, axes) for tree in trees]
    members: dict[int, list[int]] = {}
    for i, tree in enumerate(reduced):
        members.setdefault(
            next((first for first in members if _agree_on_shared_keys(reduced[first], tree)), i), []
        ).append(i)
    if len(members) < 2 or not all(trees):
        return [TaskGroups("", tuple(groups), trees[0] if trees else {})]
    labels = [_common_label([groups[i].label for i in each]) for each in members.values()]
    if not all(labels) or len(set(labels)) < len(labels):
        labels = [_distinct_settings(reduced[first], [reduced[other] for other in members]) for first in members]
    return [
        TaskGroups(name, tuple(groups[i] for i in each), trees[first])
        for name, (first, each) in zip(labels, members.items(), strict=True)
    ]


def _evaluated_task(group: Group) -> Mapping[str, Any]:
    """The task that a group was evaluated on; {} if unknown."""
    recipe: Any = {"task": group.runs[0].recipe.get("task")}
    for path, value in (group.settings or {}).items():
        if path.split(".")[0] == "task":
            recipe = _with_setting(recipe, path.split("."), value)
    task = recipe["task"] if isinstance(recipe["task"], Mapping) else {}
    members, index = task.get("tasks"), task.get("task_index")
    index = 0 if index is None and task.get("auxiliary") else index
    if isinstance(members, list | tuple) and isinstance(index, int) and 0 <= index < len(members):
        task = members[index]
    return task if isinstance(task, Mapping) else {}


def _with_setting(tree: Any, path: Sequence[str], value: Any) -> Any:
    if not path:
        return value
    if isinstance(tree, list | tuple):
        return [_with_setting(one, path[1:], value) if str(i) == path[0] else one for i, one in enumerate(tree)]
    return {**tree, path[0]: _with_setting(tree.get(path[0]), path[1:], value)} if isinstance(tree, Mapping) else tree


def _without_training_settings(tree: Any, axes: Mapping[str, set[str]]) -> Any:
    """A task without the settings of `TRAINING_SETTINGS`, `SIZE_SETTINGS` and its axes."""
    if isinstance(tree, list | tuple):
        return [_without_training_settings(one, axes) for one in tree]
    if not isinstance(tree, Mapping):
        return tree
    kind = str(tree.get("kind"))
    removed = TRAINING_SETTINGS | SIZE_SETTINGS.get(kind, frozenset()) | axes.get(kind, set())
    return {name: _without_training_settings(value, axes) for name, value in tree.items() if name not in removed}


def _agree_on_shared_keys(one: Any, other: Any) -> bool:
    """Whether two trees agree in all keys that both have."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return all(_agree_on_shared_keys(one[name], other[name]) for name in one if name in other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_agree_on_shared_keys, one, other))
    return bool(one == other)


def _distinct_settings(tree: Mapping[str, Any], all_trees: Sequence[Mapping[str, Any]]) -> str:
    """A task as text with the settings in which it differs from others of its kind."""
    same = [other for other in all_trees if other.get("kind") == tree.get("kind")]
    own = {name: one for name, one in tree.items() if one is not None and any(one != o.get(name, one) for o in same)}
    return format_setting({"kind": tree.get("kind"), **own}).removesuffix("()")


def _common_label(labels: Sequence[str]) -> str:
    """The common part of labels before a colon, or the only label; "" without any."""
    if len(labels) == 1 and ": " not in labels[0]:
        return labels[0]
    before = {label.partition(": ")[0] if ": " in label else "" for label in labels}
    return before.pop() if len(before) == 1 else ""
