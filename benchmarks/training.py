"""How quickly a small decoder is trained, on one core, beside x-transformers at the same size.

    pip install x-transformers
    python benchmarks/training.py [--repetitions 15]

One JSON line per measurement. A step is forward, loss, backward and AdamW (fused, on both sides; no clipping) of a
decoder with 2 layers, width 128, 4 heads, rotary positions and a feed-forward of 4 widths with GELU, on batches of 64
additions, the loss over the answers. Tokens are real ones: padding is computed but not counted.

- `padded`: operands of 1 to 20 digits. x-transformers gets the examples in random order, padded to 64 (`to 64`) or to
  the longest of the batch (`to longest`); we get the batches that `BatchStream` makes, grouped by length.
- `equal`: 20 + 20 digits, all rows equally long, the very same tensors on both sides.

x-transformers runs without dropout and without a padding mask (causal attention needs none for padding on the right),
with plain attention and with `attn_flash=True`; `ratio` is against the faster of the two. Repetitions of all
contenders are interleaved; `ratio` is the median over repetitions. Time is the processor time of the process, which
other programs on the machine disturb less than the clock on the wall; with one thread the two are the same on an idle
machine (`ratio_by_the_wall`).
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from numerate.batch import IGNORE_INDEX, Batch, StepContext
from numerate.config import Span
from numerate.mixers.attention import Attention
from numerate.models.backbone import Stack
from numerate.models.decoder import Decoder
from numerate.positions.rotary import Rotary
from numerate.tasks.arithmetic import Arithmetic
from numerate.tokenizers.layout import Continuation
from numerate.tokenizers.tokenizer import Characters
from numerate.training.data_stream import BatchStream
from numerate.training.objective import Supervised
from numerate.training.optimizer import AdamW

WIDTH, LAYERS, HEADS, ROWS, LONGEST, BATCHES = 128, 2, 4, 64, 64, 8
TOKENIZER = Characters()
OURS, THEIRS = "numerate", "x-transformers"

Step = Callable[[int], int]
"""Trains on the n-th batch and returns its real tokens."""


def ours(batches: Sequence[Batch], asked_only: bool) -> Step:
    """A training step as the trainer takes it, without clipping and logging."""
    vocabulary = TOKENIZER.build_vocabulary(Arithmetic())
    spec = Decoder(
        hidden_size=WIDTH, backbone=Stack(num_layers=LAYERS), mixer=Attention(num_heads=HEADS), positions=(Rotary(),)
    )
    model = spec.build(vocabulary, seed=0)
    objective = Supervised(targets_only=asked_only).build(vocabulary)
    optimizer = AdamW().build(model, model.optimizer_options_by_parameter())

    def step(number: int) -> int:
        batch, draw = batches[number % len(batches)], StepContext(0, number)
        optimizer.zero_grad(set_to_none=True)
        batch = replace(batch, tokens=model.assign_positions(batch.tokens, draw))
        terms = objective(model, batch, draw)
        counts = objective.counts(batch)
        total = sum((terms[term] / counts[term] for term in terms), torch.zeros(()))
        total.backward()
        optimizer.step()
        return batch.num_input_tokens

    return step


def theirs(batches: Sequence[tuple[Tensor, Tensor, int]], flash: bool) -> Step:
    """The same with x-transformers: its decoder, plain cross-entropy over the answers, the same optimiser."""
    from x_transformers import Decoder as TheirDecoder
    from x_transformers import TransformerWrapper

    torch.manual_seed(0)
    layers = TheirDecoder(
        dim=WIDTH,
        depth=LAYERS,
        heads=HEADS,
        attn_dim_head=WIDTH // HEADS,
        attn_flash=flash,
        rotary_pos_emb=True,
        rotary_emb_dim=WIDTH // HEADS,
        ff_mult=4,
    )
    size = TOKENIZER.build_vocabulary(Arithmetic()).size
    model = TransformerWrapper(num_tokens=size, max_seq_len=LONGEST, attn_layers=layers, use_abs_pos_emb=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01, fused=True)

    def step(number: int) -> int:
        ids, targets, real = batches[number % len(batches)]
        optimizer.zero_grad(set_to_none=True)
        logits = model(ids)
        cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE_INDEX).backward()
        optimizer.step()
        return real

    return step


def grouped(task: Arithmetic) -> list[Batch]:
    """Batches as training gets them; a spread of lengths is in any few of them."""
    stream = BatchStream(task, TOKENIZER, Continuation(), seed=0, batch_size=ROWS, window=BATCHES)
    return [stream.batch(number * ROWS) for number in range(BATCHES)]


def in_random_order(task: Arithmetic, longest: int | None) -> list[tuple[Tensor, Tensor, int]]:
    """The same examples, not grouped, padded to a fixed length or to the longest row of each batch."""
    vocabulary = TOKENIZER.build_vocabulary(task)
    rows = TOKENIZER.encode_examples(task.examples("train", 0, 0, BATCHES * ROWS), vocabulary)
    order = np.random.default_rng(0).permutation(BATCHES * ROWS)
    batches = []
    for first in range(0, len(order), ROWS):
        chosen = order[first : first + ROWS]
        batch = Continuation().build_batch(rows.take(chosen), chosen)
        width = batch.tokens.ids.shape[1]
        more = 0 if longest is None else longest - width
        batches.append(
            (
                pad(batch.tokens.ids, (0, more)),
                pad(batch.targets, (0, more), value=IGNORE_INDEX),
                batch.num_input_tokens,
            )
        )
    return batches


def plain(batches: Sequence[Batch]) -> list[tuple[Tensor, Tensor, int]]:
    return [(batch.tokens.ids, batch.targets, batch.num_input_tokens) for batch in batches]


Speed = tuple[float, float]
"""Real tokens per second of processor time, and by the wall."""


def measure(steps: dict[str, Step], repetitions: int) -> dict[str, list[Speed]]:
    """The speed of each contender in each repetition; a repetition takes all of them, back and forth in turn."""
    speeds: dict[str, list[Speed]] = {name: [] for name in steps}
    for step in steps.values():
        step(0)
        step(1)
    for repetition in range(repetitions):
        for name in list(steps)[:: 1 if repetition % 2 == 0 else -1]:
            processor, wall = time.process_time(), time.perf_counter()
            real = sum(steps[name](number) for number in range(BATCHES))
            speeds[name].append((real / (time.process_time() - processor), real / (time.perf_counter() - wall)))
    return speeds


def middle(speeds: Sequence[Speed], clock: int) -> float:
    return statistics.median(speed[clock] for speed in speeds)


def report(batches: str, steps: dict[str, Step], repetitions: int, targets: dict[str, float]) -> None:
    """One line per contender; ours with the median over repetitions of the ratio to the faster form of theirs."""
    speeds = measure(steps, repetitions)
    best = max((name for name in steps if name.startswith(THEIRS)), key=lambda name: middle(speeds[name], 0))
    for name, found in speeds.items():
        line: dict[str, object] = {
            "benchmark": "training step",
            "batches": batches,
            "contender": name,
            "real_tokens_per_second": round(middle(found, 0)),
            "by_the_wall": round(middle(found, 1)),
        }
        if name in targets:
            ratios = [(own[0] / other[0], own[1] / other[1]) for own, other in zip(found, speeds[best], strict=True)]
            line |= {
                "against": best,
                "ratio": round(middle(ratios, 0), 2),
                "ratio_by_the_wall": round(middle(ratios, 1), 2),
                "at_least": targets[name],
            }
        print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=15)
    repetitions = parser.parse_args().repetitions
    torch.set_num_threads(1)
    mixed, long = Arithmetic(digits=Span(1, 20)), Arithmetic(digits=20)
    theirs_padded = {f"to {LONGEST}": in_random_order(mixed, LONGEST), "to longest": in_random_order(mixed, None)}
    ours_grouped, equal = grouped(mixed), grouped(long)
    forms = ((f"{OURS}", False), (f"{OURS} asked only", True))
    for padding, batches in theirs_padded.items():
        steps = {name: ours(ours_grouped, asked_only) for name, asked_only in forms}
        steps |= {f"{THEIRS}{' flash' * flash}": theirs(batches, flash) for flash in (False, True)}
        report(f"padded {padding}", steps, repetitions, {name: 1.4 for name, _ in forms})
    steps = {name: ours(equal, asked_only) for name, asked_only in forms}
    steps |= {f"{THEIRS}{' flash' * flash}": theirs(plain(equal), flash) for flash in (False, True)}
    report("equal", steps, repetitions, {forms[0][0]: 1.0, forms[1][0]: 1.3})


if __name__ == "__main__":
    main()
