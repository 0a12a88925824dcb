"""`numerate generate RUN PROMPT`: text generation, streamed as tokens arrive."""

import argparse
import codecs
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import FrameType
from typing import Any

from numerate.commands.words import parse_bool, parse_options, require_word, split_settings
from numerate.config import expand_sweep
from numerate.errors import UserError
from numerate.evaluation.completions import Completion
from numerate.experiments.run import load
from numerate.reports.groups import format_settings
from numerate.training import disk

EXAMPLE = "numerate generate latest 'Once upon a time'"


def _parse_int(text: str) -> int:
    return int(text.replace("_", ""))


def _optional(kind: Any) -> Any:
    return lambda text: None if text.lower() in ("null", "none") else kind(text)


OPTION_PARSERS = {
    "max_new_tokens": _parse_int,
    "temperature": float,
    "top_k": _optional(_parse_int),
    "top_p": _optional(float),
    "min_p": _optional(float),
    "do_sample": parse_bool,
    "repetition_penalty": float,
    "seed": _parse_int,
    "count": _parse_int,
    "checkpoint": str,
    "stop": str,
    "context_length": _parse_int,
    "prompts": str,
    "out": str,
    "runs_dir": str,
    "device": str,
}


def command(args: argparse.Namespace) -> int:
    address = require_word(args.words, "the run", EXAMPLE)
    words, option_values = parse_options(args.words[1:], OPTION_PARSERS)
    words, changes = split_settings(words, "model.")
    run = load(address, option_values.pop("runs_dir", None), option_values.pop("device", None))
    prompts = _read_prompts(words, option_values.pop("prompts", None))
    out = option_values.pop("out", None)
    if out is not None:
        _check_output_file(Path(out))
    records: list[dict[str, Any]] = []
    stopped = False
    with _stop_on_interrupt() as signals:
        for choice in expand_sweep(changes):
            run_with_settings = run.with_settings(*choice)
            if changes:
                print(f"--- {format_settings(run_with_settings.changed_settings) or 'as trained'}")
            is_single = len(prompts) * option_values.get("count", 1) == 1
            stream = _TextStream(prompts[0]) if is_single else None
            completions = run_with_settings.generate(
                prompts,
                on_text=stream.stream if stream is not None else None,
                should_stop=lambda: bool(signals),
                **option_values,
            )
            if stream is not None:
                stream.end(completions)
            else:
                _print_completions(completions, option_values.get("count", 1))
            records += [
                completion.record() | _settings_record(run_with_settings.changed_settings) for completion in completions
            ]
            stopped = bool(signals)
            if stopped:
                break
    if out is not None:
        disk.write_atomically(Path(out), b"".join(map(disk.json_line, records)))
        print(f"numerate: {len(records)} completions written to {out}", file=sys.stderr)
    if stopped:
        print("numerate: stopped; the text is incomplete", file=sys.stderr)
    return 130 if stopped else 0


def _check_output_file(out: Path) -> None:
    """Raises `UserError` for an output file that cannot be written, before anything is generated."""
    if out.is_dir():
        raise UserError(f"out: {out} must be a file such as out.jsonl, not a folder")
    if out.exists():
        raise UserError(f"out: {out} already exists; out= must be a new file")
    if not out.absolute().parent.is_dir():
        raise UserError(f"out: the folder {out.parent} must exist")


def _settings_record(changed: Any) -> dict[str, Any]:
    return {"settings": dict(changed)} if changed else {}


def _read_prompts(words: Sequence[str], file: str | None) -> list[str]:
    """The prompts in `words`, in a file, or from standard input for `-`; one empty prompt if there are none."""
    for word in words:
        if (name := _similar_option(word)) is not None:
            raise UserError(
                f"{word!r} is not an option; did you mean {name}=? (a prompt like it can be read from a file with "
                "prompts=)"
            )
    prompts = list(words)
    if file is not None:
        prompts += _read_file(file)
    while "-" in prompts:
        index = prompts.index("-")
        prompts[index : index + 1] = _parse_prompts(sys.stdin.buffer.read(), "standard input")
    return prompts or [""]


_ALIASES = {
    "max_tokens": "max_new_tokens",
    "tokens": "max_new_tokens",
    "most": "max_new_tokens",
    "length": "max_new_tokens",
    "greedy": "do_sample",
    "window": "context_length",
    "temp": "temperature",
    "topk": "top_k",
    "topp": "top_p",
    "minp": "min_p",
    "samples": "count",
    "num_samples": "count",
    "penalty": "repetition_penalty",
}
"""Common other names of settings."""


def _similar_option(word: str) -> str | None:
    """The setting probably meant by a word such as `temprature=0.5`; None for a prompt."""
    name, equals, _ = word.partition("=")
    name = name.replace("-", "_")
    if not equals or not name.isidentifier():
        return None
    near = get_close_matches(name.lower(), OPTION_PARSERS, n=1, cutoff=0.8)
    return _ALIASES.get(name) or (near[0] if near else None)


def _read_file(name: str) -> list[str]:
    if name == "-":
        return ["-"]
    try:
        return _parse_prompts(Path(name).expanduser().read_bytes(), name)
    except OSError as error:
        raise UserError(f"prompts: {name} cannot be read ({error.strerror})") from error


def _parse_prompts(raw: bytes, source: str) -> list[str]:
    """One prompt per line; for JSON lines, the field `prompt`. Empty lines at the end are ignored."""
    try:
        text = raw.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"prompts: {source} must be UTF-8 text (byte {error.start})") from error
    lines = [line.removesuffix("\r") for line in text.rstrip("\r\n").split("\n")] if text.strip("\r\n") else []
    if not lines:
        raise UserError(f"prompts: {source} is empty; must have one prompt per line")
    if not all(line.startswith("{") for line in lines):
        return lines
    prompts = []
    for number, line in enumerate(lines, 1):
        try:
            prompt = json.loads(line)["prompt"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f'prompts: {source}, line {number}: must be an object with a prompt, such as {{"prompt": "Once"}}'
            ) from error
        prompts.append(str(prompt))
    return prompts


class _TextStream:
    """Streams one generated text to the terminal."""

    def __init__(self, prompt: str) -> None:
        self.prompt, self.has_started = prompt, False

    def stream(self, completion: int, text: str) -> None:
        if not self.has_started:
            sys.stdout.write(self.prompt)
            self.has_started = True
        sys.stdout.write(text)
        sys.stdout.flush()

    def end(self, completions: Sequence[Completion]) -> None:
        if not self.has_started:
            for completion in completions:
                sys.stdout.write(str(completion))
        sys.stdout.write("\n")
        sys.stdout.flush()


def _print_completions(completions: Sequence[Completion], count: int) -> None:
    """Prints several generated texts, each below its number."""
    prompts: list[str] = []
    for number, completion in enumerate(completions):
        if number % count == 0:
            prompts.append(completion.prompt)
        header = f"=== prompt {len(prompts)}" + (f", sample {number % count + 1} of {count}" if count > 1 else "")
        print(f"{header} ===\n{completion}\n")


@contextmanager
def _stop_on_interrupt() -> Iterator[list[int]]:
    """Ctrl-C stops generation and keeps the text so far; a second one ends immediately."""
    signals: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        if signals:
            raise KeyboardInterrupt
        signals.append(number)

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield signals
    finally:
        signal.signal(signal.SIGINT, before)
