"""Records as msgspec types: the fields of an object, their bounds, and bounds of a field by others."""

import hashlib
import json
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, ClassVar, Optional, Union, get_args, get_origin

import msgspec
from msgspec import Meta

CHECKSUM_KEY, RUN_ID_KEY = "checksum", "run_id"
"""The names of a record's checksum, and of the id of its run."""

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Number = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""A finite number."""
NonNegative = Annotated[float, Meta(ge=0, le=sys.float_info.max)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
NotFinite = Annotated[str, Meta(pattern=r"^(nan|-?inf)\Z")]
"""A number that is not finite, as it is written; it is read as a float."""
Loss = Number | NotFinite
NonNegativeLoss = NonNegative | NotFinite

_DECIMALS = 6
"""Decimals of fractions in files."""


def checksum(content: Mapping[str, Any], leave_out: Collection[str] = ()) -> str:
    """A hash (16 hexadecimal characters) of plain data, independent of how it is written; without its own entry."""
    content = {key: value for key, value in content.items() if key != CHECKSUM_KEY and key not in leave_out}
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


class Record(msgspec.Struct):
    """An object with declared fields: see `record_type`."""

    bounds: ClassVar[Sequence[Sequence[str]]] = ()

    def __post_init__(self) -> None:
        for name, relation, bound_name, first, divisor in self.bounds:
            value = getattr(self, name)
            if relation == "has":
                if bound_name not in value:
                    raise ValueError(f"`{name}.{bound_name}` is missing")
                continue
            bound = getattr(self, first)
            if divisor and bound is not None:  # the ratio of two fields; None if it is not known
                bound = round(bound / total, _DECIMALS) if (total := getattr(self, divisor)) else None
            if value is None or bound is None:
                continue
            if type(bound) is list and len(value) != len(bound):
                raise ValueError(f"`{name}` must be as long as `{bound_name}`")
            pairs: Any = value.items() if type(value) is dict else [("", value)]
            for key, item in enumerate(value) if type(value) is list else pairs:
                limit = bound[key] if type(bound) is list else bound
                if item > limit if relation == "<=" else item < limit:
                    place = name if key == "" else f"{name}.{key}"
                    side = "most" if relation == "<=" else "least"
                    raise ValueError(f"`{place}` must be at {side} {limit} (`{bound_name}`), not {item}")


def record_type(fields: Mapping[str, Any], *bounds: str) -> type[Record]:
    """The type of an object with declared fields; others are ignored. A key may name several fields, and one whose name
    ends in `?` may be missing or null.

    `bounds` compare a field with another one, or with the ratio of two. Of a list each item is compared, with the item
    at its index if the other is a list; of an object each value. What is missing bounds nothing. `cell has length` is
    an object with an entry.

    >>> score = record_type({"count correct": Count, "high?": Fraction}, "correct <= count", "high >= correct / count")
    >>> Schema(score, "Evaluate again.").find_violation({"count": 4, "correct": 900})
    '`correct` must be at most 4 (`count`), not 900'
    >>> Schema(score, "Evaluate again.").find_violation({"count": 4, "correct": 3, "high": 7.5})
    '`high` must be `float` <= 1.0, not 7.5'
    """
    named = [(name, kind) for names, kind in fields.items() for name in names.split()]
    types = [(name[:-1], Optional[kind], None) if name[-1] == "?" else (name, kind) for name, kind in named]  # noqa: UP045
    split = [(*text.split(" ", 2), *text.split(" ", 2)[2].partition(" / ")[::2]) for text in bounds]
    return msgspec.defstruct("Record", types, bases=(Record,), namespace={"bounds": split}, kw_only=True)  # type: ignore[return-value]


@dataclass(frozen=True)
class Schema:
    """A kind of record: its type, or several by the first field that a record has ("" for the others); the `remedy`,
    which tells the user of a damaged file what to do; and a further check that returns what is wrong.

    If nothing else depends on the records, damage is not fatal (`is_fatal`): valid ones are read, and damaged ones
    cause a warning. Two records of a file with equal values of all fields in `unique` are in conflict.
    """

    kinds: type[Record] | Mapping[str, type[Record]]
    remedy: str
    is_fatal: bool = True
    unique: tuple[str, ...] = ()
    check: Callable[[Mapping[str, Any]], str | None] | None = None

    def type_of(self, record: Mapping[str, Any]) -> type[Record]:
        if isinstance(self.kinds, type):
            return self.kinds
        return next(kind for name, kind in self.kinds.items() if not name or name in record)

    def find_violation(self, record: Mapping[str, Any]) -> str | None:
        """The violation by a record, in words; None for a valid one."""
        try:
            msgspec.convert(record, self.type_of(record))
        except msgspec.ValidationError as error:
            return _describe(str(error), record)
        except (ValueError, RecursionError) as error:  # a name that is no Unicode text
            return str(error)
        return None if self.check is None else self.check(record)


def restore_numbers(value: Any, kind: Any) -> Any:
    """Plain data of a type with the texts of numbers that are not finite as floats, where the type has them.

    >>> restore_numbers({"loss": "-inf", "text": "inf"}, record_type({"loss": Loss, "text": str}))
    {'loss': -inf, 'text': 'inf'}
    """
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if type(value) is str:
        return float(value) if NotFinite in options else value
    for option in options if type(value) is dict else ():
        if get_origin(option) is dict:
            value = {name: restore_numbers(item, get_args(option)[1]) for name, item in value.items()}
        elif isinstance(option, type) and issubclass(option, msgspec.Struct):
            types = {field.name: field.type for field in msgspec.structs.fields(option)}
            value = {name: restore_numbers(item, types.get(name)) for name, item in value.items()}
    return value


def _describe(error: str, record: Mapping[str, Any]) -> str:
    """A message of msgspec with the value that it is about."""
    problem, _, place = error.partition(" - at ")
    path = place.removeprefix("`key` in ").strip("`").removeprefix("$.")
    if not problem.startswith("Expected "):  # a missing field, or a bound
        return f"{problem}, in `{path}`" if path else problem
    value: Any = record
    for part in re.findall(r"\w+|\[\d+\]", path.partition("[...]")[0]):
        value = value[int(part[1:-1])] if part[0] == "[" else value[part]
    expected = problem.removeprefix("Expected ").partition(", got ")[0]
    return f"`{path}` must be {expected}, not {json.dumps(value, ensure_ascii=False):.60}"
