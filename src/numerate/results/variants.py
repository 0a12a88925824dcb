"""Labels of runs that were named one by one: runs that differ in the seed alone share a variant."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numerate.config.differences import label_settings, remove_seeds

Header = Mapping[str, Any]

BUDGETS = ("steps", "examples", "tokens", "flops", "epochs", "target_accuracy")
"""The settings of training that end it."""


def label_runs(folders: Sequence[Path], headers: Sequence[Header], labels: Mapping[str, str]) -> list[tuple[str, str]]:
    """The label and the variant of each run: its name, or that of its recipe's folder; and this with the settings in
    which variants of one label differ. Runs with another budget, extended or unfinished ones, and those on other
    contents of the same files are other variants.

    `labels` renames runs by these names (`{"addition_abacus": "Abacus"}`).
    """
    keys = [_variant_key(header) for header in headers]
    members: dict[str, list[int]] = {}
    for i, key in enumerate(keys):
        title = str(folders[i].resolve().parent)
        several = len({_seed(headers[j]) for j in range(len(keys)) if keys[j] == key}) < keys.count(key)
        members.setdefault(json.dumps([key, title if several else ""]), []).append(i)
    groups = list(members.values())
    names = [_name([folders[i] for i in group], [headers[i] for i in group], labels) for group in groups]
    found: list[tuple[str, str]] = [("", "")] * len(folders)
    for name in dict.fromkeys(names):
        same = [group for group, own in zip(groups, names, strict=True) if own == name]
        heads = [headers[group[0]] for group in same]
        differences = [
            ", ".join(filter(None, parts))
            for parts in zip(
                label_settings([head["recipe"] for head in heads]),
                _file_differences(heads),
                map(training_note, heads),
                strict=True,
            )
        ]
        replaces = len(same) == len(groups) > 1
        texts = [
            (text if replaces else f"{name} ({text})") if text else name
            for text in (differences if len(same) > 1 else [training_note(heads[0])])
        ]
        counts, seen = Counter(texts), Counter[str]()
        for group, text in zip(same, texts, strict=True):
            seen[text] += 1
            variant = f"{text} {seen[text]}" if counts[text] > 1 else text
            for i in group:
                found[i] = (name, variant)
    return found


def training_note(header: Header) -> str:
    """How a run differs from one that was trained in one go to the end of its budget; "" if it does not."""
    ended, budget = header.get("ended") or {}, (header["recipe"].get("training") or {}).get("steps")
    total = ended.get("step") if ended.get("stop_reason") in ("budget", "target") else budget
    step = ended.get("step")
    earlier = [f"{one['budget']:,}" for one in header.get("extensions", ()) if step is None or step > one["step"]]
    notes = [f"extended from {' and '.join(earlier)} steps"] * bool(earlier)
    if step is not None and total and step < total:
        notes.append(f"{step:,} of {total:,} steps")
    return ", ".join(notes)


def _variant_key(header: Header) -> str:
    recipe = header["recipe"]
    training = recipe.get("training") or {}
    variant = header.get("variant") or remove_seeds(recipe)
    parts = [variant, [training.get(name) for name in BUDGETS], training_note(header)]
    return json.dumps([*parts, sorted((header.get("contents") or {}).values())], sort_keys=True, default=str)


def _name(folders: Sequence[Path], headers: Sequence[Header], labels: Mapping[str, str]) -> str:
    """The name of a variant; the recipe's, where its seeds have different names."""
    recipes = [folder.resolve().parent.name.encode(errors="replace").decode() for folder in folders]
    names = {str(header.get("name") or recipe) for header, recipe in zip(headers, recipes, strict=True)}
    name = names.pop() if len(names) == 1 else recipes[0]
    return labels.get(name, name)


def _file_differences(headers: Sequence[Header]) -> list[str]:
    """The files of the task whose contents differ, with the beginning of the hash that each run has."""
    contents = [header.get("contents") or {} for header in headers]
    names = dict.fromkeys(name for one in contents for name in one)
    differing = [name for name in names if len({one.get(name) for one in contents}) > 1]
    return [", ".join(f"{name} {one.get(name, 'none')[:8]}" for name in differing) for one in contents]


def _seed(header: Header) -> int:
    return int(header["recipe"].get("seed") or 0)
