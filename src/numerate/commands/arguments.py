"""Reads the words of a command by its row of the table: arguments, options and settings."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from numerate.commands.table import ANY_SETTING, DOTTED_SETTING, ENGINE_OPTIONS, Command, Option
from numerate.config.common_names import PATHS_BY_COMMON_NAME
from numerate.config.values import normalize_name, parse_value
from numerate.errors import UserError, did_you_mean


def read_words(command: Command, words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """The arguments of a command, and the typed values of its options by the parameters of its function.

    >>> from numerate.commands.table import COMMANDS
    >>> read_words(COMMANDS["ask"], ["latest", "1+2=", "checkpoint=best"])
    (['latest', '1+2='], {'checkpoint': 'best', 'settings': []})

    Raises `UserError` for an unknown option, an invalid value, and what is missing.
    """
    options = {one.word: one for one in command.options}
    engine_options = [one.word for one in ENGINE_OPTIONS if "." not in one.word] if command.engine else []
    known = [one.name if one.is_flag else f"{one.word}=" for one in command.options]
    known += [f"{name}=" for name in engine_options]
    names = [name.removesuffix("=") for name in known]
    arguments: list[str] = []
    settings, engine_words = [], []
    values: dict[str, Any] = {}
    takes_text = "PROMPT" in command.arguments or "QUESTION" in command.arguments
    maximum = None if "..." in command.arguments else len(command.arguments.split())
    for word in words:
        key, equals, text = word.partition("=")
        key = normalize_name(key.strip())
        is_file = (
            bool(equals) and not takes_text and os.path.exists(word)
        )  # False also for a word that is too long for a path
        is_full = len(arguments) == maximum
        if equals and key in options:
            option, value = options[key], parse_option(options[key], text)
            if option.setting:
                settings += [option.setting] * value
            else:
                values[option.key] = [*values.get(option.key, []), value] if option.repeated else value
        elif equals and key.partition(".")[0] in engine_options:
            engine_words.append(word)
        elif command.settings is not None and _is_setting(key, equals, command.settings, is_full, is_file):
            settings.append(word)
        else:
            hint = (_other_name_hint(command, key) if equals else "") or did_you_mean(key, names)
            if is_full and not equals and command.settings == ANY_SETTING:
                given = f"the {command.arguments.lower().replace('|', ' or ')} is {arguments[-1]}"
                raise UserError(f"{word!r}: must be a setting such as model.hidden_size=64, as {given} already")
            _check_argument(word, known, hint, takes_text, is_full=is_full, is_file=is_file)
            arguments.append(word)
    _check_complete(command, arguments, values)
    if command.settings is not None:
        values["settings"] = settings
    if command.engine:
        from numerate.commands.engines import parse_engine

        values["engine"] = parse_engine(engine_words) if engine_words else None
    return arguments, values


def _is_setting(key: str, equals: str, pattern: str, has_all_arguments: bool, is_file: bool) -> bool:
    if not pattern:
        return bool(equals) and (has_all_arguments or ("(" not in key and not is_file))
    return bool(equals) and re.match(pattern, key + equals) is not None


def _other_name_hint(command: Command, key: str) -> str:
    """What to write for another name of an option, or a name of a setting in PyTorch or Hugging Face; empty for any
    other word."""
    paths = PATHS_BY_COMMON_NAME.get(key, ()) if command.settings == DOTTED_SETTING else ()
    used_paths = [path for path in paths if path.startswith(("evaluation.", "model."))]
    if paths and not used_paths:
        return f" {key} is a setting of training ({paths[0]}), on which an evaluation does not depend."
    other_names = {other: one.word for one in command.options for other in one.other_names.split()}
    meant = other_names.get(key, next(iter(used_paths), None))
    return f" Did you mean {meant!r}?" if meant else ""


def _check_argument(
    word: str, options: Sequence[str], hint: str, takes_text: bool, *, is_full: bool, is_file: bool
) -> None:
    """Raises `UserError` for a word that is no argument: one too many, or an unknown or misspelled option."""
    key, equals, _ = word.partition("=")
    is_name = key.replace("-", "_").isidentifier()
    is_option = bool(equals) and (is_name and bool(hint) if takes_text else not is_file and "(" not in key)
    if is_full or is_option:
        raise UserError(f"{word!r} is not a known option; options are {', '.join(options)}.{hint}")


def _check_complete(command: Command, arguments: Sequence[str], values: Mapping[str, Any]) -> None:
    """Raises `UserError` for an argument or option that is missing, with an example."""
    required = re.sub(r"\[.*?\]|\.\.\.", "", command.arguments).split()
    blank = next((index for index, word in enumerate(arguments[: len(required)]) if not word.strip()), len(arguments))
    missing = [f"the {name.lower().replace('|', ' or ')} is" for name in required[blank : blank + 1]]
    missing += [f"{one.name}: the value is" for one in command.options if one.required and one.key not in values]
    if missing:
        example = re.split(r"\n|   \(", command.examples)[0]
        raise UserError(f"{missing[0]} missing; for example: {example}")


def parse_option(option: Option, text: str) -> Any:
    """The typed value of an option; raises `UserError` for an invalid one, with an example.

    >>> from numerate.commands.table import Option
    >>> parse_option(Option("count", "8", "number of rows", int, at_least=1), "64k")
    64000
    >>> parse_option(Option("layer", "0,1", "layers", list[int]), "0,1")
    [0, 1]
    """
    if not text.strip():
        raise UserError(f"{option.name}: the value is missing; for example {option.name}={option.example}")
    if option.is_new and Path(text).expanduser().exists():
        raise UserError(f"{option.name}: {text} already exists; {option.name}= must be new")
    if option.type is str:
        return text
    if get_origin(option.type) is list:
        return [parse_value(item.strip(), get_args(option.type)[0], option.name) for item in text.split(",")]
    value = parse_value(text, option.type, option.name)
    if option.at_least is not None and value < option.at_least:
        example = f"for example {option.name}={option.example}"
        raise UserError(f"{option.name}: must be {option.at_least} or more, not {value}; {example}")
    return value
