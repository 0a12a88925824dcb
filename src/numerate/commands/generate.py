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

from numerate.commands.words import first, options, settings, truth
from numerate.config import expand
from numerate.errors import UserError
from numerate.evaluation.passages import Passage
from numerate.experiments.run import load
from numerate.reports.groups import settings_words
from numerate.training import disk

EXAMPLE = "numerate generate latest 'Once upon a time'"


def _whole(text: str) -> int:
    return int(text.replace("_", ""))


def _or_none(kind: Any) -> Any:
    return lambda text: None if text.lower() in ("null", "none") else kind(text)


OWN = {
    "max_new_tokens": _whole,
    "temperature": float,
    "top_k": _or_none(_whole),
    "top_p": _or_none(float),
    "min_p": _or_none(float),
    "do_sample": truth,
    "repetition_penalty": float,
    "seed": _whole,
    "count": _whole,
    "checkpoint": str,
    "stop": str,
    "context_length": _whole,
    "prompts": str,
    "out": str,
    "runs_dir": str,
    "device": str,
}


def command(given: argparse.Namespace) -> int:
    address = first(given.words, "the run", EXAMPLE)
    words, own = options(given.words[1:], OWN)
    words, changes = settings(words, "model.")
    run = load(address, own.pop("runs_dir", None), own.pop("device", None))
    prompts = _prompts(words, own.pop("prompts", None))
    out = own.pop("out", None)
    if out is not None:
        _check_output(Path(out))
    records: list[dict[str, Any]] = []
    stopped = False
    with _stop_on_interrupt() as ended:
        for choice in expand(changes):
            changed = run.with_settings(*choice)
            if changes:
                print(f"--- {settings_words(changed.settings) or 'as trained'}")
            one = len(prompts) * own.get("count", 1) == 1
            screen = _Screen(prompts[0]) if one else None
            passages = changed.generate(
                prompts, told=screen.stream if screen is not None else None, ended=lambda: bool(ended), **own
            )
            if screen is not None:
                screen.end(passages)
            else:
                _blocks(passages, own.get("count", 1))
            records += [passage.record() | _settings_record(changed.settings) for passage in passages]
            stopped = bool(ended)
            if stopped:
                break
    if out is not None:
        disk.replace(Path(out), b"".join(map(disk.line, records)))
        print(f"numerate: {len(records)} passages are in {out}", file=sys.stderr)
    if stopped:
        print("numerate: stopped; this is what was generated until then", file=sys.stderr)
    return 130 if stopped else 0


def _check_output(out: Path) -> None:
    """Raises `UserError` for an output file that cannot be written, before anything is generated."""
    if out.is_dir():
        raise UserError(f"out: {out} is a folder; a file such as out.jsonl is right")
    if out.exists():
        raise UserError(f"out: {out} is there already and is not overwritten; another file is right")
    if not out.absolute().parent.is_dir():
        raise UserError(f"out: there is no folder {out.parent}; one that is there is right")


def _settings_record(changed: Any) -> dict[str, Any]:
    return {"settings": dict(changed)} if changed else {}


def _prompts(words: Sequence[str], file: str | None) -> list[str]:
    """The prompts in `words`, in a file, or from standard input for `-`; one empty prompt if there are none."""
    for word in words:
        if (name := _meant(word)) is not None:
            raise UserError(f"{word!r} is no setting here; {name}= is (a prompt like it can stand in a file, prompts=)")
    prompts = list(words)
    if file is not None:
        prompts += _read_file(file)
    while "-" in prompts:
        at = prompts.index("-")
        prompts[at : at + 1] = _lines(sys.stdin.buffer.read(), "standard input")
    return prompts or [""]


_NEAR = {
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


def _meant(word: str) -> str | None:
    """The setting that a word such as `temprature=0.5` was meant as; None for a prompt."""
    name, equals, _ = word.partition("=")
    name = name.replace("-", "_")
    if not equals or not name.isidentifier():
        return None
    near = get_close_matches(name.lower(), OWN, n=1, cutoff=0.8)
    return _NEAR.get(name) or (near[0] if near else None)


def _read_file(name: str) -> list[str]:
    if name == "-":
        return ["-"]
    try:
        return _lines(Path(name).expanduser().read_bytes(), name)
    except OSError as error:
        raise UserError(f"prompts: {name} cannot be read ({error.strerror})") from error


def _lines(raw: bytes, where: str) -> list[str]:
    """One prompt a line; of JSON lines the field `prompt`. Empty lines at the end are none."""
    try:
        text = raw.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"prompts: {where} is no text in UTF-8 (byte {error.start})") from error
    lines = [line.removesuffix("\r") for line in text.rstrip("\r\n").split("\n")] if text.strip("\r\n") else []
    if not lines:
        raise UserError(f"prompts: {where} is empty; one prompt a line is right")
    if not all(line.startswith("{") for line in lines):
        return lines
    found = []
    for number, line in enumerate(lines, 1):
        try:
            prompt = json.loads(line)["prompt"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f'prompts: {where}, line {number}: has no prompt; {{"prompt": "Once"}} is right') from error
        found.append(str(prompt))
    return found


class _Screen:
    """Streams one generated text to the terminal."""

    def __init__(self, prompt: str) -> None:
        self.prompt, self.begun = prompt, False

    def stream(self, passage: int, text: str) -> None:
        if not self.begun:
            sys.stdout.write(self.prompt)
            self.begun = True
        sys.stdout.write(text)
        sys.stdout.flush()

    def end(self, passages: Sequence[Passage]) -> None:
        if not self.begun:
            for passage in passages:
                sys.stdout.write(str(passage))
        sys.stdout.write("\n")
        sys.stdout.flush()


def _blocks(passages: Sequence[Passage], count: int) -> None:
    """Prints several generated texts, each below its number."""
    prompts: list[str] = []
    for number, passage in enumerate(passages):
        if number % count == 0:
            prompts.append(passage.prompt)
        header = f"=== prompt {len(prompts)}" + (f", sample {number % count + 1} of {count}" if count > 1 else "")
        print(f"{header} ===\n{passage}\n")


@contextmanager
def _stop_on_interrupt() -> Iterator[list[int]]:
    """Ctrl-C stops and keeps what was generated until then; a second one ends at once."""
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
