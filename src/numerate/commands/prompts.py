"""`ask`, `generate` and `maps`: what a run makes of a question or prompt."""

import codecs
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from numerate.config import expand_sweep
from numerate.config.differences import format_settings
from numerate.errors import UserError
from numerate.evaluation.completions import Completion
from numerate.results import style
from numerate.results.figures import token_label
from numerate.runs.run import Run, load
from numerate.terminal import output_width, wrapped
from numerate.training import disk
from numerate.training.output_files import write_output


def _with_each_setting(run: Run, settings: Sequence[str]) -> Iterator[tuple[Run, str]]:
    """A run with every combination of settings, and these as text; "" without any."""
    for choice in expand_sweep(settings):
        changed = run.with_settings(*choice)
        yield changed, (format_settings(changed.changed_settings) or "as trained") if settings else ""


def ask(
    address: str,
    *questions: str,
    settings: Sequence[str],
    checkpoint: str = "final",
    runs_dir: str | None = None,
    device: str | None = None,
) -> None:
    """Prints a model's answers, their probabilities, and the correct answers."""
    for run, settings_text in _with_each_setting(load(address, runs_dir, device), settings):
        suffix = f"   {settings_text}" * bool(settings_text)
        for question in questions:
            answer = run.ask(question, checkpoint)
            if run.recipe.task.is_language_modeling:
                print(f"{answer.model_text}{suffix}   (greedy decoding; `numerate generate` samples)")
                continue
            verdict, separator = "", "   "
            if answer.correct_answer is not None:
                verdict = "correct   " if answer.correct else f"wrong, correct: {answer.correct_answer}   "
                separator = "   " * (" " in answer.correct_answer)  # labels are aligned with their symbols
            answer_text = f"{answer.question}{separator}{answer.prediction or '(nothing)'}"
            probability = f"{verdict}probability {answer.probability:.1%}"
            written = f"   (as the model writes: {answer.model_text}){suffix}"
            print(wrapped(f"{answer_text}   {probability}{written}", output_width(), indent=4))


def generate(
    address: str,
    *words: str,
    settings: Sequence[str],
    prompts: str | None = None,
    out: str | None = None,
    count: int = 1,
    runs_dir: str | None = None,
    device: str | None = None,
    **options: Any,
) -> int:
    """Continues prompts, streamed if there is one; the other options are those of `Run.generate`."""
    run = load(address, runs_dir, device)
    texts = _read_prompts(words, prompts)
    if out is not None and not Path(out).absolute().parent.is_dir():
        raise UserError(f"out: the folder {Path(out).parent} must exist")
    records: list[dict[str, Any]] = []
    with _stop_on_interrupt() as signals:
        for changed, settings_text in _with_each_setting(run, settings):
            print(f"--- {settings_text}\n" * bool(settings_text), end="")
            stream = _TextStream(texts[0]) if len(texts) * count == 1 else None
            completions = changed.generate(
                texts,
                count=count,
                on_text=None if stream is None else stream.stream,
                should_stop=lambda: bool(signals),
                **options,
            )
            if stream is None:
                _print_completions(completions, count)
            else:
                print("" if stream.has_started else completions[0], flush=True)
            changes = {"settings": dict(changed.changed_settings)} if changed.changed_settings else {}
            records += [completion.record() | changes for completion in completions]
            if stopped := bool(signals):
                break
    if out is not None:
        write_output(out, b"".join(map(disk.json_line, records)))
        print(f"numerate: {len(records)} completions written to {out}", file=sys.stderr)
    if stopped:
        print("numerate: stopped; the text is incomplete", file=sys.stderr)
    return 130 if stopped else 0


def _read_prompts(words: Sequence[str], file: str | None) -> list[str]:
    """The prompts in `words`, in a file, or from standard input for `-`; one empty prompt if there are none."""
    prompts = list(words)
    if file == "-":
        prompts.append(file)
    elif file is not None:
        try:
            prompts += _parse_prompts(Path(file).expanduser().read_bytes(), file)
        except OSError as error:
            raise UserError(f"prompts: {file} cannot be read ({error.strerror})") from error
    while "-" in prompts:
        index = prompts.index("-")
        prompts[index : index + 1] = _parse_prompts(sys.stdin.buffer.read(), "standard input")
    return prompts or [""]


def _parse_prompts(raw: bytes, source: str) -> list[str]:
    """One prompt per line; for JSON lines, the field `prompt`. Empty lines at the end are ignored."""
    try:
        text = raw.removeprefix(codecs.BOM_UTF8).decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(f"prompts: {source} must be UTF-8 text (byte {error.start})") from error
    if not text:
        raise UserError(f"prompts: {source} is empty; must have one prompt per line")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if not all(line.startswith("{") for line in lines):
        return lines
    prompts = []
    for number, line in enumerate(lines, 1):
        try:
            prompts.append(str(json.loads(line)["prompt"]))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f'prompts: {source}, line {number}: must be an object with a prompt, such as {{"prompt": "Once"}}'
            ) from error
    return prompts


class _TextStream:
    """Streams one generated text to the terminal."""

    def __init__(self, prompt: str) -> None:
        self.prompt, self.has_started = prompt, False

    def stream(self, completion: int, text: str) -> None:
        print(text if self.has_started else f"{self.prompt}{text}", end="", flush=True)
        self.has_started = True


def _print_completions(completions: Sequence[Completion], count: int) -> None:
    """Prints several generated texts, each below its number."""
    for number, completion in enumerate(completions):
        sample = f", sample {number % count + 1} of {count}" * (count > 1)
        print(f"=== prompt {number // count + 1}{sample} ===\n{completion}\n")


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


def maps(
    address: str,
    prompt: str = "",
    *,
    settings: Sequence[str],
    layer: Sequence[int] | None = None,
    out: str | None = None,
    runs_dir: str | None = None,
    device: str | None = None,
    **options: Any,
) -> None:
    """Draws attention maps as a figure; the other options are those of `Run.maps`."""
    if out is not None:
        style.check_path(out)
    run = load(address, runs_dir, device).with_settings(*settings)
    found = run.maps(prompt, layers=layer, **options)
    answer = f", the answer from token {found.answer_start} on" if found.answer_start else ""
    print(f"{len(found.tokens)} tokens{answer}: {' '.join(map(token_label, found.tokens))}")
    print(style.save(found.figure(), out or run.path / "maps" / f"{found.file_stem}.png"))
