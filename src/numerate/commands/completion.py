"""`completion`: a script for the shell that completes commands, options and flags, made by shtab."""

import argparse
from importlib import import_module

from numerate.commands.table import COMMANDS
from numerate.errors import UserError


def completion(shell: str) -> None:
    """Prints the script for a shell that shtab knows: bash, zsh or tcsh."""
    try:
        print(import_module("shtab").complete(completion_parser(), shell))
    except (ImportError, NotImplementedError) as error:
        needed = "the package shtab is not installed; pip install shtab"
        shells = f"{shell!r} must be bash, zsh or tcsh"
        raise UserError(f"completion: {needed if isinstance(error, ImportError) else shells}") from error


def completion_parser() -> argparse.ArgumentParser:
    """The table of commands as a parser of argparse, in which `name=` is a choice of words."""
    parser = argparse.ArgumentParser(prog="numerate")
    commands = parser.add_subparsers()
    groups: dict[str, argparse._SubParsersAction[argparse.ArgumentParser]] = {}
    for full_name, command in COMMANDS.items():
        name, _, action = full_name.partition(" ")
        group = commands if name in COMMANDS else groups.get(name)
        if group is None:
            group = groups[name] = commands.add_parser(name, help=name).add_subparsers()
        if action and name in COMMANDS:  # `list runs`: a word after `list`
            continue
        one = group.add_parser(action or name, help=command.help)
        words = [f"{option.name}=" for option in command.options if not option.is_flag]
        words += [full.partition(" ")[2] for full in COMMANDS if full.startswith(f"{full_name} ")]
        one.add_argument("words", nargs="*", choices=words)
        for option in command.options:
            if option.is_flag:
                one.add_argument(option.name, help=option.help, action="store_true" if option.type is bool else "store")
    return parser
