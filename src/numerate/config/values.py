"""Parses text or plain data to typed values, and formats them, for the command line and saved recipes.

A setting's type hint decides how its value is read, so one rule serves `model.num_heads=4`, `LSTM(layers=2)` inside a
list, and a line of a recipe on disk. Parts being read are `Draft`s, built only at the end: what one override breaks
(`width=60` for 4 heads) the next may mend (`heads=6`), and a refusal can name the path at which it happened.

This is ours rather than OmegaConf's, whose reader turns `1:20` into 80 (a number to the base 60), knows neither `1e6`
nor `64k` as whole numbers, and refuses fields declared by an abstract class.
"""

import re
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from decimal import Decimal, InvalidOperation
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from numerate import catalogue
from numerate.config.old_names import new_kinds, new_setting
from numerate.config.packaged_parts import address_named, packaged_part
from numerate.config.settings import Span
from numerate.config.user_parts import is_abstract, kind_of, lacking, saved_object, user_object
from numerate.errors import UserError, did_you_mean

NOTHING = ("null", "none")
TRUE, FALSE = ("true", "yes", "on"), ("false", "no", "off")
INFINITE = {"inf": float("inf"), "+inf": float("inf"), "-inf": float("-inf")}
SUFFIXES = {"k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9}
EXAMPLES: dict[Any, str] = {int: "4", float: "0.5", bool: "true", str: "text", Span: "1:5", NoneType: "null"}

_NUMBER = re.compile(r"([+-]?(?:[0-9][0-9_]*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?)([kKMG]?)")
_CALL = re.compile(r"([^\s()\[\]'\"=,]+)\s*(?:\((.*)\))?", re.DOTALL)
_KEYWORD = re.compile(r"([A-Za-z_][\w-]*)\s*=(.*)", re.DOTALL)
_PLAIN_WORD = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
_PLACED = re.compile(r"([A-Za-z_]\w*)(?:\.[\w.]+)?: ")


class Draft:
    """A part that is not built yet: its class, and the settings given so far (all others keep their defaults)."""

    def __init__(self, part: type, given: dict[str, Any]) -> None:
        self.part = part
        self.given = given

    def get(self, name: str) -> Any:
        if name in self.given:
            return self.given[name]
        field = settings_of(self.part)[name][0]
        return field.default_factory() if field.default_factory is not MISSING else field.default


def fold(word: str) -> str:
    """`-` and `_` are one: `fold("batch-size") == fold("batch_size")`."""
    return word.replace("-", "_")


def is_spec(value: object) -> bool:
    return is_dataclass(value) and not isinstance(value, type | Span)


def settings_of(part: Any) -> dict[str, tuple[Field[Any], Any]]:
    """The settings of a spec's class, each with its type hint. Raises `UserError` for a class that is no spec."""
    return _settings_of(part)


@cache
def _settings_of(part: Any) -> dict[str, tuple[Field[Any], Any]]:
    if not is_dataclass(part):
        raise UserError(f"{getattr(part, '__name__', part)} is no frozen dataclass; it has no settings")
    try:
        hints = get_type_hints(part)
    except NameError as error:
        raise UserError(f"{part}: the types of its settings cannot be read: {error}") from error
    return {field.name: (field, hints[field.name]) for field in fields(part) if field.init}


def setting_name(part: type, key: str, path: str) -> str:
    """The setting that a key means. Raises `UserError` with those that there are."""
    known = settings_of(part)
    if fold(key) not in known:
        if (now := new_setting(part, fold(key))) in known:
            raise UserError(f"{path}: this setting of {part.__name__} is called {now} since version 0.2")
        there = f"it has: {', '.join(known)}" if known else "it has none"
        raise UserError(f"{path}: {part.__name__} has no setting {key!r}; {there}.{did_you_mean(key, known)}")
    return fold(key)


def under(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def drafted(value: Any) -> Any:
    """A value as editable draft: a spec as a `Draft`, a tuple as a list, anything else as it is."""
    if is_spec(value):
        return Draft(type(value), {name: getattr(value, name) for name in settings_of(type(value))})
    return list(value) if isinstance(value, tuple) else value


def built(value: Any, path: str) -> Any:
    """Builds the value of a draft. An error of a part is prefixed with its path."""
    if isinstance(value, list):
        return tuple(built(item, under(path, i)) for i, item in enumerate(value))
    if not isinstance(value, Draft):
        return value
    given = {name: built(item, under(path, name)) for name, item in value.given.items()}
    try:
        return value.part(**given)
    except (UserError, ValueError) as error:
        message = str(error)
        with_path = _PLACED.match(message)
        joint = "." if with_path and with_path[1] in settings_of(value.part) else ": "
        raise UserError(f"{path}{joint}{message}" if path else message) from error


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the hint alone: `int | None` gives `(int, NoneType)`."""
    origin = get_origin(hint)
    if origin is Annotated:
        return alternatives(get_args(hint)[0])
    if origin in (Union, UnionType):
        return tuple(option for member in get_args(hint) for option in alternatives(member))
    return (NoneType if hint is None else hint,)


def classes_in(hint: Any) -> list[type]:
    """The members of a union that are kinds of parts."""
    return [o for o in alternatives(hint) if isinstance(o, type) and o not in EXAMPLES and get_origin(o) is None]


def type_text(hint: Any) -> str:
    """A type as a person writes it: `int | null`, `list of Position`, `'normal' | 'reversed'`."""
    names = []
    for option in alternatives(hint):
        if get_origin(option) is Literal:
            names += [value if isinstance(value, str) else as_text(value) for value in get_args(option)]
        elif get_origin(option) in (tuple, list):
            if fixed_length(option) is None:
                names.append(f"list of {type_text(item_hint(option, 0))}")
            else:
                names.append(f"[{', '.join(map(type_text, get_args(option)))}]")
        else:
            names.append({NoneType: "null", Any: "anything"}.get(option, getattr(option, "__name__", str(option))))
    return " | ".join(names)


def fixed_length(hint: Any) -> int | None:
    """How many items a list or tuple must have, None where any number will do."""
    inside = get_args(hint)
    return len(inside) if get_origin(hint) is tuple and inside[-1] is not Ellipsis else None


def item_hint(hint: Any, at: int) -> Any:
    """The type of one item of a list or tuple."""
    inside = get_args(hint) or (Any,)
    return inside[0] if fixed_length(hint) is None else inside[at]


def split(text: str) -> list[str] | None:
    """The pieces between commas that stand in no brackets and no quotes; None where brackets or quotes do not close.

    >>> split("LSTM(layers=1,width=2), 'a,b', [1,2]")
    ['LSTM(layers=1,width=2)', "'a,b'", '[1,2]']

    A quote opens only where a value may begin, so that the one in `Ann's` is a letter like others.
    """
    pieces, start, open_brackets, quote, before, i = [], 0, "", "", ",", 0
    while i < len(text):
        letter = text[i]
        if quote:
            if letter == "\\":
                i += 1
            elif letter == quote:
                quote = ""
        elif letter in "'\"" and before in ",([=":
            quote = letter
        elif letter in "([":
            open_brackets += letter
        elif letter in ")]":
            if open_brackets[-1:] + letter not in ("()", "[]"):
                return None
            open_brackets = open_brackets[:-1]
        elif letter == "," and not open_brackets:
            pieces.append(text[start:i].strip())
            start = i + 1
        if not letter.isspace():
            before = letter
        i += 1
    if quote or open_brackets:
        return None
    return [*pieces, text[start:].strip()]


def unquoted(word: str) -> str | None:
    """The text between quotes, None for a word that is not wholly quoted. A backslash keeps a quote or a backslash."""
    if not re.fullmatch(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", word, re.DOTALL):
        return None
    return re.sub(r"\\(['\"\\])", r"\1", word[1:-1])


def number_in(word: str) -> int | float | None:
    """The number that a word is, whole numbers as `int`: `1e6`, `64k` and `1_000` are whole, `0.5` and `2.5e-3` not."""
    if word in INFINITE:
        return INFINITE[word]
    found = _NUMBER.fullmatch(word)
    if found is None or len(word) > 290:
        return None
    digits = found[1].replace("_", "")
    try:
        if digits.lstrip("+-").isdecimal():
            return int(digits) * SUFFIXES.get(found[2], 1)
        exact = Decimal(digits) * SUFFIXES.get(found[2], 1)
        if exact == exact.to_integral_value() and exact.adjusted() < 28:
            return int(exact)
    except InvalidOperation:
        pass
    value = float(digits) * SUFFIXES.get(found[2], 1)
    return None if value in INFINITE.values() else value


def from_text(text: str, hint: Any, path: str, *, saved: bool = False) -> Any:
    """Reads a value as a person writes it, by its type hint; parts stay drafts. Raises `UserError` with an example.

    A text that was `saved`, instead of typed by the user, names no file of parts that runs (`my.py:Bitter`)."""
    options, word, read = alternatives(hint), text.strip(), partial(from_text, saved=saved)
    quoted = unquoted(word)
    for option in options:
        if get_origin(option) is Literal:
            for value in get_args(option):
                if fold(word if quoted is None else quoted) == fold(str(value)):
                    return value
    if Any in options:
        options = (*options, NoneType, bool, int, float, str)
    if quoted is not None and str in options:
        return quoted
    lower, number = word.lower(), number_in(word)
    if NoneType in options and lower in NOTHING:
        return None
    if bool in options and lower in TRUE + FALSE:
        return lower in TRUE
    if number is not None:
        written_whole = not set(".eE") & set(word)
        if int in options and isinstance(number, int) and (written_whole or float not in options):
            return number
        if float in options:
            return float(number)
    if Span in options and re.fullmatch(r"[+-]?\d+(\s*:\s*[+-]?\d+)?|Span\s*\(\s*[+-]?\d+\s*,\s*[+-]?\d+\s*\)", word):
        try:
            return Span.parse(word.removeprefix("Span").strip(" ()").replace(",", ":"))
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
    pieces = split(word)
    for option in options:
        if get_origin(option) in (tuple, list) and pieces is not None:
            if word[:1] + word[-1:] in ("[]", "()"):
                inner = split(word[1:-1]) if word[1:-1].strip() else []
                if inner is not None:
                    return _items([*inner[:-1], *filter(None, inner[-1:])], option, path, read)
            elif len(pieces) == 1 and word and str not in options:
                return _items(pieces, option, path, read)
    classes = classes_in(hint)
    call = _CALL.fullmatch(word)
    one_call = classes and call is not None and pieces is not None and len(pieces) == 1
    if one_call and call and (str not in options or fold(call[1]) in map(fold, known_parts(classes))):
        preset = _preset(call[1], classes)
        if preset is not None:
            return _call(preset, call[2] or "", path, read)
        return _call(Draft(part_named(call[1], classes, path, saved=saved), {}), call[2] or "", path, read)
    if str in options:
        return text
    words = [str(value) for option in options if get_origin(option) is Literal for value in get_args(option)]
    if words:
        raise UserError(f"{path}: {word!r} is none of {type_text(hint)}.{did_you_mean(word, words)}")
    raise UserError(f"{path}: {word!r} is no {type_text(hint)}; for example {path}={example(hint)}")


def from_data(data: Any, hint: Any, path: str) -> Any:
    """Reads a value from plain data (what YAML holds), by its type hint; parts stay drafts."""
    options = alternatives(hint)
    for option in options:
        if get_origin(option) is Literal and any(type(data) is type(v) and data == v for v in get_args(option)):
            return data
    if type(data) in options or (Any in options and not isinstance(data, list | dict)):
        return data
    if isinstance(data, int) and not isinstance(data, bool):
        if Span in options:
            return Span(data, data)
        if float in options and abs(data) < 10**300:
            return float(data)
    if isinstance(data, float) and int in options and data.is_integer():
        return int(data)
    if isinstance(data, list):
        for option in options:
            if get_origin(option) in (tuple, list) or option is Any:
                return _items(data, option, path, from_data)
    if isinstance(data, dict):
        classes = classes_in(hint)
        if Span in options and data.get("kind") == "Span":
            return built(draft_from(data, [Span], path), path)
        if classes:
            return draft_from(data, classes, path)
    if isinstance(data, str) and data:
        return from_text(data, hint, path, saved=True)
    shown = "null" if data is None else repr(data)
    raise UserError(f"{path}: {shown if len(shown) < 60 else shown[:60] + '...'} is no {type_text(hint)}")


def draft_from(data: dict[Any, Any], classes: list[type], path: str) -> Draft:
    """A part from its node of a tree, `{"kind": "LSTM", "layers": 2}`."""
    kind = data.get("kind", classes[0].__name__ if len(classes) == 1 and not is_abstract(classes[0]) else None)
    if not isinstance(kind, str):
        raise UserError(f"{path}: kind is missing; it names one of: {', '.join(known_parts(classes)) or 'none'}")
    part = part_named(kind, classes, path, saved=True, source=data.get("source"))
    given: dict[str, Any] = {}
    for key, value in data.items():
        if key != "kind" and not (key == "source" and ".py:" in kind):
            name = setting_name(part, str(key), under(path, key))
            given[name] = from_data(value, settings_of(part)[name][1], under(path, name))
    return Draft(part, given)


def known_parts(classes: list[type]) -> dict[str, str]:
    """The class names that can stand for these types, each with its kind ("" for a type that is a part itself)."""
    kinds = catalogue.kinds()
    known = {name: declared.__name__ for declared in classes for name in sorted(kinds.get(declared.__name__, {}))}
    return known | {c.__name__: "" for c in classes if not is_abstract(c) and c is not object}


def part_named(name: str, classes: list[type], path: str, *, saved: bool = False, source: object = None) -> type:
    """The class meant by a name: of the catalogue, of an installed package (`Bitter` or `acme.mixers:Bitter`), or of a
    file (`my.py:Bitter`).

    A file that the user names is run; of a name that was `saved` only a file that he approved, with the sha256
    `source`. Raises `UserError` where there is none, with those that there are.
    """
    kinds, known = " or ".join(c.__name__ for c in classes), known_parts(classes)
    exact = next((there for there in known if fold(there) == fold(name)), None)
    if exact is not None:
        itself = next((c for c in classes if c.__name__ == exact), object)
        return catalogue.find(known[exact], exact, path) if known[exact] else itself
    where = f"{path}: " if path else ""
    try:
        if re.fullmatch(r"[^:]+\.py:\w+", name):
            part = saved_object(name, source) if saved else user_object(name)
        elif (address := name if re.fullmatch(r"[^:]+:\w+", name) else address_named(name)) is not None:
            part = packaged_part(address)
        else:
            if now := next((one for one in new_kinds(name) if one in known), None):
                raise UserError(f"{name} is called {now} since version 0.2")
            there = ", ".join(sorted(known)) or "none"
            presets = [preset for declared in classes for preset in catalogue.presets(declared.__name__)]
            more = f" (and {len(presets)} by the names of papers)" if presets else ""
            near = did_you_mean(name, [*known, *presets])
            raise UserError(f"no {kinds} is named {name!r}; there are: {there}{more}.{near}")
    except UserError as error:
        raise UserError(f"{where}{error}") from error
    if not isinstance(part, type) or not issubclass(part, tuple(classes)):
        raise UserError(f"{where or 'recipe: '}{name} is no {kinds}")
    if missing := lacking(part):
        raise UserError(f"{where or 'recipe: '}{name} has no {' and no '.join(missing)}, which a {kinds} needs")
    return part


def example(hint: Any) -> str:
    """A value that a hint accepts, to end an error with."""
    for option in alternatives(hint):
        if option in EXAMPLES:
            return EXAMPLES[option]
        if get_origin(option) is Literal:
            return as_text(get_args(option)[0])
        if get_origin(option) in (tuple, list):
            return f"[{example(get_args(option)[0])}]"
        if isinstance(option, type):
            return next(iter(known_parts([option])), option.__name__)
    return "null"


def as_text(value: Any) -> str:
    """A value as `from_text` reads it back: `LSTM(layers=3)` (what is not the default), `1:5`, `null`, `[a, b]`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        if _PLAIN_WORD.fullmatch(value) and value.lower() not in (*NOTHING, *TRUE, *FALSE, *INFINITE):
            return value
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(as_text, value))}]"
    if is_spec(value):
        plain = Draft(type(value), {})
        given = {name: getattr(value, name) for name in settings_of(type(value))}
        settings = [f"{name}={as_text(item)}" for name, item in given.items() if item != plain.get(name)]
        return kind_of(type(value))[0] + (f"({', '.join(settings)})" if settings else "")
    return str(value)


def _items(given: list[Any], hint: Any, path: str, read: Any) -> list[Any]:
    fixed = fixed_length(hint)
    if fixed is not None and fixed != len(given):
        raise UserError(f"{path}: {len(given)} items where there must be {fixed}: {type_text(hint)}")
    return [read(item, item_hint(hint, i), under(path, i)) for i, item in enumerate(given)]


def _preset(name: str, classes: list[type]) -> Draft | None:
    """The part with settings that a paper's name means, opened for changes; None for a name that is a class's."""
    if fold(name) in map(fold, known_parts(classes)):
        return None
    for declared in classes:
        presets = catalogue.presets(declared.__name__)
        exact = next((there for there in presets if fold(there) == fold(name)), None)
        if exact is not None:
            opened = drafted(presets[exact])
            assert isinstance(opened, Draft)
            return opened
    return None


def _call(opened: Draft, inside: str, path: str, read: Callable[[str, Any, str], Any]) -> Draft:
    part, given = opened.part, {}
    names = list(settings_of(part))
    pieces = split(inside) if inside.strip() else []
    for i, piece in enumerate(pieces or ()):
        keyword = _KEYWORD.fullmatch(piece)
        if keyword is None and i >= len(names):
            raise UserError(f"{path}: {part.__name__} has {len(names)} settings; {piece!r} is one too many")
        key, text = (keyword[1], keyword[2]) if keyword else (names[i], piece)
        name = setting_name(part, key, under(path, key))
        if name in given:
            raise UserError(f"{under(path, name)}: given twice")
        given[name] = read(text, settings_of(part)[name][1], under(path, name))
    return Draft(part, opened.given | given)
