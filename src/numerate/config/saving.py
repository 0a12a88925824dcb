"""Converts recipes to and from plain data and YAML, and computes their identity hash.

A dict of a part contains its class (`kind: LSTM`), so that it can be read without a schema. A user-defined class is
stored with its file (`kind: my.py:Bitter`) and that file's sha256 (`source`), one of an installed package with its
module and version.

YAML is read and written with modified rules of PyYAML: `1:20`, `no` and `2025-01-01` are strings (other readers convert
them to 80, false and a date, so they are written with quotes), `1e6` is a number, duplicate keys are errors, and `${`
has no special meaning.
"""

import hashlib
import importlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field
from functools import lru_cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from numerate import catalogue
from numerate.config.span import Span
from numerate.config.type_hints import union_members
from numerate.config.user_parts import class_address
from numerate.config.values import (
    Draft,
    build_draft,
    draft_from_data,
    format_value,
    is_spec,
    join_path,
    settings_of,
)
from numerate.errors import UserError
from numerate.plain_yaml import load_plain_yaml, plain_loader

TreeCache = dict[int, tuple[Any, Any]]
"""A cache of converted parts, by `id`: ten thousand recipes of a sweep share nearly all parts. It keeps a reference to
each part, so that its id stays valid."""


def to_tree(recipe: Any, path: str = "", cache: TreeCache | None = None) -> dict[str, Any]:
    """A recipe as plain data: dicts with `kind`, lists, strings, numbers, booleans and None.

    `Span(1, 5)` becomes `"1:5"`, or a dict if the setting could also be a string. With `cache`, recipes that share a
    part share its dict, which must not be modified. Raises `UserError` with the path of a value that recipes do not
    support.
    """
    if not is_spec(recipe):
        raise UserError(f"{path or 'recipe'}: must be a spec (a frozen dataclass), not {recipe!r}")
    if cache is not None and id(recipe) in cache:
        cached_tree: dict[str, Any] = cache[id(recipe)][1]
        return cached_tree
    part = type(recipe)
    kind, source = class_address(part)
    tree: dict[str, Any] = {"kind": kind} if source is None else {"kind": kind, "source": source}
    for name, (_, hint) in settings_of(part).items():
        if name in tree:
            raise UserError(
                f"{join_path(path, name)}: {part.__name__} must not have a setting named {name!r}, which is reserved"
            )
        tree[name] = _to_plain_data(getattr(recipe, name), hint, join_path(path, name), cache)
    if cache is not None:
        cache[id(recipe)] = (recipe, tree)
    return tree


def from_tree(tree: object, source_path: str | Path = "recipe.yaml", expected_class: type | None = None) -> Any:
    """The recipe of plain data; `source_path` is the file it was read from, named in every error.

    The class of the root may be any part, or `expected_class` if given. Missing settings have their defaults. A user's
    file named in the data runs only if its contents are approved (`user_parts.load_saved_class`). Raises `UserError`
    with the path of unknown names, wrong types and invalid values; warns if a user's file has changed since the recipe
    was saved.
    """
    try:
        if not isinstance(tree, dict) or not isinstance(tree.get("kind"), str):
            raise UserError("a recipe must have a line such as kind: Recipe")
        classes = [expected_class] if expected_class is not None else _classes_by_name(tree["kind"])
        return build_draft(draft_from_data(tree, classes, ""), "")
    except UserError as error:
        raise UserError(f"{source_path}: {str(error).removeprefix(': ')}") from error


def identity(recipe: object, cache: TreeCache | None = None) -> str:
    """The identity of a run: twelve hexadecimal characters of a hash.

    A sha256 over the classes of the parts and the settings that differ from their defaults, except those declared with
    `in_run_id=False`. A user-defined part is hashed with its class name and the content of its file, not the file's
    path; one of an installed package with its module and the package's version.
    """
    return hashlib.sha256(_canonical_json(recipe, _is_in_run_id, cache, False).encode()).hexdigest()[:12]


def fingerprint(recipe: object, is_included: Callable[[type, Field[Any]], bool], cache: TreeCache | None = None) -> str:
    """A sha256 (hexadecimal) over all settings for which `is_included(class, field)` is true, defaults among them.

    `cache` avoids repeated work for equal parts, with the same `is_included`.
    """
    return hashlib.sha256(_canonical_json(recipe, is_included, cache, True).encode()).hexdigest()


def check_same_defaults(tree: object, recipe: Any, path: Path) -> None:
    """Raises `UserError` if the recipe of the run at `path`, saved as a `tree`, has another value than a `recipe` with
    the same id in a setting that identifies a run: its default has been changed since."""
    saved = from_tree(tree, path / "recipe.yaml", type(recipe))
    if (changed := next(_differing_settings(saved, recipe, ""), None)) is not None:
        name, then, now = changed
        raise UserError(
            f"{path}: was made when the default of {name} was {then}, not {now}, and is not continued with another; "
            f"{name}={then} makes a run of its own, and another runs_dir= one with {now}"
        )


def _is_in_run_id(part: type, field: Field[Any]) -> bool:
    return bool(field.metadata.get("identity", True))


def _differing_settings(old: Any, new: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """The settings that identify a run and differ: the path of each, and both values as text."""
    if isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new):
        for i, items in enumerate(zip(old, new, strict=True)):
            yield from _differing_settings(*items, join_path(path, i))
    elif is_spec(old) and is_spec(new) and type(old).__name__ == type(new).__name__:
        for name, (field, _) in settings_of(type(new)).items():
            if _is_in_run_id(type(new), field) and not _is_located(new, field):
                yield from _differing_settings(getattr(old, name), getattr(new, name), join_path(path, name))
    elif old != new:
        yield path, format_value(old), format_value(new)


def _is_located(part: Any, field: Field[Any]) -> bool:
    """Whether a setting is an absolute path whose `content_hash` is set, so that only that identifies its contents."""
    hash_setting = field.metadata.get("content_hash")
    is_hashed = hash_setting is not None and getattr(part, hash_setting) is not None
    return is_hashed and os.path.isabs(str(getattr(part, field.name)))


def yaml_text(tree: object, width: int = 120) -> str:
    """Plain data as YAML, in insertion order; long texts are wrapped at `width` columns."""
    yaml, _, dumper = _yaml()
    text: str = yaml.dump(tree, Dumper=dumper, sort_keys=False, allow_unicode=True, width=width)
    return text


def parse_yaml(text: str, source_path: str | Path = "text") -> Any:
    """Plain data from YAML. Raises `UserError` with the line of an error."""
    yaml, loader, _ = _yaml()
    try:
        return load_plain_yaml(text, loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise UserError(f"{source_path}{line}: invalid YAML: {problem}") from error


def load_yaml(path: str | Path) -> Any:
    """Reads plain data from a YAML file. Raises `UserError` for a missing file or invalid YAML, with the line."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: must be a UTF-8 text file") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    return parse_yaml(text, path)


def _to_plain_data(value: Any, hint: Any, path: str, cache: TreeCache | None = None) -> Any:
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Span):
        if {str, Any} & set(union_members(hint)):
            return {"kind": "Span", "low": value.low, "high": value.high}
        return str(value)
    if isinstance(value, tuple | list):
        return [_to_plain_data(item, Any, join_path(path, i), cache) for i, item in enumerate(value)]
    return to_tree(value, path, cache)


def _canonical_json(
    value: Any, is_included: Callable[[type, Field[Any]], bool], cache: TreeCache | None, has_defaults: bool
) -> str:
    """The included content of a value, as JSON without spaces and with sorted keys; assembled from that of its parts,
    which takes a third of the time if these are cached. Settings whose content is that of their default are left out
    unless it `has_defaults`."""
    if isinstance(value, tuple | list):
        return f"[{','.join([_canonical_json(item, is_included, cache, has_defaults) for item in value])}]"
    if not is_spec(value):
        plain = _to_plain_data(value, None, "")
        return json.dumps(int(plain) if isinstance(plain, float) and plain.is_integer() else plain)  # 1.0 is 1
    if cache is not None and id(value) in cache:
        cached_text: str = cache[id(value)][1]
        return cached_text
    part, settings, defaults = type(value), [], Draft(type(value), {})
    for name, (field, _) in sorted(settings_of(part).items()):
        setting, default = getattr(value, name), defaults.get(name)
        if is_included(part, field) and not _is_located(value, field) and (has_defaults or setting is not default):
            content = _canonical_json(setting, is_included, cache, has_defaults)
            if has_defaults or default is MISSING or content != _canonical_json(default, is_included, cache, False):
                settings.append(f"{json.dumps(name)}:{content}")
    kind, source = json.dumps(part.__name__), json.dumps(class_address(part)[1])
    text = f'{{"kind":{kind},"settings":{{{",".join(settings)}}},"source":{source}}}'
    if cache is not None:
        cache[id(value)] = (value, text)
    return text


def _classes_by_name(kind: str) -> list[type]:
    """All classes with the name of a root."""
    if ":" in kind:
        return [object]
    classes = [catalogue.get_class(group, kind) for group, names in catalogue.parts_by_kind().items() if kind in names]
    if not classes:
        raise UserError(f"unknown part {kind!r}; was this saved by another version of numerate?")
    return classes[:1]


@lru_cache
def _yaml() -> tuple[Any, Any, Any]:
    """PyYAML with a loader and a dumper for these rules; imported only when YAML is read or written."""
    yaml: Any = importlib.import_module("yaml")

    class Loader(plain_loader()):  # type: ignore[misc]
        yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True

        def represent_str(self, text: str) -> Any:
            style = None if text.isprintable() else '"'  # in other styles PyYAML loses some Unicode line breaks
            return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, Dumper.represent_str)
    number = r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
    rules = [
        ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
        ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
        ("int", r"[-+]?[0-9]+", list("-+0123456789")),
        ("float", number, list("-+.0123456789")),
    ]
    for name, rule, first in rules:
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(rf"(?:{rule})\Z"), first)
        Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(rf"(?:{rule})\Z"), first)
    Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(loader.construct_scalar(node)))
    return yaml, Loader, Dumper
