"""The plan of a study: its runs as lines, and the key that identifies their results."""

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from numerate.config import fingerprint
from numerate.config.saving import TreeCache
from numerate.errors import UserError
from numerate.records.kinds import PLAN, PLAN_HEAD
from numerate.records.reading import FORMAT, check_format, damage_message, parse_lines, parse_record, read_bytes
from numerate.reports.settings import SETTINGS_WITHOUT_EFFECT as SETTINGS_WITHOUT_EFFECT
from numerate.reports.settings import shortest_texts
from numerate.runs.patch import apply_diff, tree_diff, value_at

RESULT_VERSION = 1
"""Part of every content key. Increased when the meaning of an unchanged recipe changes."""


def content_key(recipe: object, cache: TreeCache | None = None) -> str:
    """A hash (16 hexadecimal characters) of all settings that affect results.

    Unlike `config.identity`, which identifies a run, it also includes the budget and the evaluation. A recipe with
    `init_from` includes the id of that run, not its location.
    """
    return fingerprint((RESULT_VERSION, recipe), _affects_results, cache)[:16]


def _affects_results(part: type, field: "Field[Any]") -> bool:
    return field.name not in SETTINGS_WITHOUT_EFFECT.get(part.__name__, ())


@dataclass(frozen=True)
class RequestedRun:
    """A run that a command requests: `run` is its path below the folder of runs, `tree` its recipe as a dict."""

    run: str
    key: str
    tree: Mapping[str, Any]

    @property
    def recipe_title(self) -> str:
        return str(self.tree.get("title", "recipe"))


@dataclass(frozen=True)
class PlannedRun:
    """A line of the plan. `label` is the name of its variant, the same for all its seeds.

    `run` is its folder below the runs folder, `key` a hash of all settings that affect its results. These two identify
    it, also among jobs that an earlier command submitted.
    """

    run: str
    key: str
    label: str = field(compare=False, repr=False)
    seed: int = field(compare=False, repr=False)
    base: str = field(compare=False, repr=False)
    diff: Mapping[str, Any] = field(compare=False, repr=False)
    base_tree: Mapping[str, Any] = field(compare=False, repr=False)
    current: bool = field(default=True, compare=False, repr=False)
    """Whether the last command requested it, or only an earlier one."""

    @cached_property
    def tree(self) -> dict[str, Any]:
        """The recipe as a dict."""
        tree: dict[str, Any] = apply_diff(self.base_tree, self.diff)
        return tree

    @property
    def result_key(self) -> tuple[str, str]:
        """Identifies the results of a run: its path and its content key."""
        return self.run, self.key

    @property
    def num_steps(self) -> int | None:
        """Its budget in steps, if it has one."""
        steps: int | None = self.tree.get("training", {}).get("steps")
        return steps

    @property
    def display_name(self) -> str:
        """Its name in messages."""
        return f"{self.label} seed {self.seed}" if self.seed else self.label


def read_plan(path: Path) -> list[PlannedRun]:
    """The runs of a plan; none if there is no such file.

    Raises `UserError` for a damaged plan: its first line has the number of runs and the checksum of their lines.
    """
    content = read_bytes(path)
    if not content and not path.exists():
        return []
    first, _, rest = content.partition(b"\n")
    head = parse_record(first)
    if head is None or PLAN_HEAD.find_violation(head) is not None:
        damage = "its first line must give the number of runs"
        raise UserError(damage_message(path, damage, PLAN.remedy))
    check_format(path, head["format"])
    planned_runs: list[PlannedRun] = []
    base_trees: dict[str, Mapping[str, Any]] = {}
    for line in parse_lines(rest, path, PLAN, number=2):
        if line.record is None:
            raise UserError(line.problem or damage_message(f"{path}, line {line.number}", "it was cut", PLAN.remedy))
        planned_runs.append(_parse_run(line.record, base_trees))
    is_complete = len(planned_runs) == head["runs"]
    if not is_complete or hashlib.sha256(rest).hexdigest() != head["sha256"]:
        incomplete = f"it has {len(planned_runs):,} of {head['runs']:,} runs"
        damage = "it was modified: its checksum differs" if is_complete else incomplete
        raise UserError(damage_message(path, damage, PLAN.remedy))
    return planned_runs


def _parse_run(record: Mapping[str, Any], base_trees: dict[str, Mapping[str, Any]]) -> PlannedRun:
    base = record["base"]
    if record.get("recipe") is not None:
        base_trees[base] = record["recipe"]
    differences, tree, is_current = record.get("diff") or {}, base_trees.get(base, {}), record.get("current", True)
    return PlannedRun(
        record["run"], record["key"], record["label"], record["seed"], base, differences, tree, is_current
    )


def plan_lines(plan: Collection[PlannedRun]) -> bytes:
    """The plan as lines of JSON: a header, then one line per run. The first run of each base has the complete recipe,
    and every run its differences from that."""
    content, written_bases = [], set()
    for planned in plan:
        line: dict[str, Any] = {name: getattr(planned, name) for name in ("run", "key", "label", "seed", "base")}
        if planned.base not in written_bases:
            written_bases.add(planned.base)
            line["recipe"] = planned.base_tree
        if planned.diff:
            line["diff"] = planned.diff
        if not planned.current:
            line["current"] = False
        content.append(_json_line(line))
    rest = b"".join(content)
    return _json_line({"format": FORMAT, "runs": len(plan), "sha256": hashlib.sha256(rest).hexdigest()}) + rest


def merge_plans(
    old_plan: Sequence[PlannedRun], requested: Sequence[RequestedRun], labels: Mapping[str, str]
) -> dict[str, PlannedRun]:
    """The plan, by run: the requested runs, then those that only earlier commands requested, marked."""
    requested_runs = {one.run for one in requested}
    earlier_runs = [one for one in old_plan if one.run not in requested_runs]
    base_trees: dict[str, Mapping[str, Any]] = {one.base: one.base_tree for one in earlier_runs}
    for first in {one.recipe_title: one for one in reversed(requested)}.values():
        if first.recipe_title in base_trees and json.dumps(first.tree) == json.dumps(base_trees[first.recipe_title]):
            # its parts are the same objects as those of the others: quick to compare
            base_trees[first.recipe_title] = first.tree
    merged: dict[str, PlannedRun] = {}
    for one in requested:
        tree = base_trees.setdefault(one.recipe_title, one.tree)
        seed = int(one.tree.get("seed", 0))
        merged[one.run] = PlannedRun(one.run, one.key, "", seed, one.recipe_title, tree_diff(tree, one.tree), tree)
    base_by_label: dict[str, str] = {}
    for base, group in _group_by_base(merged.values()).items():
        for run, label in variant_labels(group, labels, base).items():
            is_own = base_by_label.setdefault(label, base) == base
            merged[run] = replace(merged[run], label=label if is_own else f"{label}, {base}")
    return merged | {one.run: replace(one, current=False) for one in earlier_runs}


def variant_labels(group: Sequence[PlannedRun], labels: Mapping[str, str], base: str) -> dict[str, str]:
    """Labels of the runs of one base, by run: the base's label, and the settings in which they differ.

    `{"addition_abacus/3f2a9c01b7de": "Abacus (model.hidden_size=64)", ...}`; the seed, and settings that do not affect
    results, are ignored. Of parts only what tells them apart is shown: `model.mixer=LSTM`.
    """
    names = {one.tree.get("name") for one in group}
    name = next(iter(names)) if len(names) == 1 else None
    label = labels.get(base, str(name or base))
    paths = {path for one in group for path in one.diff if not _has_no_effect(path)}
    shown = sorted(path for path in paths if not any(path.startswith(f"{other}.") for other in paths))
    texts = {path: shortest_texts([value_at(one.tree, path) for one in group]) for path in shown}
    return {
        one.run: f"{label} ({', '.join(f'{path}={texts[path][i]}' for path in shown)})" if shown else label
        for i, one in enumerate(group)
    }


def _has_no_effect(path: str) -> bool:
    first, _, second = path.partition(".")
    ignored = SETTINGS_WITHOUT_EFFECT["Recipe"] | {"seed", ""}
    return first in ignored or (first == "training" and second in SETTINGS_WITHOUT_EFFECT["Training"])


def _group_by_base(plan: Iterable[PlannedRun]) -> dict[str, list[PlannedRun]]:
    groups: dict[str, list[PlannedRun]] = {}
    for planned in plan:
        groups.setdefault(planned.base, []).append(planned)
    return groups


def _json_line(record: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_replace_non_finite(record), ensure_ascii=False, allow_nan=False)
    return text.encode(errors="backslashreplace") + b"\n"


def _replace_non_finite(value: Any) -> Any:
    """Replaces non-finite numbers by strings, which settings accept: JSON cannot represent them."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _replace_non_finite(item) for key, item in value.items()}
    return [_replace_non_finite(item) for item in value] if isinstance(value, list | tuple) else value
