"""Checks of plain data that was read from JSON: what a field must hold, in a table that can be read."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import Any

Wrong = tuple[str, Any, str]
"""The path of a field, what is there, and in words what would be right."""

Bound = float | str | None

_MISSING = object()
_DIGITS = 6
"""Decimals of shares in files."""


class Check(ABC):
    """A check of one value. Bounds may name another field of the same object, as in `Whole(high="count")`, or the
    share of two of them, as in `Real(0, "correct / count")`; a missing bound is ignored."""

    @abstractmethod
    def wrong(self, name: str, value: Any, record: Mapping[str, Any]) -> Wrong | None:
        """What is wrong with the value of a field of `record`; None where nothing is."""


@dataclass(frozen=True)
class Anything(Check):
    def wrong(self, name: str, value: Any, record: Mapping[str, Any]) -> Wrong | None:
        return None


@dataclass(frozen=True)
class Whole(Check):
    """A whole number in a range; counts are from 0."""

    low: int | None = 0
    high: int | str | None = None

    def wrong(self, name: str, value: Any, record: Mapping[str, Any]) -> Wrong | None:
        if type(value) is int and _inside(value, self.low, self.high, record):
            return None
        return name, value, _range("a whole number", self.low, self.high, record)


@dataclass(frozen=True)
class Real(Check):
    """A number in a range, finite unless `finite` is false."""

    low: Bound = None
    high: Bound = None
    finite: bool = True

    def wrong(self, name: str, value: Any, record: Mapping[str, Any]) -> Wrong | None:
        known = type(value) in (float, int) and (not self.finite or isfinite(value))
        if known and _inside(value, self.low, self.high, record):
            return None
        return name, value, _range("a finite number" if self.finite else "a number", self.low, self.high, record)


@dataclass(frozen=True)
class Text(Check):
    """A text: any, one of `among`, or one that `pattern` matches as a whole, described by `called`."""

    among: tuple[str, ...] = ()
    pattern: str | None = None
    called: str = "a text"

    def wrong(self, name: str, value: Any, record: Mapping[str, Any]) -> Wrong | None:
        known = type(value) is str and (not self.among or value in self.among)
        if known and (self.pattern is None or re.fullmatch(self.pattern, value)):
            return None
        return name, value, " or ".join(map(repr, self.among)) or self.called


@dataclass(frozen=True)
class Exact(Check):
    """A finite decimal number as text, which is exact."""

    def wrong(self, name: str, value: Any, record: Mapping[str, Any]) -> Wrong | None:
        try:
            if type(value) is str and Decimal(value).is_finite():
                return None
        except InvalidOperation:
            pass
        return name, value, "a decimal number as text"


@dataclass(frozen=True)
class Truth(Check):
    def wrong(self, name: str, value: Any, record: Mapping[str, Any]) -> Wrong | None:
        return None if type(value) is bool else (name, value, "true or false")


@dataclass(frozen=True)
class Items(Check):
    """A list of values; with `below`, each at most the one at the same place of that field."""

    of: Check
    below: str | None = None

    def wrong(self, name: str, value: Any, record: Mapping[str, Any]) -> Wrong | None:
        if type(value) is not list:
            return name, value, "a list"
        for place, item in enumerate(value):
            if (found := self.of.wrong(f"{name}.{place}", item, record)) is not None:
                return found
        if self.below is not None:
            most = record.get(self.below)
            if not isinstance(most, list) or len(most) != len(value):
                return name, value, f"a list as long as `{self.below}`"
            for place, (item, bound) in enumerate(zip(value, most, strict=True)):
                if item > bound:
                    return f"{name}.{place}", item, f"at most `{self.below}.{place}` ({bound})"
        return None


@dataclass(frozen=True)
class Mapped(Check):
    """An object of any names, whose values all pass one check; bounds name fields of the object around it."""

    of: Check
    keys: str | None = None
    has: tuple[str, ...] = ()

    def wrong(self, name: str, value: Any, record: Mapping[str, Any]) -> Wrong | None:
        if type(value) is not dict:
            return name, value, "an object"
        for key in self.has:
            if key not in value:
                return name, value, f"an object with `{key}`"
        for key, item in value.items():
            if self.keys is not None and not re.fullmatch(self.keys, key):
                return name, key, f"an object with names such as {self.keys}"
            if (found := self.of.wrong(key, item, record)) is not None:
                return f"{name}.{found[0]}", found[1], found[2]
        return None


class Fields(Check):
    """An object with the fields of a table; further ones are ignored.

    >>> Fields({"count": Whole(), "correct": Whole(high="count"), "note?": NextToken()})

    A field whose name ends in `?` may be missing or null.
    """

    def __init__(self, table: Mapping[str, Check]) -> None:
        self.table = table
        self._fields = [(name.removesuffix("?"), not name.endswith("?"), check) for name, check in table.items()]

    def wrong(self, name: str, value: Any, record: Mapping[str, Any]) -> Wrong | None:
        if type(value) is not dict:
            return name, value, "an object"
        for field, needed, check in self._fields:
            item = value.get(field, _MISSING)
            if item is _MISSING or item is None:
                if not needed:
                    continue
                if item is _MISSING:
                    return f"{name}.{field}" if name else field, _MISSING, _right(check, field, value)
            if (found := check.wrong(field, item, value)) is not None:
                return (f"{name}.{found[0]}" if name else found[0]), found[1], found[2]
        return None


@dataclass(frozen=True)
class Either(Check):
    """An object of one of two kinds: of the first if it has the field `having`."""

    having: str
    first: Fields
    second: Fields

    def wrong(self, name: str, value: Any, record: Mapping[str, Any]) -> Wrong | None:
        there = type(value) is dict and value.get(self.having) is not None
        return (self.first if there else self.second).wrong(name, value, record)


@dataclass(frozen=True)
class Schema:
    """A kind of record: the `fields` it has, and the `remedy`, what the user of a damaged file can do.

    Where nothing else depends on the records, damage is not `fatal`: the sound ones are read, and the damaged ones give
    a warning. Two records of a file that agree in all fields of `unique` are the same.
    """

    fields: Check
    remedy: str
    fatal: bool = True
    unique: tuple[str, ...] = ()

    def wrong(self, record: Mapping[str, Any]) -> str | None:
        """What is wrong with a record, in words; None for a sound one.

        >>> CELL.wrong({"correct": 900, "count": 4})
        '`correct` is 900; a whole number from 0 to `count` (4) is right'
        """
        found = self.fields.wrong("", record, record)
        if found is None:
            return None
        path, value, right = found
        return f"`{path}` is {'missing' if value is _MISSING else _shown(value)}; {right} is right"


def _inside(value: float, low: Bound, high: Bound, record: Mapping[str, Any]) -> bool:
    least, most = _bound(low, record), _bound(high, record)
    return (least is None or value >= least) and (most is None or value <= most)


def _bound(named: Bound, record: Mapping[str, Any]) -> float | None:
    """A bound as a number; None where there is none."""
    if not isinstance(named, str):
        return named
    numbers = [record.get(name) for name in named.split(" / ")]
    if not all(isinstance(number, int | float) for number in numbers):
        return None
    if len(numbers) == 1:
        return numbers[0]
    return round(numbers[0] / numbers[1], _DIGITS) if numbers[1] else None


def _range(what: str, low: Bound, high: Bound, record: Mapping[str, Any]) -> str:
    least, most = (
        f"`{end}` ({bound})" if isinstance(end, str) and bound is not None else bound
        for end, bound in ((low, _bound(low, record)), (high, _bound(high, record)))
    )
    if least is not None and most is not None:
        return f"{what} from {least} to {most}"
    if least is not None:
        return f"{what}, {least} or more,"
    return what if most is None else f"{what} up to {most}"


def _right(check: Check, name: str, record: Mapping[str, Any]) -> str:
    """What a field that is missing should hold."""
    found = check.wrong(name, None, record)
    return "something" if found is None else found[2]


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
