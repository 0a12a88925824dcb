"""How quickly batches of sums are made ready for the model, on one core.

    python benchmarks/generation.py [--seconds 3]

One JSON line per measurement. The claim is that of the first two lines: additions of 1 to 20 digits each, every pair of
lengths equally often, held-out questions left out, grouped by length, as tensors with targets: at least 300,000
examples per second. Other tasks follow. The last lines are batches of additions made one example at a time in plain
Python, the way most projects do (no questions held out there); `ratio` is against it, at the same batch size.
"""

import argparse
import json
import random
import time
from collections.abc import Callable

import torch
from torch import Tensor

from numerate.config import Span
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.bitwise import BitwiseOr
from numerate.tasks.sorting import Sorting
from numerate.tasks.task import Task
from numerate.tokenizers.layout import Continuation
from numerate.tokenizers.tokenizer import Characters
from numerate.training.data_stream import BatchStream

IDS = {character: 4 + i for i, character in enumerate("0123456789+-x= ")}
PAD, END, IGNORE = 0, 3, -100
WINDOW = 64
OTHERS: dict[str, Task] = {
    "subtraction, 1 to 20 digits,": Arithmetic("-", digits=Span(1, 20)),
    "multiplication, 1 to 15 digits,": Arithmetic("x", digits=Span(1, 15)),
    "addition without carries, 1 to 20 digits,": Arithmetic(digits=Span(1, 20), no_carry=True),
    "sorting, 1 to 10 items of up to 10 digits,": Sorting(digits=Span(1, 10), items=Span(1, 10)),
    "sorting, 10 items of up to 10 digits,": Sorting(digits=10, items=10),
    "positional or, 1 to 20 bits,": BitwiseOr(digits=Span(1, 20)),
}


def plainly(seed: int, batch_size: int) -> Callable[[], tuple[Tensor, Tensor]]:
    """The same batches one example at a time: strings, a dictionary, lists, then tensors."""
    rng = random.Random(seed)
    held: list[list[tuple[list[int], int]]] = []
    drawn = 0

    def example() -> tuple[list[int], int]:
        nonlocal drawn
        first_digits, second_digits = 1 + drawn // 20 % 20, 1 + drawn % 20
        drawn += 1
        first = rng.randint(10 ** (first_digits - 1), 10**first_digits - 1)
        second = rng.randint(10 ** (second_digits - 1), 10**second_digits - 1)
        prompt = f"{str(first)[::-1]}+{str(second)[::-1]}="
        return [IDS[character] for character in prompt + str(first + second)[::-1]] + [END], len(prompt)

    def batch() -> tuple[Tensor, Tensor]:
        if not held:
            window = sorted((example() for _ in range(WINDOW * batch_size)), key=lambda row: len(row[0]))
            held.extend(window[i : i + batch_size] for i in range(0, len(window), batch_size))
            rng.shuffle(held)
        rows = held.pop()
        longest = max(len(ids) for ids, _ in rows) - 1
        inputs = [ids[:-1] + [PAD] * (longest - len(ids) + 1) for ids, _ in rows]
        targets = [[IGNORE] * (prompt - 1) + ids[prompt:] + [IGNORE] * (longest - len(ids) + 1) for ids, prompt in rows]
        return torch.tensor(inputs), torch.tensor(targets)

    return batch


def measure(make: Callable[[], object], batch_size: int, seconds: float) -> float:
    """Examples per second, over whole windows, the first of which is left out."""
    for _ in range(WINDOW):
        make()
    made, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(WINDOW):
            make()
        made += WINDOW * batch_size
    return made / (time.perf_counter() - start)


def streamed(task: Task, batch_size: int) -> Callable[[], object]:
    stream = BatchStream(task, Characters(), Continuation(), seed=0, batch_size=batch_size, window=WINDOW)
    place = 0

    def batch() -> object:
        nonlocal place
        made = stream.batch(place)
        place += batch_size
        return made

    return batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each measurement takes")
    seconds = parser.parse_args().seconds
    torch.set_num_threads(1)
    plain = {size: measure(plainly(0, size), size, seconds) for size in (64, 256)}
    for name, digits in (("1 to 20 digits", Span(1, 20)), ("20 digits", 20), ("100 digits", 100)):
        for size in (64, 256):
            speed = measure(streamed(Arithmetic(digits=digits), size), size, seconds)
            line = {"what": f"addition batches, {name}", "batch_size": size, "examples_per_second": round(speed)}
            if digits == Span(1, 20):
                line["ratio"] = round(speed / plain[size], 1)
            print(json.dumps(line), flush=True)
    for name, task in OTHERS.items():
        speed = measure(streamed(task, 256), 256, seconds)
        line = {"what": f"{name} batches", "batch_size": 256, "examples_per_second": round(speed)}
        print(json.dumps(line), flush=True)
    for size, speed in plain.items():
        line = {"what": "plain Python, 1 to 20 digits", "batch_size": size, "examples_per_second": round(speed)}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
