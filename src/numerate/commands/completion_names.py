"""The names that shells complete: recipes, parts and settings. They are collected once for a version of numerate, which
takes some seconds, into a file of the cache, so that a completion imports nothing else."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numerate.tasks.folders import cache_folder


def names_file() -> Path:
    version = sys.modules["numerate"].__version__
    return cache_folder() / f"completion-{version}.json"


def read_names() -> dict[str, Any]:
    """The names in the cache. Where there are none, they are collected in the background for the next time."""
    try:
        names: dict[str, Any] = json.loads(names_file().read_text(encoding="utf-8"))
        return names
    except (OSError, ValueError):
        command, nowhere = [sys.executable, "-m", "numerate", "completion", "bash"], subprocess.DEVNULL
        subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)
        return {"kinds": {}, "settings": {}, "parts": {}, "titles": [], "figures": []}


def write_names() -> None:
    """Collects the names into the cache."""
    from numerate.training import disk

    disk.make_folder(cache_folder())
    disk.write_atomically(names_file(), json.dumps(collect_names()).encode())


def collect_names() -> dict[str, Any]:
    """What there is to complete.

    - `kinds`: the names of parts by kind; `titles`: those of the kinds; `figures`: those of `numerate plot`.
    - `settings`: of each class, each with its choices, the kinds of its parts, and the class of its default.
    - `parts`: of each recipe, the classes of its parts by their paths, where they are not the default; of a task, its
      class at the empty path.
    """
    from numerate import catalogue
    from numerate.commands.catalogue import TITLES
    from numerate.config import add_packaged_parts
    from numerate.reports.plots import FIGURES
    from numerate.studies.naming import quick_recipes
    from numerate.text.data.datasets import DATASETS
    from numerate.training.recipe import Recipe

    add_packaged_parts()
    kinds = {
        kind: [*names, *catalogue.presets(kind), *catalogue.family_names(kind)]
        for kind, names in catalogue.parts_by_kind().items()
    }
    settings: dict[str, Any] = {}
    _add_settings(Recipe, settings)
    default = dict(_part_classes(Recipe(), ""))
    parts = {name: {"": name} for name in catalogue.parts_by_kind()["Task"]}
    parts |= {name: {"": type(task).__name__} for name, task in catalogue.presets("Task").items()}
    for name, recipe in quick_recipes():
        parts[name] = {path: part for path, part in _part_classes(recipe, "") if default.get(path) != part}
    kinds["Dataset"] = [*DATASETS]
    titles = [title.replace(" ", "-") for title in TITLES.values()]
    return {"kinds": kinds, "settings": settings, "parts": parts, "titles": titles, "figures": [*FIGURES]}


def _add_settings(part: Any, settings: dict[str, Any]) -> None:
    """Adds the settings of a class, and of every class that its settings may have."""
    from numerate import catalogue
    from numerate.config.type_hints import choices_in, item_hint, part_classes_in, union_members
    from numerate.config.values import Draft, format_value, is_spec, settings_of

    if part.__name__ in settings:
        return
    settings[part.__name__] = {}
    for name, (_, hint) in settings_of(part).items():
        options = union_members(hint)
        classes = part_classes_in(hint) + [one for option in options for one in part_classes_in(item_hint(option, 0))]
        choices = [format_value(value) for value in choices_in(hint)]
        choices += ["true", "false"] * (bool in options) + ["null"] * (type(None) in options)
        default = Draft(part, {}).get(name)
        settings[part.__name__][name] = {
            "choices": choices,
            "kinds": list(dict.fromkeys(one.__name__ for one in classes)),
            "default": type(default).__name__ if is_spec(default) else "",
        }
        for one in classes:
            for variant in catalogue.all_classes(one.__name__) if one.__name__ in catalogue.parts_by_kind() else [one]:
                _add_settings(variant, settings)


def _part_classes(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """The classes of the parts of a recipe, by their paths; the recipe's own excepted."""
    from numerate.config.values import is_spec, join_path, settings_of

    if is_spec(value):
        if path:
            yield path, type(value).__name__
        for name in settings_of(type(value)):
            yield from _part_classes(getattr(value, name), join_path(path, name))
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _part_classes(item, join_path(path, index))
