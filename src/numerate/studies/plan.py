"""What a study asks for, run by run: the lines of its plan, and the key by which results are known again."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, replace
from functools import cached_property
from typing import Any

from numerate.config import fingerprint
from numerate.config.saving import Known
from numerate.studies.patch import patch, patched

MEANING = 1
"""Part of every content key. It is raised when the same recipe comes to mean something else."""

NO_RESULT = {
    "Recipe": {"name", "group", "trackers", "tracking", "device", "title", "paper"},
    "Training": {
        "minutes",
        "threads",
        "log_every",
        "checkpoint_every",
        "checkpoint_minutes",
        "keep",
        "parallel",
    },
}
"""Settings that change no result: what a run is called, where it is filed, how often it is written down."""


def content_key(recipe: object, known: Known | None = None) -> str:
    """Sixteen hexadecimal characters that are the same for the same results.

    Unlike `config.identity`, which says which run is meant, it also counts the budget and the evaluation. A recipe with
    `init_from` is told apart by the id of that run, wherever it lies.
    """
    return fingerprint((MEANING, recipe), _counts, known)[:16]


def _counts(part: type, field: "Field[Any]") -> bool:
    return field.name not in NO_RESULT.get(part.__name__, ())


@dataclass(frozen=True)
class Asked:
    """A run that a command asks for: `run` is its place below the folder of runs, `tree` its recipe."""

    run: str
    key: str
    tree: Mapping[str, Any]

    @property
    def base(self) -> str:
        return str(self.tree.get("title", "recipe"))


@dataclass(frozen=True)
class Planned:
    """A line of the plan. `label` says which variant it is, without the seed; seeds of one variant have the same."""

    run: str
    key: str
    label: str
    seed: int
    base: str
    differs: Mapping[str, Any]
    base_tree: Mapping[str, Any]

    @cached_property
    def tree(self) -> dict[str, Any]:
        """The recipe as plain data."""
        found: dict[str, Any] = patched(self.base_tree, self.differs)
        return found

    @property
    def at(self) -> tuple[str, str]:
        """By what the results of a run are known: its place and its content key."""
        return self.run, self.key

    @property
    def called(self) -> str:
        """How it is spoken of."""
        return f"{self.label} seed {self.seed}" if self.seed else self.label


def read_plan(lines: Iterable[Mapping[str, Any]]) -> list[Planned]:
    """The plan that lines describe. A line whose base is missing is left out."""
    bases: dict[str, dict[str, Any]] = {}
    found = []
    for line in lines:
        base, run = str(line.get("base")), line.get("run")
        if isinstance(line.get("recipe"), dict):
            bases[base] = line["recipe"]
        if base in bases and isinstance(run, str):
            label, seed = str(line.get("label", base)), int(line.get("seed", 0))
            found.append(Planned(run, str(line.get("key")), label, seed, base, line.get("differs") or {}, bases[base]))
    return found


def plan_lines(plan: Iterable[Planned]) -> bytes:
    """The plan as lines of JSON; the first of each base has its whole recipe, and every one in what it differs."""
    content, begun = [], set()
    for planned in plan:
        line: dict[str, Any] = {name: getattr(planned, name) for name in ("run", "key", "label", "seed", "base")}
        if planned.base not in begun:
            begun.add(planned.base)
            line["recipe"] = planned.base_tree
        if planned.differs:
            line["differs"] = planned.differs
        content.append(_line(line))
    return b"".join(content)


def joined(before: Sequence[Planned], asked: Sequence[Asked], labels: Mapping[str, str]) -> dict[str, Planned]:
    """The plan, by run, when more is asked for. What was asked for before takes its old place."""
    again = {one.run for one in asked}
    bases: dict[str, Mapping[str, Any]] = {one.base: one.base_tree for one in before if one.run not in again}
    for first in {one.base: one for one in reversed(asked)}.values():
        if first.base in bases and json.dumps(first.tree) == json.dumps(bases[first.base]):
            bases[first.base] = first.tree  # whose parts are the very same as those of the others: quick to compare
    together = {planned.run: planned for planned in before}
    for one in asked:
        tree = bases.setdefault(one.base, one.tree)
        seed = int(one.tree.get("seed", 0))
        together[one.run] = Planned(one.run, one.key, "", seed, one.base, patch(tree, one.tree), tree)
    for base, group in _by_base(together.values()).items():
        for run, label in variant_labels(group, labels, base).items():
            if together[run].label != label:
                together[run] = replace(together[run], label=label)
    return together


def variant_labels(group: Sequence[Planned], labels: Mapping[str, str], base: str) -> dict[str, str]:
    """How the runs of one base are called, per run: by the base's label, and by the settings in which they differ.

    `{"addition_abacus/3f2a9c01b7de": "Abacus (model.width=64)", ...}`; the seed, and what changes no result, make no
    difference.
    """
    from numerate.reports.groups import setting_text

    names = {one.tree.get("name") for one in group}
    name = next(iter(names)) if len(names) == 1 else None
    label = labels.get(base, str(name or base))
    paths = {path for one in group for path in one.differs if not _changes_nothing(path)}
    told = sorted(path for path in paths if not any(path.startswith(f"{other}.") for other in paths))
    found = {}
    for one in group:
        what = ", ".join(f"{path}={setting_text(_at(one.tree, path))}" for path in told)
        found[one.run] = f"{label} ({what})" if what else label
    return found


def _changes_nothing(path: str) -> bool:
    first, _, second = path.partition(".")
    silent = NO_RESULT["Recipe"] | {"seed", ""}
    return first in silent or (first == "training" and second in NO_RESULT["Training"])


def _at(tree: Any, path: str) -> Any:
    for part in path.split("."):
        if isinstance(tree, list) and part.isdigit() and int(part) < len(tree):
            tree = tree[int(part)]
        else:
            tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def _by_base(plan: Iterable[Planned]) -> dict[str, list[Planned]]:
    found: dict[str, list[Planned]] = {}
    for planned in plan:
        found.setdefault(planned.base, []).append(planned)
    return found


def _line(record: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(record), ensure_ascii=False, allow_nan=False)
    return text.encode(errors="backslashreplace") + b"\n"


def _finite(value: Any) -> Any:
    """With words for numbers that are not finite, as settings are read: JSON has none for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
