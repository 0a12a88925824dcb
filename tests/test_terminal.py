"""Promises of the terminal: no text of anybody's moves its cursor, none is too foreign for it, and Ctrl-C is heard."""

import contextlib
import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from numerate import terminal
from numerate.cli import main
from numerate.commands.table import COMMANDS

INTERRUPTED = """
import os, signal, sys

class Swallowing:
    "As torch, where it imports numpy: what an import raises is forgotten."
    def find_spec(self, name, path=None, target=None):
        if name == "numerate.commands.catalogue":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                pass

sys.meta_path.insert(0, Swallowing())
from numerate.cli import main
from numerate.commands.table import COMMANDS
raise SystemExit(main(["list", "losses"]))
"""


def test_ctrl_c_ends_a_command_that_is_importing() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "numerate: interrupted\n")


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("words", [["sample", "a\x1b[2Jb"], ["show", "\x9b31m"], ["status", "\x1b]0;title\x07"]])
def test_a_mistake_shows_the_control_characters_of_what_was_typed(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stderr", Screen())
    assert main(words) == 2
    assert isinstance(sys.stderr, Screen)
    assert all(character >= " " or character == "\n" for character in sys.stderr.getvalue())
    assert not {"\x1b", "\x9b"} & set(sys.stderr.getvalue())


def test_control_characters_are_shown_on_a_terminal_and_kept_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    text, told = "a\tb\n\x1b[31mred\x1b[38;5;9mours\x1b[0m\r\x85", []
    for stream in (Screen(), io.StringIO()):
        monkeypatch.setattr(sys, "stdout", stream)
        with terminal.command_output():
            print(text, end="")
        assert sys.stdout is stream
        told.append(stream.getvalue())
    assert told == ["a\tb\n\\x1b[31mred\x1b[38;5;9mours\x1b[0m\\r\\x85", text]


def test_a_terminal_that_knows_ascii_alone_is_told_what_it_can_show(tmp_path: Path) -> None:
    plain = {**os.environ, "PYTHONIOENCODING": "ascii"}
    code = "import sys; from numerate.cli import main; raise SystemExit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", code, "list", "runs", f"runs_dir={tmp_path / 'größe'}"]
    done = subprocess.run(words, capture_output=True, env=plain)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"gr??" in done.stdout


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: 8 bytes"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_too_little_memory_is_told_with_a_remedy_and_is_no_fault_of_the_program(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(**options: object) -> int:
        raise error

    monkeypatch.setattr("numerate.commands.catalogue.list_parts", command)
    assert main(["list"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"numerate: out of memory: the machine is out of memory ({type(error).__name__}")
    assert said.endswith("use a smaller batch or model, or fewer workers\n")


@pytest.mark.parametrize(
    "words",
    [
        *([*command.split(), "--help"] for command in ["", "data", *COMMANDS]),
        *(["list"], ["list", "recipes", "tiny_stories_"], ["list", "runs"], ["data", "fetch"]),
        *(["show", name] for name in ("addition_abacus", "abacus_laptop", "DualAttention", "NumberToken", "gsm8k")),
    ],
    ids=" ".join,
)
def test_no_line_is_wider_than_a_terminal_of_80_columns(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    with contextlib.suppress(SystemExit):  # argparse's way of ending
        assert main(words) == 0
    lines = screen.getvalue().splitlines()
    assert lines
    assert [line for line in lines if len(line) > 80] == []


def test_prose_is_wrapped_on_a_terminal_alone_and_tables_and_commands_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    prose, table = "too few questions to hold any of them out", "run              seed  exact match"
    command, address = "  numerate train addition_abacus seed=0", "https://example.org/a-page-of-a-long-name"
    text, shown = "\n".join([prose, table, command, address]), []
    for stream in (Screen(), io.StringIO()):
        terminal.print_wrapped(text, stream)
        shown.append(stream.getvalue())
    assert shown[0] == f"too few questions to hold any\n  of them out\n{table}\n{command}\n{address}\n"
    assert shown[1] == f"{text}\n"
