"""The types of settings: which values they have, and what they are called in tables and in errors."""

from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from numerate.config.span import Span
from numerate.errors import did_you_mean


class _Scalar(NamedTuple):
    """What values of a type are called in errors, one and several, and an example."""

    singular: str
    plural: str
    example: str


SCALARS: dict[Any, _Scalar] = {
    int: _Scalar("an integer", "integers", "4"),
    float: _Scalar("a number", "numbers", "0.5"),
    bool: _Scalar("true or false", "values of true or false", "true"),
    str: _Scalar("a text", "texts", "text"),
    Span: _Scalar("a span such as 1:5", "spans", "1:5"),
    NoneType: _Scalar("null", "nulls", "null"),
}


def union_members(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the hint itself: `(int, NoneType)` for `int | None`."""
    origin = get_origin(hint)
    if origin is Annotated:
        return union_members(get_args(hint)[0])
    if origin in (Union, UnionType):
        return tuple(option for member in get_args(hint) for option in union_members(member))
    return (NoneType if hint is None else hint,)


def part_classes_in(hint: Any) -> list[type]:
    """The members of a union that are classes of parts."""
    return [
        option
        for option in union_members(hint)
        if isinstance(option, type) and get_origin(option) is None and option not in SCALARS and option is not Any
    ]


def choices_in(hint: Any) -> list[Any]:
    """The values of the `Literal` types in a union."""
    return [value for one in union_members(hint) if get_origin(one) is Literal for value in get_args(one)]


def fixed_length(hint: Any) -> int | None:
    """The required number of items of a list or tuple; None if any."""
    inside = get_args(hint)
    return len(inside) if get_origin(hint) is tuple and inside[-1] is not Ellipsis else None


def item_hint(hint: Any, index: int) -> Any:
    """The type of one item of a list or tuple."""
    inside = get_args(hint) or (Any,)
    return inside[0] if fixed_length(hint) is None else inside[index]


def describe_type(hint: Any) -> str:
    """What a value of a type must be, in words.

    >>> describe_type(int | Span | None), describe_type(tuple[float, float]), describe_type(Literal["fp32", "bf16"])
    ('an integer, a span such as 1:5 or null', '2 numbers', 'fp32 or bf16')
    """
    names: list[str] = []
    for option in union_members(hint):
        if get_origin(option) is Literal:
            names += map(_choice_text, get_args(option))
        elif get_origin(option) in (tuple, list):
            length, item = fixed_length(option), item_hint(option, 0)
            is_class = isinstance(item, type) and get_origin(item) is None
            items = SCALARS[item].plural if item in SCALARS else item.__name__ if is_class else describe_type(item)
            names.append(f"a list of {items}" if length is None else f"{length} {items}")
        elif option in SCALARS:
            names.append(SCALARS[option].singular)
        else:
            name = "thing of any type" if option is Any else getattr(option, "__name__", str(option))
            names.append(f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def type_problem(value: Any, hint: Any) -> str | None:
    """What is wrong with a value that is not of a type, or with an item of it, and what would be right; None if it is
    of that type. Types that no setting has, such as mappings, are not checked.

    >>> type_problem("fp8", Literal["fp32", "fp16"]), type_problem((1, "x"), tuple[float, ...])
    ("must be fp32 or fp16, not 'fp8'", "must be a number, not 'x'")
    """
    options = union_members(hint)
    if any(_is_of_type(value, option) for option in options):
        return None
    for option in options:
        if get_origin(option) is tuple and isinstance(value, tuple) and fixed_length(option) in (None, len(value)):
            problems = (type_problem(item, item_hint(option, index)) for index, item in enumerate(value))
            return next(filter(None, problems))
    suggestion = did_you_mean(value, map(str, choices_in(hint))) if isinstance(value, str) else ""
    return f"must be {describe_type(hint)}, not {shorten(repr(value))}{f'.{suggestion}' if suggestion else ''}"


def _is_of_type(value: Any, option: Any) -> bool:
    """Whether a value is of a type that is no union."""
    if get_origin(option) is None and isinstance(option, type) and option not in (int, float, Any):
        return isinstance(value, option)
    if get_origin(option) is Literal:
        return isinstance(value, str | Real | None) and any(
            value == one and isinstance(value, bool) == isinstance(one, bool) for one in get_args(option)
        )
    if get_origin(option) is tuple:
        return (
            isinstance(value, tuple)
            and fixed_length(option) in (None, len(value))
            and all(type_problem(item, item_hint(option, index)) is None for index, item in enumerate(value))
        )
    if option in (int, float):
        return isinstance(value, Integral if option is int else Real) and not isinstance(value, bool)
    return True


def shorten(text: str) -> str:
    """At most some sixty characters of a text."""
    return text if len(text) < 60 else f"{text[:60]}..."


def _choice_text(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
