"""Terminal output of commands, and Ctrl-C until a command handles it itself."""

import contextlib
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from textwrap import wrap
from types import FrameType
from typing import Any

_CONTROL_SEQUENCE = re.compile(r"\x1b\[(?:[01]|(?:1;)?[34]8;[0-9;]+)m|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""The colors of our own maps, or one control character other than tab and newline."""


MAX_PROSE_WIDTH = 118
"""Columns of prose where the width of the terminal is unknown."""

_DEFAULT_HANDLERS: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@contextlib.contextmanager
def command_output() -> Iterator[None]:
    """The context of a command, whose output may contain untrusted text: prompts, names, generated text.

    On a terminal, control characters are escaped; characters that standard output cannot encode are replaced; Ctrl-C is
    never lost, and SIGTERM raises `KeyboardInterrupt`, too.
    """
    original_streams = sys.stdout, sys.stderr
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    sys.stdout, sys.stderr = (EscapedStream(stream) if stream.isatty() else stream for stream in original_streams)
    is_main_thread = threading.current_thread() is threading.main_thread()
    numbers = [one for one, default in _DEFAULT_HANDLERS.items() if is_main_thread and signal.getsignal(one) is default]
    for number in numbers:  # which may be ignored, as under nohup
        signal.signal(number, _handle_interrupt)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, _DEFAULT_HANDLERS[number])
        sys.stdout, sys.stderr = original_streams


class EscapedStream:
    """A terminal's stream that shows control characters, such as `\\x1b`, instead of sending them.

    `stream` is the raw stream, for drawing.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(escape_control_characters(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def output_width(stream: Any = None) -> int | None:
    """Columns of the terminal that standard output, or another stream, is; None for a pipe or a file, where lines are
    not wrapped."""
    import shutil  # imported here because it is slow

    return shutil.get_terminal_size().columns if (stream or sys.stdout).isatty() else None


def print_wrapped(text: str, stream: Any = None) -> None:
    """Prints a text, on a terminal with its prose wrapped between words. Lines of tables, which have several spaces in
    a row, drawings and commands stay as they are."""
    stream = stream or sys.stdout
    width = output_width(stream)
    is_kept = re.compile(r"\s*numerate |.*(?:\S  |\x1b)").match
    lines = (
        line if is_kept(line) else wrapped(line, width, indent=len(line) - len(line.lstrip()) + 2)
        for line in text.split("\n")
    )
    print("\n".join(lines), file=stream, flush=True)


def wrapped(text: str, width: int | None, *, indent: int = 0) -> str:
    """A text in lines of at most `width` columns, those after the first indented; one line without a width. A word
    that is longer than a line, such as an address, is not broken.

    >>> print(wrapped("exact match on a grid of lengths", 18, indent=2))
    exact match on a
      grid of lengths
    """
    if width is None or len(text) <= width:
        return text
    lines = wrap(text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


NUMBER = re.compile(r"[-+<>]?\d[\d,.]*(e[+-]?\d+)?(/\d+)?( %)?( : \S+)?( \[.*\])?( · \d+/\d+)?( \*)?")
"""A number as tables have them: with its interval, as a share of others, or beside another."""


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Columns side by side by rich, numbers to the right; texts that are too long for `width` columns are wrapped.

    >>> print(text_table(["region", "right"], [["in distribution", "99.8 %"], ["OOD test", "7 %"]]))
    region            right
    -----------------------
    in distribution  99.8 %
    OOD test            7 %
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    lines = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n")
    drawn = Table(box=lines, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    for i, name in enumerate(header):
        texts = [row[i] for row in rows if row[i]]
        is_number = bool(texts) and all(map(NUMBER.fullmatch, texts))
        drawn.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*row)
    file = io.StringIO()
    options: Any = {"markup": False, "highlight": False, "emoji": False, "color_system": None}
    Console(file=file, width=width or 10**4, **options).print(drawn)
    return "\n".join(line.rstrip() for line in file.getvalue().replace("\N{NO-BREAK SPACE}", " ").rstrip().split("\n"))


def definition_list(rows: Sequence[tuple[str, str]], width: int | None, *, indent: int = 0) -> str:
    """Names with their explanations, which are wrapped in a column of their own. A name that is too long for two fifths
    of the width has its explanation in the next line; without a width, behind it.

    >>> print(definition_list([("count=200", "questions per cell"), ("runs_dir=runs", "folder of runs")], 30))
    count=200   questions per cell
    runs_dir=runs
                folder of runs
    """
    column = indent + max((len(name) for name, _ in rows), default=0) + 2
    column = min(column, (MAX_PROSE_WIDTH if width is None else width) * 2 // 5)
    lines = []
    for name, text in rows:
        begin = f"{' ' * indent}{name}  "
        if width is not None and len(begin) > column:
            lines.append(wrapped(begin.rstrip(), width, indent=indent + 4))
            begin = ""
        if begin or text:
            lines.append(wrapped(begin.ljust(column) + text, width, indent=column).rstrip())
    return "\n".join(lines)


def escape_control_characters(text: str) -> str:
    r"""Escapes control characters as in Python literals, except the colors of our own maps.

    >>> escape_control_characters("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return _CONTROL_SEQUENCE.sub(lambda found: found[0] if len(found[0]) > 1 else repr(found[0])[1:-1], text)


def raw_stream(stream: Any) -> Any:
    """The raw stream, for output that moves the cursor, such as a progress bar."""
    return stream.stream if isinstance(stream, EscapedStream) else stream


def _handle_interrupt(signal_number: int, frame: FrameType | None) -> None:
    """Ends the process at once while a module is imported, and raises `KeyboardInterrupt` elsewhere.

    An import may swallow the exception: torch does where it imports numpy.
    """
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            with contextlib.suppress(OSError):
                os.write(2, b"numerate: interrupted\n")
            os._exit(128 + signal_number)
        frame = frame.f_back
    raise KeyboardInterrupt(signal_number)
