"""What is required to run something again: commands, environment, settings, citation; and what was left out."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from numerate.reports.content import Block, Code, Content, Folded, Heading, Note
from numerate.reports.grid import join_names
from numerate.reports.groups import Group, unique_trainings
from numerate.reports.limits import MAX_GROUP_COLUMNS, MAX_UNFOLDED_ROWS
from numerate.reports.records import Records
from numerate.reports.settings import differing_settings, flatten_settings, format_setting
from numerate.reports.table import TextTable
from numerate.training.disk import format_bytes


def _last_metrics(run: Records) -> Mapping[str, Any]:
    return next(reversed(run.training_metrics()), {})


def run_metadata(run: Records) -> dict[str, str]:
    """The texts of a run's metadata by name: parameters, steps, examples, times, versions."""
    last = _last_metrics(run)
    counts = {"parameters": run.metadata.get("parameters"), "steps": last.get("step")}
    counts |= {name: last.get(name) for name in ("examples", "tokens")}
    texts = {name: f"{count:,.0f}" for name, count in counts.items() if isinstance(count, int | float)}
    known = {name: run.metadata.get(name) for name in ("times", "hardware", "git", "versions")}
    return texts | {name: _format_value(value) for name, value in known.items() if value}


def _format_value(value: Any) -> str:
    """Metadata for people: `{"memory": 2**31, "gpus": []}` is "memory 2.1 GB, no GPU"."""
    if isinstance(value, Mapping):
        return ", ".join(_format_entry(str(name), item) for name, item in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " and ".join(map(_format_value, value))
    if isinstance(value, str) and _TIME.fullmatch(value):
        return f"{value[:10]} {value[11:19]} UTC"
    return f"{value:g}" if isinstance(value, float) else str(value)


_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|\+00:00)")
"""A time in UTC as runs record it."""


def _format_entry(name: str, value: Any) -> str:
    if (name, value) == ("gpus", []):
        return "no GPU"
    return f"{name.replace('_', ' ')} {format_bytes(value) if name == 'memory' else _format_value(value)}"


def reproduction_content(runs: Sequence[Records]) -> Content:
    """Commands, environment and citation; what all runs share stands once."""
    commands = list(dict.fromkeys(str(run.metadata["command"]) for run in runs if run.metadata.get("command")))
    known = [_known(run, is_alone=len(runs) == 1) for run in runs]
    names = list(dict.fromkeys(name for one in known for name in one))
    shared = [name for name in names if len({one.get(name) for one in known}) == 1]
    content: list[Block] = []
    if commands:
        code = Code("\n".join(commands))
        content.append(Folded(f"{len(commands)} commands", [code]) if len(commands) > MAX_UNFOLDED_ROWS else code)
    if len(shared) < len(names):
        columns = [name for name in names if name not in shared]
        rows = [[one.get(name, "") for name in columns] for one in known]
        content.append(TextTable(columns, rows, style="runs"))
    if shared:
        content += [Heading("Common to all runs")] * (len(runs) > 1)
        content.append(TextTable(["", ""], [[name, known[0][name]] for name in shared]))
    entries = dict.fromkeys(str(run.metadata["bibtex"]).strip() for run in runs if run.metadata.get("bibtex"))
    if entries:
        content += [Heading("Citation"), Code("\n".join(entries))]
    return content


def _known(run: Records, *, is_alone: bool) -> dict[str, str]:
    """What is known of a run; beside others when it ended instead of all its times."""
    found = (
        {"run": f"{run.label} / {run.id}"} | ({} if run.seed is None else {"seed": str(run.seed)}) | run_metadata(run)
    )
    times = run.metadata.get("times")
    if not is_alone and isinstance(times, Mapping) and times.get("ended"):
        found = {"ended" if name == "times" else name: text for name, text in found.items()} | {
            "ended": _format_value(times["ended"])
        }
    return found


def recipe_content(run: Records) -> Content:
    """Every setting of the recipe, as on the command line."""
    rows = [[path, text] for path, text in flatten_settings(run.recipe).items() if path]
    return [Folded("Every setting", [TextTable(["setting", "value"], rows, monospace=[0, 1])])] if rows else []


def differences_content(groups: Sequence[Group]) -> Content:
    """The settings in which recipes differ: a column, or with many groups a row, for each group."""
    groups = unique_trainings(groups)
    recipes = [group.runs[0].recipe for group in groups]
    found = differing_settings(recipes) if len(groups) > 1 else {}
    if not found:
        return []
    lines = [
        ["setting", *(group.label for group in groups)],
        *([path, *map(format_setting, values)] for path, values in found.items()),
    ]
    if len(groups) > MAX_GROUP_COLUMNS:
        lines = [list(line) for line in zip(*lines, strict=True)]
        lines[0][0] = "group"
    note = (
        "They differ in this one setting; all others are equal."
        if len(found) == 1
        else f"They differ in {len(found)} settings: a difference in the results may come from any of them."
    )
    budgets = {group.label: {last.get("examples", 0) for last in map(_last_metrics, group.runs)} for group in groups}
    if len(set().union(*budgets.values())) > 1:
        texts = [f"{label} {', '.join(f'{count:,}' for count in sorted(counts))}" for label, counts in budgets.items()]
        note += f" The budgets are not equal, in examples: {join_names(texts)}."
    header, *rows = lines
    return [TextTable(header, rows, note, monospace=range(len(header)))]


def left_out_content(runs: Sequence[Records]) -> Content:
    """What could not be read."""
    items = [f"{run.id}: {warning}" for run in runs for warning in run.warnings]
    return [Note(text) for text in items]
