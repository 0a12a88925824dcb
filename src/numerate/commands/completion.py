"""`completion`: a script for the shell, which asks `numerate __complete LINE` for the words that may end a line.

shtab, which makes such scripts of an argparse parser, knows fixed words alone. Here the settings depend on the recipe
and the parts named before, runs and studies are on the disk, and bash takes `model.mixer=LSTM` for three words.
"""

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from glob import escape, glob
from typing import Any, Literal, get_args, get_origin

from numerate.commands.table import COMMANDS, EXECUTOR_OPTIONS, Command, Option
from numerate.errors import check_choice

SCRIPTS = {
    # bash breaks words at = and :, and replaces what is behind the last of them.
    "bash": r"""_numerate() {
  local line="${COMP_LINE:0:COMP_POINT}" IFS=$'\n'
  local word="${line##* }" breaks="${COMP_WORDBREAKS//[^=:]/}"
  COMPREPLY=($("$1" __complete "$line" 2>/dev/null))
  [[ -n $breaks ]] && COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*[$breaks]}"}"}")
  [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=./] ]] && compopt -o nospace 2>/dev/null
  return 0
}
complete -o default -F _numerate numerate""",
    "zsh": r"""#compdef numerate
_numerate() {
  local -a found
  found=("${(@f)$("${words[1]}" __complete "${(j: :)words[1,CURRENT]}" 2>/dev/null)}")
  compadd -S '' -- ${(M)found:#*[=./]}
  compadd -- ${found:#*[=./]}
  [[ -n $found ]] || _files
}
compdef _numerate numerate""",
}
MAX_NAMED_RUNS = 500
"""Runs of which the head is read, for the name."""


def completion(shell: str) -> None:
    """Prints the script for a shell, and collects the names that it completes. Raises `UserError` for another shell."""
    from numerate.commands.completion_names import write_names

    check_choice("completion", shell, SCRIPTS)
    write_names()
    print(SCRIPTS[shell])


def print_candidates(line: str) -> None:
    """Prints the words that may end a line."""
    from numerate.commands.completion_names import read_names

    print("\n".join(candidates(line, read_names())))


def candidates(line: str, names: Mapping[str, Any]) -> list[str]:
    """The words that may end a line: commands, arguments, options with their choices, settings with their values.

    `names` are those of `completion_names.collect_names`.
    """
    *words, current = _split(line)[1:]
    name = next((full for full in (" ".join(words[:2]), " ".join(words[:1])) if full in COMMANDS), None)
    found = [full.partition(" ")[0] for full in COMMANDS if not words]
    found += [full.partition(" ")[2] for full in COMMANDS if words and words == full.split()[:-1]]
    if name is not None:
        found += _words_of_command(COMMANDS[name], words[len(name.split()) :], current, names)
    return list(dict.fromkeys(word for word in found if word.startswith(current)))


def _split(line: str) -> list[str]:
    """The words of a line, the last of which is incomplete or empty."""
    for quote in ("", "'", '"'):  # one may be open
        try:
            return [*shlex.split(line + quote), *[""] * (not quote and line[-1:].isspace())]
        except ValueError:
            continue
    return [*line.split(), ""]


def _words_of_command(command: Command, words: Sequence[str], current: str, names: Mapping[str, Any]) -> Iterator[str]:
    options = [*command.options, *(EXECUTOR_OPTIONS if command.executor else ())]
    arguments = [word for word in words if "=" not in word and not word.startswith("-")]
    key, equals, _ = current.partition("=")
    if current.startswith("-"):
        yield from (option.name for option in options if option.is_flag)
        yield from ("--parts", "--traceback", "--help")
    elif option := next((one for one in options if equals and one.word == key), None):
        yield from (f"{key}={value}" for value in _choices(option))
    else:
        if not equals:
            yield from _arguments(command, len(arguments), words, names)
            yield from (f"{option.word}=" for option in options if not option.is_flag and "." not in option.word)
        if command.settings is not None:
            settings = _Settings(names, arguments, words)
            yield from (one for one in settings.words(current) if re.match(command.settings, one))


def _choices(option: Option) -> Iterable[str]:
    if option.word == "executor":
        return ("local", "ray", "slurm")
    return ("true", "false") if option.type is bool else get_args(option.type) * (get_origin(option.type) is Literal)


# Arguments ------------------------------------------------------------------------------------------------------------


def _arguments(command: Command, position: int, words: Sequence[str], names: Mapping[str, Any]) -> Iterator[str]:
    """What the next argument may be, by its name in the usage: `RUN|STUDY ...`."""
    placeholders = re.findall(r"[A-Z_|]{3,}", command.arguments)
    if "..." in command.arguments:
        position = min(position, len(placeholders) - 1)
    for kind in placeholders[position].split("|") if position < len(placeholders) else ():
        if kind == "RUN":
            yield from _runs(_runs_dir(words))
        elif kind == "STUDY" and "RECIPE" not in command.arguments:
            yield from (path.split(os.sep)[-2] for path in glob(f"{escape(_runs_dir(words))}/*/plan.jsonl"))
        elif kind == "PART":
            yield from (name for known in names["kinds"].values() for name in known)
        elif kind == "KIND":
            yield from names["figures" if "RUN" in command.arguments else "titles"]
        elif kind == "SHELL":
            yield from SCRIPTS
        else:
            yield from names["kinds"].get(kind.title(), ())


def _runs_dir(words: Sequence[str]) -> str:
    given = [word.partition("=")[2] for word in words if word.startswith("runs_dir=")]
    return os.path.expanduser(next(iter(given), os.environ.get("NUMERATE_RUNS") or "runs"))


def _runs(runs_dir: str) -> Iterator[str]:
    """`latest`, and the paths, names and ids of runs."""
    heads = sorted(glob(f"{escape(runs_dir)}/*/*/recipe.yaml"))
    yield from ["latest"] * bool(heads)
    yield from (os.path.dirname(head) for head in heads)
    for head in heads[:MAX_NAMED_RUNS]:
        with open(head, encoding="utf-8", errors="replace") as file:
            yield from re.findall(r"^name: (?!null$)(\w\S*)$", file.read(1000), re.M)
    yield from (head.split(os.sep)[-2] for head in heads)


# Settings -------------------------------------------------------------------------------------------------------------


class _Settings:
    """The settings of a recipe, or of a task that stands in its place, with the parts that the words before choose."""

    def __init__(self, names: Mapping[str, Any], arguments: Sequence[str], words: Sequence[str]) -> None:
        self.names, self.settings = names, names["settings"]
        self.parts: Mapping[str, str] = names["parts"].get(arguments[0].replace("-", "_") if arguments else "", {})
        self.chosen = {}
        for word in words:
            path, _, value = word.partition("=")
            if (part := re.match(r"\w*", value)) and part[0] in self.settings:
                self.chosen[path] = part[0]

    def part_at(self, path: str) -> str:
        """The class of the part at a path, or an empty string."""
        if path in self.chosen:
            return self.chosen[path]
        if path in self.parts and not any(path.startswith(f"{other}.") for other in self.chosen):
            return self.parts[path]
        if not path:
            return "Recipe"
        outer, _, name = path.rpartition(".")
        default: str = self.settings.get(self.part_at(outer), {}).get(name, {}).get("default", "")
        return default

    def words(self, current: str) -> Iterator[str]:
        path, equals, value = current.partition("=")
        outer, _, name = path.rpartition(".")
        known = self.settings.get(self.part_at(outer), {})
        if not equals:
            prefix = f"{outer}." if outer else ""
            yield from (f"{prefix}{one}=" for one in known)
            yield from ["seeds="] * ("seed" in known)
            yield from (f"{prefix}{one}." for one in known if self.part_at(prefix + one) in self.settings)
        elif name in known and "(" not in value:
            start = value[: max(value.rfind("["), value.rfind(",")) + 1]  # of a list or a sweep
            yield from (f"{path}={start}{choice}" for choice in known[name]["choices"])
            for kind in known[name]["kinds"]:
                yield from (f"{path}={start}{part}" for part in self.names["kinds"].get(kind, ()))
