"""Parses text or plain data to typed values, and formats them, for the command line and saved recipes.

A setting's type hint determines how its value is parsed, with the same rules for `model.num_heads=4`, `LSTM(layers=2)`
inside a list, and a line of a saved recipe. Parts are parsed to `Draft`s and built only at the end: an override may be
invalid by itself (`width=60` for 4 heads) if the next one fits (`heads=6`), and errors contain the path.

OmegaConf is not used because it parses `1:20` as 80 (a number to the base 60), does not accept `1e6` or `64k` as
integers, and does not support fields declared by an abstract class.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, fields, is_dataclass
from decimal import Decimal, InvalidOperation
from functools import cache, partial
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from numerate import catalogue
from numerate.config.common_names import PARTS_BY_COMMON_NAME
from numerate.config.packaged_parts import address_of_name, load_packaged_part
from numerate.config.span import Span
from numerate.config.type_hints import (
    SCALARS,
    choices_in,
    describe_type,
    fixed_length,
    item_hint,
    part_classes_in,
    shorten,
    union_members,
)
from numerate.config.user_parts import (
    class_address,
    is_abstract,
    load_saved_class,
    load_saved_packaged_part,
    load_user_object,
    missing_methods,
)
from numerate.errors import UserError, did_you_mean

NULL_WORDS = ("null", "none")
TRUE_WORDS, FALSE_WORDS = ("true", "yes", "on"), ("false", "no", "off")
INFINITIES = {"inf": float("inf"), "+inf": float("inf"), "-inf": float("-inf")}
SUFFIXES = {"k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9}

_NUMBER = re.compile(r"([+-]?(?:[0-9][0-9_]*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?)([kKMG]?)")
_CALL = re.compile(r"([^\s()\[\]'\"=,]+)\s*(?:\((.*)\))?", re.DOTALL)
_KEYWORD = re.compile(r"([A-Za-z_][\w-]*)\s*=(.*)", re.DOTALL)
_PLAIN_WORD = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
_PATH_PREFIX = re.compile(r"([A-Za-z_]\w*)(?:\.[\w.]+)?: ")


class Draft:
    """A part that is not built yet: its class, and the settings given so far (others have their defaults)."""

    def __init__(self, part: type, settings: dict[str, Any]) -> None:
        self.part = part
        self.settings = settings

    def get(self, name: str) -> Any:
        if name in self.settings:
            return self.settings[name]
        field = settings_of(self.part)[name][0]
        return field.default_factory() if field.default_factory is not MISSING else field.default


def normalize_name(word: str) -> str:
    """`-` and `_` are equal.

    >>> normalize_name("batch-size")
    'batch_size'
    """
    return word.replace("-", "_")


def is_spec(value: object) -> bool:
    return is_dataclass(value) and not isinstance(value, type | Span)


def settings_of(part: Any) -> dict[str, tuple[Field[Any], Any]]:
    """The settings of a spec's class, each with its type hint. Raises `UserError` for a class that is not a spec."""
    return _settings_of(part)


@cache
def _settings_of(part: Any) -> dict[str, tuple[Field[Any], Any]]:
    if not is_dataclass(part):
        raise UserError(f"{getattr(part, '__name__', part)} must be a frozen dataclass to have settings")
    try:
        hints = get_type_hints(part)
    except NameError as error:
        raise UserError(f"{part}: the types of its settings cannot be read: {error}") from error
    return {field.name: (field, hints[field.name]) for field in fields(part) if field.init}


ALIASES = {"lr": "learning_rate"}
"""Alternative names of settings, from PyTorch."""


def resolve_setting_name(part: type, key: str, path: str) -> str:
    """The setting with a name or alternative name. Raises `UserError` with the available ones."""
    known = settings_of(part)
    if normalize_name(key) in ALIASES and ALIASES[normalize_name(key)] in known:
        return ALIASES[normalize_name(key)]
    if normalize_name(key) not in known:
        available = f"it has: {', '.join(known)}" if known else "it has none"
        raise UserError(f"{path}: {part.__name__} has no setting {key!r}; {available}.{did_you_mean(key, known)}")
    return normalize_name(key)


def join_path(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def to_draft(value: Any) -> Any:
    """A value as an editable draft: a spec as a `Draft`, a tuple as a list, anything else unchanged."""
    if is_spec(value):
        return Draft(type(value), {name: getattr(value, name) for name in settings_of(type(value))})
    return list(value) if isinstance(value, tuple) else value


def build_draft(value: Any, path: str) -> Any:
    """Builds the value of a draft. An error of a part is prefixed with its path."""
    if isinstance(value, list):
        return tuple(build_draft(item, join_path(path, i)) for i, item in enumerate(value))
    if not isinstance(value, Draft):
        return value
    settings = {name: build_draft(item, join_path(path, name)) for name, item in value.settings.items()}
    try:
        return value.part(**settings)
    except (UserError, ValueError) as error:
        message = str(error)
        path_match = _PATH_PREFIX.match(message)
        separator = "." if path_match and path_match[1] in settings_of(value.part) else ": "
        raise UserError(f"{path}{separator}{message}" if path else message) from error


def split_at_commas(text: str) -> list[str] | None:
    """Splits a text at commas outside brackets and quotes; None if brackets or quotes are not closed.

    >>> split_at_commas("LSTM(layers=1,width=2), 'a,b', [1,2]")
    ['LSTM(layers=1,width=2)', "'a,b'", '[1,2]']

    A quote is only opened where a value may start, so that the one in `Ann's` is a normal character.
    """
    pieces, start, open_brackets, quote, previous_letter, i = [], 0, "", "", ",", 0
    while i < len(text):
        letter = text[i]
        if quote:
            if letter == "\\":
                i += 1
            elif letter == quote:
                quote = ""
        elif letter in "'\"" and previous_letter in ",([=":
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
            previous_letter = letter
        i += 1
    if quote or open_brackets:
        return None
    return [*pieces, text[start:].strip()]


def unquote(word: str) -> str | None:
    """The text between quotes; None for a word that is not quoted. A backslash escapes a quote or a backslash."""
    if not re.fullmatch(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", word, re.DOTALL):
        return None
    return re.sub(r"\\(['\"\\])", r"\1", word[1:-1])


def parse_number(word: str) -> int | float | None:
    """Parses a number; integers are returned as `int`: `1e6`, `64k` and `1_000` are integers, `0.5` and `2.5e-3` are
    not."""
    if word in INFINITIES:
        return INFINITIES[word]
    match = _NUMBER.fullmatch(word.replace("\N{MINUS SIGN}", "-"))
    if match is None or len(word) > 290:
        return None
    digits = match[1].replace("_", "")
    try:
        if digits.lstrip("+-").isdecimal():
            return int(digits) * SUFFIXES.get(match[2], 1)
        exact = Decimal(digits) * SUFFIXES.get(match[2], 1)
        if exact == exact.to_integral_value() and exact.adjusted() < 28:
            return int(exact)
    except InvalidOperation:
        pass
    value = float(digits) * SUFFIXES.get(match[2], 1)
    return None if value in INFINITIES.values() else value


def parse_value(text: str, hint: Any, path: str, *, is_saved: bool = False) -> Any:
    """Parses a value from text by its type hint; parts stay drafts. Raises `UserError` with an example.

    If it `is_saved`, instead of typed by the user, a file named in it (`my.py:Bitter`) only runs if it is approved."""
    options, stripped, parse_item = union_members(hint), text.strip(), partial(parse_value, is_saved=is_saved)
    quoted = unquote(stripped)
    folded_word = normalize_name(stripped if quoted is None else quoted).replace(" ", "_")
    for option in options:
        if get_origin(option) is Literal:
            for value in get_args(option):
                if folded_word == normalize_name(str(value)).replace(" ", "_"):
                    return value
    if Any in options:
        options = (*options, NoneType, bool, int, float, str)
    if quoted is not None and str in options:
        return quoted
    lower, number = stripped.lower(), parse_number(stripped)
    if NoneType in options and lower in NULL_WORDS:
        return None
    if bool in options and lower in TRUE_WORDS + FALSE_WORDS:
        return lower in TRUE_WORDS
    if number is not None:
        is_integer_literal = not set(".eE") & set(stripped)
        if int in options and isinstance(number, int) and (is_integer_literal or float not in options):
            return number
        if float in options:
            return float(number)
    if Span in options and re.fullmatch(
        r"[+-]?\d+(\s*:\s*[+-]?\d+)?|Span\s*\(\s*[+-]?\d+\s*,\s*[+-]?\d+\s*\)", stripped
    ):
        try:
            return Span.parse(stripped.removeprefix("Span").strip(" ()").replace(",", ":"))
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
    pieces = split_at_commas(stripped)
    for option in options:
        if get_origin(option) in (tuple, list) and pieces is not None:
            if lower in NULL_WORDS and fixed_length(option) is None and part_classes_in(item_hint(option, 0)):
                return []
            if stripped[:1] + stripped[-1:] in ("[]", "()"):
                inner = split_at_commas(stripped[1:-1]) if stripped[1:-1].strip() else []
                if inner is not None:
                    return _parse_items([*inner[:-1], *filter(None, inner[-1:])], option, path, parse_item)
            elif len(pieces) == 1 and stripped and str not in options:
                return _parse_items(pieces, option, path, parse_item)
    classes = part_classes_in(hint)
    call = _CALL.fullmatch(stripped) if classes and pieces is not None and len(pieces) == 1 else None
    if call is not None and (str not in options or _exact_name(call[1], available_parts(classes)) is not None):
        draft = _find_preset(call[1], classes)
        if draft is None:
            draft = Draft(get_part_class(call[1], classes, path, is_saved=is_saved), {})
        return _parse_call(draft, call[2] or "", path, parse_item)
    if str in options:
        return text
    words = list(map(str, choices_in(hint)))
    problem = f"{path}: must be {describe_type(hint)}, not {'nan' if lower.strip('+-') == 'nan' else repr(stripped)}"
    if words:
        suggestion = did_you_mean(stripped, words)
        raise UserError(f"{problem}{f'.{suggestion}' if suggestion else ''}")
    several = f"; several values are {path}={stripped.replace(':', ',')}" if re.fullmatch(r"\d+:\d+", stripped) else ""
    raise UserError(f"{problem}{several or f'; for example {path}={example_text(hint)}'}")


def value_from_data(data: Any, hint: Any, path: str) -> Any:
    """Converts plain data (as in YAML) by its type hint; parts stay drafts."""
    options = union_members(hint)
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
                return _parse_items(data, option, path, value_from_data)
    if isinstance(data, dict):
        classes = part_classes_in(hint)
        if Span in options and data.get("kind") == "Span":
            return build_draft(draft_from_data(data, [Span], path), path)
        if classes:
            return draft_from_data(data, classes, path)
    if isinstance(data, str) and data:
        return parse_value(data, hint, path, is_saved=True)
    data_text = format_value(data) if data is None or isinstance(data, bool) else repr(data)
    raise UserError(f"{path}: must be {describe_type(hint)}, not {shorten(data_text)}")


def draft_from_data(data: dict[Any, Any], classes: list[type], path: str) -> Draft:
    """A part from its dict, `{"kind": "LSTM", "layers": 2}`."""
    kind = data.get("kind", classes[0].__name__ if len(classes) == 1 and not is_abstract(classes[0]) else None)
    if not isinstance(kind, str):
        raise UserError(f"{path}: kind is missing; it must be one of: {', '.join(available_parts(classes)) or 'none'}")
    part = get_part_class(kind, classes, path, is_saved=True, file_sha256=data.get("source"))
    settings: dict[str, Any] = {}
    for key, value in data.items():
        if key != "kind" and not (key == "source" and ":" in kind):
            name = resolve_setting_name(part, str(key), join_path(path, key))
            settings[name] = value_from_data(value, settings_of(part)[name][1], join_path(path, name))
    return Draft(part, settings)


def available_parts(classes: list[type]) -> dict[str, str]:
    """The names of classes allowed for these types, each with its kind ("" for a type that is a part itself)."""
    kinds = catalogue.parts_by_kind()
    parts = {name: declared.__name__ for declared in classes for name in sorted(kinds.get(declared.__name__, {}))}
    return parts | {c.__name__: "" for c in classes if not is_abstract(c) and c is not object}


def get_part_class(
    name: str, classes: list[type], path: str, *, is_saved: bool = False, file_sha256: object = None
) -> type:
    """The class with a name: of the catalogue, of an installed package (`Bitter` or `acme.mixers:Bitter`), or of a file
    (`my.py:Bitter`).

    A file that the user names is run; for a saved name (`is_saved`), only an approved file with the sha256
    `file_sha256`. Raises `UserError` with the available names if there is none.
    """
    kinds, available = " or ".join(c.__name__ for c in classes), available_parts(classes)
    # CrossEntropyLoss, as PyTorch has it, is understood too.
    exact_name = _exact_name(name, available) or _exact_name(name.removesuffix("Loss"), available)
    if exact_name is not None:
        declared_class = next((c for c in classes if c.__name__ == exact_name), object)
        return catalogue.get_class(available[exact_name], exact_name, path) if available[exact_name] else declared_class
    prefix = f"{path}: " if path else ""
    try:
        if re.fullmatch(r"[^:]+\.py:\w+", name):
            part = load_saved_class(name, file_sha256) if is_saved else load_user_object(name)
        elif (address := name if re.fullmatch(r"[^:]+:\w+", name) else address_of_name(name)) is not None:
            part = load_saved_packaged_part(address, file_sha256) if is_saved else load_packaged_part(address)
        else:
            if list(available.values()) == [""]:  # a class without variants
                (only,), setting = available, next(iter(settings_of(classes[0])))
                raise UserError(f"must be {only}, or {only}({setting}=...) with settings, not {name!r}")
            there = ", ".join(sorted(available)) or "none"
            presets = [preset for declared in classes for preset in catalogue.presets(declared.__name__)]
            preset_note = f" (and {len(presets)} by the names of papers)" if presets else ""
            suggestion = common_part_hint(name, available) or did_you_mean(name, [*available, *presets])
            raise UserError(f"no {kinds} is named {name!r}; there are: {there}{preset_note}.{suggestion}")
    except UserError as error:
        raise UserError(f"{prefix}{error}") from error
    if not isinstance(part, type) or not issubclass(part, tuple(classes)):
        raise UserError(f"{prefix or 'recipe: '}{name} must be a {kinds}")
    if missing := missing_methods(part):
        raise UserError(f"{prefix or 'recipe: '}{name} has no {' and no '.join(missing)}, which a {kinds} needs")
    return part


def common_part_hint(name: str, available: Iterable[str]) -> str:
    """A closing hint for a name in papers or PyTorch of one of the available parts; empty for any other name."""
    if "QuestionFiles" in available and re.search(r"\.(jsonl|ndjson|json|tsv|csv|txt)$", name):
        other = f", or 'ExampleFile(path={name})' for a row per line" * name.endswith(".txt")
        return f" A file of questions is 'QuestionFiles(train_file={name})'{other}."
    texts = PARTS_BY_COMMON_NAME.get(re.sub("[-_ ]", "", name).lower(), ())
    text = next((one for one in texts if "=[]" in one or one.partition("(")[0] in available), None)
    return f" Did you mean {text!r}?" if text else ""


def example_text(hint: Any) -> str:
    """An example value of a type, for error messages."""
    for option in union_members(hint):
        if option in SCALARS:
            return SCALARS[option].example
        if get_origin(option) is Literal:
            return format_value(get_args(option)[0])
        if get_origin(option) in (tuple, list):
            return f"[{', '.join([example_text(item_hint(option, 0))] * (fixed_length(option) or 1))}]"
        if isinstance(option, type):
            return next(iter(available_parts([option])), option.__name__)
    return "null"


def format_value(value: Any) -> str:
    """A value as text for `parse_value`: `LSTM(layers=3)` (without default settings), `1:5`, `null`, `[a, b]`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        if _PLAIN_WORD.fullmatch(value) and value.lower() not in (*NULL_WORDS, *TRUE_WORDS, *FALSE_WORDS, *INFINITIES):
            return value
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(format_value, value))}]"
    if is_spec(value):
        default_draft = Draft(type(value), {})
        values = {name: getattr(value, name) for name in settings_of(type(value))}
        settings = [f"{name}={format_value(item)}" for name, item in values.items() if item != default_draft.get(name)]
        return class_address(type(value))[0] + (f"({', '.join(settings)})" if settings else "")
    return str(value)


def _parse_items(items: list[Any], hint: Any, path: str, parse_item: Any) -> list[Any]:
    expected_length = fixed_length(hint)
    if expected_length is not None and expected_length != len(items):
        items_text, example = shorten(", ".join(map(str, items))), example_text(hint)
        raise UserError(f"{path}: must be {describe_type(hint)}, not [{items_text}]; for example {path}={example}")
    return [parse_item(item, item_hint(hint, i), join_path(path, i)) for i, item in enumerate(items)]


def _find_preset(name: str, classes: list[type]) -> Draft | None:
    """The preset of a name as an editable draft; None for the name of a class."""
    if _exact_name(name, available_parts(classes)) is None:
        for declared in classes:
            presets = catalogue.presets(declared.__name__)
            if (exact_name := _exact_name(name, presets)) is not None:
                draft = to_draft(presets[exact_name])
                assert isinstance(draft, Draft)
                return draft
    return None


def _exact_name(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that equals a name but for `-` and `_`; None if there is none."""
    return next((one for one in names if normalize_name(one) == normalize_name(name)), None)


def _parse_call(draft: Draft, arguments: str, path: str, parse_item: Callable[[str, Any, str], Any]) -> Draft:
    part, settings = draft.part, {}
    names = list(settings_of(part))
    pieces = split_at_commas(arguments) if arguments.strip() else []
    for i, piece in enumerate(pieces or ()):
        keyword = _KEYWORD.fullmatch(piece)
        if keyword is None and i >= len(names):
            raise UserError(f"{path}: {part.__name__} takes at most {len(names)} settings; {piece!r} is unexpected")
        key, text = (keyword[1], keyword[2]) if keyword else (names[i], piece)
        name = resolve_setting_name(part, key, join_path(path, key))
        if name in settings:
            raise UserError(f"{join_path(path, name)}: given twice")
        settings[name] = parse_item(text, settings_of(part)[name][1], join_path(path, name))
    return Draft(part, draft.settings | settings)
