"""How quick every mixer is by itself on one core, and how much memory it takes, at several lengths of rows.

    python benchmarks/mixers.py [--only Mamba LSTM] [--lengths 64 256 1024] [--tokens 4096] [--repetitions 3]

One JSON line per mixer and length, with its default settings: tokens per second of a forward and backward in float32
over rows of this length that hold `--tokens` tokens together; `megabytes`, what that holds at most beyond the mixer and
its input; and tokens per second of single steps, one token each for 8 rows behind a prefill of this length. Times are
processor time, the median over repetitions. Each line is measured in a process of its own.

The mixers do different work per token, so this is no ranking: it is there to be compared with another commit
(`benchmarks/against.py`), and for how each grows with the length.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from numerate.catalogue import all_classes
from numerate.mixers.mixer import Context, Mixer

STEP_ROWS, STEPS = 8, 16


def mixers() -> dict[str, type[Mixer]]:
    """All mixers by name, but the one that only alternates between others."""
    return {mixer.__name__: mixer for mixer in all_classes("Mixer") if mixer.__name__ != "Alternating"}


def highest_memory() -> int:
    """The most memory that this process has had so far, in kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def processor_seconds(work: Callable[[], None], repetitions: int) -> float:
    found = []
    for _ in range(repetitions):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return statistics.median(found)


def measure(name: str, length: int, tokens: int, width: int, repetitions: int) -> dict[str, object]:
    torch.manual_seed(0)
    mixer = mixers()[name]().build(width, 0, 1, ())
    rows = max(1, tokens // length)

    def train(rows: int, length: int) -> None:
        x = torch.randn(rows, length, width, requires_grad=True)
        mixer(x, Context(torch.full((rows,), length), ())).square().sum().backward()

    train(1, 8)
    before = highest_memory()
    train(rows, length)
    memory = highest_memory() - before
    seconds = processor_seconds(lambda: train(rows, length), repetitions)
    token, prompt = torch.randn(STEP_ROWS, 1, width), torch.randn(STEP_ROWS, length, width)
    with torch.no_grad():
        context = Context(torch.full((STEP_ROWS,), length), (), capacity=length + STEPS)
        _, state = mixer.eval().prefill(prompt, context)

    @torch.no_grad()
    def decode() -> None:
        nonlocal state
        for number in range(STEPS):
            lengths = torch.full((STEP_ROWS,), length + number)
            context = Context(lengths + 1, (), cache_position=lengths, cached_length=length + number + 1)
            _, state = mixer.step(token, context, state)

    decode()
    return {
        "benchmark": f"mixer, {length} tokens",
        "contender": name,
        "width": width,
        "tokens_per_second": round(rows * length / seconds),
        "megabytes": round(memory / 1e3, 1),
        "generated_tokens_per_second": round(STEP_ROWS * STEPS / processor_seconds(decode, repetitions)),
    }


def print_measurement(name: str, length: int, tokens: int, width: int, repetitions: int) -> None:
    """Prints a line from a child process, whose memory begins with that of this one."""
    child = os.fork()
    if child == 0:
        print(json.dumps(measure(name, length, tokens, width, repetitions)), flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise SystemExit("a measurement failed; its error is above")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=mixers(), metavar="MIXER")
    parser.add_argument("--lengths", nargs="*", type=int, default=(64, 256, 1024))
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of all rows of a forward")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.only or mixers():
        for length in given.lengths:
            print_measurement(name, length, given.tokens, given.width, given.repetitions)


if __name__ == "__main__":
    main()
