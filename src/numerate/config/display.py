"""A recipe as text: what differs from the defaults first."""

from collections.abc import Iterator
from textwrap import wrap
from typing import Any

from numerate.config.values import format_value, is_spec, join_path, settings_of
from numerate.errors import UserError

MAX_LINES, MAX_COLUMNS = 25, 79


def changed_settings(spec: Any) -> dict[str, str]:
    """The settings of a spec that differ from the defaults, by their paths: as overrides of the defaults they
    reproduce it.

    >>> from numerate.mixers import Attention
    >>> changed_settings(Attention(num_heads=8))
    {'num_heads': '8'}
    """
    return dict(_changed_settings(spec, type(spec)(), ""))


def _changed_settings(value: Any, default: Any, path: str) -> Iterator[tuple[str, str]]:
    for name in settings_of(type(value)):
        new, old = getattr(value, name), getattr(default, name)
        if is_spec(new) and type(new) is type(old):
            yield from _changed_settings(new, old, join_path(path, name))
        elif new != old:
            yield join_path(path, name), _value_text(new)


def _value_text(value: Any) -> str:
    try:
        return format_value(value)
    except UserError:  # of a class inside a function, which cannot be saved
        return repr(value)


def spec_text(spec: Any, title: str) -> str:
    """At most 25 lines of 79 columns: the title, the settings that differ from the defaults, and the parts that do
    not."""
    changed = changed_settings(spec)
    parts = {name: part for name in settings_of(type(spec)) if is_spec(part := getattr(spec, name))}
    outermost = {path.partition(".")[0] for path in changed}
    kept = [f"{name}={_value_text(part)}" for name, part in parts.items() if name not in outermost]
    rest = _wrapped(f"as by default: {', '.join(kept)}") if kept else []
    lines: list[str] = []
    for number, (path, value) in enumerate(changed.items()):
        setting = _wrapped(f"  {path}={value}")
        if len(lines) + len(setting) + len(rest) + 1 + (number + 1 < len(changed)) > MAX_LINES:
            lines.append(f"  ... and {len(changed) - number} more")
            break
        lines += setting
    return "\n".join([title + ", differing from the defaults in" * bool(changed), *lines, *rest])


def _wrapped(text: str) -> list[str]:
    return wrap(text, MAX_COLUMNS, subsequent_indent="    ", break_on_hyphens=False)
