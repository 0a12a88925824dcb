"""The plan of a study: its runs as lines, and the key that identifies their results."""

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from numerate.config import fingerprint
from numerate.config.saving import Known
from numerate.errors import UserError
from numerate.records.kinds import PLAN, PLAN_HEAD
from numerate.records.reading import content_of, damaged, record_of, scan
from numerate.studies.patch import patch, patched

FORMAT = 1
"""Of plan.jsonl."""

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
        "keep_checkpoints",
        "parallel",
    },
}
"""Settings that change no result: what a run is called, where it is filed, how often it is written down."""


def content_key(recipe: object, known: Known | None = None) -> str:
    """Sixteen hexadecimal characters that are the same for the same results.

    Unlike `config.identity`, which identifies a run, it also includes the budget and the evaluation. A recipe with
    `init_from` includes the id of that run, wherever it lies.
    """
    return fingerprint((MEANING, recipe), _counts, known)[:16]


def _counts(part: type, field: "Field[Any]") -> bool:
    return field.name not in NO_RESULT.get(part.__name__, ())


@dataclass(frozen=True)
class RequestedRun:
    """A run that a command requests: `run` is its path below the folder of runs, `tree` its recipe."""

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
    current: bool = True
    """Whether the last command requested it, or only an earlier one."""

    @cached_property
    def tree(self) -> dict[str, Any]:
        """The recipe as plain data."""
        found: dict[str, Any] = patched(self.base_tree, self.differs)
        return found

    @property
    def at(self) -> tuple[str, str]:
        """Identifies the results of a run: its path and its content key."""
        return self.run, self.key

    @property
    def called(self) -> str:
        """Its name in messages."""
        return f"{self.label} seed {self.seed}" if self.seed else self.label


def read_plan(path: Path) -> list[Planned]:
    """The runs of a plan; none if there is no such file.

    Raises `UserError` for a plan that is not as it was written: its first line says how many runs it has, and the
    checksum of their lines.
    """
    content = content_of(path)
    if not content and not path.exists():
        return []
    first, _, rest = content.partition(b"\n")
    head = record_of(first)
    if head is None or PLAN_HEAD.wrong(head) is not None:
        what = "its first line does not say how many runs there are; it was cut, or an earlier version wrote it"
        raise UserError(damaged(path, what, PLAN.remedy))
    if head["format"] > FORMAT:
        raise UserError(f"{path}: is of format {head['format']}, this version reads up to {FORMAT}; update numerate.")
    found: list[Planned] = []
    bases: dict[str, Mapping[str, Any]] = {}
    for line in scan(rest, path, PLAN, number=2):
        if line.record is None:
            raise UserError(line.damage or damaged(f"{path}, line {line.number}", "it was cut", PLAN.remedy))
        found.append(_planned(line.record, bases))
    if len(found) != head["runs"]:
        raise UserError(damaged(path, f"it has {len(found):,} of {head['runs']:,} runs", PLAN.remedy))
    if hashlib.sha256(rest).hexdigest() != head["sha256"]:
        raise UserError(damaged(path, "it was changed after it was written: its checksum is another", PLAN.remedy))
    return found


def _planned(record: Mapping[str, Any], bases: dict[str, Mapping[str, Any]]) -> Planned:
    base = record["base"]
    if record.get("recipe") is not None:
        bases[base] = record["recipe"]
    differs, tree, current = record.get("differs") or {}, bases.get(base, {}), record.get("current", True)
    return Planned(record["run"], record["key"], record["label"], record["seed"], base, differs, tree, current)


def plan_lines(plan: Collection[Planned]) -> bytes:
    """The plan as lines of JSON: a first line about the others; then one per run. The first of each base has its whole
    recipe, and every one in what it differs."""
    content, begun = [], set()
    for planned in plan:
        line: dict[str, Any] = {name: getattr(planned, name) for name in ("run", "key", "label", "seed", "base")}
        if planned.base not in begun:
            begun.add(planned.base)
            line["recipe"] = planned.base_tree
        if planned.differs:
            line["differs"] = planned.differs
        if not planned.current:
            line["current"] = False
        content.append(_line(line))
    rest = b"".join(content)
    return _line({"format": FORMAT, "runs": len(plan), "sha256": hashlib.sha256(rest).hexdigest()}) + rest


def joined(
    before: Sequence[Planned], requested: Sequence[RequestedRun], labels: Mapping[str, str]
) -> dict[str, Planned]:
    """The plan, by run: the requested runs, then those that only earlier commands requested, marked."""
    again = {one.run for one in requested}
    earlier = [one for one in before if one.run not in again]
    bases: dict[str, Mapping[str, Any]] = {one.base: one.base_tree for one in earlier}
    for first in {one.base: one for one in reversed(requested)}.values():
        if first.base in bases and json.dumps(first.tree) == json.dumps(bases[first.base]):
            bases[first.base] = first.tree  # whose parts are the very same as those of the others: quick to compare
    together: dict[str, Planned] = {}
    for one in requested:
        tree = bases.setdefault(one.base, one.tree)
        seed = int(one.tree.get("seed", 0))
        together[one.run] = Planned(one.run, one.key, "", seed, one.base, patch(tree, one.tree), tree)
    for base, group in _by_base(together.values()).items():
        for run, label in variant_labels(group, labels, base).items():
            together[run] = replace(together[run], label=label)
    return together | {one.run: replace(one, current=False) for one in earlier}


def variant_labels(group: Sequence[Planned], labels: Mapping[str, str], base: str) -> dict[str, str]:
    """How the runs of one base are called, per run: by the base's label, and by the settings in which they differ.

    `{"addition_abacus/3f2a9c01b7de": "Abacus (model.hidden_size=64)", ...}`; the seed, and what changes no result, make
    no difference.
    """
    from numerate.reports.groups import setting_text

    names = {one.tree.get("name") for one in group}
    name = next(iter(names)) if len(names) == 1 else None
    label = labels.get(base, str(name or base))
    paths = {path for one in group for path in one.differs if not _changes_nothing(path)}
    shown = sorted(path for path in paths if not any(path.startswith(f"{other}.") for other in paths))
    found = {}
    for one in group:
        what = ", ".join(f"{path}={setting_text(_at(one.tree, path))}" for path in shown)
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
