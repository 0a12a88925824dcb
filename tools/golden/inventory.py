"""Lists every name that a user can type: commands, options, settings, parts, recipes, studies, names of Python.

    PYTHONPATH=src python tools/golden/inventory.py                # one name a line, sorted
    PYTHONPATH=src python tools/golden/inventory.py --withdrawn    # the names of 0.2 that are gone

`inventory-0.2.txt` is the list of 0.2. A name of it that is gone matches one pattern of `WITHDRAWN`.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numerate
from numerate import catalogue, cli
from numerate.commands.table import COMMANDS, ENGINE_OPTIONS

BEFORE = Path(__file__).with_name("inventory-0.2.txt")

WITHDRAWN = {
    r"(command|option|word) bench.*": "the benchmark",
    r"setting (Local|Ray|Slurm|InProcess)\.stack_size": "training of many small models as one",
    r"Mixer RWKV4|setting RWKV4\..*": "RWKV-4",
    r"Mixer S4D|setting S4D\..*": "S4D, of the reserve",
    r"setting MaskedLM\.num_masks": "masks beyond the answer",
    r"numerate\.wrap_task": "wrap_task",
    r"numerate\.non_quantities": "non_quantities",
    r"word generate repetition_penalty=": "the penalty of tokens that occurred",
    r"word data grid=": "tasks for lm-evaluation-harness",
    r"word data format=": "token ids in files, of the reserve",
    r"(command|option|word) completion.*": "own shell completion",
    r"(command|option|word) publish.*": "publish",
    r"Executor .*|(option|word) .*executor.*|setting (Local|Ray|Slurm|InProcess)\.memory": "executors, now engines",
    r"setting Training\.compile_mode": "modes of torch.compile that were never tried on a GPU",
    r"setting Slurm\.cluster": "tasks of Slurm as processes of this machine",
}
"""Patterns of names, with what was withdrawn."""


def commands() -> Iterator[str]:
    """Commands, their options, and the words with = that their usage has."""
    for full_name, command in COMMANDS.items():
        name = full_name.partition(" ")[0]
        yield f"command {name}"
        for action in cli._parser(full_name, command)._actions:
            yield from (f"option {name} {option}" for option in action.option_strings)
        options = [*command.options, *(ENGINE_OPTIONS if command.engine else ())]
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


def withdrawn(now: set[str]) -> dict[str, list[str]]:
    """The names of 0.2 that are gone, by the pattern of `WITHDRAWN` that they match; "" for those that match none."""
    found: dict[str, list[str]] = {}
    for name in sorted(set(BEFORE.read_text().splitlines()) - now):
        found.setdefault(next((one for one in WITHDRAWN if re.fullmatch(one, name)), ""), []).append(name)
    return found


def main() -> int:
    now = everything()
    lines = [f"{WITHDRAWN.get(row, 'unexplained')}: {', '.join(names)}" for row, names in withdrawn(now).items()]
    print("\n".join(lines if sys.argv[1:] == ["--withdrawn"] else sorted(now)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
