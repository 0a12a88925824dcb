"""Labels of runs that were named one by one: runs that differ in the seed alone share a variant."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numerate.config.differences import label_settings

Header = Mapping[str, Any]


def label_runs(folders: Sequence[Path], headers: Sequence[Header], labels: Mapping[str, str]) -> list[tuple[str, str]]:
    """The label and the variant of each run: the name that all runs in its recipe's folder share, or the folder's; and
    this with the settings in which runs of the label differ. Extended and unfinished runs, and those on other contents
    of the same files, are other variants, and so is a second run of a seed.

    `labels` renames runs by these names (`{"addition_abacus": "Abacus"}`).
    """
    titles = [folder.resolve().parent.name.encode(errors="replace").decode() for folder in folders]
    given: dict[str, set[str]] = {}
    for title, head in zip(titles, headers, strict=True):
        given.setdefault(title, set()).add(str(head.get("name") or title))
    names = [one.pop() if len(one := {*given[title]}) == 1 else title for title in titles]
    names = [labels.get(name, name) for name in names]
    variants, seeds = list(names), Counter[tuple[str, Any]]()
    for name in dict.fromkeys(names):
        own = [i for i, other in enumerate(names) if other == name]
        heads = [headers[i] for i in own]
        differences = (label_settings([head["recipe"] for head in heads]), _files(heads), map(training_note, heads))
        for i, *parts in zip(own, *differences, strict=True):
            if text := ", ".join(filter(None, parts)):
                variants[i] = f"{name} ({text})"
            seeds[key := (variants[i], headers[i]["recipe"].get("seed"))] += 1
            variants[i] += f" {seeds[key]}" * (seeds[key] > 1)
    return list(zip(names, variants, strict=True))


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


def _files(headers: Sequence[Header]) -> list[str]:
    """The files of the task whose contents differ, with the beginning of the hash that each run has."""
    contents = [header.get("contents") or {} for header in headers]
    names = dict.fromkeys(name for one in contents for name in one)
    differing = [name for name in names if len({one.get(name) for one in contents}) > 1]
    return [", ".join(f"{name} {one.get(name, 'none')[:8]}" for name in differing) for one in contents]
