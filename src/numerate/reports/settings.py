"""Settings of recipes as text, and those in which recipes differ."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any


def remove_seeds(tree: Any) -> Any:
    """A recipe, or a part of one, without its seeds."""
    if isinstance(tree, Mapping):
        return {key: remove_seeds(value) for key, value in tree.items() if key != "seed"}
    return [remove_seeds(value) for value in tree] if isinstance(tree, list | tuple) else tree


LABEL_SETTINGS = {"title", "name", "group", "paper", "trackers", "tracking"}
"""Settings that name and file a recipe and do not change the experiment."""


def differing_settings(recipes: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """The settings in which recipes differ, seeds and labels aside: path to one text per recipe.

    Parts of different kinds are shown whole: `{"model.positions.0": ("Learned(max_offset=10)", "Rotary()")}`.
    """
    trees = [
        remove_seeds({name: one for name, one in recipe.items() if name not in LABEL_SETTINGS}) for recipe in recipes
    ]
    return {path: tuple(map(format_setting, values)) for path, values in _differences("", trees)}


def _differences(path: str, values: Sequence[Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    """The paths at which trees differ, with the values there, as deep as parts are of one kind."""
    if all(value == values[0] for value in values):
        return
    if all(isinstance(value, Mapping) for value in values) and len({value.get("kind") for value in values}) == 1:
        for key in dict.fromkeys(key for value in values for key in value):
            yield from _differences(f"{path}.{key}".lstrip("."), [value.get(key) for value in values])
    elif all(isinstance(value, list | tuple) for value in values) and len({len(value) for value in values}) == 1:
        for i, several in enumerate(zip(*values, strict=True)):
            yield from _differences(f"{path}.{i}", several)
    else:
        yield path, values


def format_settings(settings: Mapping[str, Any]) -> str:
    """The settings of an evaluation in a few words: `{"model.backbone.num_loops": 8}` is "num_loops=8".

    Paths with the same last name are lengthened until they differ: "0.base=500, 1.base=100".
    """
    return ", ".join(f"{_short_path(path, settings)}={_format_value(value)}" for path, value in settings.items())


FORM_KEYS = ("kind", "source")
"""Keys of a saved part that are no settings: its class, after the file of a part of a user, and this file's hash."""


def _short_path(path: str, paths: Iterable[str]) -> str:
    """The shortest end of a path that no other path has."""
    others, parts = [f".{other}" for other in paths if other != path], path.split(".")
    ends = (".".join(parts[i:]) for i in reversed(range(len(parts))))
    return next((end for end in ends if not any(other.endswith(f".{end}") for other in others)), path)


def _format_value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else format_setting(value)


def format_setting(value: Any) -> str:
    """A setting as one would write it in Python: `Learned(position_ids=DigitIndex(max_offset=10))`."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{key}={format_setting(item)}" for key, item in value.items() if key not in FORM_KEYS)
        return f"{value.get('kind', '').rpartition(':')[2]}({inner})"
    return f"[{', '.join(map(format_setting, value))}]" if isinstance(value, list | tuple) else str(value)


def shortest_texts(texts: Sequence[str]) -> list[str]:
    """Texts of `format_setting` without the settings of parts, if their classes alone tell them apart:
    `[Rotary, Learned]`."""
    short = list(texts)
    while (shorter := [re.sub(r"\([^()]*\)", "", text) for text in short]) != short:
        short = shorter
    return short if len(set(short)) == len(set(texts)) > 1 else list(texts)


def flatten_settings(tree: Any, path: str = "") -> dict[str, str]:
    """A recipe as path to text, leaf by leaf, the kind of a part at the part's own path."""
    if isinstance(tree, Mapping) and tree:
        items = [(key, value) for key, value in tree.items() if key != "kind"]
    elif isinstance(tree, list | tuple) and any(isinstance(item, Mapping) for item in tree):
        items = [(str(i), item) for i, item in enumerate(tree)]
    else:
        return {path: format_setting(tree)}
    found = {path: str(tree["kind"])} if isinstance(tree, Mapping) and "kind" in tree else {}
    for key, value in items:
        found |= flatten_settings(value, f"{path}.{key}".lstrip("."))
    return found
