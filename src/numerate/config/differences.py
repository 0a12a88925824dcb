"""Settings of recipes as text, and those in which recipes differ."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from numerate.config.path_names import shortest_unique_names

SETTINGS_WITHOUT_EFFECT = {
    "Recipe": {"name", "group", "trackers", "tracking", "device", "title", "paper"},
    "Training": {
        "minutes",
        "threads",
        "micro_batch_size",
        "log_every",
        "checkpoint_every",
        "checkpoint_minutes",
        "keep_checkpoints",
        "parallel",
    },
}
"""Settings that do not affect results: names, folders, logging, checkpoint frequency."""


def remove_seeds(tree: Any) -> Any:
    """A recipe, or a part of one, without its seeds."""
    if isinstance(tree, Mapping):
        return {key: remove_seeds(value) for key, value in tree.items() if key != "seed"}
    return [remove_seeds(value) for value in tree] if isinstance(tree, list | tuple) else tree


def differences(path: str, values: Sequence[Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    """The paths at which trees differ, with the values there, as deep as parts are of one kind."""
    if all(value == values[0] for value in values):
        return
    if all(isinstance(value, Mapping) for value in values) and len({value.get("kind") for value in values}) == 1:
        for key in dict.fromkeys(key for value in values for key in value):
            yield from differences(f"{path}.{key}".lstrip("."), [value.get(key) for value in values])
    elif all(isinstance(value, list | tuple) for value in values) and len({len(value) for value in values}) == 1:
        for i, several in enumerate(zip(*values, strict=True)):
            yield from differences(f"{path}.{i}", several)
    else:
        yield path, values


def label_settings(recipes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings that affect results and in which recipes differ, in a few words, for each recipe. Pretrained models
    are named by their weights, without their hash, and without prompts where all weights differ."""
    trees = [remove_seeds(recipe) for recipe in recipes]
    shown = {path: values for path, values in differences("", trees) if _affects_results(path)}
    weights = shown.get("model.weights", shown.get("model.revision"))
    if weights is not None:
        implied = {"tokenizer.tokenizer", "tokenizer.revision", *["model.revision"] * ("model.weights" in shown)}
        if len(set(weights)) == len(recipes):
            implied |= {path for path in shown if path.startswith(("tokenizer.", "evaluation.generation.stop"))}
        shown = {path: values for path, values in shown.items() if path not in implied}
    texts = {short_path(path, shown): shortest_texts(values) for path, values in shown.items()}
    return [", ".join(f"{path}={each[i]}" for path, each in texts.items()) for i in range(len(recipes))]


def _affects_results(path: str) -> bool:
    """Whether the setting at a path affects the answers to a question: not which questions are asked."""
    first, _, second = path.partition(".")
    if first == "evaluation":
        return second.startswith("generation")
    return not (first == "training" and second in SETTINGS_WITHOUT_EFFECT["Training"]) and (
        first not in SETTINGS_WITHOUT_EFFECT["Recipe"]
    )


def format_settings(settings: Mapping[str, Any]) -> str:
    """The settings of an evaluation in a few words: `{"model.backbone.num_loops": 8}` is "num_loops=8".

    Paths with the same last name are lengthened until they differ: "0.base=500, 1.base=100".
    """
    return ", ".join(f"{short_path(path, settings)}={_format_value(value)}" for path, value in settings.items())


_FORM_KEYS = ("kind", "source")
"""Keys of a saved part that are no settings: its class, after the file of a part of a user, and this file's hash."""


def short_path(path: str, paths: Iterable[str]) -> str:
    """The shortest end of a path that no other path has and that is no number: `positions.0` of `model.positions.0`."""
    others, parts = [f".{other}" for other in paths if other != path], path.split(".")
    ends = (".".join(parts[i:]) for i in reversed(range(len(parts))) if not "".join(parts[i:]).isdecimal())
    return next((end for end in ends if not any(other.endswith(f".{end}") for other in others)), path)


def _format_value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else format_setting(value)


def format_setting(value: Any) -> str:
    """A setting as one would write it in Python: `Learned(position_ids=DigitIndex(max_offset=10))`."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{key}={format_setting(item)}" for key, item in value.items() if key not in _FORM_KEYS)
        return f"{value.get('kind', '').rpartition(':')[2]}({inner})"
    return f"[{', '.join(map(format_setting, value))}]" if isinstance(value, list | tuple) else str(value)


def shortest_texts(values: Sequence[Any]) -> list[str]:
    """Settings as text, of a part those settings alone that tell the parts of its class apart:
    `Learned(position_ids=DigitIndex)`, `Learned(position_ids=Sequential)`, `Rotary`; of absolute paths their ends."""
    if values and all(isinstance(value, str) and os.path.isabs(value) for value in values):
        name_by_path = {path: name for name, path in shortest_unique_names(map(Path, values)).items()}
        return [name_by_path[Path(value)] for value in values]
    if values and all(isinstance(value, list | tuple) for value in values):
        items = iter(shortest_texts([item for value in values for item in value]))
        return [f"[{', '.join(next(items) for _ in value)}]" for value in values]
    texts = list(map(format_setting, values))
    for kind in {value.get("kind", "") for value in values if isinstance(value, Mapping)}:
        places = [i for i, value in enumerate(values) if isinstance(value, Mapping) and value.get("kind", "") == kind]
        settings = {}
        for key in values[places[0]]:
            several = [values[i].get(key) for i in places]
            if key not in _FORM_KEYS and any(value != several[0] for value in several):
                settings[key] = shortest_texts(several)
        for number, i in enumerate(places):
            inner = ", ".join(f"{key}={different[number]}" for key, different in settings.items())
            texts[i] = kind.rpartition(":")[2] + (f"({inner})" if inner else "")
    return texts


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


def settings_key(settings: Mapping[str, Any]) -> tuple[tuple[str, float, str], ...]:
    """Settings as a sort key: unchanged ones first, numbers by size (4 before 16)."""
    if not settings:
        return ()
    return tuple(
        (path, float(value) if isinstance(value, int | float) else 0.0, json.dumps(value, sort_keys=True))
        for path, value in sorted(settings.items())
    )
