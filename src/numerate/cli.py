"""The command line: help, flags and exit statuses of the commands in `numerate.commands.table`.

Nothing but argparse is imported before a command runs, so that help is quick.
"""

import argparse
import atexit
import gc
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import compress
from typing import Any, NamedTuple, NoReturn

from numerate import terminal
from numerate.commands.table import COMMANDS, ENGINE_OPTIONS, SETTINGS_HELP, Command
from numerate.errors import OperationalError, UserError, describe_error, did_you_mean, user_code_location


def main(words: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status: 0, 2 for wrong input, 1 for a failure, 130 if interrupted."""
    # Otherwise garbage collection of torch's objects at exit takes a fifth of a short command's time.
    atexit.register(gc.freeze)
    with terminal.command_output():
        return _run(sys.argv[1:] if words is None else words)


def _run(words: Sequence[str]) -> int:
    warnings.showwarning = partial(_warn, set())
    shows_traceback = "--traceback" in words
    try:
        call = parse(words)
        status: int | None = call.function(*call.arguments, **call.values)
        sys.stdout.flush()
        return status or 0
    except (UserError, OperationalError) as error:
        if shows_traceback:
            raise
        _print_once(error)
        return error.exit_status
    except KeyboardInterrupt as error:
        print("numerate: interrupted", file=sys.stderr)
        return 128 + (error.args or [2])[0]  # the number of the signal: 2 is Ctrl-C
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if shows_traceback:
            raise
        traceback.clear_frames(error.__traceback__)  # frees memory for the message below
        memory = import_module("numerate.runs.engines.memory")
        if (cause := memory.out_of_memory_error(error)) is not None:
            _print_once(OperationalError(f"out of memory: {memory.out_of_memory_text(cause)}"))
            return 1
        is_user_error = user_code_location(error) is not None
        terminal.print_wrapped(f"numerate: {describe_error(error)}", sys.stderr)
        print("numerate: --traceback shows where", file=sys.stderr)
        return 2 if is_user_error else 1


def _warn(printed: set[str], message: Warning | str, *_: object) -> None:
    """Prints a warning without Python's source line, unless it was printed before."""
    if str(message) not in printed:
        printed.add(str(message))
        terminal.print_wrapped(f"numerate: warning: {message}", sys.stderr)


def _print_once(error: UserError | OperationalError) -> None:
    """Prints an error in one of the processes of a run; the others wait, since a launcher ends all of them as soon as
    one has ended."""
    is_speaker = os.environ.get("RANK", "0") == "0" if error.should_print is None else error.should_print
    if is_speaker:
        terminal.print_wrapped(f"numerate: {error}", sys.stderr)
    else:
        with suppress(KeyboardInterrupt):  # the SIGTERM of the launcher
            time.sleep(3)


class Call(NamedTuple):
    """A command with the typed values that its function receives."""

    command: str
    arguments: list[str]
    values: dict[str, Any]

    @property
    def function(self) -> Any:
        module, _, name = COMMANDS[self.command].function.partition(":")
        return getattr(import_module(f"numerate.commands.{module}"), name)


def parse(words: Sequence[str]) -> Call:
    """Reads a command line, with its flags and options in any order, and loads the files of `--parts`.

    Raises `UserError` for an unknown command or option, an invalid value, and what is missing. `--help` and `--version`
    print and end the process.
    """
    words = [*words[1:], "--help"] if words[:1] == ["help"] else list(words)
    start = next((index for index, word in enumerate(words) if not word.startswith("-")), len(words))
    name, rest = " ".join(words[start : start + 1]), words[:start] + words[start + 1 :]
    second = rest[start].replace("_", "-") if len(rest) > start else ""
    if f"{name} {second}" in COMMANDS:
        name, rest = f"{name} {second}", rest[:start] + rest[start + 1 :]
    if name not in COMMANDS:
        return _parse_no_command(name, rest)
    command = COMMANDS[name]
    flags, others = _parser(name, command).parse_known_args(rest)  # argparse takes no words after a flag
    is_flag = (word.startswith("-") and word.lstrip("-")[:1].isalpha() and " " not in word for word in others)
    if unknown := next(compress(others, is_flag), None):
        _raise_unknown_flag(unknown, name)
    for file in flags.parts:
        import_module("numerate.config").load_user_parts(file)
    given = {option.word: getattr(flags, option.key) for option in command.options if option.is_flag}
    others += [f"{word}={value}" for word, value in given.items() if value is not None]
    arguments, values = import_module("numerate.commands.arguments").read_words(command, others)
    return Call(name, arguments, values | {key: getattr(flags, key) for key in command.context})


def _parse_no_command(name: str, rest: Sequence[str]) -> NoReturn:
    """Help of all commands or of a group (`data`), or an error."""
    group = {full: command for full, command in COMMANDS.items() if full.startswith(f"{name} ")}
    commands = group or COMMANDS
    if name in ("", *(full.partition(" ")[0] for full in group)):
        parser = _group_parser(name, commands)
        words = [word for word in rest if word.startswith("-")]
        if words or not name:
            parser.parse_args(words or ["--help"])
        word = next(iter(rest), "")
    else:
        word = name
    known = [full.removeprefix(f"{name} ") for full in commands]
    problem = f"there is no command {word!r}" if word else "the command is missing"
    there = f"there are: {', '.join(known)}"
    raise UserError(f"{f'{name}: ' if group else ''}{problem}; {there}.{did_you_mean(word, known)}")


def _first_example(commands: Mapping[str, Command]) -> str:
    return next(iter(commands.values())).examples.partition("\n")[0]


def _raise_unknown_flag(flag: str, name: str) -> NoReturn:
    """Raises `UserError` with the available flags, and with how an option or setting is written."""
    command = COMMANDS[name]
    key, _, value = flag.lstrip("-").replace("-", "_").partition("=")
    flags = [*(one.name for one in command.options if one.is_flag), "--parts", "--traceback", "--help"]
    if command.settings is not None or key in [one.word for one in command.options]:
        advice = f"Options and settings are written without dashes, such as {key}={value or '..'}"
    else:
        words = [f"{one.name}=" for one in command.options if not one.is_flag]
        advice = f"There are: {', '.join([*words, *flags])}"
    hint = did_you_mean(key, [one.lstrip("-") for one in flags]).replace(" '", " '--")
    raise UserError(f"unknown option {flag!r}.{hint or f' {advice}.'} See numerate {name} --help")


class _Parser(argparse.ArgumentParser):
    def __init__(self, **given: Any) -> None:
        super().__init__(formatter_class=partial(argparse.RawDescriptionHelpFormatter, max_help_position=32), **given)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def _group_parser(name: str, commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """The parser of help for all commands, or for a group of them."""
    parser = _Parser(
        prog=f"numerate {name}".strip(),
        description="Train and evaluate language models on numbers and algorithms.",
        epilog=f"start with: {'numerate run quickstart' if not name else _first_example(commands)}",
        usage=f"numerate {name or 'COMMAND'} ...",
    )
    if not name:
        parser.add_argument("--version", action="version", version=_version())
    parser.add_argument("--traceback", action="store_true", help="show the traceback of an error")
    group = parser.add_subparsers(metavar="COMMAND", title="commands", parser_class=_Parser)
    for full_name, command in commands.items():
        group.add_parser(full_name, help=command.help)
    return parser


def _parser(name: str, command: Command) -> argparse.ArgumentParser:
    """The parser of the flags of a command, and its help."""
    options = [*command.options, *(ENGINE_OPTIONS if command.engine else ())]
    width = terminal.output_width()
    rows = [(f"{o.name}={o.example}", o.help) for o in options if not o.is_flag]
    words = [name, command.arguments, "[OPTION=VALUE ...]" * bool(rows)]
    words.append("[SETTING=VALUE ...]" * (command.settings is not None))
    usage = f"usage: numerate {' '.join(filter(None, words))}"
    about = [terminal.wrapped(command.sentence, width), terminal.definition_list(rows, width, indent=2)]
    settings = [terminal.wrapped(line, width, indent=2) for line in SETTINGS_HELP[command.settings].splitlines()]
    examples = [_example(line, width) for line in command.examples.splitlines()]
    parser = _Parser(
        prog=f"numerate {name}",
        description="\n\n".join(filter(None, about)),
        usage=terminal.wrapped(usage, width, indent=9).removeprefix("usage: "),
        epilog="\n\n".join(filter(None, ["\n".join(settings), "\n".join(["examples:", *examples])])),
    )
    for option in command.options:
        if option.is_flag:
            value = {"action": "store_const", "const": "true"} if option.type is bool else {"metavar": option.example}
            parser.add_argument(option.name, dest=option.key, help=option.help, **value)  # type: ignore[arg-type]
    parser.add_argument(
        "--parts", action="append", default=[], metavar="FILE", help="a Python file with your own components"
    )
    parser.add_argument("--traceback", action="store_true", help="show the traceback of an error")
    return parser


def _example(line: str, width: int | None) -> str:
    """An example below its heading; in a narrow terminal it continues behind backslashes, so that it can be copied, and
    its remark is in a line of its own."""
    if width is None or len(line) + 2 <= width:
        return f"  {line}"
    command, _, remark = line.partition("   (")
    unbroken = re.sub(r"'.*?'", lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), command)
    lines = terminal.wrapped(f"  {unbroken}", width - 2, indent=6).replace("\N{NO-BREAK SPACE}", " ")
    return lines.replace("\n", " \\\n") + (
        f"\n{terminal.wrapped(f'      ({remark}', width, indent=7)}" if remark else ""
    )


def _version() -> str:
    from numerate import __version__

    return f"numerate {__version__}"
