"""Lists every name that a user can type: commands, options, settings, parts, recipes, studies, names of Python.

    PYTHONPATH=src python tools/golden/inventory.py              # one name a line, sorted
    PYTHONPATH=src python tools/golden/inventory.py --renamed    # what names of 0.1 are called now, as a table

`inventory-0.1.txt` is the list of commit c89c848; `changed` says what a line of it is called now, with "removed: " and
the reason where it is no longer there. The table of renames is part of docs/from-0.1.md.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numerate
from numerate import catalogue, cli
from numerate.commands.table import COMMANDS, EXECUTOR_OPTIONS
from numerate.old_names import NEW_NAMES

BEFORE = Path(__file__).with_name("inventory-0.1.txt")
KINDS_OF_PARTS = {
    "Trunk": "Backbone",
    "Numbering": "PositionIds",
    "NumberSpelling": "NumberFormat",
    "TextSpelling": "TextNumberFormat",
    "Initialisation": "Initialization",
}
"""Kinds of parts of 0.1 that have another name now."""
WORDS = {
    "word ask model.trunk.times=": "word ask model.backbone.num_loops=",
    "word generate greedy=": "word generate do_sample=",
    "word generate most=": "word generate max_new_tokens=",
    "word generate window=": "word generate context_length=",
    "word maps most=": "word maps max_tokens=",
    "word run model.width=": "word run model.hidden_size=",
    "word search model.width=": "word search model.hidden_size=",
    "word search optimizer.decay=": "word search optimizer.weight_decay=",
    "word search optimizer.rate=": "word search optimizer.learning_rate=",
    "word search training.batch=": "word search training.batch_size=",
    "word tokens kind=": "removed: a vocabulary is of characters, with a token for each byte",
}
"""Lines of 0.1 that follow from no table of `numerate.old_names`."""


def commands() -> Iterator[str]:
    """Commands, their options, and the words with = that their usage has."""
    for full_name, command in COMMANDS.items():
        name = full_name.partition(" ")[0]
        yield f"command {name}"
        for action in cli._parser(full_name, command)._actions:
            yield from (f"option {name} {option}" for option in action.option_strings)
        options = [*command.options, *(EXECUTOR_OPTIONS if command.executor else ())]
        yield from [f"word {name} {'model.' * bool(command.settings)}SETTING="] if command.settings is not None else []
        for word in {f"{one.name}=" for one in options} | set(re.findall(r"([\w.]+=)", command.examples)):
            yield from () if word.startswith("--") else [f"word {name} {word}"]


def parts() -> Iterator[str]:
    """Parts by kind with their settings, recipes and studies, and what has the name of a paper."""
    for kind, names in catalogue.parts_by_kind().items():
        for name in names:
            yield f"{kind} {name}"
            if kind not in ("Recipe", "Study"):
                yield from (f"setting {name}.{field.name}" for field in fields(catalogue.get_class(kind, name)))
        yield from (f"{kind} {name}" for name in catalogue.presets(kind))
        yield from (f"{kind} {pattern}" for pattern in catalogue.family_modules(kind))


def inner(recipe: numerate.Recipe) -> Iterator[str]:
    """Settings of what recipes hold that is in no catalogue: the recipe itself, training, evaluation, samples."""
    for part in (recipe, recipe.training, recipe.evaluation, recipe.samples, recipe.model.feed_forward):
        yield from (f"setting {type(part).__name__}.{field.name}" for field in fields(part))


def everything() -> set[str]:
    recipe = numerate.recipe("addition_abacus")
    return {*commands(), *parts(), *inner(recipe), *(f"numerate.{name}" for name in numerate.__all__)}


def changed(now: set[str]) -> dict[str, str]:
    """The lines of 0.1 that are not among those of today, each with what it is called now."""
    renamed = dict(WORDS)
    for line in set(BEFORE.read_text().splitlines()) - now - renamed.keys():
        kind, _, name = line.partition(" ")
        part, _, own = name.partition(".")
        parts = [*NEW_NAMES.get(part, ()), part]
        if kind == "setting":
            found = [f"setting {one}.{new}" for one in parts for new in [*NEW_NAMES.get(own, ()), own]]
        else:
            found = [f"{KINDS_OF_PARTS.get(kind, kind)} {one}" for one in parts]
        renamed[line] = next((one for one in found if one in now), "")
    return renamed


def table(renamed: dict[str, str]) -> str:
    """The renames as Markdown: parts, then settings by part, then words of commands."""
    lines = ["| 0.1 | now |", "|---|---|"]
    for line in sorted(renamed, key=lambda one: (one.split()[0] in ("setting", "word"), one)):
        old, new = (one.removeprefix("setting ").removeprefix("word ") for one in (line, renamed[line]))
        lines.append(f"| `{old}` | {new} |" if new.startswith("removed: ") else f"| `{old}` | `{new}` |")
    return "\n".join(lines)


def main() -> int:
    now = everything()
    print(table(changed(now)) if sys.argv[1:] == ["--renamed"] else "\n".join(sorted(now)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
