"""Declarative checks of plain data that was read from JSON."""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

Violation = tuple[str, Any, str]
"""The path of a field, its value, and what it must be, in words."""

Bound = float | str | None

CHECKSUM_KEY = "checksum"

_MISSING = object()
_DECIMALS = 6
"""Decimals of fractions in files."""


def checksum(content: Mapping[str, Any], leave_out: Collection[str] = ()) -> str:
    """A hash (16 hexadecimal characters) of plain data, independent of how it is written; without its own entry."""
    content = {key: value for key, value in content.items() if key != CHECKSUM_KEY and key not in leave_out}
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


class Check(ABC):
    """A check of one value. Bounds may name another field of the same object, as in `Integer(high="count")`, or the
    ratio of two of them, as in `Number(0, "correct / count")`; a missing bound is ignored."""

    @abstractmethod
    def find_violation(self, name: str, value: Any, record: Mapping[str, Any]) -> Violation | None:
        """The violation by the value of a field of `record`; None if it is valid."""


@dataclass(frozen=True)
class Value(Check):
    """A value that passes a test; `expected` says in words which do."""

    expected: str
    is_valid: Callable[[Any], object]

    def find_violation(self, name: str, value: Any, record: Mapping[str, Any]) -> Violation | None:
        return None if self.is_valid(value) else (name, value, self.expected)


ANY = Value("something", lambda value: True)
TEXT = Value("a text", lambda value: type(value) is str)
BOOLEAN = Value("a boolean", lambda value: type(value) is bool)


def one_of(*choices: str) -> Value:
    """One of some texts."""
    return Value(" or ".join(map(repr, choices)), lambda value: type(value) is str and value in choices)


@dataclass(frozen=True)
class Number(Check):
    """A number in a range, finite unless `finite` is false."""

    low: Bound = None
    high: Bound = None
    finite: bool = True

    def find_violation(self, name: str, value: Any, record: Mapping[str, Any]) -> Violation | None:
        is_number = type(value) in (float, int) and (not self.finite or isfinite(value))
        if is_number and _is_in_range(value, self.low, self.high, record):
            return None
        kind = "a finite number" if self.finite else "a number"
        return name, value, _describe_range(kind, self.low, self.high, record)


@dataclass(frozen=True)
class Integer(Check):
    """An integer in a range; the default minimum is 0."""

    low: int | None = 0
    high: int | str | None = None

    def find_violation(self, name: str, value: Any, record: Mapping[str, Any]) -> Violation | None:
        if type(value) is int and _is_in_range(value, self.low, self.high, record):
            return None
        return name, value, _describe_range("an integer", self.low, self.high, record)


@dataclass(frozen=True)
class Checksum(Check):
    """The checksum of the record that it stands in, as a function computes it."""

    compute: Callable[[Mapping[str, Any]], str]

    def find_violation(self, name: str, value: Any, record: Mapping[str, Any]) -> Violation | None:
        return None if value == self.compute(record) else (name, value, "that of the line, which was modified")


@dataclass(frozen=True)
class Array(Check):
    """A list of values; with `bound_field`, each at most the value at the same index of that field."""

    item: Check
    bound_field: str | None = None

    def find_violation(self, name: str, value: Any, record: Mapping[str, Any]) -> Violation | None:
        if type(value) is not list:
            return name, value, "a list"
        for index, item in enumerate(value):
            if (violation := self.item.find_violation(f"{name}.{index}", item, record)) is not None:
                return violation
        if self.bound_field is not None:
            bounds = record.get(self.bound_field)
            if not isinstance(bounds, list) or len(bounds) != len(value):
                return name, value, f"a list as long as `{self.bound_field}`"
            for index, (item, bound) in enumerate(zip(value, bounds, strict=True)):
                if item > bound:
                    return f"{name}.{index}", item, f"at most `{self.bound_field}.{index}` ({bound})"
        return None


@dataclass(frozen=True)
class MapOf(Check):
    """An object with arbitrary keys, whose values all pass one check; bounds name fields of the enclosing object."""

    value: Check
    key_pattern: str | None = None
    required_keys: tuple[str, ...] = ()

    def find_violation(self, name: str, value: Any, record: Mapping[str, Any]) -> Violation | None:
        if type(value) is not dict:
            return name, value, "an object"
        for key in self.required_keys:
            if key not in value:
                return name, value, f"an object with `{key}`"
        for key, item in value.items():
            if self.key_pattern is not None and not re.fullmatch(self.key_pattern, key):
                return name, key, f"an object with names such as {self.key_pattern}"
            if (violation := self.value.find_violation(key, item, record)) is not None:
                return f"{name}.{violation[0]}", violation[1], violation[2]
        return None


class Fields(Check):
    """An object with declared fields; other fields are ignored.

    >>> fields = Fields({"count": Integer(), "correct": Integer(high="count"), "note? name?": TEXT})
    >>> fields.find_violation("", {"count": 4, "correct": 900}, {})
    ('correct', 900, 'an integer from 0 to `count` (4)')

    A key may name several fields. One whose name ends in `?` may be missing or null. At least one of the fields in
    `any_of` must be there, be it null.
    """

    def __init__(self, checks: Mapping[str, Check], *, any_of: tuple[str, ...] = ()) -> None:
        self.any_of = any_of
        named = [(name, check) for names, check in checks.items() for name in names.split()]
        self._fields = [(name.removesuffix("?"), not name.endswith("?"), check) for name, check in named]

    def find_violation(self, name: str, value: Any, record: Mapping[str, Any]) -> Violation | None:
        if type(value) is not dict:
            return name, value, "an object"
        if self.any_of and not any(field in value for field in self.any_of):
            return "` or `".join(f"{name}.{field}" if name else field for field in self.any_of), _MISSING, "given"
        for field, is_required, check in self._fields:
            item = value.get(field, _MISSING)
            if item is _MISSING or item is None:
                if not is_required:
                    continue
                if item is _MISSING:
                    missing = check.find_violation(field, None, value)
                    expected = ANY.expected if missing is None else missing[2]
                    return f"{name}.{field}" if name else field, _MISSING, expected
            if (violation := check.find_violation(field, item, value)) is not None:
                return (f"{name}.{violation[0]}" if name else violation[0]), violation[1], violation[2]
        return None


@dataclass(frozen=True)
class Either(Check):
    """An object of one of two kinds: the first if it has the field `discriminator`."""

    discriminator: str
    if_present: Check
    if_absent: Check

    def find_violation(self, name: str, value: Any, record: Mapping[str, Any]) -> Violation | None:
        has_field = type(value) is dict and value.get(self.discriminator) is not None
        return (self.if_present if has_field else self.if_absent).find_violation(name, value, record)


@dataclass(frozen=True)
class Schema:
    """A kind of record: its `fields`, and the `remedy`, which tells the user of a damaged file what to do.

    If nothing else depends on the records, damage is not fatal (`is_fatal`): valid ones are read, and damaged ones
    cause a warning. Two records of a file with equal values of all fields in `unique` are in conflict.
    """

    fields: Check
    remedy: str
    is_fatal: bool = True
    unique: tuple[str, ...] = ()

    def find_violation(self, record: Mapping[str, Any]) -> str | None:
        """The violation by a record, in words; None for a valid one.

        >>> cell = Schema(Fields({"correct": Integer(high="count"), "count": Integer()}), remedy="evaluate it again")
        >>> cell.find_violation({"correct": 900, "count": 4})
        '`correct` must be an integer from 0 to `count` (4), not 900'
        """
        violation = self.fields.find_violation("", record, record)
        if violation is None:
            return None
        path, value, expected = violation
        found = "and is missing" if value is _MISSING else f"not {_format_value(value)}"
        return f"`{path}` must be {expected}, {found}"


def _is_in_range(value: float, low: Bound, high: Bound, record: Mapping[str, Any]) -> bool:
    minimum, maximum = _resolve_bound(low, record), _resolve_bound(high, record)
    return (minimum is None or value >= minimum) and (maximum is None or value <= maximum)


def _resolve_bound(bound: Bound, record: Mapping[str, Any]) -> float | None:
    """A bound as a number; None without a bound."""
    if not isinstance(bound, str):
        return bound
    numbers = [record.get(name) for name in bound.split(" / ")]
    if not all(isinstance(number, int | float) for number in numbers):
        return None
    if len(numbers) == 1:
        return numbers[0]
    return round(numbers[0] / numbers[1], _DECIMALS) if numbers[1] else None


def _describe_range(type_name: str, low: Bound, high: Bound, record: Mapping[str, Any]) -> str:
    minimum, maximum = (
        f"`{end}` ({bound})" if isinstance(end, str) and bound is not None else bound
        for end, bound in ((low, _resolve_bound(low, record)), (high, _resolve_bound(high, record)))
    )
    if minimum is not None and maximum is not None:
        return f"{type_name} from {minimum} to {maximum}"
    if minimum is not None:
        return f"{type_name} of at least {minimum}"
    return type_name if maximum is None else f"{type_name} up to {maximum}"


def _format_value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
