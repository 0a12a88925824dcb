"""Changing a recipe from the command line: `path=value`, and sweeps of several values.

model.hidden_size=64                      a setting; `-` equals `_`; integers also as 1e6, 64k, 1M
task.digits=1:5                     a span, both ends included; null for nothing; text as it is, or quoted
model.mixer=LSTM                    a variant by its class name, with its own defaults
model.mixer=LSTM(layers=2)          with settings, nested as deep as needed; my.py:Bitter for one's own
model.positions=[Rotary, Learned]   a list; a single item needs no brackets
model.positions.0.base=500          an item by its index, from 0; -1 is the last
model.positions.+=Rotary            one more item
seed=0,1,2   task.digits=range(5,20,5)   seeds=3     several values: the sweep runs their product
"""

import re
from collections.abc import Sequence
from dataclasses import is_dataclass
from itertools import product
from math import prod
from typing import Any, TypeVar, get_origin

from numerate.config.common_names import PATHS_BY_COMMON_NAME, SHORT_PATHS
from numerate.config.type_hints import (
    describe_type,
    fixed_length,
    item_hint,
    part_classes_in,
    union_members,
)
from numerate.config.user_parts import class_address
from numerate.config.values import (
    Draft,
    build_draft,
    example_text,
    format_value,
    is_spec,
    join_path,
    normalize_name,
    parse_value,
    resolve_setting_name,
    settings_of,
    split_at_commas,
    to_draft,
)
from numerate.errors import UserError, did_you_mean

R = TypeVar("R")

_RANGE = re.compile(r"range\s*\(([^()]*)\)")
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(,\d{3})*,0\d\d(,\d{3})*")
MAX_RUNS = 100_000
"""Maximum number of runs of a sweep."""


def override(recipe: R, overrides: Sequence[str]) -> R:
    """The recipe with settings changed, in order; it is built and validated once at the end, so that changes may depend
    on each other.

    >>> import numerate
    >>> changed = override(numerate.recipe("addition_abacus"), ["model.positions=[]", "model.mixer=LSTM", "seed=7"])
    >>> type(changed.model.mixer).__name__, changed.seed
    ('LSTM', 7)

    Raises `UserError` for an unknown path, a value of the wrong type, or an invalid value.
    """
    if not is_dataclass(recipe) or isinstance(recipe, type):
        raise UserError(f"the recipe must be a frozen dataclass, not {recipe!r}")
    draft: Any = recipe
    for text in overrides:
        path, value = _split_override(text)
        names = settings_of(type(recipe))
        path = path if path in names else SHORT_PATHS.get(path, path)
        segments = path.split(".")
        if segments[0] not in names:
            _raise_unknown_setting(recipe, path, segments)
        try:
            draft = _set_value(draft, type(recipe), segments, value, "")
        except UserError as error:
            suggestion = _common_name_suggestion(recipe, segments[-1]) if "has no setting" in str(error) else ""
            if not suggestion or "Did you mean" in str(error) or "it is called" in str(error):
                raise
            raise UserError(f"{error}{suggestion}") from error
    result: R = build_draft(draft, "")
    return result


def expand_sweep(overrides: Sequence[str]) -> list[list[str]]:
    """The override lists of a sweep: the product of all values given with commas, the last one varying fastest.

    >>> expand_sweep(["seed=0,1", "model.mixer=LSTM(layers=1,width=2)"])
    [['seed=0', 'model.mixer=LSTM(layers=1,width=2)'], ['seed=1', 'model.mixer=LSTM(layers=1,width=2)']]

    `range(5,20,5)` is 5,10,15 as in Python; `seeds=3` is `seed=0,1,2`. Commas within brackets or quotes do not separate
    values. Raises `UserError` for an empty range, an empty value between commas, or a setting swept twice.
    """
    paths: list[str] = []
    assignments_by_override: list[list[str]] = []
    for text in overrides:
        path, value = _split_override(text)
        path = SHORT_PATHS.get(path, path)
        sweep_values = _seed_values(value) if path == "seeds" else _sweep_values(path, value)
        paths.append("seed" if path == "seeds" else path)
        assignments_by_override.append([f"{paths[-1]}={one}" for one in sweep_values])
    for path, sweep_values in zip(paths, assignments_by_override, strict=True):
        if len(sweep_values) > 1 and paths.count(path) > 1 and not path.endswith("+"):
            raise UserError(f"{path} is given twice, once with several values; list all values in one override")
    if prod(map(len, assignments_by_override)) > MAX_RUNS:
        raise UserError(
            f"the sweep has {prod(map(len, assignments_by_override))} runs; it must have at most {MAX_RUNS}"
        )
    return [list(chosen) for chosen in product(*assignments_by_override)]


def describe_settings(recipe: object) -> list[tuple[str, str, str, str]]:
    """Every setting, from the outside in: (path, value, type, one-line meaning), all as text.

    For example `("model.hidden_size", "128", "int", "hidden size")`. The line of a part contains only its class, as its
    settings follow in separate lines: applied as overrides in order, all lines reproduce the recipe.
    """
    return list(_describe_settings(recipe, ""))


def _split_override(text: str) -> tuple[str, str]:
    """Path and value of an override, the path with `_` for `-` and a `.` before a final `+`."""
    if not isinstance(text, str):
        raise UserError(f"{text!r}: an override must be a text path=value, for example 'model.hidden_size=64'")
    path, equals, value = text.partition("=")
    segments = path.strip().split(".")
    if len(segments[-1]) > 1 and segments[-1].endswith("+"):
        segments[-1:] = [segments[-1][:-1], "+"]
    if not equals or not all(segments):
        raise UserError(f"{text!r}: an override must be path=value, for example model.hidden_size=64")
    return ".".join(s if re.fullmatch(r"-[0-9]+", s) else normalize_name(s) for s in segments), value


def _set_value(value: Any, hint: Any, segments: list[str], text: str, path: str) -> Any:
    """Replaces the value at `segments`, converting parts on the path to drafts and tuples to lists."""
    if not segments:
        return parse_value(text, hint, path)
    name_or_index, rest = segments[0], segments[1:]
    full_path = join_path(path, name_or_index)
    list_hints = _list_hints(hint)
    value = to_draft(value)
    if isinstance(value, list) or (value is None and list_hints and name_or_index == "+"):
        return _set_item(value or [], list_hints[0] if list_hints else Any, name_or_index, rest, text, path)
    if not isinstance(value, Draft):
        classes = part_classes_in(hint)
        if value is None and classes:
            raise UserError(f"{full_path}: {path} is null; first choose one, as {path}={example_text(classes[0])}")
        raise UserError(f"{full_path}: {path} is {format_value(value)}, which has no settings of its own")
    if name_or_index not in settings_of(value.part) and len(nested_paths := _nested_paths(value, name_or_index)) == 1:
        raise UserError(
            f"{full_path}: {value.part.__name__} has no setting {name_or_index!r} of its own. Did you mean "
            f"{'.'.join([join_path(path, nested_paths[0]), *rest])!r}?"
        )
    name = resolve_setting_name(value.part, name_or_index, full_path)
    value.settings[name] = _set_value(
        value.get(name), settings_of(value.part)[name][1], rest, text, join_path(path, name)
    )
    return value


def _nested_paths(draft: Draft, name: str) -> list[str]:
    """The paths within a part of settings with a name; parts in lists are excluded."""
    paths = []
    for setting in settings_of(draft.part):
        nested_draft = to_draft(draft.get(setting))
        if isinstance(nested_draft, Draft):
            paths += [f"{setting}.{name}"] if name in settings_of(nested_draft.part) else []
            paths += [f"{setting}.{path}" for path in _nested_paths(nested_draft, name)]
    return paths


def _set_item(items: list[Any], hint: Any, index_text: str, rest: list[str], text: str, path: str) -> list[Any]:
    if index_text == "+":
        if rest:
            raise UserError(
                f"{path}.+: + must be followed by a complete item, for example "
                f"{path}.+={example_text(item_hint(hint, 0))}"
            )
        if fixed_length(hint) is not None:
            raise UserError(f"{path}: must be {describe_type(hint)}; {path}.0=... changes one of them")
        return [*items, parse_value(text, item_hint(hint, 0), join_path(path, len(items)))]
    if not re.fullmatch(r"-?[0-9]{1,6}", index_text) or not -len(items) <= int(index_text) < len(items):
        available = f"its items are 0 to {len(items) - 1}" if items else "it is empty"
        raise UserError(f"{path}.{index_text}: there is no such item; {available}, and {path}.+=... adds one")
    index = int(index_text) % len(items)
    return [
        *items[:index],
        _set_value(items[index], item_hint(hint, index), rest, text, join_path(path, index)),
        *items[index + 1 :],
    ]


def _raise_unknown_setting(recipe: Any, path: str, segments: list[str]) -> None:
    """Raises `UserError` for an unknown first name, with the deeper path of that name, if unique."""
    known = settings_of(type(recipe))
    suggestion = _common_name_suggestion(recipe, segments[-1]) or did_you_mean(segments[0], known)
    if not suggestion:
        nested_paths = [line[0] for line in describe_settings(recipe) if line[0].endswith(f".{path}")]
        suggestion = f" Did you mean {nested_paths[0]!r}?" if len(nested_paths) == 1 else ""
    name = type(recipe).__name__
    raise UserError(f"{path}: {name} has no setting {segments[0]!r}; it has: {', '.join(known)}.{suggestion}")


def _common_name_suggestion(recipe: Any, name: str) -> str:
    """A question with the equivalent setting for a name of PyTorch, Hugging Face or nanoGPT; otherwise an empty
    string."""
    existing_paths = {line[0] for line in describe_settings(recipe)}
    paths = [path for path in PATHS_BY_COMMON_NAME.get(name, ()) if path.partition("=")[0] in existing_paths]
    return f" Did you mean {' or '.join(map(repr, paths))}?" if paths else ""


def _sweep_values(path: str, text: str) -> list[str]:
    if _THOUSANDS.fullmatch(text.strip()):
        raise UserError(f"{path}: {text!r} is read as several values; one number is {text.replace(',', '')}")
    pieces = split_at_commas(text)
    if pieces is None or (len(pieces) == 1 and not _RANGE.fullmatch(pieces[0])):
        return [text]
    values: list[str] = []
    for piece in pieces:
        range_match = _RANGE.fullmatch(piece)
        if not piece:
            raise UserError(f"{path}: empty value in {text!r}")
        values += _range_values(path, range_match[1], piece) if range_match else [piece]
    return values


def _range_values(path: str, arguments: str, piece: str) -> list[str]:
    try:
        numbers = range(*(int(number) for number in arguments.split(",")))
        if len(numbers) > MAX_RUNS:
            raise UserError(f"{path}: {piece} has {len(numbers)} values; it must have at most {MAX_RUNS}")
    except (ValueError, TypeError, OverflowError) as error:
        raise UserError(f"{path}: {piece} must be a range such as range(5,20,5), which is 5,10,15") from error
    if not numbers:
        raise UserError(f"{path}: {piece} is empty; for example range(5,20,5), which is 5,10,15")
    return [str(number) for number in numbers]


def _seed_values(text: str) -> list[str]:
    if not re.fullmatch(r"\s*[0-9]{1,6}\s*", text) or not 0 < int(text) <= MAX_RUNS:
        raise UserError(
            f"seeds: must be the number of seeds, 1 to {MAX_RUNS}, not {text!r}; seeds=3 is seed=0,1,2, and others are "
            "seed=5,7"
        )
    return [str(seed) for seed in range(int(text))]


def _describe_settings(value: Any, path: str) -> list[tuple[str, str, str, str]]:
    lines = []
    for name, (field, hint) in settings_of(type(value)).items():
        lines += _describe_setting(getattr(value, name), hint, join_path(path, name), field.metadata.get("help", ""))
    return lines


def _describe_setting(value: Any, hint: Any, path: str, help: str) -> list[tuple[str, str, str, str]]:
    if is_spec(value):
        return [(path, class_address(type(value))[0], describe_type(hint), help), *_describe_settings(value, path)]
    lines = [(path, format_value(value), describe_type(hint), help)]
    list_hints = _list_hints(hint)
    if list_hints and isinstance(value, tuple) and any(map(is_spec, value)):
        for i, item in enumerate(value):
            lines += _describe_setting(item, item_hint(list_hints[0], i), join_path(path, i), "")
    return lines


def _list_hints(hint: Any) -> list[Any]:
    return [option for option in union_members(hint) if get_origin(option) in (tuple, list)]
